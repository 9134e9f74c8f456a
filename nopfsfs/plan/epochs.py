"""One epoch of one hypothesis as tables: position -> row and row -> position.

Owns the arithmetic between rows, samples and positions. A *merged* position counts the accesses of all local
ranks, interleaved place by place: place q of the i-th of L local ranks is the merged position q * L + i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import registry
from nopfsfs.plan.spec import Spec

# The definition of "predicted": how far ahead of the reader counts as foreseen when the loader is not known.
DEFAULT_K = 1024
DEFAULT_SHARE = 20  # at most one part in this many of the epoch


@dataclass(frozen=True, eq=False)
class DataSet:
    """A subtree and the orders in which a loader may enumerate its files.

    `orders`: (name, rows int64[n]) pairs, likeliest first; rows[s] is the row of sample s.
    """

    key: int
    name: str
    orders: tuple[tuple[str, NDArray[np.int64]], ...]


@dataclass(frozen=True)
class Hypothesis:
    """What is believed: which order of which data set, which sampler in which epoch, which ranks read here.

    `dataset` and `order` are indices into the follower's data sets and that data set's orders.
    """

    dataset: int
    order: int
    spec: Spec
    epoch: int = 0
    world: int = 1
    ranks: tuple[int, ...] = (0,)


def window(length: int, inflight: int | None = None) -> int:
    """K of an epoch of `length` accesses of one rank: `inflight` (workers x prefetch x batch + batch) where
    known, else at most 1,024 and at most 5 % of the epoch; at least 1."""
    if inflight is not None:
        return max(1, inflight)
    return max(1, min(DEFAULT_K, length // DEFAULT_SHARE))


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The accesses of all local ranks in one epoch.

    `rows` int32 or int64[m]: merged position -> row. `place`: row - `base` -> its first merged position, -1
    for none. `again`: merged position -> the next position of the same row, -1 for none; None when no row
    occurs twice. The two are memoryviews of int32 because a single look-up in those is three times faster
    than in an array.
    """

    hypothesis: Hypothesis
    rows: NDArray[np.int32] | NDArray[np.int64]
    base: int
    place: memoryview = field(repr=False)
    again: memoryview | None = field(repr=False)

    @property
    def length(self) -> int:
        """Accesses, all local ranks together."""
        return len(self.rows)

    def find(self, row: int) -> int:
        """The first merged position of a row, -1 when this epoch does not read it."""
        i = row - self.base
        return int(self.place[i]) if 0 <= i < len(self.place) else -1


def build(hypothesis: Hypothesis, datasets: Sequence[DataSet]) -> EpochOrder:
    """Computes the tables of one epoch. Takes about 0.3 s and 13 bytes to keep for a million accesses;
    pure."""
    files = datasets[hypothesis.dataset].orders[hypothesis.order][1]
    family = registry.sampler(hypothesis.spec.sampler)
    samples = family.order(hypothesis.spec, len(files), hypothesis.epoch, hypothesis.world, hypothesis.ranks)
    rows = files[samples]
    del samples
    if len(rows) == 0:
        return EpochOrder(hypothesis, rows, 0, np.zeros(0, np.int32).data, None)
    base, top = int(rows.min()), int(rows.max())
    kept = rows.astype(np.int32) if top < 2**31 else rows
    place = np.full(top - base + 1, -1, dtype=np.int32)
    # numpy keeps the last value when an index is repeated: going backwards, that is the first position
    place[rows[::-1] - base] = np.arange(len(rows) - 1, -1, -1, dtype=np.int32)
    return EpochOrder(hypothesis, kept, base, place.data, _repeats(rows - base, place))


def _repeats(offsets: NDArray[np.int64], place: NDArray[np.int32]) -> memoryview | None:
    """Links every position to the next one of the same row, when any row is read twice (padding, hard
    links)."""
    later = np.flatnonzero(place[offsets] != np.arange(len(offsets)))
    if not len(later):
        return None
    repeated = np.zeros(len(place), dtype=bool)
    repeated[offsets[later]] = True
    positions = np.flatnonzero(repeated[offsets])
    positions = positions[np.argsort(offsets[positions], kind="stable")]
    same = offsets[positions[1:]] == offsets[positions[:-1]]
    again = np.full(len(offsets), -1, dtype=np.int32)
    again[positions[:-1][same]] = positions[1:][same]
    return again.data
