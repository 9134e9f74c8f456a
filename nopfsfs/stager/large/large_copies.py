"""Copies on disk of files that are too large to be staged whole: what is asked for, read ahead, and written.

The supervisor asks for copies in the order in which the files are read first (`copy`). One after the other, their
blocks are read from the source by the workers, some at a time, and written by the disk thread (`block_writer.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.large.block_copies import BlockCopies, BlockCopy
from nopfsfs.stager.load import Load
from nopfsfs.stager.range_loads import RangeLoads
from nopfsfs.stager.read_queue import ReadQueue

AHEAD_MOST = 16  # blocks that are read or written ahead at a time, at most half of the memory for blocks
RETRY_S = 10.0  # before a file is read ahead again at which the source failed or hung


class BlockWrite(NamedTuple):
    """A block that the disk thread writes; its extent is pinned."""

    copy: BlockCopy
    load: Load
    data: memoryview


class LargeCopies:
    """`copies` as they are; this reads ahead. Public methods take the lock `acting`, but for `go_on` and `limit`."""

    def __init__(
        self, acting: AbstractContextManager[None], copies: BlockCopies, pool: ExtentPool, ranges: RangeLoads,
        queue: ReadQueue, *, columns: Columns, ring: Ring, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._acting, self._copies, self._pool, self._ranges, self._queue = acting, copies, pool, ranges, queue
        self._columns, self._ring, self._clock = columns, ring, clock
        self._wanted: dict[int, int] = {}  # rows to be read ahead, in their order, and their tiers
        self._former: dict[int, int] = {}  # those of a plan before; they come last
        self._later: dict[int, tuple[int, float]] = {}  # rows that failed, their tiers, and when they are due
        self._under_way: list[Load] = []

    # ---- commands -----------------------------------------------------------------------------------------

    def take_command(self, command: StagerCommand, rows: list[int], value: int) -> None:
        """Do what a command of the supervisor means for large files."""
        if command == StagerCommand.COPY_LARGE:
            self.copy(rows, value)
        elif command == StagerCommand.CANCEL and not value:
            self.cancel()
        elif command == StagerCommand.OFF_DISK:
            self.give_up(rows, refuse=bool(value))

    def copy(self, rows: list[int], tier: int) -> None:
        """Copy files to a disk tier, in this order, after those that were asked for before. Events say how each ended:
        ON_DISK, also for one that is there, or OFF_DISK."""
        with self._acting:
            for row in rows:
                self._want(row, tier)

    def cancel(self) -> None:
        """Let the copies that were asked for come after those that are asked for now."""
        with self._acting:
            self._former |= self._wanted
            self._wanted.clear()

    def give_up(self, rows: list[int], *, refuse: bool) -> None:
        """Read these rows ahead no more: their copies are to go. Those of which there is nothing yet have an event now.
        `refuse`: begin none for a while, but by a command."""
        with self._acting:
            for row in rows:
                wanted = row in self._wanted or row in self._former
                self._forget(row)
                self._later.pop(row, None)
                if wanted and row not in self._copies and not self._columns.disk[row]:
                    self._ring.put(Event.OFF_DISK, row, 1)
                if refuse:
                    self._copies.refuse(row)

    def _want(self, row: int, tier: int) -> None:
        for before in (self._wanted, self._former, self._later):
            before.pop(row, None)
        if not 0 <= row < len(self._columns.disk):
            return
        there = int(self._columns.disk[row])
        if not self._may_copy(row):
            self._ring.put(Event.OFF_DISK, row, 1)  # it is staged whole, or was changed
        elif there:
            self._copies.is_awaited(row)
            self._ring.put(Event.ON_DISK, row, there)
        else:
            self._wanted[row] = tier

    def _may_copy(self, row: int) -> bool:
        return not self._columns.stale[row] and self._ranges.size(row) > self._copies.limit

    # ---- reading ahead, with the lock held ----------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """True while `go_on` is to be called again after some time."""
        return bool(self._later)

    def go_on(self) -> None:
        """Begin to read further blocks, as far as there is room."""
        if self._later:
            self._bring_back()
        if not (self._wanted or self._former or self._under_way) or not self._ranges.has_any_room:
            return
        for load in self._under_way:
            if load.failed or load.stuck:
                self._put_off(load.row)
        self._under_way = [load for load in self._under_way if not (load.failed or (load.left == 0 and not load.held))]
        most = max(1, min(AHEAD_MOST, self._ranges.budget // 2 // self._ranges.block))
        while len(self._under_way) < most and (begun := self._begin_next()) is not None:
            self._under_way.append(begun)
            self._queue.read_ahead(begun)

    def _begin_next(self) -> Load | None:
        while (row := next(iter(self._wanted or self._former), None)) is not None:
            copy = self._copies.of(row) or self._begin_copy(row)
            if copy is not None and not copy.published and copy.version == self._columns.version[row]:
                while copy.next < len(copy.there):
                    number = copy.next
                    if not copy.there[number] and not self._ranges.has(row, number):
                        load = self._ranges.begin_ahead(row, number, copy.version)
                        if load is None:
                            return None  # no room now
                        copy.next += 1
                        return load
                    copy.next += 1
                self._put_off(row)  # what is being read for others may fail
            self._forget(row)
        return None

    def _begin_copy(self, row: int) -> BlockCopy | None:
        if there := int(self._columns.disk[row]):
            self._ring.put(Event.ON_DISK, row, there)
            return None
        if not self._may_copy(row):
            self._ring.put(Event.OFF_DISK, row, 1)
            return None
        tier = self._wanted.get(row) or self._former[row]
        version = int(self._columns.version[row])
        copy = self._copies.begin(row, version, tier)
        for load in self._ranges.read_blocks(row, version):
            self._copies.keep(load)
        return copy

    def _forget(self, row: int) -> None:
        self._wanted.pop(row, None)
        self._former.pop(row, None)

    def _put_off(self, row: int) -> None:
        copy = self._copies.of(row)
        if copy is not None and copy.left:
            self._later[row] = copy.tier, self._clock() + RETRY_S
            copy.next = 0
        self._forget(row)

    def _bring_back(self) -> None:
        now = self._clock()
        for row in [row for row, (_, due) in self._later.items() if due <= now]:
            tier, _ = self._later.pop(row)
            if row in self._copies:
                self._former[row] = tier

    # ---- the disk thread ----------------------------------------------------------------------------------

    def of(self, row: int) -> BlockCopy | None:
        """The copy of a row."""
        with self._acting:
            return self._copies.of(row)

    def is_settled(self, row: int) -> bool:
        """True when the row's copy is published, and was read back block by block."""
        with self._acting:
            copy = self._copies.of(row)
            return copy is not None and copy.is_settled

    def attend(self, copy: BlockCopy) -> None:
        """Do the next thing for a copy later, after what waits for the disk thread."""
        self._copies.attend(copy)

    def take_write(self, copy: BlockCopy) -> BlockWrite | None:
        """The next block to be written; `written` follows."""
        with self._acting:
            if copy.gone or not copy.to_write:
                return None
            load = copy.to_write.popleft()
            return BlockWrite(copy, load, self._pool.view(load.arena, load.length))

    def written(self, write: BlockWrite, check: int | None) -> None:
        """Let go of a block that was written, with that checksum; None: it was not."""
        write.data.release()
        with self._acting:
            self._copies.release(write.load)
            if check is not None:
                self._copies.written(write.copy, write.load.start // write.copy.block, check)
                self._ranges.on_disk(write.load)

    def summed_up(self, copy: BlockCopy) -> None:
        """Use the blocks of a copy that another mount has left: their checksums are known."""
        with self._acting:
            copy.there[:] = b"\1" * len(copy.there)
            copy.left = 0

    def publish(self, copy: BlockCopy, check: int) -> bool:
        """Publish a copy that is whole; `check`: of all its bytes. False when the row has changed since."""
        with self._acting:
            return self._copies.publish(copy, check)

    def drop(self, row: int, *, refuse: bool = False) -> int:
        """Give up the copy of a row; the tier of one that was not whole, else 0. `refuse`: begin none for a while."""
        with self._acting:
            return self._drop(row, refuse=refuse)

    def disk_hangs(self, row: int) -> bool:
        """Give up the copy of a row for which the disk does not answer; False for a row that is not large."""
        with self._acting:
            is_large = self._ranges.size(row) > self._copies.limit
            if is_large:
                self._drop(row, refuse=True)
            return is_large

    def drop_failed(self, copy: BlockCopy) -> None:
        """Give up a copy that could not be written; the disk thread removes its file at once."""
        with self._acting:
            if self._copies.of(copy.row) is copy:
                self._drop(copy.row, refuse=True)
            else:  # the row has another by now
                self._forget(copy.row)
                self._copies.refuse(copy.row)

    def _drop(self, row: int, *, refuse: bool) -> int:
        self._forget(row)
        self._later.pop(row, None)
        if refuse:
            self._copies.refuse(row)
        return self._copies.drop(row)

    def take_gone(self) -> list[BlockCopy]:
        """The copies whose files are to be removed."""
        with self._acting:
            return self._copies.take_gone()

    def on_tier(self, tier: int) -> list[int]:
        """The rows with a copy on that tier."""
        with self._acting:
            return self._copies.on_tier(tier)
