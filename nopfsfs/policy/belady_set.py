"""Files that stay in memory where Belady's rule decides. A copy leaves for a file that is read again sooner. A file
that is read later than all that stay does not stay. `placement.belady` applies the rule to many nodes at once, once in
an epoch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nopfsfs.placement.belady import NEVER
from nopfsfs.policy.next_use import NextUseOrder


class BeladySet(NextUseOrder):
    """Rows that stay and that no reader has open; they can leave for rows that are read sooner."""

    def offered(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Sort the rows by their next use, the soonest first: (row, position). NEVER where no next use is known."""
        if not rows:
            return []
        uses = self.next_uses(np.array(rows, np.int64))
        uses = np.where(uses >= 0, uses, NEVER)
        return [(rows[at], int(uses[at])) for at in np.argsort(uses, kind="stable").tolist()]

    def make_room(self, size: int, sizes: memoryview, use: int) -> list[int] | None:
        """Take out rows, the last used first, so that `size` more bytes fit, for a row that is next used at position
        `use`. Only rows that are read after that position are taken. None: these are too few, and all stay. `sizes`:
        bytes by row."""
        gone: list[int] = []
        while size > 0:
            row = self.pop_last_used(use)
            if row is None:
                for other in gone:
                    self.add(other)
                return None
            gone.append(row)
            size -= sizes[row]
        return gone

    def clear(self) -> None:
        """Take out all rows: none can be spared."""
        for row in list(self._rows):
            self.discard(row)
