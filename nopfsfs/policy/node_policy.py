"""The policy of one node: what to fetch, push, drop and evict next. A pure state machine: events in, commands out.

A file gets its home in the order of the first reads: the arena while it has room, then disk. A file that fits nowhere
streams through a small part of the arena. `NodePolicy` keeps no state of rows. `Residency` has the copies and their
holds. `FetchScheduler` and `PushScheduler` follow the access stream, `OpenFiles` and `LargeReads` the readers.
`WarmQueue`, `DropQueue` and `CheckQueue` have what commands ask for.
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.check_queue import CheckQueue
from nopfsfs.policy.command_list import CommandList
from nopfsfs.policy.copy_flags import OPEN, PENDING, STAGED
from nopfsfs.policy.drop_queue import ARENA, DISK, PAGES, DropQueue
from nopfsfs.policy.fetch_scheduler import FetchScheduler
from nopfsfs.policy.homes import Home
from nopfsfs.policy.large_files import LargeFiles
from nopfsfs.policy.large_reads import LargeReads
from nopfsfs.policy.next_use import NextUses
from nopfsfs.policy.open_files import OpenFiles
from nopfsfs.policy.push_scheduler import Paged, PushScheduler
from nopfsfs.policy.residency import Residency
from nopfsfs.policy.stream_scan import Rows, Upcoming
from nopfsfs.policy.warm_queue import WarmQueue
from nopfsfs.protocol.supervisor_stager import StagerCommand

_NONE = Paged.NONE  # bound once, as in `residency`


class NodePolicy:
    """Hands each event to the parts that it concerns. `charges`, `split` and `disk_room` as in `Residency`; `paged` as
    in `PushScheduler`; `keeps_large` as in `Homes`. Callers read the state of the parts, and change it by the methods
    of this class only."""

    def __init__(
        self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8], split: MemorySplit, disk_room: list[int],
        *, keeps_large: bool = False,
    ) -> None:  # fmt: skip
        self._commands = CommandList()
        self.residency = Residency(charges, split, disk_room, self._commands, keeps_large=keeps_large)
        self.pushes = PushScheduler(self.residency, paged)
        self.large = LargeFiles(self.residency)
        self.fetches = FetchScheduler(self.residency, self.pushes, self.large)
        self.warm = WarmQueue(self.residency, self.fetches, self.large)
        self.drops = DropQueue(self.residency, self.fetches, self.pushes)
        self.checks = CheckQueue(self.residency)
        self.open = OpenFiles()
        self._large_reads = LargeReads()
        self._closes_are_seen = True

    @property
    def split(self) -> MemorySplit:
        """The division of the memory budget."""
        return self.residency.split

    @property
    def total(self) -> int:
        """Bytes that all files would take."""
        return self.residency.total

    @property
    def has_room_for_all(self) -> bool:
        """True when all files may stay in memory, large ones by blocks, and the others in the page cache as well."""
        return self.total - self.split.resident <= min(self.split.homes, self.split.pages)

    @property
    def pages_used(self) -> int:
        """Bytes of the page cache that are held, being pushed, or being dropped."""
        return self.pushes.used

    def held(self) -> Rows:
        """Rows that stay in memory, or that have pages."""
        held = (self.residency.home == Home.RAM) | self.pushes.home | (self.pushes.paged != _NONE)
        return np.flatnonzero(held).astype(np.int64)

    # ---- events of the stager -----------------------------------------------------------------------------

    def staged(self, row: int) -> None:
        """Record that the row is whole in the arena, fetched by a command from here or by a demand."""
        self.fetches.ended(row)
        self.residency.staged(row)

    def fetch_failed(self, row: int, *, cancelled: bool = False, error: int = 0) -> None:
        """Record that the row could not be staged (no room, unreadable: it is read on demand), or was cancelled.
        `error`: an errno, as far as it is known."""
        self.fetches.failed(row, cancelled=cancelled)
        self.warm.failed(row, error, cancelled=cancelled)

    def fetch_stuck(self, row: int) -> None:
        """Record that the source does not answer for the row."""
        self.fetches.stuck(row)
        self.warm.failed(row, errno.ETIMEDOUT, cancelled=False)

    def evicted(self, row: int) -> None:
        """Record that the arena has no copy of the row any more."""
        self.residency.evicted(row)
        self.drops.ended(row, ARENA)

    def pushed(self, row: int) -> None:
        """Record that the page cache holds the whole row."""
        if not self._closes_are_seen:
            self.fetches.read_done(row)  # read from the page cache now, and no event will show the end
        self.pushes.pushed(row)

    def push_failed(self, row: int) -> None:
        """Record that the row could not be pushed."""
        self.pushes.push_failed(row)

    def dropped(self, row: int) -> None:
        """Record that the row's pages are gone by command."""
        self.pushes.dropped(row)
        self.drops.ended(row, PAGES)

    def pages_lost(self, row: int, cached: int) -> bool:
        """Record that the kernel has taken pages of the row and left `cached` bytes. Return True if that is news."""
        return self.pushes.pages_lost(row, cached)

    def on_disk(self, row: int, tier: int) -> None:
        """Record that the row is whole on disk tier 1, 2, …: another than commanded where a copy was there already."""
        self.residency.on_disk(row, tier)

    def copying(self, row: int, tier: int) -> None:
        """Record that the stager has begun to copy a row to disk that is too large to be staged whole."""
        self.large.begun(row, tier)

    def kernel_reads(self, row: int, yes: bool = True) -> None:
        """Record that the kernel reads the row from its copy on disk by itself, or that it may not."""
        self.residency.kernel_reads(row, yes)
        if yes:
            self.fetches.read_done(row)  # the read needs nothing else

    def off_disk(self, row: int, *, again: bool = False) -> None:
        """Record that the row has no copy on disk (any more): the tier was full, failed, had to make room, or the file
        changed. `again`: the tier failed or lost the copy. The room there is free, and the row may get it at its next
        use."""
        self.residency.off_disk(row, again=again or self.drops.is_dropping(row))
        self.large.copy_gone(row)
        self.drops.ended(row, DISK)

    def changed(self, row: int, charge: int | None = None) -> None:
        """Record that the file changed at the source and that everything of its old version was forgotten. `charge`:
        bytes that a copy costs from now on; None: as before."""
        self.pushes.dropped(row)
        self.large.copy_gone(row)
        more = 0 if charge is None else charge - self.residency.charge_of[row]
        if more:
            self.residency.recharge(row, more)
            self.pushes.recharge(row, more)

    def stager_restarted(self) -> None:
        """Reset what the former stager had begun, and discard the commands for it. Rows that it published are kept;
        copies on disk are not."""
        self._commands.clear()
        self.warm.stager_lost()
        self.drops.stager_lost()
        self.checks.stager_lost()
        self.large.restart()
        self.residency.stager_lost()
        self.fetches.stager_lost()
        self.pushes.stager_lost()

    def adopt(self, staged: npt.NDArray[np.bool_]) -> None:
        """Take over the mount of another NodePolicy, which is gone. `staged` b[n]: rows that are in the arena."""
        for row in np.flatnonzero(staged).tolist():
            self.staged(row)
        self.pushes.adopt()

    def resync(self, staged: npt.NDArray[np.bool_]) -> None:
        """Recover after events of the stager were lost: `staged` b[n] marks the rows that are in the arena."""
        self.stager_restarted()
        before = self.residency.state & STAGED != 0
        for row in np.flatnonzero(staged & ~before).tolist():
            self.staged(row)
        for row in np.flatnonzero(before & ~staged).tolist():
            self.evicted(row)

    # ---- events of the server -----------------------------------------------------------------------------

    def opened(self, row: int) -> None:
        """Record that a reader opened the file."""
        self.open.open(row)
        self.residency.opened(row)
        self.pushes.opened(row)

    def without_closes(self) -> None:
        """Expect neither opens nor closes from now on, only READs. A file counts as open from its first READ until its
        end was read. In return, all that lies behind the reader's position counts as read."""
        self.use_belady(False)
        self._closes_are_seen = False
        self.fetches.expire_at_position()
        self.pushes.awaited.expire_at_position()

    def read(self, row: int, end: int) -> None:
        """Record that the server answered a READ up to byte `end`, so that the page cache holds these bytes now."""
        charge = self.residency.charge_of[row]
        if charge <= self.residency.split.whole_limit:
            self.pushes.read(row)
        elif behind := self._large_reads.read(row, end):
            self._commands.add(StagerCommand.DROP, row, behind)
        if not self._closes_are_seen:
            self.residency.hold(row, OPEN)
            for closed in self.open.read_unopened(row, charge - end):
                self._closed(closed)
        elif self.open.read(row):
            self.residency.hold(row, OPEN)

    def released(self, row: int) -> None:
        """Record that a reader closed the file."""
        if self.open.close(row):
            self._closed(row)

    def _closed(self, row: int) -> None:
        """Handle that all readers have closed the row."""
        if self._large_reads.closed(row):
            self._commands.add(StagerCommand.DROP, row)
        residency = self.residency
        if residency.belady:
            residency.hold_undecided(row)
        residency.release(row, OPEN)
        if residency.holds_of[row] & PENDING and self.pushes.paged_of[row] != _NONE:
            self.fetches.read_done(row)  # else the row was opened, but not read
        self.pushes.closed(row)

    def events_lost(self) -> None:
        """Recover after events of the server were lost: which files are open is not known any more. Open files that
        count as closed lose their copies; that costs time, not more."""
        for row in self.open.clear():
            self._closed(row)

    def rotate_recent(self) -> None:
        """Forget which rows were pushed lately; called every few seconds."""
        self.pushes.rotate_recent()

    # ---- the stream ---------------------------------------------------------------------------------------

    def foresee(self, next_uses: NextUses) -> None:
        """Set the function by which next uses are known."""
        self.pushes.behind.next_uses = self.residency.kept.next_uses = next_uses

    def restart(self, position: int) -> None:
        """Follow a changed plan: cancel queued fetches and scan the stream anew from `position`."""
        self._commands.add_all(StagerCommand.CANCEL, [])
        self.residency.again.clear()
        self.residency.kept.invalidate()
        self.fetches.restart(position)
        self.pushes.restart(position)

    def advance(self, position: int, horizon: int, upcoming: Upcoming) -> None:
        """Command fetches and pushes for stream positions [position, position + horizon), with `upcoming` as in
        `stream_scan`."""
        residency, fetches, pushes = self.residency, self.fetches, self.pushes
        if residency.scan_anew:
            residency.scan_anew = False
            fetches.at = pushes.at = position
        if residency.again:
            first = pushes.behind.first_use(residency.again)
            residency.again.clear()
            fetches.at, pushes.at = min(fetches.at, first), min(pushes.at, first)
        fetches.advance(position, position + horizon, upcoming)
        pushes.advance(position, fetches.at, upcoming)

    def serve_requests(self, *, stream: bool) -> None:
        """Command what commands ask for. `stream`: there is an access stream, which comes first."""
        if self.drops.requests:
            self.drops.serve()
        if self.warm.requests:
            self.warm.serve(stream=stream)
        if self.checks.requests:
            self.checks.serve()

    def take_commands(self) -> list[tuple[StagerCommand, list[int], int]]:
        """Return the commands to send now, in sequence: (kind, rows, value)."""
        for row in self.open.forget():
            self._closed(row)
        self.residency.decide()
        self.pushes.drop(self.pushes.make_room())
        self.fetches.fetch_pulls()
        return self._commands.take()

    # ---- other nodes --------------------------------------------------------------------------------------

    def offer(self, row: int) -> bool:
        """Hold the staged copy of a row for the node with its home until `end_offer`; return False if there is no room.
        """
        return self.residency.offer(row)

    def end_offer(self, row: int) -> None:
        """Record that the home node has the copy, or has not come for it."""
        self.residency.end_offer(row)

    def pull(self, row: int) -> None:
        """Fetch a row that has its home here and that another node has staged."""
        self.fetches.pull(row)

    def cancel_pull(self, row: int) -> None:
        """Withdraw the pull of a row, if its fetch has not begun."""
        self.fetches.cancel_pull(row)

    # ---- placement ----------------------------------------------------------------------------------------

    def use_belady(self, on: bool) -> None:
        """Switch Belady's rule on or off. Without closes the rule stays off: which files were read is not known."""
        self.residency.use_belady(on and self._closes_are_seen)

    def let_pass(self, rows: npt.NDArray[np.bool_]) -> None:
        """Expect that the kernel will read these rows, b[n], by itself soon after they are on disk."""
        self.residency.let_pass(rows)

    def apply_placement(self, local: npt.NDArray[np.int8], furthest: Rows) -> None:
        """Apply the placement of the cluster: see `Residency`. `furthest` has all rows of `held`."""
        self.residency.apply_placement(local, furthest)

    def withdraw_placement(self, rows: npt.NDArray[np.bool_]) -> None:
        """Withdraw the placement of these rows, b[n]: the node with their home is gone."""
        self.residency.withdraw_placement(rows)

    def use_disk(self, pays: bool) -> None:
        """Let more files get a home on disk, or none while the source is faster."""
        self.residency.use_disk(pays)

    def resize(self, split: MemorySplit, furthest: Rows) -> None:
        """Set a new division of the budget. When it is smaller, files leave in the order of `furthest`."""
        self.residency.resize(split, furthest)
        self.pushes.resize(split, furthest.tolist())
