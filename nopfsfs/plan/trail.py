"""The opens that no confirmed plan explains, and when to look for one that does.

Owns to which data set a row belongs (`Ownership`), and who came together: readers that begin to open files at about
the same time are a *cohort* (the workers of one job), whose opens are looked at as one sequence. Computes nothing that
takes long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import search
from nopfsfs.plan.candidates import Depth
from nopfsfs.plan.epochs import DataSet
from nopfsfs.plan.search import View

# Numbers of opens at which a search is worth while, and how much is tried then.
_SEARCHES = {
    4: Depth.USUAL, 8: Depth.UNUSUAL, 16: Depth.ALL, 32: Depth.UNUSUAL, 48: Depth.ALL, 96: Depth.UNUSUAL,
    192: Depth.ALL,
}  # fmt: skip
# Numbers of opens at which the plans at hand are looked at.
LOOKS = frozenset((3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256))
# A search over so many opens that finds nothing is the last word: nothing known explains them.
_LAST_WORD = 48
# Without any search finished: so many unexplained opens are.
_TOO_MANY = 256
# Opens that are kept, to be followed again once their plan is known.
_KEPT = 65_536
# A reader that comes later than so many opens of others after a cohort's last belongs to another.
_TOGETHER = 512
_COHORTS = 8
_READERS = 4096
# Readers whose opens are also looked at alone, in case those of two jobs are mixed.
_ALONE = 4
_ALONE_FROM = 8


Open = tuple[int, int, int]  # row, reader, the mount's count of opens


class Ownership:
    """To which data set a row belongs: the smallest that holds it. `of`: row -> index of a data set, -1 for none."""

    def __init__(self, datasets: Sequence[DataSet]) -> None:
        size = 1 + max(
            (int(order.rows.max()) for one in datasets for order in one.orders if len(order.rows)), default=-1
        )
        largest = [max((len(order.rows) for order in one.orders), default=0) for one in datasets]
        owner = np.full(size, -1, dtype=np.int16)
        # larger ones first, to be overwritten
        for index in sorted(range(len(datasets)), key=lambda index: (-largest[index], -index)):
            for order in datasets[index].orders:
                owner[order.rows] = index
        self.of: memoryview = owner.data
        self._within = [
            tuple(sorted({int(who) for order in one.orders for who in np.unique(owner[order.rows])}))
            for one in datasets
        ]  # fmt: skip

    def within(self, index: int) -> tuple[int, ...]:
        """The data sets whose rows that one holds, itself included."""
        return self._within[index]


class Cohort:
    """Unexplained opens of readers that came together."""

    def __init__(self, ownership: Ownership, now: int) -> None:
        self._ownership = ownership
        self.readers: set[int] = set()
        self.last = now  # the mount's count of opens at the last of these
        self.era = 0  # changes when the opens kept are no longer those that a search has seen
        self.hopeless = False
        self.stuck = False  # only what takes long is left to try
        self._deep = 0  # opens with which that was tried last
        self._forgive = True  # the first time does not count
        self.opens: list[Open] = []
        self._distinct: dict[int, int] = {}  # row: reader
        self._searched = 0  # distinct opens that the last search saw

    @property
    def began(self) -> int:
        """The mount's count of opens at the first of these."""
        return self.opens[0][2] if self.opens else self.last

    def __len__(self) -> int:
        return len(self._distinct)

    def add(self, row: int, reader: int, now: int) -> bool:
        """An open. True: have a look at the plans at hand now."""
        self.last = now
        if len(self.opens) < _KEPT:
            self.opens.append((row, reader, now))
        if len(self._distinct) >= search.MAX_OPENS or row in self._distinct:
            return False
        self._distinct[row] = reader
        return len(self._distinct) in LOOKS

    def forgive(self) -> None:
        """Its readers do what is expected of them: for every other such open the oldest one here was a stray."""
        self._forgive = not self._forgive
        if self.opens and self._forgive:
            row, _, _ = self.opens.pop(0)
            self._distinct.pop(row, None)
            self._searched = min(self._searched, len(self._distinct))

    def rows(self, index: int) -> NDArray[np.int64]:
        """The distinct rows of a data set that were opened, in order, int64[<= MAX_OPENS]."""
        within, owner = self._ownership.within(index), self._ownership.of
        return np.array([row for row in self._distinct if owner[row] in within], dtype=np.int64)

    def views(self, index: int) -> list[View]:
        """What one plan may explain of a data set's opens: all of them, or those of one reader."""
        within, owner = self._ownership.within(index), self._ownership.of
        here = [(row, reader) for row, reader in self._distinct.items() if owner[row] in within]
        rows, readers = np.array(here, dtype=np.int64).reshape(-1, 2).T
        found = [View(index, rows, readers)]
        counts = Counter(readers.tolist())
        if len(counts) > 1:
            for reader, count in counts.most_common(_ALONE):
                if count >= _ALONE_FROM:
                    mine = readers == reader
                    found.append(View(index, rows[mine], readers[mine], pooled=False))
        return found

    def firsts(self, index: int, count: int) -> list[NDArray[np.int64]]:
        """The first rows that each reader opened of a data set, those of at least 4: int64[<= count]."""
        within, owner = self._ownership.within(index), self._ownership.of
        whose: dict[int, list[int]] = {}
        for row, reader in self._distinct.items():
            if owner[row] in within:
                whose.setdefault(reader, []).append(row)
        return [np.array(rows[:count], np.int64) for rows in whose.values() if len(rows) >= search.MIN_OPENS]

    def datasets(self) -> list[int]:
        """Whose rows these are, with all that hold them; those that hold most of them first."""
        owner = self._ownership.of
        counts: dict[int, int] = {}
        for row in self._distinct:
            counts[owner[row]] = counts.get(owner[row], 0) + 1
        found: dict[int, int] = {}
        for index in range(len(self._ownership._within)):
            held = sum(counts.get(who, 0) for who in self._ownership.within(index))
            if held:
                found[index] = held
        return sorted(found, key=lambda index: (-found[index], len(self._ownership.within(index)), index))

    def due(self) -> Depth | None:
        """How much is to be tried when there are enough new opens for another search; asking means that it is done."""
        count = len(self._distinct)
        depths = [depth for at, depth in _SEARCHES.items() if self._searched < at <= count]
        self._searched = count if depths else self._searched
        return max(depths, default=None)

    def looked_deep(self, opens: int) -> bool:
        """Whether there are enough new opens to try what takes long (again); asking means that it is done."""
        if opens < 4 * self._deep:
            return False
        self._deep = opens
        return True

    def searched(self, opens: int, files: int) -> None:
        """A search over so many opens has found nothing."""
        if opens >= min(_LAST_WORD, files // 2):
            self.hopeless = True

    @property
    def too_many(self) -> bool:
        """More than a search can leave unexplained."""
        return len(self.opens) >= _TOO_MANY and len(self._distinct) >= search.MAX_OPENS // 2

    def restart(self, opens: Sequence[Open] = (), *, searched: bool = False) -> None:
        """Nothing before counts, but these; `searched`: they alone are no reason for another search."""
        self.era += 1
        self.hopeless = self.stuck = False
        self._deep = 0
        self.opens = list(opens)
        self._distinct = {}
        for row, reader, _ in self.opens:
            if len(self._distinct) >= search.MAX_OPENS:
                break
            self._distinct.setdefault(row, reader)
        self._searched = len(self._distinct) if searched else 0


class Trail:
    """All cohorts of a mount."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self.cohorts: list[Cohort] = []  # the newest last
        self._of: dict[int, Cohort] = {}

    def __bool__(self) -> bool:
        return bool(self.cohorts)

    def of(self, reader: int) -> Cohort | None:
        """Where that reader's unexplained opens are."""
        return self._of.get(reader)

    def join(self, reader: int, now: int) -> Cohort:
        """The cohort of a reader; a new one when nobody has come along with it."""
        found = self._of.get(reader)
        if found is not None:
            return found
        if len(self._of) >= _READERS:
            self._of.clear()
        for cohort in reversed(self.cohorts):
            if not cohort.hopeless and len(cohort) < search.MAX_OPENS and now - cohort.last <= _TOGETHER:
                found = cohort
                break
        else:
            found = Cohort(self._ownership, now)
            self.cohorts.append(found)
            if len(self.cohorts) > _COHORTS:
                self.drop(min(self.cohorts[:-1], key=lambda one: one.last))
        found.readers.add(reader)
        self._of[reader] = found
        return found

    def drop(self, cohort: Cohort) -> None:
        """Forgets a cohort."""
        self.cohorts.remove(cohort)
        for reader in cohort.readers:
            if self._of.get(reader) is cohort:
                del self._of[reader]
