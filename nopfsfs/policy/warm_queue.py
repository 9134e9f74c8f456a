"""Files that commands ask to have here before a job reads them. Pure.

They are fetched after all that the access stream needs: the stager begins them last, and none is commanded while the
stream has fetches to command. They get the room that is free, and no copy leaves for them. A file is *kept* when it
has its copy where its home is, in memory or on disk.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.command_list import Do
from nopfsfs.policy.fetch_scheduler import FetchScheduler
from nopfsfs.policy.homes import Home
from nopfsfs.policy.residency import EVICTING, FETCHING, ON_DISK, PRESENT, STAGED, WRITING, Residency
from nopfsfs.policy.stream_scan import Rows

COUNTED_AT_ONCE = 1 << 16  # rows of which is counted at once how many are kept already: a millisecond
DEALT_AT_ONCE = 2048  # rows that are dealt with in one call: some milliseconds
UNDER_WAY_MOST = 4096  # rows of one order that are awaited
FAILURES_KEPT = 1000  # of one order: further failures are only counted
_RAM, _DISK, _STREAM, _UNPLACED = Home.RAM, Home.DISK, Home.STREAM, Home.UNPLACED


@dataclass
class Tally:
    """A number of files, and of their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Count one file more."""
        self.files += 1
        self.bytes += size


class WarmOrder:
    """Files that one command asks for, and what has become of them. `sizes` i64[n]: bytes of each row's file."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        self._sizes, self._size_of = sizes, sizes.data
        self._asked_for = np.zeros(len(sizes), np.bool_)
        self._parts: deque[Rows] = deque()
        self.next_rows: list[int] = []  # the last comes first
        self.under_way: dict[int, bool] = {}  # rows that are awaited; True: fetched for this order
        self.complete = False  # True when no more rows are added
        self.asked, self.there, self.staged, self.unfit, self.elsewhere, self.failed = (Tally() for _ in range(6))
        self.failures: deque[tuple[int, int]] = deque()  # (row, errno), to be told

    @property
    def done(self) -> bool:
        """True when all that was asked for is dealt with."""
        return self.complete and not (self._parts or self.next_rows or self.under_way)

    def add(self, rows: Rows) -> None:
        """Ask for these rows, i64[k], after those before; each counts once. Rows must be of regular files."""
        rows = rows[~self._asked_for[rows]]
        if len(rows) > 1:  # two hard links are one row
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
        self._asked_for[rows] = True
        self.asked.files += len(rows)
        self.asked.bytes += int(self._sizes[rows].sum())
        if len(rows):
            self._parts.append(rows)

    def give_up(self) -> None:
        """Count all that is not dealt with as not fitting."""
        rest = [*self.under_way, *self.next_rows, *(row for part in self._parts for row in part.tolist())]
        for row in rest:
            self.unfit.add(self._size_of[row])
        self._parts.clear()
        self.next_rows.clear()
        self.under_way.clear()
        self.complete = True

    def count(self, tally: Tally, row: int) -> None:
        """Count a row among others with the same result."""
        tally.add(self._size_of[row])

    def fail(self, row: int, error: int) -> None:
        """Record that a row could not be read."""
        if self.under_way.pop(row, None) is None:
            return
        if error == errno.ENOSPC:  # the arena had no room
            self.unfit.add(self._size_of[row])
            return
        self.failed.add(self._size_of[row])
        if self.failed.files <= FAILURES_KEPT:
            self.failures.append((row, error))

    def again(self, row: int) -> None:
        """Deal with a row that was under way once more."""
        if self.under_way.pop(row, None) is not None:
            self.next_rows.append(row)

    def refill(self, residency: Residency) -> bool:
        """Take the next rows that are not kept yet; return False where there are none. Rows that are kept are
        counted."""
        while not self.next_rows and self._parts:
            part = self._parts.popleft()
            rows, rest = part[:COUNTED_AT_ONCE], part[COUNTED_AT_ONCE:]
            if len(rest):
                self._parts.appendleft(rest)
            kept = _kept(residency, rows)
            self.there.files += int(np.count_nonzero(kept))
            self.there.bytes += int(self._sizes[rows[kept]].sum())
            self.next_rows = rows[~kept][::-1].tolist()
            if not self.next_rows:
                return True  # enough for one call
        return bool(self.next_rows)

    def figures(self) -> dict[str, Any]:
        """The counts, each with `files` and `bytes`."""
        return {
            name: {"files": tally.files, "bytes": tally.bytes}
            for name, tally in (
                ("asked", self.asked), ("there", self.there), ("staged", self.staged), ("unfit", self.unfit),
                ("elsewhere", self.elsewhere), ("failed", self.failed),
            )
        }  # fmt: skip


def _kept(residency: Residency, rows: Rows) -> npt.NDArray[np.bool_]:
    """The rows, of these, that need nothing: b[k]. An empty file has nothing to be kept."""
    state = residency.state[rows]
    in_memory = (state & PRESENT == STAGED) & (residency.home[rows] == _RAM)
    kept: npt.NDArray[np.bool_] = in_memory | (state & ON_DISK != 0) | (residency.charges[rows] == 0)
    return kept


class WarmQueue:
    """The orders of all commands, the first one first."""

    def __init__(self, residency: Residency, fetches: FetchScheduler) -> None:
        self._residency, self._fetches = residency, fetches
        self._state_of, self._home_of = residency.state_of, residency.home_of
        self.orders: list[WarmOrder] = []

    def add(self, order: WarmOrder) -> None:
        """Begin to serve an order."""
        self.orders.append(order)

    def remove(self, order: WarmOrder) -> None:
        """Serve an order no more: its fetches that have not begun are cancelled. Its copies stay."""
        self.orders.remove(order)
        if self._fetches.last:
            self._residency.commands.add_all(Do.CANCEL, [], 1)  # those of other orders are commanded again

    def failed(self, row: int, error: int, *, cancelled: bool) -> None:
        """Record that a fetch has ended without a copy. `error`: the errno of the source; 0: the stager did not try."""
        for order in self.orders:
            if cancelled or not error:
                order.again(row)
            else:
                order.fail(row, error)

    def stager_lost(self) -> None:
        """Have all fetched again that the stager had not reported: its process died."""
        for order in self.orders:
            self._settle(order)
            for row in list(order.under_way):
                order.again(row)

    def serve(self, *, stream: bool) -> None:
        """Command fetches as far as there is room. `stream`: there is an access stream, which comes first."""
        for order in self.orders:
            self._settle(order)
        if stream and not self._fetches.caught_up:
            return
        batch: list[int] = []
        most = DEALT_AT_ONCE
        for order in self.orders:
            while most and order.refill(self._residency) and order.next_rows:
                most -= 1
                row = order.next_rows.pop()
                if not self._deal(order, row, batch, stream=stream):
                    order.next_rows.append(row)
                    most = 0
        if batch:
            self._residency.commands.add_all(Do.FETCH, batch, 1)

    def _settle(self, order: WarmOrder) -> None:
        """Count the rows of an order that were under way and are not any more."""
        for row, fetched in list(order.under_way.items()):
            if self._is_busy(row):
                continue
            if not (self._is_kept(row) or fetched):
                order.again(row)
                continue
            del order.under_way[row]
            order.count(order.staged if self._is_kept(row) else order.unfit, row)

    def _is_busy(self, row: int) -> bool:
        return bool(self._state_of[row] & (FETCHING | EVICTING) or self._residency.holds_of[row] & WRITING)

    def _is_kept(self, row: int) -> bool:
        state = self._state_of[row]
        return bool(state & ON_DISK) or (state & PRESENT == STAGED and self._home_of[row] == _RAM)

    def _deal(self, order: WarmOrder, row: int, batch: list[int], *, stream: bool) -> bool:
        """Deal with the next row of an order; return False when it has to wait for others."""
        residency = self._residency
        if len(order.under_way) >= UNDER_WAY_MOST:
            return False
        if self._is_kept(row):
            order.count(order.there, row)
        elif residency.homes.is_elsewhere(row):
            order.count(order.elsewhere, row)
        elif not self._give_home(row):
            order.count(order.unfit, row)
        elif self._is_busy(row):
            order.under_way[row] = False
        elif self._is_kept(row):  # it was staged for a read, and now it stays
            order.count(order.there, row)
        elif residency.is_staged(row):
            residency.write(row)
            order.under_way[row] = False
        elif self._has_passage(row, stream=stream) and self._fetches.begin_last(row):
            order.under_way[row] = True
            batch.append(row)
        else:
            return False
        return True

    def _give_home(self, row: int) -> bool:
        """Give a row a home here if there is room now, also where there was none before."""
        residency = self._residency
        if residency.charge_of[row] > residency.split.whole_limit:
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
