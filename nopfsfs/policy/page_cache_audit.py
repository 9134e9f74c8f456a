"""Samples of the pushed files: how much of them the kernel has kept, and which rows to check next. Pure.

While nothing is missing, few rows are checked, picked by chance. Once some are found gone, more rows are checked,
namely those that come next in the plan. Such rows can be pushed again before they are read.
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

ROWS_LEAST = 16  # checked each time; one check costs some 100 µs of the pusher, when it has nothing else to do
ROWS_MOST = 512
SHARE_OF = 1024  # the last so many checks give the resident share
CHUNK = 1 << 16  # rows among which a sample is taken: to search all rows would take long for large data sets
CHUNKS = 8
AHEAD_MOST = 1 << 14  # positions ahead of the reader that are checked; then from the reader on again


class PageCacheAudit:
    """The rows to check, and what the checks found. `charges` i64[n] is that of `Residency`, `paged` u8[n] that of
    `PushScheduler`."""

    def __init__(self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8]) -> None:
        self._size, self._paged = charges, paged
        self._chance = np.random.default_rng(len(charges))
        self._looks: deque[tuple[int, int]] = deque(maxlen=SHARE_OF)  # (bytes found, bytes expected)
        self._wanted = ROWS_LEAST
        self._ahead_at = 0  # stream position before which all rows were checked
        self._gone = 0  # rows found gone since the last rows were chosen
        self.measured: bool | None = None  # None: not tried yet
        self.looked_at = 0
        self.evicted = 0

    # ---- what was found -----------------------------------------------------------------------------------

    def present(self, row: int) -> None:
        """Record that the page cache holds the whole row."""
        self._saw(int(self._size[row]), row)

    def lacking(self, row: int, cached: int) -> None:
        """Record that the page cache holds only `cached` bytes of a row that was expected whole."""
        self._saw(min(cached, int(self._size[row])), row)
        self.lost(1)

    def lost(self, rows: int) -> None:
        """Count `rows` more rows as found gone, by whatever sign."""
        self.evicted += rows
        self._gone += rows

    def refused(self) -> None:
        """Record that this system does not show what its page cache holds."""
        self.measured = False

    def _saw(self, there: int, row: int) -> None:
        self.measured = True
        self.looked_at += 1
        self._looks.append((there, int(self._size[row])))

    # ---- what to check next ----------------------------------------------------------------------------------

    def choose(self, position: int, upcoming: Upcoming) -> list[int]:
        """Choose rows to check now; `upcoming` is as in `NodePolicy.advance`, from stream position `position` on."""
        if self.measured is False:
            return []
        self._wanted = min(2 * self._wanted, ROWS_MOST) if self._gone else max(self._wanted // 2, ROWS_LEAST)
        self._gone = 0
        rows = self._sample(ROWS_LEAST)
        if self._wanted > ROWS_LEAST:
            rows += self._next(self._wanted - ROWS_LEAST, position, upcoming)
        return list(dict.fromkeys(rows))

    def _sample(self, count: int) -> list[int]:
        """Pick by chance some of the rows that the page cache should hold whole."""
        last = max(1, len(self._paged) - CHUNK + 1)
        for _ in range(CHUNKS):
            at = int(self._chance.integers(last))
            found = at + np.flatnonzero(self._paged[at : at + CHUNK] == Paged.WHOLE)
            if len(found):
                picked: list[int] = self._chance.choice(found, min(count, len(found)), replace=False).tolist()
                return picked
        return []

    def _next(self, count: int, position: int, upcoming: Upcoming) -> list[int]:
        """The next such rows in the plan, except those that are too near to be pushed again in time."""
        first = position + PUSHES_OUTSTANDING
        if not first <= self._ahead_at < position + AHEAD_MOST:
            self._ahead_at = first
        rows = upcoming(self._ahead_at, position + AHEAD_MOST - self._ahead_at)
        places = np.flatnonzero(rows >= 0)
        places = places[self._paged[rows[places]] == Paged.WHOLE][:count]
        self._ahead_at = self._ahead_at + int(places[-1]) + 1 if len(places) == count else first
        found: list[int] = rows[places].tolist()
        return found

    # ---- status -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The part of the status record. `resident_share` is of the bytes of the last rows checked; None before the
        first check."""
        there, believed = (sum(column) for column in zip(*self._looks, strict=True)) if self._looks else (0, 0)
        return {
            "measured": bool(self.measured),
            "resident_share": round(there / believed, 4) if believed else None,
            "looked_at": self.looked_at,
            "evicted": self.evicted,
        }
