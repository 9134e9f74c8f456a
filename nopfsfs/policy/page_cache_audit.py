"""How much of what was pushed the kernel has kept, as far as samples of it tell, and which rows to look at next. Pure.

While nothing is missing, few rows are looked at, picked by chance. Once some are found gone, more are, and those that
come next in the plan: so that they can be pushed again before they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.push_scheduler import PUSHES_OUTSTANDING, Paged

Rows = npt.NDArray[np.int64]
Upcoming = Callable[[int, int], Rows]

ROWS_LEAST = 16  # looked at each time; a look at one costs some 100 µs of the pusher, when it has nothing else to do
ROWS_MOST = 512
SHARE_OF = 1024  # looks that the share is of
CHUNK = 1 << 16  # rows among which a sample is taken: what a look at them all would cost, large data sets notice
CHUNKS = 8
AHEAD_MOST = 1 << 14  # positions ahead of the reader that are looked at; then from the reader on again


class PageCacheAudit:
    """`charges` i64[n] and `paged` u8[n] are those of the conductor."""

    def __init__(self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8]) -> None:
        self._size, self._paged = charges, paged
        self._chance = np.random.default_rng(len(charges))
        self._looks: deque[tuple[int, int]] = deque(maxlen=SHARE_OF)  # (bytes there, bytes believed there)
        self._wanted = ROWS_LEAST
        self._ahead_at = 0  # stream position: before it all was looked at
        self._gone = 0  # rows found gone since the last rows were chosen
        self.measured: bool | None = None  # None: not tried yet
        self.looked_at = 0
        self.evicted = 0

    # ---- what was found -----------------------------------------------------------------------------------

    def present(self, row: int) -> None:
        """The page cache holds the whole row."""
        self._saw(int(self._size[row]), row)

    def lacking(self, row: int, cached: int) -> None:
        """It was believed to, and holds `cached` bytes."""
        self._saw(min(cached, int(self._size[row])), row)
        self.lost(1)

    def lost(self, rows: int) -> None:
        """So many rows were found gone, by whatever sign."""
        self.evicted += rows
        self._gone += rows

    def refused(self) -> None:
        """This system does not tell."""
        self.measured = False

    def _saw(self, there: int, row: int) -> None:
        self.measured = True
        self.looked_at += 1
        self._looks.append((there, int(self._size[row])))

    # ---- what to look at ----------------------------------------------------------------------------------

    def choose(self, position: int, upcoming: Upcoming) -> list[int]:
        """Rows to look at now; `upcoming` is as of the conductor, from stream position `position` on."""
        if self.measured is False:
            return []
        self._wanted = min(2 * self._wanted, ROWS_MOST) if self._gone else max(self._wanted // 2, ROWS_LEAST)
        self._gone = 0
        rows = self._sample(ROWS_LEAST)
        if self._wanted > ROWS_LEAST:
            rows += self._next(self._wanted - ROWS_LEAST, position, upcoming)
        return list(dict.fromkeys(rows))

    def _sample(self, count: int) -> list[int]:
        """Some of the rows that are believed to be there."""
        last = max(1, len(self._paged) - CHUNK + 1)
        for _ in range(CHUNKS):
            at = int(self._chance.integers(last))
            found = at + np.flatnonzero(self._paged[at : at + CHUNK] == Paged.WHOLE)
            if len(found):
                picked: list[int] = self._chance.choice(found, min(count, len(found)), replace=False).tolist()
                return picked
        return []

    def _next(self, count: int, position: int, upcoming: Upcoming) -> list[int]:
        """The next of them in the plan, but for those that are too near to be pushed again in time."""
        first = position + PUSHES_OUTSTANDING
        if not first <= self._ahead_at < position + AHEAD_MOST:
            self._ahead_at = first
        rows = upcoming(self._ahead_at, position + AHEAD_MOST - self._ahead_at)
        places = np.flatnonzero(rows >= 0)
        places = places[self._paged[rows[places]] == Paged.WHOLE][:count]
        self._ahead_at = self._ahead_at + int(places[-1]) + 1 if len(places) == count else first
        found: list[int] = rows[places].tolist()
        return found

    # ---- what it says -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """For the record: `resident_share` is of the bytes of the last rows looked at; None before the first."""
        there, believed = (sum(column) for column in zip(*self._looks, strict=True)) if self._looks else (0, 0)
        return {
            "measured": bool(self.measured),
            "resident_share": round(there / believed, 4) if believed else None,
            "looked_at": self.looked_at,
            "evicted": self.evicted,
        }
