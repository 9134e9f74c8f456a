"""The conductor: what to fetch, push, drop and evict next. A pure state machine: events in, orders out.

Files get their home in the order in which they will first be read: the arena while it has room, then disk; what fits
nowhere streams through a small part of the arena. A file that stays is fetched as early as the source allows; one that
streams is fetched when it comes into the window and let go when its last reader closed it. What is staged is pushed
into the page cache in stream order, as far ahead as the page budget allows.
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
PUSHES_OUTSTANDING = 64  # few: a push of what is needed now must not wait behind what is needed later
PASSED_BY = 1024  # positions behind the reader's first unopened one, after which a file was passed by
SCAN = 1024  # stream positions looked at in one step
SCAN_STEPS = 16  # steps in one call, so that the caller stays responsive
RANGE_DROP_BYTES = 32 << 20  # of a large file being read: how often the pages behind the reader are dropped
RANGE_KEEP_BYTES = 8 << 20


class Home(IntEnum):
    """Where a file lives between its readings."""

    UNPLACED = 0
    RAM = 1
    DISK = 2
    STREAM = 3


class Paged(IntEnum):
    """How much of a file the page cache was given, as far as the conductor knows."""

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
    """State by row: arrays of length n. `charges` i64[n]: what a copy of the file costs in memory, bytes; 0 for what
    is not a regular file or empty. `paged` u8[n] is written here and may lie in shared memory. `disk_room`: bytes by
    disk tier."""

    def __init__(
        self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8], split: Split, disk_room: list[int]
    ) -> None:
        n = len(charges)
        # Each column as an array, for whole stretches, and as a memoryview, ten times faster for single rows.
        self._sizes, self.paged = charges, paged
        self._homes = np.zeros(n, np.uint8)
        self._staged_rows, self._fetching_rows, self._pushing_rows = np.zeros((3, n), np.bool_)
        self._writing_rows, self._streaming_rows, self._page_home_rows, self._on_disk_rows = np.zeros((4, n), np.bool_)
        self._opens = np.zeros(n, np.int32)
        self._size, self._paged, self.home, self._open = charges.data, paged.data, self._homes.data, self._opens.data
        self._staged, self._fetching = self._staged_rows.data, self._fetching_rows.data
        self._pushing, self._writing = self._pushing_rows.data, self._writing_rows.data
        self._streaming, self._page_home = self._streaming_rows.data, self._page_home_rows.data
        self._on_disk = self._on_disk_rows.data
        self.split = split
        self._disk_of: dict[int, int] = {}
        self._disk_room = list(disk_room)
        self._range_dropped: dict[int, int] = {}
        self._behind: deque[int] = deque()  # read and closed, their pages to be dropped when room is needed
        self._ahead: deque[tuple[int, int]] = deque()  # (position by which it was surely read, row that streams)
        self._fetch_at = 0  # stream positions: before them all is ordered
        self._push_at = 0
        self.fetches_outstanding = 0
        self.pushes_outstanding = 0
        self.homes_used = 0
        self.stream_used = 0
        self.page_homes_used = 0
        self.pages_used = 0  # held, being pushed, or being dropped
        self._leaving_rows = np.zeros(n, np.bool_)  # a drop of all its pages is ordered and not done
        self._leaving = self._leaving_rows.data
        self._pages_leaving = 0
        self._orders: list[tuple[Do, list[int], int]] = []

    # ---- events of the stager -----------------------------------------------------------------------------

    def staged(self, row: int) -> None:
        """The row is whole in the arena (asked for here, or by a demand)."""
        self._end_fetch(row)
        if self._staged[row]:
            return
        self._staged[row] = True
        self._place(row)
        self._charge_stream(row)
        if self.home[row] == Home.DISK and not self._on_disk[row] and not self._writing[row]:
            self._writing[row] = True
            self._order(Do.TO_DISK, row, self._disk_of[row])

    def fetch_failed(self, row: int) -> None:
        """The row could not be staged (no room, cancelled, unreadable); it will be read on demand."""
        self._end_fetch(row)
        if not self._staged[row]:
            self._uncharge_stream(row)

    def evicted(self, row: int) -> None:
        self._staged[row] = False
        self._uncharge_stream(row)

    def pushed(self, row: int) -> None:
        if self._end_push(row):
            self._paged[row] = Paged.WHOLE
            if not self._open[row]:
                self._closed(row)

    def push_failed(self, row: int) -> None:
        if self._end_push(row) and self._paged[row] == Paged.NONE:
            self.pages_used -= self._size[row]

    def dropped(self, row: int) -> None:
        if self._leaving[row]:
            self._leaving[row] = False
            self._pages_leaving -= self._size[row]
        if self._paged[row] != Paged.NONE:
            self._paged[row] = Paged.NONE
            self.pages_used -= self._size[row]

    def on_disk(self, row: int) -> None:
        self._writing[row] = False
        self._on_disk[row] = True
        self._let_go_unless_open(row)

    def off_disk(self, row: int) -> None:
        """The row has no copy on disk (any more): the tier was full, failed, or the file changed."""
        self._writing[row] = self._on_disk[row] = False
        if self.home[row] == Home.DISK:
            self.home[row] = Home.STREAM

    def changed(self, row: int) -> None:
        """The file changed at the source and everything of its old version was forgotten."""
        self.dropped(row)

    def stager_restarted(self) -> None:
        """What the stager before had begun is lost; what it had published is kept, copies on disk are not."""
        for row in np.flatnonzero(self._fetching_rows).tolist():
            self.fetch_failed(row)
        for row in np.flatnonzero(self._pushing_rows).tolist():
            self.push_failed(row)
        for row in np.flatnonzero(self._writing_rows | self._on_disk_rows).tolist():
            self.off_disk(row)
        for row in np.flatnonzero(self._leaving_rows).tolist():
            self._leaving[row] = False
            self._pages_leaving -= self._size[row]
            self._behind.append(row)

    # ---- events of the server -----------------------------------------------------------------------------

    def served(self, opened: Rows, read: Rows, ends: npt.NDArray[np.uint64], released: Rows) -> None:
        """What readers did: rows opened, rows of which READs up to byte `ends` were answered, rows closed.

        Most of it asks for nothing; that part is dealt with for all rows at once."""
        np.add.at(self._opens, opened, 1)
        new = (self.paged[read] == Paged.NONE) & ~self._pushing_rows[read]
        new |= self._sizes[read] > self.split.whole_limit
        for row, end in zip(read[new].tolist(), ends[new].tolist(), strict=True):
            self._read(row, end)
        np.subtract.at(self._opens, released, 1)
        self._opens[released] = np.maximum(self._opens[released], 0)  # an open may have been lost in the ring
        last = self._opens[released] == 0
        matters = (self._homes[released] != Home.RAM) | (self._sizes[released] > self.split.whole_limit)
        if self.split.page_homes < self.split.pages:
            matters |= (self.paged[released] != Paged.NONE) & ~self._page_home_rows[released]
        for row in released[last & matters].tolist():
            self._closed_last(row)

    def _read(self, row: int, end: int) -> None:
        """The server answered a READ up to byte `end`; so the page cache holds these bytes now."""
        if self._size[row] > self.split.whole_limit:
            self._read_range(row, end)
        elif self._paged[row] == Paged.NONE:
            self._paged[row] = Paged.SOME
            self.pages_used += self._size[row]

    def _closed_last(self, row: int) -> None:
        if self._range_dropped.pop(row, None) is not None:
            self._order(Do.DROP, row)
        elif self._paged[row] != Paged.NONE:
            self._closed(row)
        self._let_go_unless_open(row)

    # ---- the stream ---------------------------------------------------------------------------------------

    def restart(self, position: int) -> None:
        """The plan changed: what was queued is vain; look at the stream anew from its position."""
        self._order_all(Do.CANCEL, [])
        self._fetch_at = self._push_at = position
        self._ahead.clear()
        for row in np.flatnonzero(self._streaming_rows & self._staged_rows).tolist():
            self._pass_by(row)

    def advance(self, position: int, horizon: int, upcoming: Upcoming) -> None:
        """Order fetches and pushes for stream positions [position, position + horizon); `upcoming(start, count)` gives
        the rows from position `start` on, fewer where the stream is not known further, -1 for positions gone by."""
        while self._ahead and self._ahead[0][0] < position:
            self._pass_by(self._ahead.popleft()[1])
        self._fetch_at = self._scan(max(self._fetch_at, position), position + horizon, upcoming, self._fetch_some)
        self._push_at = self._scan(max(self._push_at, position), self._fetch_at, upcoming, self._push_some)

    def _scan(self, at: int, end: int, upcoming: Upcoming, deal: Callable[[Rows], int]) -> int:
        """Deal with stream positions [at, end) until `deal` cannot go on; where that was."""
        for _ in range(SCAN_STEPS):
            if at >= end:
                break
            rows = upcoming(at, min(SCAN, end - at))
            dealt = deal(rows)
            at += dealt
            if dealt < len(rows) or not len(rows):
                break
        return at

    def _fetch_some(self, rows: Rows) -> int:
        """Order fetches among these rows in order; how many of them were dealt with."""
        wanted = (rows >= 0) & ~(self._staged_rows[rows] | self._fetching_rows[rows])
        wanted &= (self._sizes[rows] > 0) & (self._sizes[rows] <= self.split.whole_limit)
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero(wanted).tolist():
            row = int(rows[at])
            self._place(row)
            if self._fetching[row] or self._too_large(row) or self._served_by_pages(row):
                continue
            if not self._may_fetch(row):
                dealt = at
                break
            self._fetching[row] = True
            self._charge_stream(row)
            if self.home[row] != Home.RAM:
                self._ahead.append((self._fetch_at + at + PASSED_BY, row))
            self.fetches_outstanding += 1
            batch.append(row)
        if batch:
            self._order_all(Do.FETCH, batch)
        return dealt

    def _may_fetch(self, row: int) -> bool:
        if self.fetches_outstanding >= FETCHES_OUTSTANDING:
            return False
        return self.home[row] == Home.RAM or self.stream_used + self._size[row] <= self.split.stream

    def _too_large(self, row: int) -> bool:
        """A file that does not stay and would not fit the stream's part of the arena is read on demand."""
        return self.home[row] != Home.RAM and self._size[row] > self.split.stream

    def _served_by_pages(self, row: int) -> bool:
        """A file that has no home in the arena and whose pages are still there needs no second fetch."""
        return self.home[row] != Home.RAM and self._paged[row] == Paged.WHOLE

    def _push_some(self, rows: Rows) -> int:
        """Order pushes among these rows in order; how many of them were dealt with."""
        wanted = (rows >= 0) & (self.paged[rows] != Paged.WHOLE) & ~self._pushing_rows[rows]
        wanted &= self._staged_rows[rows] | self._fetching_rows[rows]
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero(wanted).tolist():
            row = int(rows[at])
            if self._pushing[row]:
                continue
            if not self._staged[row] or not self._may_push(row):
                dealt = at
                break
            self._pushing[row] = True
            self.pushes_outstanding += 1
            if self._paged[row] == Paged.NONE:
                self.pages_used += self._size[row]
            batch.append(row)
        if batch:
            self._order_all(Do.PUSH, batch)
        return dealt

    def _may_push(self, row: int) -> bool:
        if self.pushes_outstanding >= PUSHES_OUTSTANDING:
            return False
        size = self._size[row]
        if self._paged[row] == Paged.NONE and self.pages_used + size > self.split.pages:
            self._make_page_room(size)
            return False
        if not self._page_home[row] and self.page_homes_used + size <= self.split.page_homes:
            self._page_home[row] = True
            self.page_homes_used += size
        return True

    def _make_page_room(self, size: int) -> None:
        """Drop pages that lie behind the reader; the room comes when the stager has done so."""
        while self._behind and self.pages_used - self._pages_leaving + 8 * size > self.split.pages:
            row = self._behind.popleft()
            if not self._page_home[row]:
                self._drop_pages(row)

    def _drop_pages(self, row: int) -> None:
        if self._paged[row] != Paged.NONE and not self._open[row] and not self._leaving[row]:
            self._leaving[row] = True
            self._pages_leaving += self._size[row]
            self._order(Do.DROP, row)

    def orders(self) -> list[tuple[Do, list[int], int]]:
        """What is to be done now, in order: (order, rows, value)."""
        if self.pages_used > self.split.pages:
            self._make_page_room(0)
        result, self._orders = self._orders, []
        return result

    # ---- placement ----------------------------------------------------------------------------------------

    def resize(self, split: Split, furthest: Rows) -> None:
        """A new division of the budget. When it is smaller, files leave in the order of `furthest` (their next use
        is furthest away); when it is larger, files that streamed are placed anew."""
        if split.homes > self.split.homes:
            self._homes[(self._homes == Home.STREAM) & ~self._streaming_rows] = Home.UNPLACED
        self.split = split
        for row in furthest.tolist():
            if self.homes_used <= split.homes and self.pages_used - self._pages_leaving <= split.pages:
                break
            self._give_up(row)

    def _give_up(self, row: int) -> None:
        size = self._size[row]
        if self.home[row] == Home.RAM and self.homes_used > self.split.homes:
            self.home[row] = Home.STREAM
            self.homes_used -= size
            if self._staged[row] or self._fetching[row]:
                self._charge_stream(row)
            self._let_go_unless_open(row)
        if self._page_home[row]:
            self._page_home[row] = False
            self.page_homes_used -= size
        self._drop_pages(row)

    def _place(self, row: int) -> None:
        """Give a row its home, at its first use."""
        if self.home[row] != Home.UNPLACED:
            return
        size = self._size[row]
        self.home[row] = Home.STREAM
        if size > self.split.whole_limit:
            return
        if self.homes_used + size <= self.split.homes:
            self.home[row] = Home.RAM
            self.homes_used += size
            return
        for tier, room in enumerate(self._disk_room):
            if size <= room:
                self._disk_room[tier] -= size
                self._disk_of[row] = tier + 1
                self.home[row] = Home.DISK
                return

    def _let_go_unless_open(self, row: int) -> None:
        """Free the arena copy of a file that does not stay there and that nobody reads now."""
        if self.home[row] in (Home.RAM, Home.UNPLACED) or self._open[row] or not self._staged[row]:
            return
        if not self._writing[row] and not (self._pushing[row] or self._to_come(row)):
            self._order(Do.EVICT, row)

    def _pass_by(self, row: int) -> None:
        """A file that was staged for a reading which did not come (an epoch was left early, the plan changed)."""
        if self._streaming[row] and self._staged[row] and not self._open[row] and not self._writing[row]:
            self._order(Do.EVICT, row)

    def _to_come(self, row: int) -> bool:
        """Staged ahead of its reading: neither read nor pushed yet."""
        return self._paged[row] == Paged.NONE

    def _closed(self, row: int) -> None:
        if not self._page_home[row] and self.split.page_homes < self.split.pages:
            self._behind.append(row)

    # ---- small parts --------------------------------------------------------------------------------------

    def _end_fetch(self, row: int) -> None:
        if self._fetching[row]:
            self._fetching[row] = False
            self.fetches_outstanding -= 1

    def _end_push(self, row: int) -> bool:
        if not self._pushing[row]:
            return False
        self._pushing[row] = False
        self.pushes_outstanding -= 1
        return True

    def _charge_stream(self, row: int) -> None:
        """Charge a file that does not stay in the arena to the stream's part of it."""
        if self.home[row] != Home.RAM and not self._streaming[row]:
            self._streaming[row] = True
            self.stream_used += self._size[row]

    def _uncharge_stream(self, row: int) -> None:
        if self._streaming[row]:
            self._streaming[row] = False
            self.stream_used -= self._size[row]

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
