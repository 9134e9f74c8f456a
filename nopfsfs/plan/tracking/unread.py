"""The files that are left to read of a data set in this epoch, when its order is not known.

A loader without a known seed still reads every file once in each epoch. So what has not been read is what comes, in
whatever order, and what has been read does not come before the next epoch.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder

# Opens in a row of files opened before that show that a reader of unknown order began anew.
_ANEW = 8
# A file that is opened again within so many opens is opened twice for one access (a header check, a lazy decoder); of
# few files, within this share of them: the next epoch may begin with those that were opened last.
_TWICE, _TWICE_SHARE = 64, 0.25
# Until a reader has gone through most of the files once, it may be one that wants only a few of them: at most so many
# files are foretold beyond what it has opened, and so many for each one that it has.
_AT_FIRST = 64
_FOR_EACH = 4
_MOST = 0.9


class Unread:
    """The files of a data set, in the order in which they are listed (`order`), those opened in this epoch left out."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self.length = order.length
        self.base = 0  # stream position of the beginning of this epoch
        self.generation = 0
        self.last_open = 0  # the mount's count of opens at the last one of these files
        self._opened = bytearray(order.length)
        self._count = 0
        self._lo = 0
        self._whole = False  # most files were read in the epoch before
        self._again: list[int] = []  # opened again since the last file that was not
        self._twice: set[int] = set()  # the same, soon after an open before: for one access, or in a new epoch
        within = min(_TWICE, int(_TWICE_SHARE * self.length))
        self._anew = min(_ANEW, self.length - within)
        self._lately: deque[int] = deque(maxlen=within)  # rows opened last

    def observe(self, row: int, now: int) -> list[int]:
        """Take an open; `now`: the mount's count of opens. Return the rows opened last when it shows that a new epoch
        has begun, else none."""
        place = self.order.find(row)
        if place < 0:
            return []
        self.last_open = now
        soon = self._opened[place] and row in self._lately
        self._lately.append(row)
        if not self._opened[place]:
            self._again.clear()
            self._twice.clear()
            self._take(place)
        elif soon:
            self._twice.add(row)
        elif row not in self._again:
            self._again.append(row)
            if len(self._again) >= self._anew:
                return self._begin()
        return []

    def _take(self, place: int) -> None:
        self._opened[place] = 1
        self._count += 1
        if place == self._lo:
            found = self._opened.find(b"\0", place)
            self._lo = found if found >= 0 else self.length

    def _begin(self) -> list[int]:
        self._whole = self._count >= _MOST * self.length
        self.base += self.length
        self.generation += 1
        self._opened = bytearray(self.length)
        self._count = self._lo = 0
        rows, self._again = self._again, []
        for row in self._twice.union(rows):
            self._take(self.order.find(row))
        self._twice.clear()
        return rows

    @property
    def position(self) -> int:
        """Stream position of the first file that was not opened in this epoch."""
        return self.base + self._lo

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The stream position of each row that was not opened in this epoch, int64[m]; -1 for the others."""
        places = self.order.places(rows)
        left = places >= 0
        left[left] = np.frombuffer(self._opened, dtype=np.uint8)[places[left]] == 0
        return np.where(left, self.base + places, -1)

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """Rows at the stream positions start .. start+count-1, int64[<= count]; -1 for those read already."""
        reach = self.length if self._whole else min(self.length, _AT_FIRST + (1 + _FOR_EACH) * self._count)
        begin, end = start - self.base, min(start - self.base + count, reach)
        gone = np.full(max(min(0, end) - begin, 0), -1, dtype=np.int64)
        first, last = max(begin, 0), max(end, 0)
        rows = self.order.rows[first:last].astype(np.int64)
        rows[np.frombuffer(bytes(self._opened[first:last]), dtype=np.uint8) != 0] = -1
        return np.concatenate([gone, rows])
