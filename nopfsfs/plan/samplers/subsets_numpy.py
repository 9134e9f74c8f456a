"""Parts of a list of files: the splits of Hugging Face datasets and of scikit-learn, and plain cuts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers.sampler import Option, Spec, Subset

_SIZES = (0.2, 0.1, 0.25, 0.3, 0.15)
_PARTS = ("train", "test")
# What scikit-learn and datasets take when neither size is given.
_DEFAULT_SIZE = 0.25


class _Split(Subset):
    """A permutation; its beginning is the test part, all after it the training part.

    Options: `test_size`, a share below 1 or a number of files from 1 on; `part`. (One file alone is the number 1: a
    share of all files is refused by both libraries.)
    """

    options: Mapping[str, Option] = {
        "test_size": Option("share (below 1) or number of the test files", float, _DEFAULT_SIZE, least=1e-9),
        "part": Option("which part is read", str, "train", choices=_PARTS),
    }

    @abstractmethod
    def _permutation(self, seed: int, n: int) -> NDArray[np.int64]: ...

    def samples(self, spec: Spec, n: int) -> NDArray[np.int64]:
        """int64[m], in the order of the permutation. Raises ValueError: a part that would be empty, or no number."""
        size = float(spec.get("test_size", _DEFAULT_SIZE))
        if size >= 1 and size != int(size):
            raise ValueError(f"test_size: {size} is neither a share nor a number of files")
        test = ceil(size * n) if size < 1 else int(size)
        if not 0 < test < n:
            raise ValueError(f"test_size: {size:g} of {n} files leaves a part empty")
        order = self._permutation(spec.seed, n)
        part = order[:test] if spec.get("part", "train") == "test" else order[test:]
        return np.ascontiguousarray(part)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The usual sizes, the training part of each first."""
        assert self.seeds is not None
        if not self.seeds[0] <= seed <= self.seeds[1]:
            return ()
        sizes = [(("test_size", size),) if size != _DEFAULT_SIZE else () for size in _SIZES]
        return tuple(
            Spec(self.name, seed, (("part", part), *size) if part != "train" else size)
            for size in sizes
            for part in _PARTS
        )


class HfSplit(_Split):
    """`Dataset.train_test_split(test_size, seed=seed)` of datasets 5.2 (`arrow_dataset.py`)."""

    name = "hf_split"
    summary = "datasets.Dataset.train_test_split(test_size, seed)"
    seeds = (0, 2**64 - 1)

    def _permutation(self, seed: int, n: int) -> NDArray[np.int64]:
        order: NDArray[np.int64] = np.random.default_rng(seed).permutation(n)
        return order


class SklearnSplit(_Split):
    """`train_test_split(files, test_size, random_state=seed)` of scikit-learn (`model_selection/_split.py`), and
    `ShuffleSplit`'s first split. Without random_state it cannot be known."""

    name = "sklearn_split"
    summary = "sklearn.model_selection.train_test_split(files, test_size, random_state)"

    def _permutation(self, seed: int, n: int) -> NDArray[np.int64]:
        return np.random.RandomState(seed).permutation(n)


class Fraction(Subset):
    """A contiguous part: `files[:int(share * n)]`, or the rest. Options: `share` (of the beginning), `part`."""

    name = "fraction"
    summary = "files[:int(share * n)], or files[int(share * n):]"
    seeds = None
    options: Mapping[str, Option] = {
        "share": Option("share of the files that the beginning has", float, 0.8, least=1e-9, most=1),
        "part": Option("the beginning or the rest", str, "beginning", choices=("beginning", "rest")),
    }

    def samples(self, spec: Spec, n: int) -> NDArray[np.int64]:
        """int64[m], in order. Raises ValueError when it is empty."""
        cut = int(float(spec.get("share", 0.8)) * n)
        first, last = (0, cut) if spec.get("part", "beginning") == "beginning" else (cut, n)
        if first == last:
            raise ValueError(f"share: that part of {n} files is empty")
        return np.arange(first, last, dtype=np.int64)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The usual shares, both parts."""
        shares = [(("share", share),) if share != 0.8 else () for share in (0.8, 0.9, 0.7, 0.75, 0.5, 0.95)]
        rests = [(("part", "rest"), *share) for share in shares]
        return tuple(Spec(self.name, 0, options) for pair in zip(shares, rests, strict=True) for options in pair)


SUBSETS: tuple[Subset, ...] = (HfSplit(), SklearnSplit(), Fraction())
