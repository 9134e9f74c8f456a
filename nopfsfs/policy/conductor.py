"""The conductor: what to fetch, push, drop and evict next. A pure state machine: events in, orders out.

Files are placed in the order in which they will first be read: into the page cache while it has room (they stay), then
on disk, and what fits nowhere streams through a window ahead of the reader. A file that stays is fetched as early as
the source allows; one that streams is fetched when it comes into the window and dropped when its last reader closed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.budget import Split

Rows = npt.NDArray[np.int64]
Upcoming = Callable[[int, int], Rows]

FETCHES_OUTSTANDING = 256  # rows asked of the stager and not done; bounds what a jump of the plan makes vain
SCAN = 2048  # stream positions looked at in one step
SCAN_STEPS = 16  # steps in one call, so that the caller stays responsive
RANGE_DROP_BYTES = 32 << 20  # of a large file being read: how often the pages behind the reader are dropped
RANGE_KEEP_BYTES = 8 << 20


class Home(IntEnum):
    """Where a file lives between its readings."""

    UNPLACED = 0
    PAGES = 1
    DISK = 2
    STREAM = 3


class Paged(IntEnum):
    """How much of a file the page cache holds, as far as the conductor knows."""

    NONE = 0
    WHOLE = 1
    SOME = 2


class Do(IntEnum):
    """Orders to the stager; the numbers are those of `fetch.wire.Order`."""

    FETCH = 1
    PUSH = 2
    DROP = 3
    EVICT = 4
    TO_DISK = 5
    OFF_DISK = 6
    CANCEL = 7


class Conductor:
    """State by row: arrays of length n. `rounded` i64[n]: each file's size in whole pages, bytes; 0 for what is
    not a regular file. `paged` u8[n] is written here and may lie in shared memory. `disk_room`: bytes by disk tier."""

    def __init__(
        self, rounded: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8], split: Split, disk_room: list[int]
    ) -> None:
        n = len(rounded)
        self._size, self.paged = rounded, paged
        self.split = split
        self.home = np.zeros(n, np.uint8)
        self._staged = np.zeros(n, np.bool_)
        self._disk = np.zeros(n, np.uint8)
        self._fetching = np.zeros(n, np.bool_)
        self._pushing = np.zeros(n, np.bool_)
        self._writing = np.zeros(n, np.bool_)
        self._keep = np.zeros(n, np.bool_)  # the kernel lost this file's pages once: its arena copy stays
        self._open: dict[int, int] = {}
        self._range_dropped: dict[int, int] = {}
        self._to_push: deque[int] = deque()
        self._pushing_bytes = 0
        self._tier_of: dict[int, int] = {}
        self._disk_room = list(disk_room)
        self._fetch_at = 0  # absolute stream position
        self._streaming = np.zeros(n, np.bool_)
        self._stream_bytes = 0  # of files that do not stay: being fetched, staged or paged
        self.fetches_outstanding = 0
        self.arena_planned = 0  # staged or fetching, bytes
        self.pages_used = 0
        self.homes_used = 0
        self._orders: list[tuple[Do, list[int], int]] = []

    # ---- events of the stager -----------------------------------------------------------------------------

    def staged(self, row: int) -> None:
        """The row is whole in the arena (asked for here, or by a demand)."""
        if self._staged[row]:
            return
        self._end_fetch(row)
        self._staged[row] = True
        self.arena_planned += int(self._size[row])
        self._place(row)
        self._stream(row)
        if self.home[row] == Home.DISK and not self._disk[row] and not self._writing[row]:
            self._writing[row] = True
            self._order(Do.TO_DISK, row, self._tier_of[row])
        if self.paged[row] != Paged.WHOLE:
            self._to_push.append(row)
        else:
            self._settle(row)

    def fetch_failed(self, row: int) -> None:
        """The row could not be staged (no room, cancelled, unreadable); it is read on demand, or tried again later."""
        self._end_fetch(row)
        self._unstream(row)

    def evicted(self, row: int) -> None:
        if self._staged[row]:
            self._staged[row] = False
            self.arena_planned -= int(self._size[row])

    def pushed(self, row: int) -> None:
        self._end_push(row)
        if self.paged[row] == Paged.NONE:
            self.pages_used += int(self._size[row])
        self.paged[row] = Paged.WHOLE
        self._settle(row)

    def push_failed(self, row: int) -> None:
        if self._end_push(row):
            self._settle(row)

    def dropped(self, row: int) -> None:
        if self.paged[row] != Paged.NONE:
            self.pages_used -= int(self._size[row])
            self.paged[row] = Paged.NONE

    def on_disk(self, row: int, number: int) -> None:
        self._writing[row] = False
        self._disk[row] = number
        self._settle(row)

    def off_disk(self, row: int) -> None:
        """The row has no copy on disk (any more): the tier was full, failed, or the file changed."""
        self._writing[row] = False
        self._disk[row] = 0
        if self.home[row] == Home.DISK:
            self.home[row] = Home.STREAM
        self._settle(row)

    def changed(self, row: int) -> None:
        """The file changed at the source and everything of its old version was forgotten."""
        self.dropped(row)

    # ---- events of the server -----------------------------------------------------------------------------

    def opened(self, row: int) -> None:
        self._open[row] = self._open.get(row, 0) + 1

    def read(self, row: int, end: int, *, missed: bool) -> None:
        """The server answered a READ up to byte `end`; so the page cache holds these bytes now."""
        if missed and self.paged[row] == Paged.WHOLE:
            self._keep[row] = True  # pushed, and yet it had to be read: the kernel had evicted it
        if not self._size[row] or self._size[row] > self.split.whole_limit:
            self._read_range(row, end)
            return
        if self.paged[row] == Paged.NONE:
            self._place(row)
            self._stream(row)
            self.paged[row] = Paged.SOME
            self.pages_used += int(self._size[row])
        if end > self._size[row] - 4096 and self.paged[row] == Paged.SOME:
            self.paged[row] = Paged.WHOLE

    def released(self, row: int) -> None:
        """A reader closed the file. When it was the last, what does not stay is dropped."""
        left = self._open.get(row, 1) - 1
        if left > 0:
            self._open[row] = left
            return
        self._open.pop(row, None)
        if self._range_dropped.pop(row, None) is not None:
            self._order(Do.DROP, row)
        self._settle(row)
        if self.home[row] in (Home.STREAM, Home.DISK):
            self._let_go(row)

    def stager_restarted(self) -> None:
        """What the stager before had begun is lost; what it had published is kept, copies on disk are not."""
        for row in np.flatnonzero(self._fetching).tolist():
            self.fetch_failed(row)
        for row in np.flatnonzero(self._pushing).tolist():
            self.push_failed(row)
        for row in np.flatnonzero(self._writing | (self._disk > 0)).tolist():
            self.off_disk(row)

    # ---- the stream ---------------------------------------------------------------------------------------

    def restart(self, position: int) -> None:
        """The plan changed: what was queued is vain; look at the stream anew from its position."""
        self._order_all(Do.CANCEL, [])
        self._fetch_at = position

    def advance(self, position: int, horizon: int, upcoming: Upcoming) -> None:
        """Order fetches for stream positions [position, position + horizon); `upcoming(start, count)` gives the
        rows from position `start` on, fewer where the stream is not known further, -1 for positions gone by."""
        self._fetch_at = max(self._fetch_at, position)
        for _ in range(SCAN_STEPS):
            count = min(SCAN, position + horizon - self._fetch_at)
            if count <= 0 or self.fetches_outstanding >= FETCHES_OUTSTANDING:
                return
            rows = upcoming(self._fetch_at, count)
            taken = self._fetch_some(rows)
            self._fetch_at += taken
            if taken < len(rows) or len(rows) < count:
                return

    def _fetch_some(self, rows: Rows) -> int:
        """Order fetches among these rows in order; how many of them were dealt with."""
        wanted = (rows >= 0) & ~(self._staged[rows] | self._fetching[rows] | (self.paged[rows] == Paged.WHOLE))
        wanted &= (self._size[rows] > 0) & (self._size[rows] <= self.split.whole_limit)
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero(wanted).tolist():
            row = int(rows[at])
            if self._fetching[row]:
                continue  # twice in one stretch of the stream
            if not self._may_fetch(row):
                dealt = at
                break
            self._fetching[row] = True
            self.arena_planned += int(self._size[row])
            self.fetches_outstanding += 1
            batch.append(row)
        if batch:
            self._order_all(Do.FETCH, batch)
        return dealt

    def _may_fetch(self, row: int) -> bool:
        size = int(self._size[row])
        if self.fetches_outstanding >= FETCHES_OUTSTANDING:
            return False
        # An eighth of the budget is kept for demands and for files read by ranges.
        if self.arena_planned + size > self.split.arena - min(self.split.whole_limit, self.split.passage // 2):
            return False
        self._place(row)
        if self.home[row] == Home.PAGES:
            return True
        if self._stream_bytes + size > self.split.pages - self.split.homes:
            return False
        self._stream(row)
        return True

    def orders(self) -> list[tuple[Do, list[int], int]]:
        """What is to be done now, in order: (order, rows, value)."""
        self._push_some()
        result, self._orders = self._orders, []
        return result

    # ---- placement ----------------------------------------------------------------------------------------

    def resize(self, split: Split, furthest: Rows) -> None:
        """A new division of the budget. When it is smaller, files leave in the order of `furthest` (their next use
        is furthest away); when it is larger, files that streamed are placed anew."""
        grown = split.homes > self.split.homes
        self.split = split
        if grown:
            self.home[(self.home == Home.STREAM) & ~self._streaming] = Home.UNPLACED
        for row in furthest.tolist():
            if self.homes_used <= split.homes and self.arena_planned <= split.arena:
                return
            if self.home[row] == Home.PAGES:
                self.home[row] = Home.STREAM
                self.homes_used -= int(self._size[row])
            self._let_go(row)

    def _place(self, row: int) -> None:
        """Give a row its home, at its first use."""
        if self.home[row] != Home.UNPLACED:
            return
        size = int(self._size[row])
        self.home[row] = Home.STREAM
        if not size or size > self.split.whole_limit:
            return
        if self.homes_used + size <= self.split.homes:
            self.home[row] = Home.PAGES
            self.homes_used += size
            return
        for tier, room in enumerate(self._disk_room):
            if size <= room:
                self._disk_room[tier] -= size
                self._tier_of[row] = tier + 1
                self.home[row] = Home.DISK
                return

    def _stream(self, row: int) -> None:
        """Charge a file that does not stay to the window."""
        if self.home[row] != Home.PAGES and not self._streaming[row]:
            self._streaming[row] = True
            self._stream_bytes += int(self._size[row])

    def _unstream(self, row: int) -> None:
        if self._streaming[row]:
            self._streaming[row] = False
            self._stream_bytes -= int(self._size[row])

    def _settle(self, row: int) -> None:
        """Free the arena copy of a file that the page cache holds whole, unless there is room for second copies."""
        if not self._staged[row] or self._writing[row] or self._pushing[row] or self.paged[row] != Paged.WHOLE:
            return
        room = self.split.arena - self.split.passage
        if self.arena_planned > room and not (self._keep[row] and self.arena_planned <= self.split.arena // 2):
            self._order(Do.EVICT, row)

    def _let_go(self, row: int) -> None:
        """Drop what memory holds of a file that nobody reads now."""
        if row in self._open:
            return
        if self.paged[row] != Paged.NONE:
            self._order(Do.DROP, row)
        if self._staged[row] and not self._writing[row]:
            self._order(Do.EVICT, row)
        self._unstream(row)

    # ---- small parts --------------------------------------------------------------------------------------

    def _end_fetch(self, row: int) -> None:
        if self._fetching[row]:
            self._fetching[row] = False
            self.fetches_outstanding -= 1
            self.arena_planned -= int(self._size[row])

    def _push_some(self) -> None:
        batch: list[int] = []
        while self._to_push:
            row = self._to_push[0]
            if self._staged[row] and not self._pushing[row] and self.paged[row] != Paged.WHOLE:
                extra = 0 if self.paged[row] else int(self._size[row])
                if self.pages_used + self._pushing_bytes + extra > self.split.pages:
                    break
                self._pushing[row] = True
                self._pushing_bytes += int(self._size[row])
                batch.append(row)
            self._to_push.popleft()
        if batch:
            self._order_all(Do.PUSH, batch)

    def _end_push(self, row: int) -> bool:
        if not self._pushing[row]:
            return False
        self._pushing[row] = False
        self._pushing_bytes -= int(self._size[row])
        return True

    def _read_range(self, row: int, end: int) -> None:
        """Of a file that is never whole in memory: drop the pages that lie behind the reader."""
        last = self._range_dropped.setdefault(row, 0)
        if end < last:
            self._range_dropped[row] = end
        elif end - last > RANGE_DROP_BYTES:
            self._range_dropped[row] = end
            self._order(Do.DROP, row, end - RANGE_KEEP_BYTES)

    def _order(self, do: Do, row: int, value: int = 0) -> None:
        if self._orders and self._orders[-1][0] == do and self._orders[-1][2] == value:
            self._orders[-1][1].append(row)
        else:
            self._orders.append((do, [row], value))

    def _order_all(self, do: Do, rows: list[int]) -> None:
        self._orders.append((do, rows, 0))
