"""The parts of a data set that tf.data programs split off by hand. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import tensorflow
from nopfsfs.plan.samplers.sampler import Option, Spec, Subset, Value


class TakeSkip(Subset):
    """`files.take(k)` or `files.skip(k)` with k = int(fraction * n), of the files in order or after
    `shuffle(n, seed, reshuffle_each_iteration=False)`.

    Options: `fraction`, `part`; `in_order` (1: not shuffled before); `seeded`, `global_seed`, `op_index`: whose seed
    the shuffle has, as for `tf_shuffle`.
    """

    name = "tf_take_skip"
    summary = "tf.data: Dataset.take and Dataset.skip, of the files in order or shuffled once"
    seeds = tensorflow.SEEDS
    options: Mapping[str, Option] = {
        "fraction": Option("k as a fraction of the files", float, 0.8, least=1e-6, most=1),
        "part": Option("take(k) or skip(k)", str, "take", choices=("take", "skip")),
        "in_order": Option("not shuffled before", bool),
        **tensorflow.SEEDED,
    }

    def samples(self, spec: Spec, n: int) -> NDArray[np.int64]:
        """The first int(fraction * n) files of the order, or the others."""
        if spec.number("in_order"):
            files = np.arange(n, dtype=np.int64)
        else:
            files = tensorflow.shuffled(tensorflow.op_seeds(spec), n)
        k = int(float(spec.get("fraction", 0.8)) * n)
        return files[:k] if spec.get("part", "take") == "take" else files[k:]

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Four fifths and the rest, either first; shuffled, with either seed, and in order."""
        low, high = tensorflow.SEEDS
        if not low <= seed <= high:
            return ()
        how: tuple[dict[str, Value], ...] = ({}, {"in_order": 1}, {"seeded": "global"})
        parts: tuple[dict[str, Value], ...] = (
            {},
            {"part": "skip"},
            {"fraction": 0.2, "part": "skip"},
            {"fraction": 0.2},
        )
        return tuple(Spec(self.name, seed, tuple(sorted({**one, **part}.items()))) for one in how for part in parts)


SUBSETS: tuple[Subset, ...] = (TakeSkip(),)
