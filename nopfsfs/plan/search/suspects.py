"""An order that opens may follow: where it has which file, and what the ledger says of it.

Owns the tables of an order before it is dealt out (`Table`) and the opens that are to be explained (`OpensView`). Also
decides how much evidence makes a plan certain. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.search import deal
from nopfsfs.plan.search.candidates import Candidate
from nopfsfs.plan.search.evidence import Ledger

# Bits, beyond those that name the candidate, that make a plan certain: over all candidates, whose names together weigh
# less than 2**5, and all windows of opens that are looked at in a job (about 2**5), one false lock in 10**9.
LOCK = 40.0
# The same for an epoch that may well follow, or for further ranks of the same: their reader is known, and is not where
# it was expected.
FOLLOWING = 20.0
# and more than any candidate that reads other files next
MARGIN = 7.0
# Opens that are looked at.
MAX_OPENS = 256
# Opens of a reader, on average, in which no step shows.
FEW = 2
FIRSTS = 16  # rows that are kept of what each reader opened first
# Files that come next by which two orders are told apart.
_NEXT = 16
# Readers that follow an order go forward in it: but for so many of its opens each lies beyond those of a while earlier.
# Those of a small shuffle buffer go nearly in order through every order of the same kind. A while: more than threads
# overtake each other by.
_DISORDER, _WHILE, _COMPARED = 0.25, 64, 64
# A step of one place is told in so many bits less than this one that MARGIN decides.
_REGULAR = 16
# The part of a search in which is found what nothing as likely can follow.
SURE = -1
# Places are looked up at once where rows are at most so many times more than places; else by halving.
_SPREAD = 4


@dataclass(frozen=True, eq=False)
class OpensView:
    """The opens that are to be explained. `rows`: the distinct rows that were opened lately, in order, int64[m <= 256].
    `readers`: who opened each (0: not known), int64[m]; `total`: files of the mount. `firsts`: by reader, the rows that
    it opened first, int64[<= FIRSTS]."""

    rows: NDArray[np.int64]
    readers: NDArray[np.int64]
    total: int
    firsts: tuple[NDArray[np.int64], ...] = ()

    @property
    def has_all_firsts(self) -> bool:
        """True: these readers will have no more first opens."""
        return all(len(first) >= FIRSTS for first in self.firsts)

    @property
    def together(self) -> NDArray[np.int64]:
        """The reader of each open; 0 where each reader opens so few files that its steps do not show: then all are
        one."""
        return self.readers if FEW * len(np.unique(self.readers)) <= len(self.readers) else np.zeros_like(self.readers)

    def lasts(self, count: int) -> list[NDArray[np.int64]]:
        """By reader, the rows that it opened last, int64[<= count]."""
        readers = self.together
        return [self.rows[readers == reader][-count:] for reader in np.unique(readers).tolist()]

    @property
    def begun(self) -> list[NDArray[np.int64]]:
        """By reader, or all as one as in `together`, the rows that it opened first."""
        return list(self.firsts) if self.together is self.readers else [np.concatenate(self.firsts)]


class Table:
    """The places of rows in an order, or in its beginning. `rows` integer[m]: by place; `n`: places of the order."""

    def __init__(self, rows: NDArray[np.integer[Any]], n: int | None = None) -> None:
        self.rows = rows
        self.n = n if n is not None else len(rows)
        known = rows[rows >= 0]
        self._base, top = (int(known.min()), int(known.max())) if len(known) else (0, -1)
        self._sorted: NDArray[np.integer[Any]] | None = None
        if top - self._base < max(_SPREAD * len(rows), 1 << 16):
            self._place = np.full(top - self._base + 2, -1, np.int32)
            places = np.flatnonzero(rows >= 0)[::-1]
            self._place[rows[places] - self._base] = places  # the first place stays
        else:
            self._place = np.argsort(rows, kind="stable").astype(np.int32)
            self._sorted = rows[self._place]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes to keep the table."""
        return int(self.rows.nbytes + self._place.nbytes)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first place of each row, int64[m]; -1: none."""
        if self._sorted is None:
            at = rows - self._base
            inside = (at >= 0) & (at < len(self._place) - 1)
            return np.where(inside, self._place[np.where(inside, at, -1)], -1).astype(np.int64)
        at = np.minimum(np.searchsorted(self._sorted, rows), len(self._sorted) - 1)
        return np.where(self._sorted[at] == rows, self._place[at], -1).astype(np.int64)


@dataclass(eq=False)
class Suspect:
    """A candidate, its table, and the bits that it takes to name it."""

    candidate: Candidate
    table: Table
    cost: float
    part: int | None = None  # of the search in which it was found; SURE: nothing as likely can follow
    said: bool = False  # by a user: then it need not show how far readers run ahead
    ledger: Ledger = field(init=False)
    worth: float = field(init=False, default=0.0)  # bits of the ledger, less the cost
    likelihood: float = field(init=False, default=0.0)  # the same for data sets of any size
    places: NDArray[np.int64] = field(init=False, repr=False)  # of the opens
    # by reader, the places of those that are weighed as one
    apart: dict[int, list[int]] = field(init=False, default_factory=dict)

    def weigh(self, view: OpensView) -> None:
        """Take the evidence of the opens of now."""
        places = self.places = self.table.places(view.rows)
        self.ledger = Ledger(self.table.n, view.total)
        together = view.together
        self.ledger.add_all(zip(places.tolist(), together.tolist(), strict=True))
        self.apart = {} if together is view.readers else _by_reader(view.readers, places)
        self.worth = self.ledger.bits - self.cost
        self.likelihood = self.worth - self.ledger.random_bits

    @property
    def orderly(self) -> bool:
        """True: readers go forward in the order, and from one place to the next of their rank where its ranks are
        known. Where readers are not known that cannot be seen."""
        steps = self.ledger.steps
        told = sum(steps.values())
        if self.said or self.ledger.follows(0) or not told:
            return True
        step, times = steps.most_common(1)[0]
        if 2 * times > told:
            return step > 0 and (self.candidate.world is None or step in self._own_steps(len(self.candidate.world[1])))
        dealt = deal.read(self.ledger.followed, self.table.n)
        near = _WHILE * (dealt.world if dealt is not None else 1)
        if 2 * sum(times for step, times in steps.items() if abs(step) <= near) >= told:
            return True
        compared = back = 0
        for reader, places in self.ledger.followed.items():
            if self.ledger.follows(reader):
                lag = min(len(places) // 2, _WHILE)
                compared += len(places) - lag
                back += sum(after < before for before, after in zip(places, places[lag:], strict=False))
        return compared >= _COMPARED and back <= _DISORDER * compared

    def _own_steps(self, ranks: int) -> tuple[int, int]:
        """From one place of a rank, or of one of its workers that has files of its own, to the next."""
        return ranks, ranks * max(self.candidate.spec.number("workers"), 1)

    @property
    def regular(self) -> bool:
        """True: readers take the same short step most of the time: no order that was not tried yet can be much
        nearer."""
        steps = self.ledger.steps
        step, times = steps.most_common(1)[0] if steps else (0, 0)
        return 2 * times > sum(steps.values()) and step <= _REGULAR

    def reads_next(self) -> dict[int, bytes]:
        """By reader that follows it: the files that come after the last that it opened."""
        return {
            reader: self.table.rows[places[-1] + 1 : places[-1] + 1 + _NEXT].astype(np.int64).tobytes()
            for reader, places in self.ledger.followed.items()
            if self.ledger.follows(reader)
        }

    def repeats(self, other: Suspect) -> bool:
        """True: both are the same order: epochs may repeat each other."""
        return self is other or np.array_equal(self.table.rows, other.table.rows)

    def begins_like(self, other: Suspect) -> bool:
        """True: both explain the opens by the same places, and read the same next. One may be a part of the other."""
        same = self is other or np.array_equal(self.places, other.places)
        return same and not self.contradicts(other)

    def contradicts(self, other: Suspect) -> bool:
        """True: a reader that follows both reads other files next in the one than in the other."""
        here, there = self.reads_next(), other.reads_next()
        return any(here[reader] != there[reader] for reader in here.keys() & there.keys())


def _by_reader(readers: NDArray[np.int64], places: NDArray[np.int64]) -> dict[int, list[int]]:
    """The places that each known reader opened, in order; those that are not in the order are left out."""
    found: dict[int, list[int]] = {}
    for reader, place in zip(readers.tolist(), places.tolist(), strict=True):
        if reader and place >= 0:
            found.setdefault(reader, []).append(place)
    return found


def leading(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places before the first file that is not in the order."""
    outside = np.flatnonzero(places < 0)
    return places[: outside[0]] if len(outside) else places


def certain(suspects: Sequence[Suspect], least: float = LOCK) -> Suspect | None:
    """The suspect that the opens certainly follow, of equals the first. None: no suspect is certain, or one that is
    nearly as likely reads other files next. All must have been weighed with opens of the same readers.

    Of suspects that begin alike the one with the cheapest name is taken, once it is certain too. A part of an order
    explains its beginning by fewer places than the whole order does, which makes the part no likelier.
    """
    sure = [one for one in suspects if one.worth >= least and one.orderly]
    if not sure:
        return None
    best = max(sure, key=lambda one: one.likelihood)
    alike = (one for one in suspects if one.orderly and one.begins_like(best))
    likely = min(alike, key=lambda one: (one.cost, -one.likelihood))
    if likely.worth < least:
        return None
    near = (one for one in suspects if one is not best and one.likelihood > best.likelihood - MARGIN)
    return None if any(likely.contradicts(one) and one.orderly for one in near) else likely
