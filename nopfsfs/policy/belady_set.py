"""What stays in memory where it is ruled by Belady: a copy goes for one that is read again sooner, and what would be
read later than all that stays is passed by. Of many nodes at once, and once in an epoch: `belady`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nopfsfs.policy.next_use import NEVER, NextUseOrder


class BeladySet(NextUseOrder):
    """Rows that stay and that nobody has open; they can be spared for what is read sooner."""

    def offered(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """The rows and the position of the next use of each, the soonest first; NEVER where it is not known."""
        if not rows:
            return []
        uses = self.next_uses(np.array(rows, np.int64))
        uses = np.where(uses >= 0, uses, NEVER)
        return [(rows[at], int(uses[at])) for at in np.argsort(uses, kind="stable").tolist()]

    def make_room(self, size: int, sizes: memoryview, use: int) -> list[int] | None:
        """Rows to go, the furthest first, so that `size` more bytes fit, for one that is next used at `use`: none that
        is read before that. None: there are not enough, and all stay. `sizes` by row."""
        gone: list[int] = []
        while size > 0:
            row = self.furthest(use)
            if row is None:
                for other in gone:
                    self.add(other)
                return None
            gone.append(row)
            size -= sizes[row]
        return gone

    def clear(self) -> None:
        """Nothing can be spared."""
        for row in list(self._rows):
            self.discard(row)
