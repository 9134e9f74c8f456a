"""Rows that lie behind the reader, of which the row with the furthest next use goes first. Pure.

A row whose next use is not known counts as never read again; of such rows the oldest goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from nopfsfs.placement.belady import NEVER

Rows = npt.NDArray[np.int64]
NextUses = Callable[[Rows], Rows]  # of rows i64[m]: the stream position of the next read of each, -1: not known

NONE: Rows = np.zeros(0, np.int64)
ANEW = 8  # the rows are sorted anew when one in so many was added since


def nothing_known(rows: Rows) -> Rows:
    """The next uses of rows while no plan is known: -1 for each."""
    return np.full(len(rows), -1, np.int64)


class NextUseOrder:
    """A set of rows. All are sorted together when one is to go, and again when many more were added. So a row costs
    little, however many there are."""

    def __init__(self) -> None:
        self.next_uses: NextUses = nothing_known
        self._rows: dict[int, int] = {}  # by row: the number of its addition
        self._came = 0
        # sorted: next uses, rows, numbers of their additions; arrays, because there may be millions
        self._sorted: tuple[Rows, Rows, Rows] = (NONE, NONE, NONE)
        self._left = 0  # the number of sorted rows left, from the front: the furthest are taken from the end
        self._sorted_at = 0

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int) -> None:
        self._came += 1
        self._rows.pop(row, None)
        self._rows[row] = self._came

    def discard(self, row: int) -> None:
        self._rows.pop(row, None)

    def invalidate(self) -> None:
        """Discard the sorted rows: the known next uses no longer hold."""
        self._left = 0

    def first_use(self, rows: Collection[int]) -> int:
        """The position at which the first of some rows is read next, `NEVER` where no next use is known."""
        uses = self.next_uses(np.fromiter(rows, np.int64, len(rows)))
        return int(uses[uses >= 0].min(initial=NEVER))

    def pop_last_used(self, after: int = -1) -> int | None:
        """Take out and return the row with the furthest next use, if that comes after position `after`; else None."""
        if (self._came - self._sorted_at) * ANEW >= len(self._rows):
            self._sort()
        while self._rows:
            if not self._left:
                self._sort()
            uses, rows, came = self._sorted
            last = self._left - 1
            row = int(rows[last])
            if self._rows.get(row) != came[last]:
                self._left = last
            elif uses[last] <= after:
                return None
            else:
                self._left = last
                del self._rows[row]
                return row
        return None

    def _sort(self) -> None:
        if self._came == self._sorted_at and self._left:
            return
        self._sorted_at, self._left = self._came, len(self._rows)
        rows = np.fromiter(self._rows, np.int64, self._left)  # the oldest first
        came = np.fromiter(self._rows.values(), np.int64, self._left)
        uses = self.next_uses(rows)
        uses = np.where(uses >= 0, uses, NEVER)
        order = np.argsort(-uses, kind="stable")[::-1]
        self._sorted = uses[order], rows[order], came[order]
