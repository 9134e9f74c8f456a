"""Files whose copies a command lets the mount forget: in memory, in the page cache, on disk. Pure.

The next read of such a file comes from the source. A file that a reader has open is left as it is. One that is being
fetched, pushed or written waits until that is done.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.copy_flags import (
    FETCHING,
    HOME,
    NEW,
    OFFERED,
    ON_DISK,
    OPEN,
    PRESENT,
    PUSHING,
    STAGED,
    UNDECIDED,
    WRITING,
)
from nopfsfs.policy.fetch_scheduler import FetchScheduler
from nopfsfs.policy.file_request import DEALT_AT_ONCE, UNDER_WAY_MOST, FileRequest, Tally
from nopfsfs.policy.push_scheduler import Paged, PushScheduler
from nopfsfs.policy.residency import Residency
from nopfsfs.protocol.supervisor_stager import StagerCommand

# Parts of a row that are being dropped. BUSY: none yet.
BUSY, ARENA, PAGES, DISK = 0, 1, 2, 4
_NONE = Paged.NONE


class DropRequest(FileRequest):
    """Files that one command wants forgotten, and what has become of them. `under_way`: the parts that are awaited."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        super().__init__(sizes)
        self.nothing, self.dropped, self.open, self.busy = (Tally() for _ in range(4))

    def tallies(self) -> dict[str, Tally]:
        """The counts by name."""
        return {"nothing": self.nothing, "dropped": self.dropped, "open": self.open, "busy": self.busy}

    def give_up(self) -> None:
        """Count all that is not dealt with as busy."""
        self.count_rest(self.busy)


class DropQueue:
    """The requests of all commands."""

    def __init__(self, residency: Residency, fetches: FetchScheduler, pushes: PushScheduler) -> None:
        self._residency, self._fetches, self._pushes = residency, fetches, pushes
        self._state_of, self._holds_of, self._paged_of = residency.state_of, residency.holds_of, pushes.paged_of
        self.requests: list[DropRequest] = []

    def add(self, request: DropRequest) -> None:
        """Begin to serve a request."""
        self.requests.append(request)

    def remove(self, request: DropRequest) -> None:
        """Serve a request no more."""
        self.requests.remove(request)

    def is_dropping(self, row: int) -> bool:
        """True while the row's copies are being dropped."""
        return any(request.under_way.get(row) for request in self.requests)

    def ended(self, row: int, part: int) -> None:
        """Record that a part of the row is gone."""
        for request in self.requests:
            left = request.under_way.get(row)
            if left:
                request.under_way[row] = left & ~part
                if not left & ~part:
                    del request.under_way[row]
                    request.count(request.dropped, row)

    def stager_lost(self) -> None:
        """Begin all again that the stager had not reported: its process died."""
        for request in self.requests:
            request.under_way = dict.fromkeys(request.under_way, BUSY)

    def serve(self) -> None:
        """Command drops for the next rows, and for those that were busy."""
        most = DEALT_AT_ONCE
        for request in self.requests:
            for row in [row for row, parts in request.under_way.items() if parts == BUSY]:
                self._deal(request, row)
            while most and len(request.under_way) < UNDER_WAY_MOST and self._refill(request):
                most -= 1
                self._deal(request, request.next_rows.pop())

    def _refill(self, request: DropRequest) -> bool:
        """Take the next rows of a request of which something is held; return False where there are none. Which large
        files have blocks in memory only the stager knows."""
        residency = self._residency
        if not request.next_rows and len(rows := request.take_part()):  # one part: enough for one call
            residency.commands.add_all(StagerCommand.EVICT, rows.tolist(), 1)
            held = (residency.state[rows] & (FETCHING | PRESENT | ON_DISK) != 0) | (self._pushes.paged[rows] != _NONE)
            held |= residency.charges[rows] > residency.split.whole_limit
            request.count_all(request.nothing, rows[~held])
            request.next_rows = rows[held][::-1].tolist()
        return bool(request.next_rows)

    def _deal(self, request: DropRequest, row: int) -> None:
        holds = self._holds_of[row]
        if holds & OPEN:
            request.under_way.pop(row, None)
            request.count(request.open, row)
        elif self._state_of[row] & FETCHING or holds & (PUSHING | OFFERED | (0 if self._is_large(row) else WRITING)):
            request.under_way[row] = BUSY
        elif parts := self._drop(row):
            request.under_way[row] = parts
        else:  # what was to come has failed, or has left by itself
            request.under_way.pop(row, None)
            request.count(request.dropped, row)

    def _is_large(self, row: int) -> bool:
        return bool(self._residency.charge_of[row] > self._residency.split.whole_limit)

    def _drop(self, row: int) -> int:
        """Command the drop of all that is held of a row; return the parts."""
        residency, parts = self._residency, 0
        large = self._is_large(row)
        if large:
            residency.commands.add(StagerCommand.DROP, row)  # pages of a large file are not recorded
            parts |= PAGES
        elif self._paged_of[row] != _NONE:
            self._pushes.forget(row)
            parts |= PAGES
        if self._state_of[row] & ON_DISK or (large and self._holds_of[row] & WRITING):  # its copy may never be whole
            residency.commands.add(StagerCommand.OFF_DISK, row)
            parts |= DISK
        if self._state_of[row] & PRESENT:
            self._evict(row)
            parts |= ARENA
        return parts

    def _evict(self, row: int) -> None:
        """Let go of the staged copy, and of the home in memory, but for one that the placement of a cluster gave."""
        residency = self._residency
        residency.homes.unplace(row)
        residency.kept.discard(row)
        self._fetches.read_done(row)
        if residency.homes.is_placed(row):
            if residency.is_staged(row):
                residency.evict(row)
            return
        if self._state_of[row] & STAGED:
            residency.charge_stream(row)
        residency.release(row, HOME | NEW | UNDECIDED)
