"""A data set, and a training on it, to simulate. The cluster is `performance.model.Cluster`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SIZES_SEED = 0x5A5  # of the sizes; the order has the training's seed


@dataclass(frozen=True, slots=True)
class SimDataSet:
    """`samples` F of sizes Normal(`mean`, `sigma`), bytes, drawn again below 0; or those of `sizes`, i64[F]."""

    name: str
    samples: int
    mean: float
    sigma: float = 0.0
    sizes: NDArray[np.int64] | None = field(default=None, compare=False)

    def draw(self) -> NDArray[np.int64]:
        """The size of each sample, bytes, at least 1: i64[F]. Callers must not write to it."""
        if self.sizes is not None:
            return self.sizes
        if self.sigma == 0:
            return np.full(self.samples, max(1, round(self.mean)), np.int64)
        rng = np.random.default_rng(SIZES_SEED)
        drawn = rng.normal(self.mean, self.sigma, self.samples)
        while len(below := np.flatnonzero(drawn < 0)):
            drawn[below] = rng.normal(self.mean, self.sigma, len(below))
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of a training. `epochs` E; `batch`: samples of one rank in a step; `drop_last`: leave out samples that
    fill no step of all ranks."""

    epochs: int
    batch: int
    drop_last: bool = True
    seed: int = 42

    @property
    def entropy(self) -> int:
        """The seed in the form that numpy takes: never negative."""
        return self.seed % 2**64
