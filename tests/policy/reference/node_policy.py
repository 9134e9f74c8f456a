"""The policy of one node: what to fetch, push, drop and evict next. A pure state machine: events in, commands out.

A file gets its home in the order of the first reads: the arena while it has room, then disk. A file that fits nowhere
streams through a small part of the arena. A file that stays is fetched as early as the source allows. A file that
streams is fetched when it comes into the window, and evicted when its last reader has closed it. Staged files are
pushed into the page cache in stream order, as far ahead as the page budget allows.

A staged copy without a home in memory stays only while it has a hold: an awaited read, a reader that has it open, a
write to disk, a push under way, or a node that will fetch it. Code that ends a hold calls `_let_go`, which evicts the
copy when no hold is left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.belady_set import BeladySet
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.command_list import CommandList
from nopfsfs.policy.homes import Home, Homes
from nopfsfs.policy.large_reads import LargeReads
from nopfsfs.policy.pending_reads import PendingReads
from nopfsfs.policy.stream_scan import SCAN, scan
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.reference.open_files import OpenFiles
from tests.policy.reference.passing import Passing
from tests.policy.reference.push_scheduler import Paged, PushScheduler

Rows = npt.NDArray[np.int64]
Upcoming = Callable[[int, int], Rows]

FETCHES_OUTSTANDING = 256  # rows commanded and not done; bounds the fetches that a jump of the plan makes useless
LEAD_MOST = 256  # positions left out when the reader has overtaken the pushes: some ten milliseconds of a fast reader


# Bound once: looking a member of an enumeration up costs as much as the rest of a short call.
_UNPLACED, _RAM, _DISK, _STREAM = Home
_NONE, _WHOLE = Paged.NONE, Paged.WHOLE


class NodePolicy:
    """State by row: arrays of length n. `charges` i64[n]: bytes that a copy of the file costs in memory; 0 for an empty
    file and for a row that is not a regular file. `paged` u8[n] is written here and may lie in shared memory.
    `disk_room`: bytes by disk tier."""

    def __init__(
        self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8], split: MemorySplit, disk_room: list[int]
    ) -> None:
        n = len(charges)
        self.charges = self._size = charges
        self.total = int(charges.sum())  # bytes that all files would take
        self.paged = paged
        self.split = split
        self.homes = Homes(charges, split.homes, disk_room)
        self.home = self.homes.home
        self._staged = np.zeros(n, np.bool_)
        self._fetching = np.zeros(n, np.bool_)
        self._writing = np.zeros(n, np.bool_)
        self._evicting = np.zeros(n, np.bool_)
        self._streaming = np.zeros(n, np.bool_)  # charged to the stream's part of the arena
        self._on_disk = np.zeros(n, np.bool_)
        self._backed = np.zeros(n, np.bool_)  # on disk, and read from there by the kernel itself
        self.may_pass = np.zeros(n, np.bool_)  # will be backed soon after it is on disk
        # Views for one row at a time, at a tenth of an array's cost.
        self._charge, self._paged_of, self._home_of = charges.data, paged.data, self.homes.of
        self._is_staged, self._is_fetching = self._staged.data, self._fetching.data
        self._is_evicting, self._is_streaming = self._evicting.data, self._streaming.data
        self._is_writing, self._is_on_disk = self._writing.data, self._on_disk.data
        self._is_backed, self._may_be_backed = self._backed.data, self.may_pass.data
        self._open = OpenFiles()
        self._closes_are_seen = True
        self._large = LargeReads()
        self._awaited = PendingReads()  # copies that do not stay, fetched for a read to come
        self._arrived: list[int] = []  # staged since the last `orders`, which evicts rows without a hold
        self.kept = BeladySet()  # rows that stay, where each epoch reads another part of the files
        self._replaces = False
        self.passing = Passing(self._charge, split, self._let_go)
        self._read: dict[int, None] = {}  # read since the last `orders`, where `_keep` decides about them
        self.window = PushScheduler(charges, paged, split, self._open)
        self._fetch_at = 0  # stream positions before which all is commanded
        self._push_at = 0
        self._position = 0
        self._look_again = False  # scan anew: a fetch was cancelled, or is needed now and was not
        self._stuck: set[int] = set()  # rows whose fetch hangs: their room stays charged
        self._anew: set[int] = set()  # rows whose pages went: to be staged and pushed for their next read
        self.fetches_outstanding = 0
        self.stream_used = 0
        self.evictions_read = 0  # READs that showed that the kernel had taken pages
        self._orders = CommandList()
        self._order, self._order_all = self._orders.add, self._orders.add_all

    @property
    def has_room_for_all(self) -> bool:
        """True when all files may stay in memory, and in the page cache."""
        return self.total <= min(self.split.homes, self.split.pages)

    @property
    def homes_used(self) -> int:
        """Bytes of the files that stay in memory."""
        return self.homes.used

    @property
    def pages_used(self) -> int:
        """Bytes of the page cache that are held, being pushed, or being dropped."""
        return self.window.used

    # ---- events of the stager -----------------------------------------------------------------------------

    def staged(self, row: int) -> None:
        """Record that the row is whole in the arena, fetched by a command from here or by a demand."""
        self._end_fetch(row)
        self._stuck.discard(row)
        if self._is_staged[row]:
            return
        self._is_staged[row] = True
        self._place(row)
        if self._home_of[row] == _RAM:
            self._uncharge_stream(row)
            self._may_go(row)
        else:
            self._charge_stream(row)
            self._arrived.append(row)  # decided after the server's events: the row may be open
        self._write(row)

    def fetch_failed(self, row: int, *, cancelled: bool = False) -> None:
        """Record that the row could not be staged (no room, unreadable: it is read on demand), or was cancelled."""
        self._look_again |= bool(cancelled and self._is_fetching[row])
        self._end_fetch(row)
        self._stuck.discard(row)
        if not self._is_staged[row]:
            self._awaited.read_done(row)
            self._uncharge_stream(row)
            self.homes.unplace(row)  # rows that come first may have the room that was reserved for it

    def fetch_stuck(self, row: int) -> None:
        """Record that the source does not answer for the row: others are fetched. Its room is taken until it is staged
        or fails."""
        if self._is_fetching[row]:
            self._end_fetch(row)
            self._stuck.add(row)

    def evicted(self, row: int) -> None:
        self._is_staged[row] = self._is_evicting[row] = False
        self.kept.discard(row)
        if not self._is_fetching[row]:
            self._uncharge_stream(row)
            if self._home_of[row] == _RAM:  # the row got its home there meanwhile, or the copy was lost
                self._anew.add(row)

    def pushed(self, row: int) -> None:
        self.window.pushed(row)
        if not self._closes_are_seen:
            self._awaited.read_done(row)  # read from the page cache now, and no event will show the end
        self._let_go(row)

    def push_failed(self, row: int) -> None:
        self.window.push_failed(row)
        self._let_go(row)

    def dropped(self, row: int) -> None:
        self.window.dropped(row)

    def on_disk(self, row: int, tier: int) -> None:
        """Record that the row is whole on disk tier 1, 2, …: another than commanded where a copy was there already."""
        self.homes.is_on_disk(row, tier, whole=bool(self._charge[row] <= self.split.whole_limit))
        self._is_writing[row] = False
        self._is_on_disk[row] = True
        self._let_go(row)

    def backed(self, row: int, passes: bool = True) -> None:
        """Record that the kernel reads the row from its copy on disk by itself, or that it may not."""
        self._is_backed[row] = self._may_be_backed[row] = passes
        if passes:
            self._awaited.read_done(row)  # the read needs nothing else
        self._let_go(row)

    def off_disk(self, row: int, *, again: bool = False) -> None:
        """Record that the row has no copy on disk (any more): the tier was full, failed, had to make room, or the file
        changed. `again`: the tier failed or lost the copy. The room there is free, and the row may get it at its next
        use."""
        self._look_again |= bool(self._is_backed[row])  # the scan left the row out: it needed no fetch
        self._leave_disk(row, _UNPLACED if again else _STREAM)
        self._let_go(row)

    def pages_gone(self, row: int, cached: int) -> bool:
        """Record that the kernel has taken pages of the row and left `cached` bytes; the row is pushed anew for its
        next read. Return True if that is news."""
        news = self.window.gone(row, cached)
        if news:
            self._anew.add(row)
        return news

    def changed(self, row: int, charge: int | None = None) -> None:
        """Record that the file changed at the source and that everything of its old version was forgotten. `charge`:
        bytes that a copy costs from now on; None: as before."""
        self.window.dropped(row)
        if charge is not None and charge != self._charge[row]:
            self._recharge(row, charge)

    def _recharge(self, row: int, charge: int) -> None:
        """Charge the row at its new size wherever it is charged. The row leaves memory or disk if it does not fit there
        any more, and gets a home anew if it has none."""
        more = charge - self._charge[row]
        self._charge[row] = charge
        self.total += more
        self.homes.recharge(row, more)
        self.window.recharge(row, more)
        self.passing.recharge(row, more)
        if self._is_streaming[row]:
            self.stream_used += more
        if self._home_of[row] == _RAM and (charge > self.split.whole_limit or self.homes.free < 0):
            self._give_up(row)
        elif self._home_of[row] == _DISK and (charge > self.split.whole_limit or self.homes.is_crowded(row)):
            self.homes.leave_disk(row, _UNPLACED, empty=True)
        if self._home_of[row] == _STREAM and not self._is_streaming[row]:
            self._home_of[row] = _UNPLACED
        self._anew.add(row)  # it may now need a fetch and a push for its next read, or none

    def stager_restarted(self) -> None:
        """Reset what the former stager had begun, and discard the commands for it. Rows that it published are kept;
        copies on disk are not."""
        self._orders.clear()
        for row in (*np.flatnonzero(self._fetching).tolist(), *self._stuck):
            self.fetch_failed(row)
        self.window.lost()
        for row in np.flatnonzero(self._writing | self._on_disk).tolist():
            self._leave_disk(row, _UNPLACED)
        self._evicting[:] = False
        self._look_at_all()

    def adopt(self, staged: npt.NDArray[np.bool_]) -> None:
        """Take over the mount of another NodePolicy, which is gone. `staged` b[n]: rows that are in the arena."""
        for row in np.flatnonzero(staged).tolist():
            self.staged(row)
        self.window.adopt()

    def resync(self, staged: npt.NDArray[np.bool_]) -> None:
        """Recover after events of the stager were lost: `staged` b[n] marks the rows that are in the arena."""
        self.stager_restarted()
        for row in np.flatnonzero(staged & ~self._staged).tolist():
            self.staged(row)
        for row in np.flatnonzero(self._staged & ~staged).tolist():
            self.evicted(row)

    # ---- events of the server -----------------------------------------------------------------------------

    def opened(self, row: int) -> None:
        self._open.open(row)
        self.kept.discard(row)
        self.window.opened(row)

    def without_closes(self) -> None:
        """Expect neither opens nor closes from now on, only READs. A file counts as open from its first READ until its
        end was read. In return, all that lies behind the reader's position counts as read."""
        self.replace(False)
        self._closes_are_seen = False
        self._awaited.expire_at_position()
        self.window.awaited.expire_at_position()

    def read(self, row: int, end: int) -> None:
        """Record that the server answered a READ up to byte `end`, so that the page cache holds these bytes now."""
        if self._charge[row] > self.split.whole_limit:
            behind = self._large.read(row, end)
            if behind:
                self._order(StagerCommand.DROP, row, behind)
        elif self.window.read(row):
            self.evictions_read += 1
            self._anew.add(row)
        if self._closes_are_seen:
            self._open.read(row)
        else:
            for closed in self._open.read_unopened(row, self._charge[row] - end):
                self._closed(closed)

    def released(self, row: int) -> None:
        """Record that a reader closed the file."""
        if self._open.close(row):
            self._closed(row)

    def _closed(self, row: int) -> None:
        """Handle that all readers have closed the row."""
        if self._large.closed(row):
            self._order(StagerCommand.DROP, row)
        if self._paged_of[row] != _NONE:
            self._awaited.read_done(row)  # else the row was opened, but not read
        self.window.closed(row)
        if self._replaces and self._home_of[row] != _DISK:
            self._read[row] = None
        self._let_go(row)

    def events_lost(self) -> None:
        """Recover after events of the server were lost: which files are open is not known any more. Open files that
        count as closed lose their copies; that costs time, not more."""
        for row in self._open.clear():
            self._closed(row)
        self._look_at_all()

    # ---- the stream ---------------------------------------------------------------------------------------

    def restart(self, position: int) -> None:
        """Follow a changed plan: cancel queued fetches and scan the stream anew from `position`."""
        self._order_all(StagerCommand.CANCEL, [])
        self._fetch_at = self._push_at = position
        self._anew.clear()
        self._awaited.restart()
        self.kept.invalidate()
        self.window.forget_expected()
        self._look_at_all()

    def advance(self, position: int, horizon: int, upcoming: Upcoming) -> None:
        """Command fetches and pushes for stream positions [position, position + horizon). `upcoming(start, count)`
        gives the rows from position `start` on: fewer where the stream is not known further, -1 for positions gone by.
        """
        for row in self._awaited.passed(position):
            self._let_go(row)
        self._pull()
        self.window.advance(position)
        if self._look_again:
            self._look_again = False
            self._fetch_at = self._push_at = position
        if self._anew:
            first = self.window.behind.first_use(self._anew)
            self._anew.clear()
            self._fetch_at, self._push_at = min(self._fetch_at, first), min(self._push_at, first)
        self._fetch_at, stopped = scan(
            max(self._fetch_at, position), position + horizon, upcoming, self._fetch_some
        )
        if stopped and self.fetches_outstanding < FETCHES_OUTSTANDING:
            for row in self._awaited.take_former():
                self._let_go(row)
        self._push_at, _ = scan(self._push_from(position), self._fetch_at, upcoming, self._push_some)

    def _fetch_some(self, rows: Rows, first: int) -> int:
        """Add fetch commands for some of these rows, the first at position `first`; return how many were dealt with."""
        wanted = (rows >= 0) & (self._size[rows] > 0) & (self._size[rows] <= self.split.whole_limit)
        wanted &= ~(self._staged[rows] & (self.home[rows] == _RAM)) & ~self._backed[rows]
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero(wanted).tolist():
            row = int(rows[at])
            if self._is_fetching[row] or (self._is_staged[row] and not self._is_evicting[row]):
                self._await(row, first + at)
                continue
            self._place(row)
            if self._too_large(row) or self._served_by_pages(row):
                continue
            if not self._may_fetch(row):
                dealt = at
                break
            self._begin_fetch(row)
            self._await(row, first + at)
            batch.append(row)
        if batch:
            self._order_all(StagerCommand.FETCH, batch)
        return dealt

    def _await(self, row: int, position: int) -> None:
        if self._home_of[row] != _RAM:
            self._awaited.expect(row, position)

    def _may_fetch(self, row: int) -> bool:
        if self.fetches_outstanding >= FETCHES_OUTSTANDING:
            return False
        return bool(self._home_of[row] == _RAM or self.stream_used + self._charge[row] <= self.split.stream)

    def _too_large(self, row: int) -> bool:
        """True when the row does not stay and would not fit the stream's part of the arena; it is read on demand."""
        return bool(self._home_of[row] != _RAM and self._charge[row] > self.split.stream)

    def _passes(self, row: int) -> bool:
        """True when the kernel reads the row from disk by itself, now or once it is there: the row needs no pages."""
        return bool(self._is_backed[row] or (self._may_be_backed[row] and self._home_of[row] == _DISK))

    def _served_by_pages(self, row: int) -> bool:
        """True when the row has no home in the arena and its pages are still there: it needs no second fetch."""
        return bool(self._home_of[row] != _RAM and self.window.has(row))

    def _push_from(self, position: int) -> int:
        """The position where pushing goes on. When the reader has overtaken the pushes, some rows are left to READs:
        pushes get ahead of the reader again, and are not in its way."""
        moved, self._position = position - self._position, position
        if self._push_at >= position:
            return self._push_at
        return position + max(0, min(moved, LEAD_MOST, (self._fetch_at - position) // 2))

    def _push_some(self, rows: Rows, first: int) -> int:
        """Add push commands for some of these rows, the first at position `first`; return how many were dealt with."""
        window = self.window
        coming = (self._staged[rows] & ~self._evicting[rows]) | self._fetching[rows]
        whole = self.paged[rows] == _WHOLE
        batch: list[int] = []
        dealt = len(rows)
        for at in np.flatnonzero((rows >= 0) & ((whole & ~window.home[rows]) | (coming & ~whole))).tolist():
            row = int(rows[at])
            if self._paged_of[row] == _WHOLE or window.pushing[row]:
                window.keep(row, first + at)
                continue
            if window.too_large(row) or self._passes(row) or (row in self._open and first + at < self._position + SCAN):
                continue  # too large, or needs no pages, or its reader is there: a push would wait for the READs
            if not self._is_staged[row] or not window.may_push(row):
                self._drop(window.make_room(self._charge[row], first + at) if self._is_staged[row] else [])
                dealt = at
                break
            window.push(row, first + at)
            batch.append(row)
        if batch:
            self._order_all(StagerCommand.PUSH, batch)
        return dealt

    def orders(self) -> list[tuple[StagerCommand, list[int], int]]:
        """Return the commands to send now, in sequence: (kind, rows, value)."""
        for row in self._open.forget():
            self._closed(row)
        arrived, self._arrived = self._arrived, []
        for row in arrived:
            self._let_go(row)
        if self._read:
            self._keep()
        self._drop(self.window.make_room())
        self._pull()
        return self._orders.take()

    # ---- other nodes --------------------------------------------------------------------------------------

    def is_coming(self, row: int) -> bool:
        """True when the row is being fetched, or is to be pulled."""
        return bool(self._is_fetching[row] or row in self.passing.pulls)

    def keeps(self, row: int) -> bool:
        """True when the row has its home here, in memory or on disk."""
        return bool(self._home_of[row] in (_RAM, _DISK))

    def has(self, row: int) -> bool:
        """True when a copy of the row is here, in memory or on disk."""
        return bool(self._is_on_disk[row]) or self.is_staged(row)

    def is_staged(self, row: int) -> bool:
        """True when a copy of the row is in memory, and not being evicted."""
        return bool(self._is_staged[row] and not self._is_evicting[row])

    def staged_rows(self) -> Rows:
        """Rows with a copy in memory that is not being evicted, i64[m]."""
        return np.flatnonzero(self._staged & ~self._evicting)

    def _pull(self) -> None:
        """Add fetch commands for the rows to pull, as far as `_may_fetch` allows."""
        pulls, batch = self.passing.pulls, []
        while pulls:
            row = next(iter(pulls))
            if not (self._is_fetching[row] or self.is_staged(row) or self._too_large(row)):
                if not self._may_fetch(row):
                    break
                self._begin_fetch(row)
                batch.append(row)
            del pulls[row]
        if batch:
            self._order_all(StagerCommand.FETCH, batch)

    # ---- placement ----------------------------------------------------------------------------------------

    def replace(self, does: bool) -> None:
        """Switch Belady's rule on or off. With the rule, a file that is read again sooner replaces one that stays: that
        pays where each epoch reads another part of the files. Without it, the files that came first stay: every file is
        read again in the next epoch, and none sooner than others for long. `kept.next_uses` gives the next uses.
        Without closes the rule stays off: which files were read is not known."""
        does = does and self._closes_are_seen
        if does == self._replaces:
            return
        self._replaces = does
        self._arrived.extend(self._read)
        self._read.clear()
        self.kept.clear()
        for row in np.flatnonzero((self.home == _RAM) & self._staged).tolist():
            self._may_go(row)

    def _keep(self) -> None:
        """Decide about all rows read since the last call together: a row stays where it is read again sooner than the
        rows that must leave for it."""
        read = [row for row in self._read if self._is_staged[row] and not self._is_evicting[row]]
        self._read.clear()
        for row, use in self.kept.offered(read):
            size = self._charge[row]
            if self._home_of[row] == _RAM:
                self._may_go(row)
                continue
            gone = None
            if self._home_of[row] == _STREAM and size <= self.split.whole_limit:
                gone = self.kept.make_room(size - self.homes.free, self._charge, use)
            if gone is None:
                self._to_disk(row)
                self._let_go(row)
                continue
            for other in reversed(gone):
                self._give_up(other, disk=True)
            self._anew.update(gone)  # to be fetched for their next read, if the scan is past it
            self._uncharge_stream(row)
            self.homes.take(row)
            self._may_go(row)

    def _may_go(self, row: int) -> None:
        """Let a row with its home in memory leave for rows that are read sooner."""
        if self._replaces and row not in self._open and not self.homes.is_placed(row):
            self.kept.add(row)

    def place(self, local: npt.NDArray[np.int8], furthest: Rows) -> None:
        """Apply the placement of the cluster, `local` as in `Homes.apply_placement`. Rows with a home here by it get
        their room now; others leave memory for them in the order of `furthest`, which has all rows of `held`."""
        rows = self.homes.apply_placement(local, (self._size > 0) & (self._size <= self.split.whole_limit))
        for row in self.homes.overflow():
            if self._is_on_disk[row] or self._is_writing[row]:
                self._order(StagerCommand.OFF_DISK, row)
            else:
                self.homes.leave_disk(row, _STREAM, empty=True)
        for row in rows[self._staged[rows] | self._fetching[rows]].tolist():
            self.kept.discard(row)
            if self._home_of[row] == _RAM:
                self._uncharge_stream(row)
            else:
                self._charge_stream(row)
                self._write(row)
        self._anew.update(self._make_room(self.homes.spared(furthest)))

    def use_disk(self, pays: bool) -> None:
        """Let more files get a home on disk, or none while the source is faster."""
        if pays and not self.homes.uses_disk:
            self.homes.place_anew(~self._streaming)
        self.homes.uses_disk = pays

    def held(self) -> Rows:
        """Rows that stay in memory, or that have pages."""
        held = (self.home == _RAM) | self.window.home | (self.paged != _NONE)
        return np.flatnonzero(held).astype(np.int64)

    def unplace(self, rows: npt.NDArray[np.bool_]) -> None:
        """Withdraw the placement of these rows, b[n]: the node with their home is gone."""
        self.homes.withdraw_placement(rows & ~self._streaming)

    def resize(self, split: MemorySplit, furthest: Rows) -> None:
        """Set a new division of the budget. When it is smaller, files leave in the order of `furthest` (their next use
        is furthest away); when it is larger, files that streamed are placed anew."""
        if split.homes > self.split.homes:
            self.homes.place_anew(~self._streaming)
        self.split = self.passing.split = split
        self.homes.room = split.homes
        rows = furthest.tolist()
        self._make_room(self.homes.spared(furthest))
        self._make_room(rows)
        self.window.resize(split, rows)

    def _make_room(self, rows: list[int]) -> list[int]:
        """Let as many of these rows, from the first on, leave memory as must; return them."""
        gone = []
        for row in rows:
            if self.homes.free >= 0:
                break
            self._give_up(row)
            gone.append(row)
        return gone

    def _give_up(self, row: int, *, disk: bool = False) -> None:
        """Move the row's home out of the arena, to `disk` if there is room; the copy then stays until it is written."""
        if self._home_of[row] != _RAM:
            return
        self.homes.leave(row)
        self.kept.discard(row)
        if self._is_staged[row] or self._is_fetching[row]:
            self._charge_stream(row)
        if disk:
            self._to_disk(row)
        self._let_go(row)

    def _place(self, row: int) -> None:
        """Give a row its home at its first use. A file that is never staged whole has none. Under Belady's rule, a home
        on disk is decided after the file was read."""
        if self._home_of[row] == _UNPLACED and self._charge[row] > self.split.whole_limit:
            self._home_of[row] = _STREAM
        self.homes.place(row, disk=not self._replaces)

    def _to_disk(self, row: int) -> None:
        """Write a staged row that does not stay in memory to disk while there is room: all rows are read again."""
        fits = self._is_staged[row] and self._charge[row] <= self.split.whole_limit
        if fits and self._home_of[row] == _STREAM and self.homes.place_on_disk(row):
            self._write(row)

    def _write(self, row: int) -> None:
        """Have a staged row written to the disk tier that is its home, unless its copy is there."""
        there = self._is_on_disk[row] or self._is_writing[row] or self._is_evicting[row] or not self._is_staged[row]
        if self._home_of[row] == _DISK and not there:
            self._is_writing[row] = True
            self._order(StagerCommand.TO_DISK, row, self.homes.tier(row))

    def _leave_disk(self, row: int, home: Home) -> None:
        """Record that the row is not on disk. Its room there is free again, unless it could not be written."""
        self.homes.leave_disk(row, home, empty=bool(self._is_on_disk[row] or home == _UNPLACED))
        self._is_writing[row] = self._is_on_disk[row] = self._is_backed[row] = False

    def _let_go(self, row: int) -> None:
        """Evict the arena copy of a row without a home there, unless it has a hold."""
        if self._home_of[row] == _RAM or not self._is_staged[row] or self._is_evicting[row]:
            return
        if row in self._open or row in self._awaited or self._is_writing[row] or self.window.pushing[row]:
            return
        if row in self._read or row in self.passing:
            return
        self._is_evicting[row] = True
        self._order(StagerCommand.EVICT, row)

    def _look_at_all(self) -> None:
        self._arrived.extend(np.flatnonzero(self._streaming & self._staged).tolist())

    # ---- small parts --------------------------------------------------------------------------------------

    def _begin_fetch(self, row: int) -> None:
        self._is_fetching[row] = True
        self._charge_stream(row)
        self.fetches_outstanding += 1

    def _end_fetch(self, row: int) -> None:
        if self._is_fetching[row]:
            self._is_fetching[row] = False
            self.fetches_outstanding -= 1

    def _charge_stream(self, row: int) -> None:
        """Charge a file that does not stay in the arena to the stream's part of it."""
        if self._home_of[row] != _RAM and not self._is_streaming[row]:
            self._is_streaming[row] = True
            self.stream_used += self._charge[row]

    def _uncharge_stream(self, row: int) -> None:
        if self._is_streaming[row]:
            self._is_streaming[row] = False
            self.stream_used -= self._charge[row]

    def _drop(self, rows: list[int]) -> None:
        if rows:
            self._order_all(StagerCommand.DROP, rows)
            # A row whose pages were to serve its next read is fetched for that read, if the scan is past it.
            self._anew.update(row for row in rows if self._home_of[row] != _RAM)
