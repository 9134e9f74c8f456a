"""The conductor: what to fetch, push, drop and evict next. A pure state machine: events in, orders out.

Files get their home in the order in which they will first be read: the arena while it has room, then disk; what fits
nowhere streams through a small part of the arena. A file that stays is fetched as early as the source allows; one that
streams is fetched when it comes into the window and let go when its last reader closed it. What is staged is pushed
into the page cache in stream order, as far ahead as the page budget allows.

A copy that does not stay is held for a reason: a reading that is awaited, a reader that has it open, a write to disk
or a push under way. Whatever ends a reason ends with `_let_go`, so that no copy stays without one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.belady_set import BeladySet
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.command_list import CommandList, Do
from nopfsfs.policy.homes import Home, Homes
from nopfsfs.policy.large_reads import LargeReads
from nopfsfs.policy.open_files import OpenFiles
from nopfsfs.policy.passing import Passing
from nopfsfs.policy.pending_reads import PendingReads
from nopfsfs.policy.push_scheduler import Paged, PushScheduler

Rows = npt.NDArray[np.int64]
Upcoming = Callable[[int, int], Rows]

FETCHES_OUTSTANDING = 256  # rows asked of the stager and not done; bounds what a jump of the plan makes vain
SCAN = 1024  # stream positions looked at in one step
SCAN_STEPS = 16  # steps in one call, so that the caller stays responsive
LEAD_MOST = 256  # positions left out when the reader has overtaken the pushes: some ten milliseconds of the fastest


# Bound once: looking a member of an enumeration up costs as much as the rest of a short call.
_UNPLACED, _RAM, _DISK, _STREAM = Home
_NONE, _WHOLE = Paged.NONE, Paged.WHOLE


class NodePolicy:
    """State by row: arrays of length n. `charges` i64[n]: what a copy of the file costs in memory, bytes; 0 for what
    is not a regular file or empty. `paged` u8[n] is written here and may lie in shared memory. `disk_room`: bytes by
    disk tier."""

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
        # The same for one row at a time: a tenth of what an array takes for that.
        self._charge, self._paged_of, self._home_of = charges.data, paged.data, self.homes.of
        self._is_staged, self._is_fetching = self._staged.data, self._fetching.data
        self._is_evicting, self._is_streaming = self._evicting.data, self._streaming.data
        self._is_writing, self._is_on_disk = self._writing.data, self._on_disk.data
        self._is_backed, self._may_be_backed = self._backed.data, self.may_pass.data
        self._open = OpenFiles()
        self._closes_are_seen = True
        self._large = LargeReads()
        self._awaited = PendingReads()  # copies that do not stay, fetched for a reading to come
        self._arrived: list[int] = []  # staged since the last orders: is there a reason to hold them?
        self.kept = BeladySet()  # what stays, where each epoch reads another part of the files
        self._replaces = False
        self.passing = Passing(self._charge, split, self._let_go)
        self._read: dict[int, None] = {}  # read since the last orders: is it to be kept?
        self.window = PushScheduler(charges, paged, split, self._open)
        self._fetch_at = 0  # stream positions: before them all is ordered
        self._push_at = 0
        self._position = 0
        self._look_again = False  # some of what was ordered was cancelled, or was not needed and is
        self._stuck: set[int] = set()  # rows whose fetch hangs: they keep their room
        self._anew: set[int] = set()  # rows whose pages went: to be staged and pushed for their next reading
        self.fetches_outstanding = 0
        self.stream_used = 0
        self.evictions_read = 0  # READs that showed that the kernel had taken pages
        self._orders = CommandList()
        self._order, self._order_all = self._orders.add, self._orders.add_all

    @property
    def has_room_for_all(self) -> bool:
        """Whether all files may stay in memory, and in the page cache."""
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
        """The row is whole in the arena (asked for here, or by a demand)."""
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
            self._arrived.append(row)  # decided when the server's events were seen, too: it may be open
        self._write(row)

    def fetch_failed(self, row: int, *, cancelled: bool = False) -> None:
        """The row could not be staged (no room, unreadable) and will be read on demand; or its order was cancelled."""
        self._look_again |= bool(cancelled and self._is_fetching[row])
        self._end_fetch(row)
        self._stuck.discard(row)
        if not self._is_staged[row]:
            self._awaited.read_done(row)
            self._uncharge_stream(row)
            self.homes.unplace(row)  # the room that it was to have is for what comes before it

    def fetch_stuck(self, row: int) -> None:
        """The source does not answer for the row: others are fetched. Its room is taken until it is staged or fails."""
        if self._is_fetching[row]:
            self._end_fetch(row)
            self._stuck.add(row)

    def evicted(self, row: int) -> None:
        self._is_staged[row] = self._is_evicting[row] = False
        self.kept.discard(row)
        if not self._is_fetching[row]:
            self._uncharge_stream(row)
            if self._home_of[row] == _RAM:  # it was given its home there in the meantime, or the copy was lost
                self._anew.add(row)

    def pushed(self, row: int) -> None:
        self.window.pushed(row)
        if not self._closes_are_seen:
            self._awaited.read_done(row)  # it is read from the page cache now, and nobody would say when that is done
        self._let_go(row)

    def push_failed(self, row: int) -> None:
        self.window.push_failed(row)
        self._let_go(row)

    def dropped(self, row: int) -> None:
        self.window.dropped(row)

    def on_disk(self, row: int, tier: int) -> None:
        """The row is whole on disk tier 1, 2, …; on another than was asked for where it was there already."""
        self.homes.is_on_disk(row, tier)
        self._is_writing[row] = False
        self._is_on_disk[row] = True
        self._let_go(row)

    def backed(self, row: int, passes: bool = True) -> None:
        """The kernel reads the row from its copy on disk by itself, or may not."""
        self._is_backed[row] = self._may_be_backed[row] = passes
        if passes:
            self._awaited.read_done(row)  # the reading needs nothing else
        self._let_go(row)

    def off_disk(self, row: int, *, again: bool = False) -> None:
        """The row has no copy on disk (any more): the tier was full, failed, was to make room, or the file changed.
        `again`: the tier failed, or lost the copy. The row's room there is free, and it may have it at its next use."""
        self._look_again |= bool(self._is_backed[row])  # it was passed by: it needed nothing
        self._leave_disk(row, _UNPLACED if again else _STREAM)
        self._let_go(row)

    def pages_gone(self, row: int, cached: int) -> bool:
        """The kernel was found to have taken pages of the row, and left `cached` bytes: it is pushed anew where it will
        be read. Whether that is news."""
        news = self.window.gone(row, cached)
        if news:
            self._anew.add(row)
        return news

    def changed(self, row: int, charge: int | None = None) -> None:
        """The file changed at the source and everything of its old version was forgotten. `charge`: what a copy costs
        from now on; None: as before."""
        self.window.dropped(row)
        if charge is not None and charge != self._charge[row]:
            self._recharge(row, charge)

    def _recharge(self, row: int, charge: int) -> None:
        """Charge the row at its new size wherever it is charged. It leaves memory if it does not fit there any more,
        and finds a home anew if it has none."""
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
        self._anew.add(row)  # what is fetched, and pushed, for its next reading may be another

    def stager_restarted(self) -> None:
        """What the stager before had begun is lost, and what it was to be told is vain; what it had published is kept,
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
        """Take over the mount of another conductor, which is gone. `staged` b[n]: what is in the arena."""
        for row in np.flatnonzero(staged).tolist():
            self.staged(row)
        self.window.adopt()

    def resync(self, staged: npt.NDArray[np.bool_]) -> None:
        """Events of the stager were lost: take what is staged from where it is said."""
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
        """From now on neither opens nor closes are seen, only READs: a file is taken for open from the first until
        its end was read. In return all that lies behind the reader's position was read."""
        self.replace(False)
        self._closes_are_seen = False
        self._awaited.expire_at_position()
        self.window.awaited.expire_at_position()

    def read(self, row: int, end: int) -> None:
        """The server answered a READ up to byte `end`; so the page cache holds these bytes now."""
        if self._charge[row] > self.split.whole_limit:
            behind = self._large.read(row, end)
            if behind:
                self._order(Do.DROP, row, behind)
        elif self.window.read(row):
            self.evictions_read += 1
            self._anew.add(row)
        if self._closes_are_seen:
            self._open.read(row)
        else:
            for closed in self._open.read_unopened(row, self._charge[row] - end):
                self._closed(closed)

    def released(self, row: int) -> None:
        """A reader closed the file."""
        if self._open.close(row):
            self._closed(row)

    def _closed(self, row: int) -> None:
        """All have closed it."""
        if self._large.closed(row):
            self._order(Do.DROP, row)
        if self._paged_of[row] != _NONE:
            self._awaited.read_done(row)  # else it was opened, but not read
        self.window.closed(row)
        if self._replaces and self._home_of[row] != _DISK:
            self._read[row] = None
        self._let_go(row)

    def events_lost(self) -> None:
        """Events of the server were lost: who has what open is not known any more. Files that are open and taken for
        closed lose their copies; that costs time, not more."""
        for row in self._open.clear():
            self._closed(row)
        self._look_at_all()

    # ---- the stream ---------------------------------------------------------------------------------------

    def restart(self, position: int) -> None:
        """The plan changed: what was queued is vain; look at the stream anew from its position."""
        self._order_all(Do.CANCEL, [])
        self._fetch_at = self._push_at = position
        self._anew.clear()
        self._awaited.clear()
        self.kept.invalidate()
        self.window.forget_expected()
        self._look_at_all()

    def advance(self, position: int, horizon: int, upcoming: Upcoming) -> None:
        """Order fetches and pushes for stream positions [position, position + horizon); `upcoming(start, count)` gives
        the rows from position `start` on, fewer where the stream is not known further, -1 for positions gone by."""
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
        self._fetch_at = self._scan(max(self._fetch_at, position), position + horizon, upcoming, self._fetch_some)
        self._push_at = self._scan(self._push_from(position), self._fetch_at, upcoming, self._push_some)

    def _scan(self, at: int, end: int, upcoming: Upcoming, deal: Callable[[Rows, int], int]) -> int:
        """Deal with stream positions [at, end) until `deal` cannot go on; where that was."""
        for _ in range(SCAN_STEPS):
            if at >= end:
                break
            rows = upcoming(at, min(SCAN, end - at))
            dealt = deal(rows, at)
            at += dealt
            if dealt < len(rows) or not len(rows):
                break
        return at

    def _fetch_some(self, rows: Rows, first: int) -> int:
        """Order fetches among these rows, those from position `first` on; how many of them were dealt with."""
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
            self._order_all(Do.FETCH, batch)
        return dealt

    def _await(self, row: int, position: int) -> None:
        if self._home_of[row] != _RAM:
            self._awaited.expect(row, position)

    def _may_fetch(self, row: int) -> bool:
        if self.fetches_outstanding >= FETCHES_OUTSTANDING:
            return False
        return bool(self._home_of[row] == _RAM or self.stream_used + self._charge[row] <= self.split.stream)

    def _too_large(self, row: int) -> bool:
        """A file that does not stay and would not fit the stream's part of the arena is read on demand."""
        return bool(self._home_of[row] != _RAM and self._charge[row] > self.split.stream)

    def _passes(self, row: int) -> bool:
        """A file that the kernel reads from disk by itself, now or when it is there, needs no pages."""
        return bool(self._is_backed[row] or (self._may_be_backed[row] and self._home_of[row] == _DISK))

    def _served_by_pages(self, row: int) -> bool:
        """A file that has no home in the arena and whose pages are still there needs no second fetch."""
        return bool(self._home_of[row] != _RAM and self.window.has(row))

    def _push_from(self, position: int) -> int:
        """Where to go on pushing. When the reader has come past that, what it will read until it is pushed is left to
        its READs: pushes get ahead of it again, or would be in its way."""
        moved, self._position = position - self._position, position
        if self._push_at >= position:
            return self._push_at
        return position + max(0, min(moved, LEAD_MOST, (self._fetch_at - position) // 2))

    def _push_some(self, rows: Rows, first: int) -> int:
        """Order pushes among these rows, those from position `first` on; how many of them were dealt with."""
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
                continue  # it does not fit, or needs no pages, or its reader is there: a push would wait for its READs
            if not self._is_staged[row] or not window.may_push(row):
                self._drop(window.make_room(self._charge[row], first + at) if self._is_staged[row] else [])
                dealt = at
                break
            window.push(row, first + at)
            batch.append(row)
        if batch:
            self._order_all(Do.PUSH, batch)
        return dealt

    def orders(self) -> list[tuple[Do, list[int], int]]:
        """What is to be done now, in order: (order, rows, value)."""
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
        """Whether it is being fetched, or will be."""
        return bool(self._is_fetching[row] or row in self.passing.pulls)

    def keeps(self, row: int) -> bool:
        """Whether it is to stay here, in memory or on disk."""
        return bool(self._home_of[row] in (_RAM, _DISK))

    def has(self, row: int) -> bool:
        """Whether it is here, in memory or on disk."""
        return bool(self._is_on_disk[row]) or self.is_staged(row)

    def is_staged(self, row: int) -> bool:
        """Whether it is in memory, and not about to go."""
        return bool(self._is_staged[row] and not self._is_evicting[row])

    def staged_rows(self) -> Rows:
        """What is in memory, i64[m]."""
        return np.flatnonzero(self._staged & ~self._evicting)

    def _pull(self) -> None:
        """Order what is to be pulled, as far as fetches may be under way."""
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
            self._order_all(Do.FETCH, batch)

    # ---- placement ----------------------------------------------------------------------------------------

    def replace(self, does: bool) -> None:
        """Whether what stays is replaced by what is read again sooner (Belady): where each epoch reads another part of
        the files. Else what came first stays: every file is read again in the next epoch, and none sooner than others
        for long. `kept.next_uses` says when. Without closes nothing is replaced: what was read is not known."""
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
        """Decide about what was read since the last time, all at once: it stays where it is read again sooner than what
        must go for it."""
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
            self._anew.update(gone)  # to be fetched for their next reading, if that was looked at already
            self._uncharge_stream(row)
            self.homes.take(row)
            self._may_go(row)

    def _may_go(self, row: int) -> None:
        """It lives in memory, and may make room for what is read sooner."""
        if self._replaces and row not in self._open and not self.homes.is_placed(row):
            self.kept.add(row)

    def place(self, local: npt.NDArray[np.int8], furthest: Rows) -> None:
        """The placement of the cluster: `local` as of `Homes.cover`. What lives here by it has its room from now on;
        others leave memory for it in the order of `furthest`, of all that is `held`."""
        rows = self.homes.apply_placement(local, (self._size > 0) & (self._size <= self.split.whole_limit))
        for row in self.homes.overflow():
            if self._is_on_disk[row] or self._is_writing[row]:
                self._order(Do.OFF_DISK, row)
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
        """Whether more files are to be kept on disk: not while the source is faster."""
        if pays and not self.homes.uses_disk:
            self.homes.place_anew(~self._streaming)
        self.homes.uses_disk = pays

    def held(self) -> Rows:
        """Rows that stay in memory, or of which there are pages."""
        held = (self.home == _RAM) | self.window.home | (self.paged != _NONE)
        return np.flatnonzero(held).astype(np.int64)

    def unplace(self, rows: npt.NDArray[np.bool_]) -> None:
        """The node where these rows, b[n], live is gone."""
        self.homes.withdraw_placement(rows & ~self._streaming)

    def resize(self, split: MemorySplit, furthest: Rows) -> None:
        """A new division of the budget. When it is smaller, files leave in the order of `furthest` (their next use
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
        """Let as many of these rows, from the first on, leave memory as must; which."""
        gone = []
        for row in rows:
            if self.homes.free >= 0:
                break
            self._give_up(row)
            gone.append(row)
        return gone

    def _give_up(self, row: int, *, disk: bool = False) -> None:
        """The row has no home in the arena any more, but one on `disk` if there is room: that holds its memory until it
        is written."""
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
        """Give a row its home, at its first use. A file that is never staged whole has none; where what stays is
        replaced, it is known when it was read whether it is to be on disk."""
        if self._home_of[row] == _UNPLACED and self._charge[row] > self.split.whole_limit:
            self._home_of[row] = _STREAM
        self.homes.place(row, disk=not self._replaces)

    def _to_disk(self, row: int) -> None:
        """What does not stay in memory, and is staged, is written to disk while there is room: all is read again."""
        fits = self._is_staged[row] and self._charge[row] <= self.split.whole_limit
        if fits and self._home_of[row] == _STREAM and self.homes.place_on_disk(row):
            self._write(row)

    def _write(self, row: int) -> None:
        """Have a staged row written to the disk that is its home, if it is not there."""
        there = self._is_on_disk[row] or self._is_writing[row] or self._is_evicting[row] or not self._is_staged[row]
        if self._home_of[row] == _DISK and not there:
            self._is_writing[row] = True
            self._order(Do.TO_DISK, row, self.homes.tier(row))

    def _leave_disk(self, row: int, home: Home) -> None:
        """The row is not on disk. Its room there is free again if it was, but not if it could not be written."""
        self.homes.leave_disk(row, home, empty=bool(self._is_on_disk[row] or home == _UNPLACED))
        self._is_writing[row] = self._is_on_disk[row] = self._is_backed[row] = False

    def _let_go(self, row: int) -> None:
        """Free the arena copy of a file that does not stay there, unless there is a reason to hold it."""
        if self._home_of[row] == _RAM or not self._is_staged[row] or self._is_evicting[row]:
            return
        if row in self._open or row in self._awaited or self._is_writing[row] or self.window.pushing[row]:
            return
        if row in self._read or row in self.passing:
            return
        self._is_evicting[row] = True
        self._order(Do.EVICT, row)

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
            self._order_all(Do.DROP, rows)
            # Where its pages were to serve the next reading, and that was looked at already, it is fetched for it now.
            self._anew.update(row for row in rows if self._home_of[row] != _RAM)
