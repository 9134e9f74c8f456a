"""Files that commands ask to have here before a job reads them. Pure.

Such files are fetched after all that the access stream needs. The stager begins these fetches last, and none is
commanded while the stream has fetches to command. Files of commands get the room that is free, and no copy leaves for
them. A file is *kept* when it has its copy where its home is, in memory or on disk. A file that the source does not
deliver in time is *late*: it comes last, and is asked for again and again.
"""

from __future__ import annotations

import errno
import os
from collections import deque

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.copy_flags import EVICTING, FETCHING, ON_DISK, PRESENT, STAGED, WRITING
from nopfsfs.policy.fetch_scheduler import FetchScheduler
from nopfsfs.policy.file_request import DEALT_AT_ONCE, FAILURES_KEPT, UNDER_WAY_MOST, FileRequest, Tally
from nopfsfs.policy.homes import Home
from nopfsfs.policy.large_files import LargeFiles
from nopfsfs.policy.residency import Residency
from nopfsfs.policy.stream_scan import Rows
from nopfsfs.protocol.supervisor_stager import StagerCommand

LATE = frozenset({errno.ETIMEDOUT, errno.EAGAIN})  # it hung; it was not tried, since it or its device hung lately
LATE_AT_ONCE = 64  # late rows that are asked for together; twice as many each time that none is late again
LATE_MOST = 1 << 16  # with so many late rows no further rows are looked at
_RAM, _DISK, _STREAM, _UNPLACED = Home.RAM, Home.DISK, Home.STREAM, Home.UNPLACED


class WarmRequest(FileRequest):
    """Files that one command asks for, and what has become of them. `under_way`: 1 for rows that are fetched for this
    request, else 0."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        super().__init__(sizes)
        self.there, self.staged, self.unfit, self.elsewhere, self.failed = (Tally() for _ in range(5))
        self._late: deque[int] = deque()  # rows to be asked for again
        self._were_late = np.zeros(len(sizes), np.bool_)
        self._next_late = self._late_at_once = 0  # late rows that the next refill may take; that `retry` allowed last

    @property
    def reads(self) -> bool:
        return any(own and not self._were_late[row] for row, own in self.under_way.items())

    @property
    def done(self) -> bool:
        return super().done and not self._late

    def reason(self, code: int) -> str:
        return "the source does not answer" if code in LATE else os.strerror(code)

    def tallies(self) -> dict[str, Tally]:
        """The counts by name."""
        return {
            "there": self.there, "staged": self.staged, "unfit": self.unfit, "elsewhere": self.elsewhere,
            "failed": self.failed,
        }  # fmt: skip

    def give_up(self) -> None:
        """Count all that is not dealt with as not readable where it was late, else as not fitting."""
        known, were_late = (*self._late, *self.under_way, *self.next_rows), self._were_late
        self._late.clear()
        self.under_way.clear()
        self.next_rows = [row for row in known if not were_late[row]]
        for row in known:
            if were_late[row]:
                self._count_failed(row, errno.ETIMEDOUT)
        self.count_rest(self.unfit)

    def find(self, row: int) -> None:
        """Record that a row is kept; one that was late has been fetched for this request."""
        self.count(self.staged if self._were_late[row] else self.there, row)

    def fail(self, row: int, error: int) -> None:
        """Record that a row could not be read."""
        if self.under_way.pop(row, None) is None:
            return
        if error == errno.ENOSPC:  # the arena had no room
            self.count(self.unfit, row)
        elif error in LATE:
            self._late.append(row)
            self._were_late[row] = True
            self._late_at_once = 0
        else:
            self._count_failed(row, error)

    def _count_failed(self, row: int, error: int) -> None:
        self.count(self.failed, row)
        if self.failed.files <= FAILURES_KEPT:
            self.failures.append((row, error))

    def retry(self) -> None:
        """Ask for some late rows again, when there are no others to ask for."""
        self._next_late = self._late_at_once = max(LATE_AT_ONCE, 2 * self._late_at_once)

    def again(self, row: int) -> None:
        """Deal with a row that was under way once more."""
        if self.under_way.pop(row, None) is not None:
            self.next_rows.append(row)

    def refill(self, residency: Residency) -> bool:
        """Take the next rows that are not kept yet; return False where there are none. Rows that are kept are
        counted."""
        while not self.next_rows and len(self._late) < LATE_MOST and len(rows := self.take_part()):
            kept = _kept(residency, rows)
            self.count_all(self.there, rows[kept])
            self.next_rows = rows[~kept][::-1].tolist()
            if not self.next_rows:
                return True  # enough for one call
        if not self.next_rows:
            count, self._next_late = min(self._next_late, len(self._late)), 0
            self.next_rows = [self._late.popleft() for _ in range(count)][::-1]
        return bool(self.next_rows)


def _kept(residency: Residency, rows: Rows) -> npt.NDArray[np.bool_]:
    """The rows, of these, that need nothing: b[k]. An empty file has nothing to be kept."""
    state = residency.state[rows]
    in_memory = (state & PRESENT == STAGED) & (residency.home[rows] == _RAM)
    kept: npt.NDArray[np.bool_] = in_memory | (state & ON_DISK != 0) | (residency.charges[rows] == 0)
    return kept


class WarmQueue:
    """The requests of all commands, the first one first."""

    def __init__(self, residency: Residency, fetches: FetchScheduler, large: LargeFiles) -> None:
        self._residency, self._fetches, self._large = residency, fetches, large
        self._state_of, self._home_of = residency.state_of, residency.home_of
        self.requests: list[WarmRequest] = []

    def add(self, request: WarmRequest) -> None:
        """Begin to serve a request."""
        self.requests.append(request)

    def remove(self, request: WarmRequest) -> None:
        """Serve a request no more: its fetches that have not begun are cancelled. Its copies stay."""
        self.requests.remove(request)
        if self._fetches.last:
            self._residency.commands.add_all(StagerCommand.CANCEL, [], 1)  # those of other requests are commanded again

    def failed(self, row: int, error: int, *, cancelled: bool) -> None:
        """Record that a fetch has ended without a copy. `error`: the errno of the source; 0: the stager did not try."""
        for request in self.requests:
            if cancelled or not error:
                request.again(row)
            else:
                request.fail(row, error)

    def stager_lost(self) -> None:
        """Have all fetched again that the stager had not reported: its process died."""
        for request in self.requests:
            self._settle(request)
            for row in list(request.under_way):
                request.again(row)

    def serve(self, *, stream: bool) -> None:
        """Command fetches as far as there is room. `stream`: there is an access stream, which comes first."""
        for request in self.requests:
            self._settle(request)
        if stream and not self._fetches.caught_up:
            return
        batch: list[int] = []
        most = DEALT_AT_ONCE
        for request in self.requests:
            while most and request.refill(self._residency) and request.next_rows:
                most -= 1
                row = request.next_rows.pop()
                if not self._deal(request, row, batch, stream=stream):
                    request.next_rows.append(row)
                    most = 0
        if batch:
            self._residency.commands.add_all(StagerCommand.FETCH, batch, 1)

    def _settle(self, request: WarmRequest) -> None:
        """Count the rows of a request that were under way and are not any more."""
        for row, fetched in list(request.under_way.items()):
            if self._is_busy(row):
                continue
            if not (self._is_kept(row) or fetched):
                request.again(row)
                continue
            del request.under_way[row]
            request.count(request.staged if self._is_kept(row) else request.unfit, row)

    def _is_busy(self, row: int) -> bool:
        busy = self._state_of[row] & (FETCHING | EVICTING) or self._residency.holds_of[row] & WRITING
        return bool(busy) or self._fetches.is_stuck(row)

    def _is_kept(self, row: int) -> bool:
        state = self._state_of[row]
        return bool(state & ON_DISK) or (state & PRESENT == STAGED and self._home_of[row] == _RAM)

    def _deal(self, request: WarmRequest, row: int, batch: list[int], *, stream: bool) -> bool:
        """Deal with the next row of a request; return False when it has to wait for others."""
        residency = self._residency
        if len(request.under_way) >= UNDER_WAY_MOST:
            return False
        if self._is_kept(row):
            request.find(row)
        elif residency.homes.is_elsewhere(row):
            request.count(request.elsewhere, row)
        elif not self._give_home(row):
            request.count(request.unfit, row)
        elif self._is_busy(row):
            request.under_way[row] = 0
        elif self._is_kept(row):  # it was staged for a read, and now it stays
            request.find(row)
        elif residency.is_staged(row):
            residency.write(row)
            request.under_way[row] = 0
        elif self._large.is_large(row):
            self._large.ask(row)
            request.under_way[row] = 0
        elif self._has_passage(row, stream=stream) and self._fetches.begin_last(row):
            request.under_way[row] = 1
            batch.append(row)
        else:
            return False
        return True

    def _give_home(self, row: int) -> bool:
        """Give a row a home here if there is room now, also where there was none before."""
        residency = self._residency
        if residency.charge_of[row] > residency.split.whole_limit and not self._large.is_large(row):
            return self._home_of[row] in (_RAM, _DISK)
        if self._home_of[row] == _STREAM:
            self._home_of[row] = _UNPLACED
        residency.place(row)
        if self._home_of[row] == _RAM:
            residency.uncharge_stream(row)
            if residency.is_staged(row):
                residency.may_leave(row)
        elif residency.belady and self._home_of[row] == _STREAM:
            residency.homes.place_on_disk(row)
        return self._home_of[row] in (_RAM, _DISK)

    def _has_passage(self, row: int, *, stream: bool) -> bool:
        """True when a row whose home is on disk has room in memory on its way there; half of the room is the
        stream's."""
        residency = self._residency
        room = residency.split.stream // (2 if stream else 1)
        return bool(self._home_of[row] == _RAM or residency.stream_used + residency.charge_of[row] <= room)
