"""Pushes into the page cache of the mount, and drops from it: rows that stay there, and a window around the reader.

Pure. A row's pages are charged from the push, or the first demand read, until they are reported dropped. The kernel may
take pages earlier: then more is charged than is held, never less, until they are found gone. Pages ahead of the reader
are not dropped. Pages behind the reader are dropped when room is needed, those that are read again last first. No page
is dropped for a row that is read later than its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.copy_flags import FETCHING, KERNEL_READS, MAY_PASS, OPEN, PRESENT, PUSHING, STAGED
from nopfsfs.policy.homes import Home
from nopfsfs.policy.next_use import NextUseOrder
from nopfsfs.policy.pending_reads import PendingReads
from nopfsfs.policy.residency import Residency
from nopfsfs.policy.stream_scan import SCAN, Rows, Upcoming, scan
from nopfsfs.protocol.supervisor_stager import StagerCommand

PUSHES_OUTSTANDING = 64  # few: an urgent push must not wait behind pushes for later reads
RESERVE_MOST = 32 << 20  # bytes of the window that pushes leave to demand reads, whose pages cannot be refused
DROP_AHEAD = 8  # room is made for this many files of the size that is needed
LEAD_MOST = 256  # positions left out when the reader has overtaken the pushes: some ten milliseconds of a fast reader
_RAM, _DISK = Home.RAM, Home.DISK  # bound once, as in `residency`


class Paged(IntEnum):
    """The part of a file that was given to the page cache."""

    NONE = 0
    WHOLE = 1
    SOME = 2
    LATE = 3  # some, or soon: its reader came before its push was reported; a push not done by then is useless


_NONE, _WHOLE, _SOME, _LATE = Paged


class PushScheduler:
    """Pushed rows and their charges; issues PUSH and DROP. `paged` u8[n], members of `Paged`, is written here and may
    lie in shared memory."""

    def __init__(self, residency: Residency, paged: npt.NDArray[np.uint8]) -> None:
        self._residency, self.paged = residency, paged
        self._data = residency.total
        self._split = residency.split
        self.home = np.zeros(len(paged), np.bool_)
        # views for one row at a time, as in `Residency`
        self._charge, self.paged_of, self._is_home = residency.charge_of, paged.data, self.home.data
        self._holds_of = residency.holds_of
        self.awaited = PendingReads()
        self.behind = NextUseOrder()  # closed rows, to be dropped when room is needed
        self._leaving: dict[int, int] = {}  # row: bytes; being dropped
        self._leaving_bytes = 0
        self._read_again: set[int] = set()  # rows read while they are being dropped
        # rows pushed since the last `rotate_recent`, and between the two before
        self._young: tuple[set[int], set[int]] = (set(), set())
        self.at = 0  # stream positions before which all is pushed, or left out
        self._position = 0
        self.evictions_read = 0  # READs that showed that the kernel had taken pages
        self.outstanding = 0
        self.used = 0
        self.homes_used = 0

    @property
    def bounded(self) -> bool:
        """True when not all of the data set may stay."""
        return self._split.page_homes < self._data

    @property
    def _limit(self) -> int:
        """Bytes up to which pushes may fill the page cache."""
        return self._split.pages - min((self._split.pages - self._split.page_homes) // 4, RESERVE_MOST)

    def recharge(self, row: int, more: int) -> None:
        """Count `more` bytes where the row is charged: its charge has changed. A row that has grown too large to stay
        does not stay any more."""
        all_could_stay = not self.bounded
        self._data += more
        if self._holds_of[row] & PUSHING or self.paged_of[row] != _NONE:
            self.used += more
        if self._is_home[row]:
            self.homes_used += more
            if self.homes_used > self._split.page_homes:
                self._is_home[row] = False
                self.homes_used -= self._charge[row]
        if row in self._leaving:
            self._leaving[row] += more
            self._leaving_bytes += more
        if all_could_stay and self.bounded:  # until now, rows behind the reader were not recorded
            self._put_all_behind(np.flatnonzero(self.paged != _NONE).tolist())

    # ---- pushes -------------------------------------------------------------------------------------------

    def too_large(self, row: int) -> bool:
        """True when the row's pages neither may stay nor fit the window; such a row is never pushed."""
        size = self._charge[row]
        stays = self._is_home[row] or self.homes_used + size <= self._split.page_homes
        return bool(not stays and size > self._limit - self._split.page_homes)

    def may_push(self, row: int) -> bool:
        """True when there is room for the row now, and few enough pushes are under way."""
        size = self._charge[row]
        room = self.paged_of[row] != _NONE or self.used + size <= self._limit
        return bool(room and self.outstanding < PUSHES_OUTSTANDING)

    def has(self, row: int) -> bool:
        """True when the page cache holds the whole row, and the row is not being dropped."""
        return bool(self.paged_of[row] == _WHOLE and row not in self._leaving)

    def push(self, row: int, position: int) -> None:
        """Record that the row is being pushed for its read at `position`."""
        size = self._charge[row]
        if self.paged_of[row] == _NONE:
            self.used += size
        if not self._is_home[row] and self.homes_used + size <= self._split.page_homes:
            self._is_home[row] = True
            self.homes_used += size
        self._residency.hold(row, PUSHING)
        self.outstanding += 1
        self.keep(row, position)

    def keep(self, row: int, position: int) -> None:
        """Await the row's read at `position`: its pages are not behind the reader (any more)."""
        if not self._is_home[row]:
            self.behind.discard(row)
            self.awaited.expect(row, position)

    def pushed(self, row: int) -> None:
        """Record that the page cache holds the whole row."""
        if self._holds_of[row] & PUSHING:
            self.outstanding -= 1
        elif self.paged_of[row] == _NONE:
            self.used += self._charge[row]  # its command counted as lost, but was not
        self.paged_of[row] = _WHOLE
        self._young[0].add(row)
        self._residency.release(row, PUSHING)
        self._put_behind(row)

    def push_failed(self, row: int) -> None:
        """Record that the row could not be pushed."""
        self._count_failed(row)
        self._residency.release(row, PUSHING)
        self._put_behind(row)

    def _count_failed(self, row: int) -> None:
        if self._holds_of[row] & PUSHING:
            self.outstanding -= 1
            if self.paged_of[row] == _NONE:
                self.used -= self._charge[row]
                self.awaited.read_done(row)
        if self.paged_of[row] == _LATE:
            self.paged_of[row] = _SOME

    def adopt(self) -> None:
        """Take over the rows that another PushScheduler had pushed: `paged` says which."""
        self.paged[self.paged == _LATE] = _SOME
        for row in np.flatnonzero(self.paged != _NONE).tolist():
            size = self._charge[row]
            self.used += size
            if self.paged_of[row] == _WHOLE and self.homes_used + size <= self._split.page_homes:
                self._is_home[row] = True
                self.homes_used += size
            self._put_behind(row)

    def stager_lost(self) -> None:
        """Reset the pushes and drops that the stager has not reported: its process died."""
        for row in np.flatnonzero(self._residency.holds & PUSHING).tolist():
            self._count_failed(row)
            self._residency.release_later(row, PUSHING)
            self._put_behind(row)
        again = list(self._leaving)
        self._leaving.clear()
        self._leaving_bytes = 0
        self._read_again.clear()
        for row in again:
            self._put_behind(row)

    # ---- the reader ---------------------------------------------------------------------------------------

    def read(self, row: int) -> None:
        """Record that the server answered a READ, so that the page cache holds some of the row. The READ shows that the
        kernel had taken pages of a whole row. Soon after a push it does not: the push may have come after the READ."""
        if self._holds_of[row] & PUSHING:
            self.paged_of[row] = _LATE
        elif self.paged_of[row] == _NONE:
            self.used += self._charge[row]
            self.paged_of[row] = _SOME
        elif row in self._leaving:
            self._read_again.add(row)
        elif self.paged_of[row] == _WHOLE and not any(row in some for some in self._young):
            self.paged_of[row] = _SOME
            self.evictions_read += 1
            self._residency.again.add(row)

    def opened(self, row: int) -> None:
        """Record that a reader opened the row: a push that is not done yet would only be in its way."""
        if self._holds_of[row] & PUSHING:
            self.paged_of[row] = _LATE

    def rotate_recent(self) -> None:
        """Rotate the sets of rows pushed lately; called every few seconds. A push from before the last call is done for
        certain."""
        self._young = (set(), self._young[0])

    def closed(self, row: int) -> None:
        """Record that the row's last reader has closed it."""
        self.awaited.read_done(row)
        self._put_behind(row)

    def restart(self, position: int) -> None:
        """Follow another stream from `position` on: await no pushed row any more."""
        self.at = position
        self.behind.invalidate()
        self._put_all_behind(self.awaited.clear())

    def advance(self, position: int, end: int, upcoming: Upcoming) -> None:
        """Command pushes for stream positions up to `end`, up to which all is fetched. The reader is at `position`."""
        self._put_all_behind(self.awaited.passed(position))
        self.at, _ = scan(self._first(position, end), end, upcoming, self._push_some)

    def _first(self, position: int, end: int) -> int:
        """The position where pushing goes on. When the reader has overtaken the pushes, some rows are left to READs. So
        pushes get ahead of the reader again, and are not in its way."""
        moved, self._position = position - self._position, position
        if self.at >= position:
            return self.at
        return position + max(0, min(moved, LEAD_MOST, (end - position) // 2))

    def _push_some(self, rows: Rows, first: int) -> int:
        """Add push commands for some of these rows, the first at position `first`; return how many were dealt with."""
        residency = self._residency
        state = residency.state[rows]
        coming = (state & PRESENT == STAGED) | (state & FETCHING != 0)
        whole = self.paged[rows] == _WHOLE
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero((rows >= 0) & ((whole & ~self.home[rows]) | (coming & ~whole))).tolist():
            row = int(rows[at])
            if self.paged_of[row] == _WHOLE or self._holds_of[row] & PUSHING:
                self.keep(row, first + at)
                continue
            soon = first + at < self._position + SCAN
            if self.too_large(row) or self._passes(row) or (soon and self._holds_of[row] & OPEN):
                continue  # too large, or needs no pages, or its reader is there: a push would wait for the READs
            if not residency.state_of[row] & STAGED or not self.may_push(row):
                if residency.state_of[row] & STAGED:
                    self.drop(self.make_room(self._charge[row], first + at))
                dealt = at
                break
            self.push(row, first + at)
            batch.append(row)
        if batch:
            residency.commands.add_all(StagerCommand.PUSH, batch)
        return dealt

    def _passes(self, row: int) -> bool:
        """True when the kernel reads the row from disk by itself, now or once it is there: the row needs no pages."""
        state = self._residency.state_of[row]
        return bool(state & KERNEL_READS or (state & MAY_PASS and self._residency.home_of[row] == _DISK))

    # ---- room ---------------------------------------------------------------------------------------------

    def dropped(self, row: int) -> None:
        """Record that the row's pages are gone; if the row is being pushed again, they are about to come back."""
        self._leaving_bytes -= self._leaving.pop(row, 0)
        if self.paged_of[row] == _NONE:
            return
        if row in self._read_again:
            self._read_again.discard(row)  # before or after the drop: that is not known
            self.paged_of[row] = _SOME
            self._put_behind(row)
            return
        self.paged_of[row] = _NONE
        if not self._holds_of[row] & PUSHING:
            self.used -= self._charge[row]

    def pages_lost(self, row: int, cached: int) -> bool:
        """Record that the kernel has taken pages of the row and left `cached` bytes; the row is pushed anew for its
        next read. Return True if that is news."""
        if self.paged_of[row] != _WHOLE or self._holds_of[row] & PUSHING or row in self._leaving:
            return False
        self.paged_of[row] = _SOME if cached else _NONE
        if not cached:
            self.used -= self._charge[row]
            self.awaited.read_done(row)
            self.behind.discard(row)
        self._residency.again.add(row)
        return True

    def make_room(self, size: int = 0, position: int = -1) -> list[int]:
        """Choose rows to drop now, so that `size` more bytes fit for a read at `position`; none of them is read before
        that. Their room is free when they are reported dropped."""
        rows: list[int] = []
        while self.used - self._leaving_bytes + DROP_AHEAD * size > self._limit:
            row = self.behind.pop_last_used(position)
            if row is None:
                break
            if self._droppable(row):
                self._leaving[row] = self._charge[row]
                self._leaving_bytes += self._charge[row]
                rows.append(row)
        return rows

    def drop(self, rows: list[int]) -> None:
        """Add the command to drop these rows, which `make_room` chose."""
        if rows:
            self._residency.commands.add_all(StagerCommand.DROP, rows)
            # A row whose pages were to serve its next read is fetched for that read, if the scan is past it.
            self._residency.again.update(row for row in rows if self._residency.home_of[row] != _RAM)

    def forget(self, row: int) -> None:
        """Drop the row's pages now, and expect none. No reader may have the row open, and no push may be under way."""
        if self._is_home[row]:
            self._is_home[row] = False
            self.homes_used -= self._charge[row]
        self.awaited.read_done(row)
        self.behind.discard(row)
        if row not in self._leaving:
            self._leaving[row] = self._charge[row]
            self._leaving_bytes += self._charge[row]
            self._residency.commands.add(StagerCommand.DROP, row)

    def resize(self, split: MemorySplit, furthest: Iterable[int]) -> None:
        """Set another budget. Rows that must leave do so in the order of `furthest`."""
        all_could_stay = not self.bounded
        self._split = split
        excess = self.used - self._leaving_bytes - self._limit
        track_all = self.bounded and all_could_stay  # until now, rows behind the reader were not recorded
        for row in furthest:
            if self.homes_used <= split.page_homes and excess <= 0 and not track_all:
                break
            size = self._charge[row]
            if self._is_home[row] and self.homes_used > split.page_homes:
                self._is_home[row] = False
                self.homes_used -= size
            if excess > 0:
                self.awaited.read_done(row)
            self._put_behind(row)
            excess -= size if row in self.behind else 0

    def _droppable(self, row: int) -> bool:
        if self.paged_of[row] == _NONE or self._is_home[row] or self._holds_of[row] & (PUSHING | OPEN):
            return False
        return row not in self._leaving and row not in self.awaited

    def _put_behind(self, row: int) -> None:
        if self.bounded and self._droppable(row):
            self.behind.add(row)

    def _put_all_behind(self, rows: list[int]) -> None:
        for row in rows:
            self._put_behind(row)
