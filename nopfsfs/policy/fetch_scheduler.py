"""Fetches: rows of the access stream in its order. Before them come rows that are pulled from other nodes, and after
them rows that a command asks for (`warm_queue`). Pure.

A file that stays is fetched as early as the source allows. A file that streams is fetched when it comes into the
window, and its copy is held until the read that it was fetched for.
"""

from __future__ import annotations

import numpy as np

from nopfsfs.policy.copy_flags import FETCHING, KERNEL_READS, PENDING, PRESENT, STAGED
from nopfsfs.policy.homes import Home
from nopfsfs.policy.large_files import LargeFiles
from nopfsfs.policy.pending_reads import PendingReads
from nopfsfs.policy.push_scheduler import PushScheduler
from nopfsfs.policy.residency import Residency
from nopfsfs.policy.stream_scan import Rows, Upcoming, scan
from nopfsfs.protocol.supervisor_stager import StagerCommand

# Rows commanded and not done: they bound the fetches that a jump of the plan makes useless. The stager ends some while
# others are commanded, so that requests at the source never wait for commands.
FETCHES_OUTSTANDING, OF_THE_LIMIT = 256, 3
_RAM = Home.RAM  # bound once, as in `residency`


class FetchScheduler:
    """Issues FETCH, and holds what is fetched or found for a stream position."""

    def __init__(self, residency: Residency, pushes: PushScheduler, large: LargeFiles) -> None:
        self._residency, self._pushes, self._large = residency, pushes, large
        self._state_of, self._home_of, self._charge_of = residency.state_of, residency.home_of, residency.charge_of
        self._pending = PendingReads()  # copies that do not stay, fetched for a read to come
        self._pulls: dict[int, None] = {}  # rows to fetch in this order, before those of the stream
        self._stuck: set[int] = set()  # rows whose fetch hangs: their room stays charged
        self.last: set[int] = set()  # rows whose fetch comes after all of the stream; not counted in `outstanding`
        self.at = 0  # stream positions before which all is commanded
        self.caught_up = False  # True when the stream has no more fetches to command, but for want of room
        self.outstanding = 0
        self._outstanding_most = FETCHES_OUTSTANDING

    def set_source_limit(self, limit: int) -> None:
        """Command as many fetches as keep `limit` requests under way at the source."""
        self._outstanding_most = max(FETCHES_OUTSTANDING, OF_THE_LIMIT * limit)

    @property
    def under_way(self) -> int:
        """Fetches that are commanded and not done."""
        return self.outstanding + len(self.last)

    def ahead_of(self, position: int) -> int:
        """Stream positions after this one whose files are staged, or need not be."""
        return max(0, self.at - position - self.outstanding)

    # ---- the end of a fetch -------------------------------------------------------------------------------

    def ended(self, row: int) -> None:
        """Record that no fetch of the row is under way."""
        if self._residency.end_fetch(row):
            if self.last and row in self.last:
                self.last.discard(row)
            else:
                self.outstanding -= 1
        if self._stuck:
            self._stuck.discard(row)

    def failed(self, row: int, *, cancelled: bool = False) -> None:
        """Record that the row could not be staged (no room, unreadable: it is read on demand), or was cancelled."""
        self._residency.scan_anew |= bool(cancelled and self._state_of[row] & FETCHING)
        self.ended(row)
        if not self._state_of[row] & STAGED:
            self.read_done(row)
            self._residency.fetch_failed(row)

    def stuck(self, row: int) -> None:
        """Record that the source does not answer for the row: others are fetched. Its room is taken until it is staged
        or fails."""
        if self._state_of[row] & FETCHING:
            self.ended(row)
            self._stuck.add(row)

    def is_stuck(self, row: int) -> bool:
        """True while the source does not answer for a fetch of the row."""
        return row in self._stuck

    def stager_lost(self) -> None:
        """Count the fetches that the stager has not reported as failed: its process died."""
        for row in (*np.flatnonzero(self._residency.state & FETCHING).tolist(), *self._stuck):
            self.failed(row)

    # ---- the reader ---------------------------------------------------------------------------------------

    def read_done(self, row: int) -> None:
        """Expect no read of the row any more."""
        self._pending.read_done(row)
        self._residency.release(row, PENDING)

    def expire_at_position(self) -> None:
        """Count all that lies behind the reader's position as read, from now on."""
        self._pending.expire_at_position()

    def restart(self, position: int) -> None:
        """Follow another stream from `position` on. The new stream may also read the copies that are held for the
        stream before. These copies are held until the scan has come as far as it can."""
        self.at = position
        self.caught_up = False
        self._pending.restart()
        self._large.restart()

    def advance(self, position: int, end: int, upcoming: Upcoming) -> None:
        """Command fetches for stream positions up to `end`, while the reader is at `position`."""
        for row in self._pending.passed(position):
            self._residency.release(row, PENDING)
        self.fetch_pulls()
        self.at, stopped = scan(max(self.at, position), end, upcoming, self._fetch_some)
        self.caught_up = stopped and self.outstanding < self._outstanding_most
        if self.caught_up:  # at the end of what is known, or for want of room
            for row in self._pending.take_former():
                self._residency.release(row, PENDING)

    def _fetch_some(self, rows: Rows, first: int) -> int:
        """Add fetch commands for some of these rows, the first at position `first`; return how many were dealt with."""
        residency = self._residency
        self._large.upcoming(rows)
        size, state = residency.charges[rows], residency.state[rows]
        wanted = (rows >= 0) & (size > 0) & (size <= residency.split.whole_limit) & (state & KERNEL_READS == 0)
        wanted &= (state & STAGED == 0) | (residency.home[rows] != _RAM)
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero(wanted).tolist():
            row = int(rows[at])
            if self.last and row in self.last:
                if self.outstanding >= self._outstanding_most:
                    dealt = at
                    break
                self.last.discard(row)
                self.outstanding += 1
                batch.append(row)
            if self._state_of[row] & FETCHING or self._state_of[row] & PRESENT == STAGED:
                self._expect(row, first + at)
                continue
            residency.place(row)
            if self._too_large(row) or self._served_by_pages(row):
                continue
            if not self._may_fetch(row):
                dealt = at
                break
            self._begin(row)
            self._expect(row, first + at)
            batch.append(row)
        if batch:
            residency.commands.add_all(StagerCommand.FETCH, batch)
        return dealt

    def _begin(self, row: int) -> None:
        self._residency.begin_fetch(row)
        self.outstanding += 1

    def _expect(self, row: int, position: int) -> None:
        if self._home_of[row] != _RAM:
            self._pending.expect(row, position)
            self._residency.hold(row, PENDING)

    def _may_fetch(self, row: int) -> bool:
        if self.outstanding >= self._outstanding_most:
            return False
        residency = self._residency
        return self._home_of[row] == _RAM or residency.stream_used + self._charge_of[row] <= residency.split.stream

    def _too_large(self, row: int) -> bool:
        """True when the row does not stay and would not fit the stream's part of the arena; it is read on demand."""
        return self._home_of[row] != _RAM and self._charge_of[row] > self._residency.split.stream

    def _served_by_pages(self, row: int) -> bool:
        """True when the row has no home in the arena and its pages are still there: it needs no second fetch."""
        return self._home_of[row] != _RAM and self._pushes.has(row)

    # ---- rows that come last ------------------------------------------------------------------------------

    def begin_last(self, row: int) -> bool:
        """Record that a fetch of the row is commanded, to be carried out after all of the stream. Return False while
        there are enough of these."""
        if len(self.last) >= self._outstanding_most:
            return False
        self._residency.begin_fetch(row)
        self.last.add(row)
        return True

    # ---- other nodes --------------------------------------------------------------------------------------

    def pull(self, row: int) -> None:
        """Fetch a row that has its home here and that another node has staged."""
        self._pulls[row] = None

    def cancel_pull(self, row: int) -> None:
        """Withdraw the pull of a row, if its fetch has not begun."""
        self._pulls.pop(row, None)

    def is_coming(self, row: int) -> bool:
        """True when the row is being fetched, or is to be pulled."""
        return bool(self._state_of[row] & FETCHING) or row in self._pulls

    def fetch_pulls(self) -> None:
        """Add fetch commands for the rows to pull, as far as there is room and few enough fetches are under way."""
        pulls, batch = self._pulls, []
        while pulls:
            row = next(iter(pulls))
            if not (self._state_of[row] & FETCHING or self._residency.is_staged(row) or self._too_large(row)):
                if not self._may_fetch(row):
                    break
                self._begin(row)
                batch.append(row)
            del pulls[row]
        if batch:
            self._residency.commands.add_all(StagerCommand.FETCH, batch)
