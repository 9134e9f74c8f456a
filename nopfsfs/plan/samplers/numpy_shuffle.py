"""Programs that shuffle their list of files with numpy: `Generator` and `RandomState`.

numpy's own functions are called, so orders are those of the installed numpy. Orders have been the same since numpy 1.17
for Generator, and are frozen for RandomState (NEP 19). `permutation(n)`, `permutation(list)` and `shuffle` of a list or
of an array of any type draw alike, on both generators. `Generator.choice(n, n, replace=False)` does not, and is not
here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import epoch_seeding
from nopfsfs.plan.samplers.sampler import Option, Sampler, Spec

Shuffler = np.random.Generator | np.random.RandomState


class Numpy(Sampler):
    """`np.random.default_rng(seed)`: `permutation(n)`, or `shuffle(files)`. Option: `carry`."""

    name = "numpy"
    costly = True
    summary = "numpy.random.default_rng(seed).permutation(n), or .shuffle(files)"
    seeds = (0, 2**64 - 1)
    options: Mapping[str, Option] = {"carry": epoch_seeding.option(epoch_seeding.STREAM)}

    def _generator(self, seed: int) -> Shuffler:
        return np.random.default_rng(seed)

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of this epoch. A head costs as much as the whole, for numpy fills a permutation from its end. With
        `carry` "stream" and "shuffle" all epochs before it are drawn too: 15 to 20 ms each for a million samples."""
        kind = str(spec.get("carry", epoch_seeding.STREAM))
        before = epoch if kind in (epoch_seeding.STREAM, epoch_seeding.SHUFFLE) else 0
        generator = self._generator(spec.seed + epoch if kind == epoch_seeding.ADD else spec.seed)
        order: NDArray[np.int64] = np.arange(n, dtype=np.int64)
        for _ in range(before):
            generator.shuffle(order)
        if kind == epoch_seeding.STREAM:
            order[:] = np.arange(n)  # what was drawn moved the generator only
        generator.shuffle(order)
        return order if count is None or count >= n else order[:count].copy()

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """A new permutation each epoch, a new generator each epoch, a list that is shuffled on."""
        kinds, usual = epoch_seeding.KINDS[:3], super().variants(seed)
        return tuple(epoch_seeding.with_kind(spec, kind, epoch_seeding.STREAM) for spec in usual for kind in kinds)

    def epochs(self, spec: Spec) -> int:
        """A few of one generator; more of seed + epoch."""
        return epoch_seeding.epochs(str(spec.get("carry", epoch_seeding.STREAM)))

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch, also in the other ways to carry on after the first; the same again; the first."""
        return epoch_seeding.following(spec, epoch, epoch_seeding.STREAM)


class NumpyLegacy(Numpy):
    """`np.random.RandomState(seed)`, or `np.random.seed(seed)` and then `np.random.shuffle` or `permutation` with
    nothing else drawn in between. Option: `carry`."""

    name = "numpy_legacy"
    costly = True
    summary = "numpy.random.seed(seed) or RandomState(seed), then permutation(n) or shuffle(files)"
    seeds = (0, 2**32 - 1)

    def _generator(self, seed: int) -> Shuffler:
        return np.random.RandomState(seed)

    def epochs(self, spec: Spec) -> int:
        """The number of epochs as of numpy's Generator, but seed + epoch has to be a seed."""
        usual = super().epochs(spec)
        adds = spec.get("carry", epoch_seeding.STREAM) == epoch_seeding.ADD
        return min(usual, self.seeds[1] - spec.seed + 1) if adds else usual

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The epochs that follow with numpy's Generator, but seed + epoch has to be a seed."""
        return tuple(
            (after, at)
            for after, at in super().following(spec, epoch)
            if after.get("carry", epoch_seeding.STREAM) != epoch_seeding.ADD or after.seed + at <= self.seeds[1]
        )


FAMILIES: tuple[Sampler, ...] = (Numpy(), NumpyLegacy())
