"""The tables of one epoch of a hypothesis: position -> row and row -> position.

Owns the arithmetic between rows, samples and positions. A *merged* position counts the accesses of all local ranks,
interleaved place by place. Place q of the i-th of L local ranks is the merged position q * L + i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, Spec

# The definition of "predicted": how far ahead of the reader counts as foreseen when the loader is not known.
DEFAULT_K = 1024
DEFAULT_SHARE = 20  # at most one part in this many of the epoch
LEAST_K, LEAST_SHARE = 8, 4  # two workers that load single files are so far apart; as above

# Orders of so many files are computed at once when needed (some 50 ms); of more by a job in another thread.
INLINE = 200_000


@dataclass(frozen=True, eq=False)
class FileOrder:
    """The files of a data set as a loader lists them. `names`: of `dataset/file_orders.py`; several enumerate alike.
    `rows` integer[n]: rows[s] is the row of sample s. `classes`: how many files each class has, one class after the
    other, as the samplers' option `classes` has it; "" without classes."""

    names: tuple[str, ...]
    rows: NDArray[np.integer[Any]]
    classes: str = ""


@dataclass(frozen=True, eq=False)
class DataSet:
    """A subtree and the orders in which a loader may enumerate its files, likeliest first."""

    key: int
    name: str
    orders: tuple[FileOrder, ...]


@dataclass(frozen=True)
class Hypothesis:
    """A plan that may be read: which order of which data set, which sampler in which epoch, which ranks read here.

    `dataset` and `order` are indices into the follower's data sets and that data set's orders. `subset`: the rule by
    which only a part of the files is read.
    """

    dataset: int
    order: int
    spec: Spec
    epoch: int = 0
    world: int = 1
    ranks: tuple[int, ...] = (0,)
    subset: Spec | None = None


@dataclass(frozen=True)
class Proof:
    """The proof of a certain plan. `opens`: those of its readers after which it was certain; `bits`: the evidence then,
    less the bits that name it."""

    opens: int
    bits: float
    of: Hypothesis


def successor(hypothesis: Hypothesis, *, repeats: bool = False) -> Hypothesis:
    """The epoch that is thought to follow."""
    if repeats:
        return hypothesis
    here = hypothesis.spec
    spec, epoch = registry.sampler(here.sampler).following(here, hypothesis.epoch)[0]
    return replace(hypothesis, spec=spec, epoch=epoch)


def same_order(a: Hypothesis, b: Hypothesis) -> bool:
    """True: both epochs are dealt out of one order of the same files."""
    return (a.dataset, a.order, a.subset, a.epoch) == (b.dataset, b.order, b.subset, b.epoch) and undealt(
        a.spec
    ) == undealt(b.spec)


def same_stream(a: Hypothesis, b: Hypothesis) -> bool:
    """True: both are one merged stream. Where all ranks read here, the world size changes its last places only."""
    return a == b or (replace(a, world=b.world, ranks=b.ranks) == b and _whole(a) and _whole(b))


def _whole(hypothesis: Hypothesis) -> bool:
    return hypothesis.ranks == tuple(range(hypothesis.world))


def undealt(spec: Spec) -> tuple[object, ...]:
    """The marks by which an order differs from others, whoever deals it out."""
    if spec.sampler == "sequential" or spec.number("sequential"):
        return ("sequential",)
    dealt = {"hf_trainer": "distributed", "tf_shuffle_shard": "tf_shuffle"}
    options = tuple(pair for pair in spec.options if pair[0] not in ("batch", "uneven", "drop_last", STRIDED))
    return dealt.get(spec.sampler, spec.sampler), spec.seed, options


def files_of(hypothesis: Hypothesis, datasets: Sequence[DataSet]) -> NDArray[np.integer[Any]]:
    """The row of each sample, integer[n]."""
    rows = datasets[hypothesis.dataset].orders[hypothesis.order].rows
    if hypothesis.subset is None:
        return rows
    return rows[registry.subset(hypothesis.subset.sampler).samples(hypothesis.subset, len(rows))]


def window(length: int, inflight: int | None = None) -> int:
    """K of an epoch of `length` accesses of one rank. Where `inflight` (workers x prefetch x batch + batch) is known, K
    is `inflight`. Else K is at most 1,024 and at most 5 % of the epoch. But K is at least 8, or a quarter of a shorter
    epoch, and at least 1."""
    if inflight is not None:
        return max(1, inflight)
    return max(1, min(DEFAULT_K, length // DEFAULT_SHARE), min(LEAST_K, length // LEAST_SHARE))


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The accesses of all local ranks in one epoch.

    `rows` int32 or int64[m]: merged position -> row, -1 where a rank has fewer accesses than another. `place`:
    row - `base` -> its first merged position, -1 for none. `again`: merged position -> the next position of the
    same row, -1 for none; None when no row occurs twice. The two are memoryviews of int32 because a single
    look-up in those is three times faster than in an array.
    """

    hypothesis: Hypothesis
    rows: NDArray[np.integer[Any]]
    base: int
    place: memoryview = field(repr=False)
    again: memoryview | None = field(repr=False)
    whole: bool = True  # no rank has fewer accesses than another

    @property
    def length(self) -> int:
        """Accesses, all local ranks together."""
        return len(self.rows)

    def absent(self, lane: int) -> list[int]:
        """The places at which the rank of that lane reads nothing."""
        if self.whole:
            return []
        found: list[int] = np.flatnonzero(self.rows[lane :: len(self.hypothesis.ranks)] < 0).tolist()
        return found

    def find(self, row: int) -> int:
        """The first merged position of a row, -1 when this epoch does not read it."""
        i = row - self.base
        return int(self.place[i]) if 0 <= i < len(self.place) else -1

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """`find` of many rows, int64[m]."""
        offsets = rows - self.base
        inside = (offsets >= 0) & (offsets < len(self.place))
        found = np.full(len(rows), -1, dtype=np.int64)
        found[inside] = np.asarray(self.place)[offsets[inside]]
        return found


def build(hypothesis: Hypothesis, datasets: Sequence[DataSet]) -> EpochOrder:
    """Computes the tables of one epoch: about 0.3 s, and 9 bytes to keep, for each million accesses. Pure."""
    files = files_of(hypothesis, datasets)
    family = registry.sampler(hypothesis.spec.sampler)
    samples = family.order(hypothesis.spec, len(files), hypothesis.epoch, hypothesis.world, hypothesis.ranks)
    nothing = samples < 0
    rows = files[samples]
    if nothing.any():
        rows = rows.astype(np.int64)
        rows[nothing] = -1
    del samples
    read = rows[rows >= 0] if nothing.any() else rows
    if len(read) == 0:
        return EpochOrder(hypothesis, rows[:0], 0, np.zeros(0, np.int32).data, None)
    base, top = int(read.min()), int(read.max())
    kept: NDArray[np.integer[Any]] = rows.astype(np.int32) if top < 2**31 else rows.astype(np.int64)
    place = np.full(top - base + 1, -1, dtype=np.int32)
    # numpy keeps the last value when an index is repeated: going backwards, that is the first position
    backwards = np.arange(len(kept) - 1, -1, -1, dtype=np.int32)
    if nothing.any():
        backwards = backwards[kept[::-1] >= 0]
    place[kept[backwards] - base] = backwards
    again = _repeats(kept, base, place)
    return EpochOrder(hypothesis, kept, base, place.data, again, whole=not nothing.any())


def _repeats(rows: NDArray[np.integer[Any]], base: int, place: NDArray[np.int32]) -> memoryview | None:
    """Links every position to the next one of the same row, when any row is read twice (padding, hard
    links)."""
    if len(rows) == int(np.count_nonzero(place >= 0)):
        return None
    positions = np.flatnonzero(rows >= 0)
    offsets = rows[positions] - base
    later = place[offsets] != positions
    if not later.any():
        return None
    repeated = np.zeros(len(place), dtype=bool)
    repeated[offsets[later]] = True
    among = repeated[offsets]
    positions, offsets = positions[among], offsets[among]
    by_row = np.argsort(offsets, kind="stable")
    positions, offsets = positions[by_row], offsets[by_row]
    same = offsets[1:] == offsets[:-1]
    again = np.full(len(rows), -1, dtype=np.int32)
    again[positions[:-1][same]] = positions[1:][same]
    return again.data
