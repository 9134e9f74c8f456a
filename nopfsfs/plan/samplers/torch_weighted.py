"""`WeightedRandomSampler` with a weight for each class, bit for bit.

Reproduces `WeightedRandomSampler` (`torch/utils/data/sampler.py`) with replacement, and `torch.multinomial` on the CPU
(`multinomial_with_replacement_apply`, `aten/src/ATen/native/cpu/MultinomialKernel.cpp`), torch 1.0 to 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Option, Sampler, Spec
from nopfsfs.plan.samplers.torch import DROP_BATCH, SEED_WORDS, SEEDS, STATE, num_samples, stream
from nopfsfs.plan.samplers.torch_global import STEPS, USUAL_STEP, Global, step_of, with_step

# A sample takes a random double, which is two words.
_WORDS = 2
_MANTISSA = 53
INVERSE, INVERSE_FLOAT, INVERSE_SQRT = "inverse", "inverse_float", "inverse_sqrt"
KINDS = (INVERSE, INVERSE_FLOAT, INVERSE_SQRT)


class Weighted(Sampler):
    """`WeightedRandomSampler(weights, num_samples)` with a weight for each class, which depends on how many files it
    has, and with replacement.

    The sampler draws from torch's global generator, or from one of its own. In epoch e the draw begins at word `offset`
    + 2 + e * (2 * samples + `step` - 2). Options: `offset`: words drawn before the first epoch's loader is iterated; -2
    for a generator that the loader does not use. Making the iterator draws 2, its base seed. `step`: 2 more than the
    words that others draw between two epochs (4; for a generator of its own 2). `weights`: "inverse": 1 / files of the
    class, as Python's numbers; "inverse_float": the same in float32; "inverse_sqrt": its square root. `classes`: how
    many files each class has, in the order in which they are listed; filled in from the listing.
    """

    name = "weighted"
    summary = "torch.utils.data.WeightedRandomSampler with weights by class"
    files = ("image_folder",)
    seeds = SEEDS
    tried = Global.tried
    by_class = True
    options: Mapping[str, Option] = {
        "offset": Global.options["offset"],
        "step": Option("2 more than the words that others draw between two epochs", default=USUAL_STEP, least=2),
        "weights": Option("how a weight depends on the files of its class", str, INVERSE, choices=KINDS),
        "classes": Option("files of each class, as 1300,732; else as they are listed", str, ""),
        "num_samples": Option("samples an epoch; 0: as many as there are", least=0),
        **DROP_BATCH,
        "state": STATE,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The samples of this epoch, num_samples of them. Costs the words before: about 4 ms a million.

        Raises ValueError: classes that do not have n files together, a place before the stream.
        """
        total = num_samples(spec, n)
        begin = spec.number("offset") + SEED_WORDS + epoch * (_WORDS * total + step_of(spec) - SEED_WORDS)
        if begin < 0:
            raise ValueError(f"offset: epoch {epoch} would begin at word {begin}")
        edges = cumulative(str(spec.get("classes", "")), str(spec.get("weights", INVERSE)))
        if len(edges) != n:
            raise ValueError(f"classes: they have {len(edges)} files, not {n}")
        count = total if count is None else min(count, total)
        return samples(edges, torch_generator.words(stream(spec, begin), _WORDS * count))

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """On the global generator right after manual_seed; on one of its own."""
        return Spec(self.name, seed), Spec(self.name, seed, (("offset", -SEED_WORDS), ("step", SEED_WORDS)))

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other weights. Other offsets are left out, because each sample has words of its own. With two words more the
        order is the same without its first sample. What a loader's second worker opens looks like the beginning of such
        an order."""
        return tuple(one.with_option("weights", kind) for kind in KINDS[1:] for one in self.variants(seed))

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch after the step that was seen last, then after others; the same again; the first again."""
        steps = (other for other in STEPS if other != step_of(spec))
        nexts = [(spec, epoch + 1), *((with_step(spec, epoch, step), epoch + 1) for step in steps)]
        return tuple(dict.fromkeys((*nexts[:6], (spec, epoch), (spec, 0))))


def samples(edges: NDArray[np.float64], words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The draws of `torch.multinomial` from these words, uint32[2 m]; int64[m]. `edges`: of `cumulative`."""
    low = words[1::2].astype(np.uint64)
    high = words[::2].astype(np.uint64) << np.uint64(32)
    uniform = ((high | low) & np.uint64((1 << _MANTISSA) - 1)).astype(np.float64) * 2.0**-_MANTISSA
    found: NDArray[np.int64] = np.searchsorted(edges, uniform).astype(np.int64)
    return found


@lru_cache(maxsize=4)
def cumulative(classes: str, kind: str) -> NDArray[np.float64]:
    """Up to where each sample reaches in 0..1, float64[n], the last 1. Raises ValueError: no numbers of files."""
    try:
        sizes = np.array([int(word) for word in classes.split(",")], np.int64)
    except ValueError:
        raise ValueError(f"classes: {classes[:40]!r} is not numbers of files separated by commas") from None
    if sizes.min() < 0 or not sizes.any():
        raise ValueError("classes: they have no files")
    sizes = sizes[sizes > 0]
    if kind == INVERSE_FLOAT:
        weights = (np.float32(1) / sizes.astype(np.float32)).astype(np.float64)
    else:
        weights = 1.0 / (np.sqrt(sizes) if kind == INVERSE_SQRT else sizes)
    edges: NDArray[np.float64] = np.cumsum(np.repeat(weights, sizes))
    edges /= edges[-1]
    edges[-1] = 1.0
    edges.flags.writeable = False
    return edges


FAMILIES: tuple[Sampler, ...] = (Weighted(),)
