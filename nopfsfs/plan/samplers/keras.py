"""Keras' data sets of a directory, bit for bit: Keras 2.12 to 3.15 (`utils/image_dataset_utils.py`,
`utils/dataset_utils.py`), on tf.data.

The tests compare with the real data sets. Does not import Keras.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import tensorflow
from nopfsfs.plan.samplers.sampler import Option, Sampler, Spec, Value

# What numpy's RandomState takes, which Keras seeds.
NUMPY_SEEDS = (0, 2**32 - 1)
# Keras draws the seed that it is not given below this number.
_DRAWN_BELOW = 10**6
# The buffer of the shuffle in batches, and without batches.
_BUFFER_BATCHES = 8
_BUFFER_UNBATCHED = 1024


class KerasDirectory(tensorflow.Shuffled):
    """`keras.utils.image_dataset_from_directory(shuffle=True, seed, validation_split, subset, batch_size)`.

    Options: `validation_split` (0: none), `subset` of it, `batch`, `unbatched` (1: batch_size=None). `seeded`: "op"
    (seed=seed), "both" (seed=seed after set_seed(global_seed)), or "drawn". "drawn": keras.utils.set_random_seed(seed)
    and no seed=, which Keras then draws from numpy; `op_index`: calls before this one. `fixed`: 1 where the files are
    read in the order of the list in every epoch. Keras 2.12 and before do so, which shuffle the decoded images, and so
    does the validation part of subset="both". `pair`, `step` as for tf.data's shuffle.
    """

    name = "keras_directory"
    costly = True
    summary = "Keras: image_dataset_from_directory, shuffled"
    files = ("keras_images", "image_folder", "sorted_files")
    seeds = NUMPY_SEEDS
    options: Mapping[str, Option] = {
        "validation_split": Option("validation_split; 0: none", float, 0.0, least=0, most=0.9999),
        "subset": Option("subset, with a validation_split", str, "training", choices=("training", "validation")),
        "batch": Option("batch_size", default=32, least=1),
        "unbatched": Option("batch_size=None", bool),
        "fixed": Option("read in the order of the list in every epoch: Keras 2, validation of subset='both'", bool),
        "seeded": Option(
            "who has the seed: seed=; set_seed and seed=; set_random_seed alone",
            str,
            "op",
            choices=("op", "both", "drawn"),
        ),
        "global_seed": Option(
            "tf.random.set_seed, with seeded = both", least=tensorflow.SEEDS[0], most=tensorflow.SEEDS[1]
        ),
        "op_index": Option("calls since set_random_seed, with seeded = drawn", least=0, most=10**6),
        **tensorflow.PAIRED,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The samples of the subset. Every head costs numpy's whole shuffle of the list. Raises ValueError: a subset
        without files."""
        seed, seeds = self._seeds(spec)
        listed = np.arange(n, dtype=np.int64)
        np.random.RandomState(seed).shuffle(listed)
        part = self._part(spec, listed)
        if spec.number("fixed"):
            return part[:count]
        buffer = _BUFFER_UNBATCHED if spec.number("unbatched") else _BUFFER_BATCHES * int(spec.get("batch", 32))
        own = tensorflow.iterator_seeds(seeds, self._pair(spec, epoch))
        return part[tensorflow.shuffled(own, len(part), buffer, count)]

    def _seeds(self, spec: Spec) -> tuple[int, tuple[int, int]]:
        """The seed= of the call, and the seeds of its shuffle."""
        seeded = spec.get("seeded", "op")
        if seeded == "drawn":
            draws = np.random.RandomState(spec.seed).randint(_DRAWN_BELOW, size=spec.number("op_index") + 1)
            return int(draws[-1]), tensorflow.avoid_zeros(spec.seed, int(draws[-1]))
        above = spec.number("global_seed") if seeded == "both" else tensorflow.DEFAULT_GRAPH_SEED
        return spec.seed, tensorflow.avoid_zeros(above, spec.seed)

    def _part(self, spec: Spec, listed: NDArray[np.int64]) -> NDArray[np.int64]:
        """`dataset_utils.get_training_or_validation_split`: the end of the list is for validation."""
        split = float(spec.get("validation_split", 0.0))
        if not split:
            return listed
        held = int(split * len(listed))
        if spec.get("subset", "training") == "validation":
            return listed[-held:]
        if not held:  # Keras then cuts at -0, and refuses what is left: nothing
            raise ValueError(f"validation_split: {split:g} of {len(listed)} files is none")
        return listed[:-held]

    def epochs(self, spec: Spec) -> int:
        """Fewer than for others: each costs the whole shuffle."""
        return 1 if self._repeats(spec) else 4

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """With a fifth for validation and without, for each of the ways to seed.

        All files before the part for training: their orders begin alike, and of all files more is foreseen.
        """
        training: dict[str, Value] = {"validation_split": 0.2}
        validation: dict[str, Value] = {"validation_split": 0.2, "subset": "validation"}
        usual: tuple[dict[str, Value], ...] = (
            {},
            training,
            validation,
            {**validation, "fixed": 1},
            {"seeded": "drawn"},
            {**training, "seeded": "both", "global_seed": seed},
            {**validation, "seeded": "both", "global_seed": seed},
        )
        return self._specs(seed, usual)

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other fractions, other batches, Keras 2."""
        parts: list[dict[str, Value]] = [
            {"validation_split": split, "subset": subset}
            for split in (0.2, 0.1, 0.25, 0.3)
            for subset in ("training", "validation")
        ]
        fixed: list[dict[str, Value]] = [{**part, "fixed": 1} for part in ({}, parts[0], *parts[2:])]
        drawn: list[dict[str, Value]] = [{"seeded": "drawn", "batch": batch} for batch in (64, 16, 128, 256)]
        more: list[dict[str, Value]] = [
            *parts[2:],
            *({**part, "batch": batch} for batch in (64, 16, 128, 256) for part in (*parts[:2], {})),
            *fixed,
            {"seeded": "both", "global_seed": seed},
            {"seeded": "drawn", "op_index": 1},
            *drawn,
            {"unbatched": 1},
        ]
        return self._specs(seed, more)


FAMILIES: tuple[Sampler, ...] = (KerasDirectory(),)
