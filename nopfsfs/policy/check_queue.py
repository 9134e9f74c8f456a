"""Files whose copies a command lets the stager compare with the source. Pure."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.copy_flags import ON_DISK, PRESENT, STAGED
from nopfsfs.policy.file_request import FAILURES_KEPT, FileRequest, Tally
from nopfsfs.policy.residency import Residency
from nopfsfs.protocol.ring import NOT_HELD
from nopfsfs.protocol.supervisor_stager import StagerCommand

OUTSTANDING = 64  # rows that the stager compares or has queued: some seconds of a slow source
DIFFERS_BASE = 1 << 16  # in `failures`: this and flags of where the copy differs, in place of an errno
WORDS = {1: "the copy in memory differs", 2: "the copy on disk differs", 3: "the copies in memory and on disk differ"}


class CheckRequest(FileRequest):
    """Files that one command wants compared, and what was found."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        super().__init__(sizes)
        self.nothing, self.same, self.differ, self.failed, self.left = (Tally() for _ in range(5))

    def tallies(self) -> dict[str, Tally]:
        """The counts by name."""
        return {
            "nothing": self.nothing, "same": self.same, "differ": self.differ, "failed": self.failed,
            "left": self.left,
        }  # fmt: skip

    def give_up(self) -> None:
        """Count all that is not dealt with as left."""
        self.count_rest(self.left)

    def reason(self, code: int) -> str:
        """The words for a failure."""
        return WORDS[code - DIFFERS_BASE] if code > DIFFERS_BASE else os.strerror(code)

    def note(self, tally: Tally, row: int, code: int) -> None:
        """Count a row, and keep the code for the caller."""
        self.count(tally, row)
        if self.differ.files + self.failed.files <= FAILURES_KEPT:
            self.failures.append((row, code))


class CheckQueue:
    """The requests of all commands, the first one first."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.requests: list[CheckRequest] = []

    def add(self, request: CheckRequest) -> None:
        """Begin to serve a request."""
        self.requests.append(request)

    def remove(self, request: CheckRequest) -> None:
        """Serve a request no more: its comparisons end."""
        self.requests.remove(request)
        self._residency.commands.add_all(StagerCommand.CHECK, [], 1)
        self.stager_lost()  # those of other requests end, too, and are commanded again

    def ended(self, row: int, found: int, error: int) -> None:
        """Record what the stager found: flags of where the copy differs, or an errno."""
        for request in self.requests:
            if request.under_way.pop(row, None) is None:
                continue
            if error:
                request.note(request.failed, row, error)
            elif found == NOT_HELD:  # it has left meanwhile
                request.count(request.nothing, row)
            elif found:
                request.note(request.differ, row, DIFFERS_BASE + found)
            else:
                request.count(request.same, row)

    def stager_lost(self) -> None:
        """Begin all again that was under way."""
        for request in self.requests:
            request.next_rows += request.under_way
            request.under_way.clear()

    def serve(self) -> None:
        """Command the next comparisons."""
        room = OUTSTANDING - sum(len(request.under_way) for request in self.requests)
        batch: list[int] = []
        for request in self.requests:
            while room > 0 and self._refill(request):
                row = request.next_rows.pop()
                request.under_way[row] = 1
                batch.append(row)
                room -= 1
        if batch:
            self._residency.commands.add_all(StagerCommand.CHECK, batch)

    def _refill(self, request: CheckRequest) -> bool:
        """Take the next rows of a request that have a copy; return False where there are none."""
        if not request.next_rows and len(rows := request.take_part()):
            state = self._residency.state[rows]
            held = (state & PRESENT == STAGED) | (state & ON_DISK != 0)
            request.count_all(request.nothing, rows[~held])
            request.next_rows = rows[held][::-1].tolist()
        return bool(request.next_rows)
