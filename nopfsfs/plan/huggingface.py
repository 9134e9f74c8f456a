"""Hugging Face datasets: `Dataset.shuffle(seed)` of datasets 5.2 (`arrow_dataset.py`). Does not import datasets.

Images are decoded when a row is looked at, so that files are opened in this order by a loader that goes through the
data set; a loader with a sampler of its own opens them in that sampler's order over this one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.spec import Sampler, Spec


class HfDatasets(Sampler):
    """`Dataset.shuffle(seed)`: `np.random.default_rng(seed).permutation(n)`, drawn once."""

    name = "hf_datasets"
    summary = "datasets.Dataset.shuffle(seed)"
    files = ("hf_imagefolder", "sorted_files", "image_folder")
    seeds = (0, 2**64 - 1)

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The same in every epoch. A head costs as much as the whole."""
        order: NDArray[np.int64] = np.random.default_rng(spec.seed).permutation(n)
        return order if count is None or count >= n else order[:count].copy()

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """None: `numpy` tries the same order, of which it knows that it may be repeated."""
        return ()

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """Every epoch is the same."""
        return ((spec, epoch + 1),)


FAMILIES: tuple[Sampler, ...] = (HfDatasets(),)
