"""The copies of all files: the state of each, the holds on it, and its home. Pure.

A staged copy stays only while it has a hold. `release` clears a hold, and commands the eviction when it clears the last
one. So no code has to look for copies that nobody needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.belady_set import BeladySet
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.command_list import CommandList
from nopfsfs.policy.copy_flags import (
    EVICTING,
    FETCHING,
    HOME,
    KERNEL_READS,
    MAY_PASS,
    NEW,
    OFFERED,
    ON_DISK,
    OPEN,
    PRESENT,
    STAGED,
    STREAM,
    UNDECIDED,
    WRITING,
)
from nopfsfs.policy.homes import Home, Homes
from nopfsfs.protocol.supervisor_stager import StagerCommand

Rows = npt.NDArray[np.int64]


_UNPLACED, _RAM, _DISK, _STREAM = Home
_EVICT = StagerCommand.EVICT


class Residency:
    """`state` u8[n], flags of `Copy`; `holds` u8[n], flags of `Hold`. `charges` i64[n]: bytes that a copy of the file
    costs in memory. An empty file costs 0, as does a row that is no regular file. `disk_room`: bytes by disk tier."""

    def __init__(
        self, charges: npt.NDArray[np.int64], split: MemorySplit, disk_room: list[int], commands: CommandList,
        *, keeps_large: bool = False,
    ) -> None:  # fmt: skip
        self.charges, self.split, self.commands = charges, split, commands
        self.total = int(charges.sum())  # bytes that all files would take
        self.homes = Homes(charges, split.homes, disk_room, keeps_large=keeps_large)
        self.home = self.homes.home
        self.state = np.zeros(len(charges), np.uint8)
        self.holds = np.zeros(len(charges), np.uint8)
        # Views for one row at a time, at a tenth of an array's cost.
        self.charge_of, self.home_of = charges.data, self.homes.of
        self.state_of, self.holds_of = self.state.data, self.holds.data
        self.kept = BeladySet()  # rows that stay, where each epoch reads another part of the files
        self.belady = False
        self._undecided: list[int] = []
        self._new: list[int] = []
        self.again: set[int] = set()  # rows to be staged and pushed for their next read: a scan may be past it
        self.scan_anew = False  # True when a row is needed now that the scans have left out
        self.stream_used = self.offered_bytes = 0

    # ---- holds --------------------------------------------------------------------------------------------

    def hold(self, row: int, reason: int) -> None:
        """Keep the row's copy, for a reason of `Hold`, until `release`."""
        self.holds_of[row] |= reason

    def release(self, row: int, reason: int) -> None:
        """End a hold, and with it `NEW`: the row is decided about. A staged copy without a hold is evicted."""
        left = self.holds_of[row] & ~(reason | NEW)
        self.holds_of[row] = left
        if not left and self.state_of[row] & PRESENT == STAGED:
            self.evict(row)

    def evict(self, row: int) -> None:
        """Command the eviction of a staged copy, whatever holds it: nothing does, or people want to be rid of it."""
        self.state_of[row] |= EVICTING
        self.commands.add(_EVICT, row)

    def release_later(self, row: int, reason: int) -> None:
        """End a hold, but keep the copy until `decide`: it may get another hold by then."""
        self.holds_of[row] &= ~reason
        self._hold_new(row)

    def _hold_new(self, row: int) -> None:
        self.holds_of[row] |= NEW
        self._new.append(row)

    def decide(self) -> None:
        """Evict new copies that got no other hold. Under Belady's rule, decide about the files read since the last
        call."""
        new, self._new = self._new, []
        for row in new:
            self.release(row, NEW)
        if self._undecided:
            self._decide_read()

    def is_staged(self, row: int) -> bool:
        """True when a copy of the row is in memory, and not being evicted."""
        return self.state_of[row] & PRESENT == STAGED

    def has(self, row: int) -> bool:
        """True when a copy of the row is here, in memory or on disk."""
        return bool(self.state_of[row] & ON_DISK) or self.is_staged(row)

    def keeps(self, row: int) -> bool:
        """True when the row has its home here, in memory or on disk."""
        return self.home_of[row] in (_RAM, _DISK)

    def staged_rows(self) -> Rows:
        """Rows with a copy in memory that is not being evicted, i64[m]."""
        return np.flatnonzero(self.state & PRESENT == STAGED)

    # ---- copies in memory ---------------------------------------------------------------------------------

    def begin_fetch(self, row: int) -> None:
        """Record that a fetch of the row is commanded."""
        self.state_of[row] |= FETCHING
        self.charge_stream(row)

    def end_fetch(self, row: int) -> bool:
        """Record that no fetch of the row is under way; return whether one was."""
        under_way = bool(self.state_of[row] & FETCHING)
        self.state_of[row] &= ~FETCHING
        return under_way

    def staged(self, row: int) -> None:
        """Record that the row is whole in the arena, by a fetch or by a demand."""
        if self.state_of[row] & STAGED:
            return
        self.state_of[row] |= STAGED
        self.place(row)
        if self.home_of[row] == _RAM:
            self.uncharge_stream(row)
            self.may_leave(row)
        else:
            self.charge_stream(row)
            self._hold_new(row)
            self.write(row)

    def fetch_failed(self, row: int) -> None:
        """Free the room of a row that is not staged: rows that come first may have what was reserved for it."""
        self.uncharge_stream(row)
        self.homes.unplace(row)
        if self.home_of[row] != _RAM:
            self.holds_of[row] &= ~HOME

    def evicted(self, row: int) -> None:
        """Record that the arena has no copy of the row any more."""
        self.state_of[row] &= ~PRESENT
        self.kept.discard(row)
        if not self.state_of[row] & FETCHING:
            self.uncharge_stream(row)
            if self.home_of[row] == _RAM:  # the row got its home there meanwhile, or the copy was lost
                self.again.add(row)

    def opened(self, row: int) -> None:
        """Record that a reader opened the row."""
        self.holds_of[row] |= OPEN
        if self.belady:
            self.kept.discard(row)

    def recharge(self, row: int, more: int) -> None:
        """Charge `more` bytes for the row wherever it is charged: its size has changed. The row leaves memory or disk
        if it does not fit there any more, and gets a home anew if it has none."""
        self.charge_of[row] += more
        charge = self.charge_of[row]
        self.total += more
        self.homes.recharge(row, more)
        if self.holds_of[row] & OFFERED:
            self.offered_bytes += more
        if self.state_of[row] & STREAM:
            self.stream_used += more
        if self.home_of[row] == _RAM and (charge > self.split.whole_limit or self.homes.free < 0):
            self._give_up(row)
        elif self.home_of[row] == _DISK and self.homes.is_crowded(row, large=charge > self.split.whole_limit):
            self.homes.leave_disk(row, _UNPLACED, empty=True)
        if self.home_of[row] == _STREAM and not self.state_of[row] & STREAM:
            self.home_of[row] = _UNPLACED
        self.again.add(row)  # it may now need a fetch and a push for its next read, or none

    def stager_lost(self) -> None:
        """Reset the evictions and writes that the former stager had begun. Its copies on disk are gone."""
        for row in np.flatnonzero(self.state & EVICTING).tolist():
            self.state_of[row] &= ~EVICTING
            self._hold_new(row)
        for row in np.flatnonzero((self.holds & WRITING) | (self.state & ON_DISK)).tolist():
            self._leave_disk(row, _UNPLACED)
            if self.holds_of[row] & WRITING:
                self.release_later(row, WRITING)

    def charge_stream(self, row: int) -> None:
        """Charge a file that does not stay in the arena to the stream's part of it."""
        if self.home_of[row] != _RAM and not self.state_of[row] & STREAM:
            self.state_of[row] |= STREAM
            self.stream_used += self.charge_of[row]

    def uncharge_stream(self, row: int) -> None:
        """End the charge of `charge_stream`, if there is one."""
        if self.state_of[row] & STREAM:
            self.state_of[row] &= ~STREAM
            self.stream_used -= self.charge_of[row]

    # ---- copies on disk -----------------------------------------------------------------------------------

    def on_disk(self, row: int, tier: int) -> None:
        """Record that the row is whole on disk tier 1, 2, …: another than commanded where a copy was there already."""
        self.homes.is_on_disk(row, tier, whole=self.charge_of[row] <= self.split.whole_limit)
        self.state_of[row] |= ON_DISK
        self.release(row, WRITING)

    def kernel_reads(self, row: int, yes: bool) -> None:
        """Record whether the kernel reads the row from its copy on disk by itself."""
        flags = KERNEL_READS | MAY_PASS
        self.state_of[row] = self.state_of[row] | flags if yes else self.state_of[row] & ~flags

    def let_pass(self, rows: npt.NDArray[np.bool_]) -> None:
        """Expect that the kernel will read these rows, b[n], by itself soon after they are on disk."""
        self.state[rows] |= MAY_PASS

    def off_disk(self, row: int, *, again: bool) -> None:
        """Record that the row has no copy on disk (any more). `again`: the row may get its room at its next use."""
        self.scan_anew |= bool(self.state_of[row] & KERNEL_READS)  # the scan left the row out: it needed no fetch
        self._leave_disk(row, _UNPLACED if again else _STREAM)
        self.release(row, WRITING)

    def _to_disk(self, row: int) -> None:
        """Write a staged row that does not stay in memory to disk while there is room: all rows are read again."""
        fits = self.state_of[row] & STAGED and self.charge_of[row] <= self.split.whole_limit
        if fits and self.home_of[row] == _STREAM and self.homes.place_on_disk(row):
            self.write(row)

    def write(self, row: int) -> None:
        """Have a staged row written to the disk tier that is its home, unless its copy is there."""
        there = self.state_of[row] & ON_DISK or self.holds_of[row] & WRITING or not self.is_staged(row)
        if self.home_of[row] == _DISK and not there:
            self.holds_of[row] |= WRITING
            self.commands.add(StagerCommand.TO_DISK, row, self.homes.tier(row))

    def _leave_disk(self, row: int, home: Home) -> None:
        """Record that the row is not on disk. Its room there is free again, unless it could not be written."""
        self.homes.leave_disk(row, home, empty=bool(self.state_of[row] & ON_DISK or home == _UNPLACED))
        self.state_of[row] &= ~(ON_DISK | KERNEL_READS)

    # ---- copies for other nodes ---------------------------------------------------------------------------

    def offer(self, row: int) -> bool:
        """Hold the staged copy of a row for another node until `end_offer`; return False when there is no room. Such
        copies may take half of the room for the stream."""
        if not self.holds_of[row] & OFFERED:
            if self.offered_bytes + self.charge_of[row] > self.split.stream // 2:
                return False
            self.holds_of[row] |= OFFERED
            self.offered_bytes += self.charge_of[row]
        return True

    def end_offer(self, row: int) -> None:
        """Record that the home node has the copy, or has not come for it."""
        if self.holds_of[row] & OFFERED:
            self.offered_bytes -= self.charge_of[row]
            self.release(row, OFFERED)

    # ---- Belady's rule ------------------------------------------------------------------------------------

    def use_belady(self, on: bool) -> None:
        """Switch Belady's rule on or off. With the rule, a file that is read again sooner replaces one that stays: that
        pays where each epoch reads another part of the files. Without it, the files that came first stay: every file is
        read again in the next epoch, and none sooner than others for long. `kept.next_uses` gives the next uses."""
        if on == self.belady:
            return
        self.belady = on
        for row in self._undecided:
            self.release_later(row, UNDECIDED)
        self._undecided.clear()
        self.kept.clear()
        for row in np.flatnonzero((self.home == _RAM) & (self.state & STAGED != 0)).tolist():
            self.may_leave(row)

    def hold_undecided(self, row: int) -> None:
        """Keep the copy of a row that was read until `decide`."""
        if self.home_of[row] != _DISK and not self.holds_of[row] & UNDECIDED:
            self.holds_of[row] |= UNDECIDED
            self._undecided.append(row)

    def _decide_read(self) -> None:
        """Decide about all rows read since the last call together. A row stays where it is read again sooner than the
        rows that must leave for it."""
        undecided, self._undecided = self._undecided, []
        for row in undecided:
            self.holds_of[row] &= ~UNDECIDED  # one may have to leave for another
        for row, use in self.kept.offered([row for row in undecided if self.is_staged(row)]):
            if self.home_of[row] == _RAM:
                self.may_leave(row)
            elif not self._displace(row, use):
                self._to_disk(row)
                self.release(row, UNDECIDED)

    def _displace(self, row: int, use: int) -> bool:
        """Give the row, read next at position `use`, a home in memory in place of rows that are read later. Return
        False if it stays without."""
        if self.home_of[row] != _STREAM or self.charge_of[row] > self.split.whole_limit:
            return False
        gone = self.kept.make_room(self.charge_of[row] - self.homes.free, self.charge_of, use)
        if gone is None:
            return False
        for other in reversed(gone):
            self._give_up(other, disk=True)
        self.again.update(gone)
        self.uncharge_stream(row)
        self.homes.take(row)
        self.holds_of[row] |= HOME
        self.may_leave(row)
        return True

    def may_leave(self, row: int) -> None:
        """Let a row with its home in memory leave for rows that are read sooner."""
        if self.belady and not self.holds_of[row] & OPEN and not self.homes.is_placed(row):
            self.kept.add(row)

    # ---- homes --------------------------------------------------------------------------------------------

    def place(self, row: int) -> None:
        """Give a row its home at its first use, on disk or nowhere if it is never staged whole. Under Belady's rule, a
        home of others on disk is decided after the file was read."""
        if self.home_of[row] != _UNPLACED:
            return
        if self.charge_of[row] > self.split.whole_limit:
            self.homes.place_large(row)
            return
        self.homes.place(row, disk=not self.belady)
        if self.home_of[row] == _RAM:
            self.holds_of[row] |= HOME

    def apply_placement(self, local: npt.NDArray[np.int8], furthest: Rows) -> None:
        """Apply the placement of the cluster, `local` as in `Homes.apply_placement`. Rows that the placement puts here
        get room now. Others leave memory for these in the order of `furthest`, which has all rows at home there."""
        rows = self.homes.apply_placement(local, (self.charges > 0) & (self.charges <= self.split.whole_limit))
        for row in self.homes.overflow():
            if self.state_of[row] & ON_DISK or self.holds_of[row] & WRITING:
                self.commands.add(StagerCommand.OFF_DISK, row)
            else:
                self.homes.leave_disk(row, _STREAM, empty=True)
        self.holds[rows[self.home[rows] == _RAM]] |= HOME
        for row in rows[(self.state[rows] & (STAGED | FETCHING)) != 0].tolist():
            self.kept.discard(row)
            if self.home_of[row] == _RAM:
                self.uncharge_stream(row)
            else:
                self.charge_stream(row)
                self.write(row)
        for row in rows[(self.home[rows] != _RAM) & (self.holds[rows] & HOME != 0)].tolist():
            self.release(row, HOME)
        self.again.update(self._make_room(self.homes.spared(furthest)))

    def withdraw_placement(self, rows: npt.NDArray[np.bool_]) -> None:
        """Withdraw the placement of these rows, b[n]: the node with their home is gone."""
        self.homes.withdraw_placement(rows & (self.state & STREAM == 0))

    def use_disk(self, pays: bool) -> None:
        """Let more files get a home on disk, or none while the source is faster."""
        if pays and not self.homes.uses_disk:
            self.homes.place_anew(self.state & STREAM == 0)
        self.homes.uses_disk = pays

    def resize(self, split: MemorySplit, furthest: Rows) -> None:
        """Set a new division of the budget. When the budget is smaller, files leave in the order of `furthest` (their
        next use is furthest away). When it is larger, files that streamed are placed anew."""
        if split.homes > self.split.homes:
            self.homes.place_anew(self.state & STREAM == 0)
        self.split = split
        self.homes.room = split.homes
        self._make_room(self.homes.spared(furthest))
        self._make_room(furthest.tolist())

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
        if self.home_of[row] != _RAM:
            return
        self.homes.leave(row)
        self.kept.discard(row)
        if self.state_of[row] & (STAGED | FETCHING):
            self.charge_stream(row)
        if disk:
            self._to_disk(row)
        self.release(row, HOME)
