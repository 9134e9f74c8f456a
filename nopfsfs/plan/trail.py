"""The opens that no confirmed plan explains, since the last start or break; and when to search for one that
does.

Owns to which data set a row belongs. Computes nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import search
from nopfsfs.plan.epochs import DataSet

# Numbers of opens at which a search is worth while, and at which the assumed plan is looked at.
_SEARCHES = (4, 8, 16, 32, 48, 128, 256)
_LOOKS = frozenset((4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256))
# A search over so many opens that finds nothing is the last word: the plan does not match.
_LAST_WORD = 48
# Without any search finished: so many unexplained opens are.
_TOO_MANY = 256
# Opens that are kept, to be followed again once their plan is known.
_KEPT = 65_536
# Opens in a row of files opened before that show that a reader of unknown order began anew.
_ANEW = 8


class Trail:
    """See the module."""

    def __init__(self, datasets: Sequence[DataSet]) -> None:
        rows = [np.concatenate([rows for _, rows in one.orders]) for one in datasets]
        size = 1 + max((int(part.max()) for part in rows), default=-1)
        owner = np.full(size, -1, dtype=np.int16)
        # the smallest data set that holds a row owns it: larger ones first, to be overwritten
        for index in sorted(range(len(rows)), key=lambda index: (-len(rows[index]), -index)):
            owner[rows[index]] = index
        self.owner: memoryview = owner.data
        self._within = [tuple(int(who) for who in np.unique(owner[part])) for part in rows]
        self.era = 0  # changes when the opens kept are no longer those that a search has seen
        self._rows: list[int] = []
        self._distinct: dict[int, None] = {}
        self._searched = 0  # distinct opens that the last search saw
        self._seen: bytearray | None = None
        self._anew: list[int] = []

    def add(self, row: int) -> bool:
        """An open that is not explained. True: have a look at the assumed plan now."""
        if len(self._rows) < _KEPT:
            self._rows.append(row)
        if self._seen is not None and self._begins_anew(row):
            return False
        if len(self._distinct) >= search.MAX_OPENS or row in self._distinct:
            return False
        self._distinct[row] = None
        return len(self._distinct) in _LOOKS

    def opens(self, index: int) -> NDArray[np.int64]:
        """The distinct rows of a data set that were opened, in order, int64[<= MAX_OPENS]."""
        within, owner = self._within[index], self.owner
        return np.array([row for row in self._distinct if owner[row] in within], dtype=np.int64)

    def rows(self, index: int) -> list[int]:
        """All opens kept of a data set."""
        within, owner = self._within[index], self.owner
        return [row for row in self._rows if owner[row] in within]

    def within(self, index: int) -> tuple[int, ...]:
        """The data sets whose rows that one holds, itself included."""
        return self._within[index]

    def touches(self, index: int) -> bool:
        """Whether any of the opens is in that data set."""
        within, owner = self._within[index], self.owner
        return any(owner[row] in within for row in self._distinct)

    def forget(self, index: int) -> None:
        """The opens of that data set are explained now."""
        within, owner = self._within[index], self.owner
        kept = [row for row in self._rows if owner[row] not in within]
        self.restart()
        self._rows = kept
        self._distinct = dict.fromkeys(kept[: search.MAX_OPENS])

    def restart(self) -> None:
        """Nothing before counts."""
        self.era += 1
        self._rows = []
        self._distinct = {}
        self._searched = 0
        self._seen = None

    # -- searching --

    def due(self) -> dict[int, NDArray[np.int64]] | None:
        """What to search with, by data set, when there are enough new opens for another search."""
        count = len(self._distinct)
        if not any(self._searched < at <= count for at in _SEARCHES):
            return None
        self._searched = count
        return {index: self.opens(index) for index in range(len(self._within))}

    def searched(self, done: search.Search) -> None:
        """A search has found nothing."""
        if max(map(len, done.opens.values())) >= min(_LAST_WORD, len(self.owner) // 2):
            self._despair()

    @property
    def hopeless(self) -> bool:
        """Nothing is known that explains these opens."""
        if self._seen is None and len(self._rows) >= _TOO_MANY:
            self._despair()
        return self._seen is not None

    def _despair(self) -> None:
        if self._seen is None:
            self._seen = bytearray(len(self.owner))
            for row in self._rows:
                self._seen[row] = 1

    def _begins_anew(self, row: int) -> bool:
        """Without a plan, a new epoch shows in that files are opened again that were opened before."""
        seen = self._seen
        assert seen is not None
        if not seen[row] or row in self._anew:
            seen[row] = 1
            self._anew.clear()
            return False
        self._anew.append(row)
        if len(self._anew) < _ANEW:
            return False
        rows = self._anew[:]
        self.restart()
        self._rows = rows
        self._distinct = dict.fromkeys(rows)
        self._anew.clear()
        return True
