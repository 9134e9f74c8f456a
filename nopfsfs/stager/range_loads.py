"""Blocks of files that are too large, or find no room, to be staged whole: begun, kept in order of use, given up.

The caller holds its own lock, so nothing here waits: workers read the blocks, and close the files. Blocks of large
files for which there is room stay (`large/resident_blocks.py`); the others pass through, in order of use.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterator

from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.large.block_copies import BlockCopies
from nopfsfs.stager.large.resident_blocks import Key, ResidentBlocks
from nopfsfs.stager.load import RANGE_BLOCK, Load, SharedOpen
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.workers import Worker
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.source import Source

READ_AHEAD_BLOCKS = 4  # once a reader is seen to be sequential
OPEN_FILES = 16  # files read by ranges that are kept open


class RangeLoads:
    """Loads of range blocks. `used`: bytes of those that pass through; `budget`: bytes that these may take."""

    def __init__(
        self, pool: ExtentPool, queue: ReadQueue, source: Source, copies: BlockCopies, block: int = RANGE_BLOCK
    ) -> None:
        self._pool, self._queue, self._source, self._copies = pool, queue, source, copies
        self.block = block
        self.budget = 0
        self.used = 0
        self._resident = ResidentBlocks()
        self._loads: OrderedDict[Key, Load] = OrderedDict()  # in order of last use
        self._files: OrderedDict[int, SharedOpen] = OrderedDict()

    def resize(self, budget: int, resident: int = 0, large: int = 0) -> None:
        """Change the budget; blocks that are read make room at once. `resident`: bytes that blocks of large files may
        take for good; `large`: the bytes of all large files."""
        self.budget = budget
        while self.used > self.budget and self.drop_oldest():
            pass
        for load in self._resident.resize(resident, large):
            self._pool.retire(load.arena)

    def load(self, row: int, number: int, version: int) -> Load | None:
        """The block of this version: there already, or begun now and not queued; None without room."""
        found = self._use(row, number, version)
        if found is not None:
            found.ahead = False
            return found
        length = self._length(row, number)
        while self.used + length > self.budget:
            if not self.drop_oldest():
                return None
        return self._begin(row, number, length, version)

    def ahead(self, row: int, number: int, version: int) -> Iterator[Load]:
        """Begin blocks after this one, if its reader seems to be sequential. Blocks that this reader is yet to read are
        not given up for them."""
        if not self.has(row, number) or (number and not self.has(row, number - 1)):
            return
        if (row, number) in self._loads and self._loads[row, number].stuck:
            return
        size = self._source.size(row)
        for ahead in range(number + 1, number + 1 + READ_AHEAD_BLOCKS):
            if ahead * self.block >= size:
                return
            if self.has(row, ahead):
                continue
            length = self._length(row, ahead)
            while self.used + length > self.budget:
                if not self.drop_oldest(spared=(row, number)):
                    return
            load = self._begin(row, ahead, length, version)
            if load is None:
                return
            yield load

    def drop_oldest(self, spared: Key | None = None) -> bool:
        """Give up the block that was used longest ago and that nobody waits for; False when there is none. `spared`:
        neither this block nor those after it in its file."""
        for key, load in self._loads.items():
            if spared is not None and key[0] == spared[0] and key[1] >= spared[1]:
                continue
            if load.left == 0 and not load.waiters and not load.held:
                self._drop(key)
                return True
        return False

    def forget(self, row: int) -> None:
        """Give up all blocks of a file that changed; those in flight when they have ended."""
        for key in [key for key in self._loads if key[0] == row]:
            if self._loads[key].left == 0:
                self._drop(key)
        for load in self._resident.of_row(row):
            self._drop_resident((row, load.start // self.block))
        file = self._files.pop(row, None)  # the next block opens it anew
        if file is not None and not file.users:
            self._queue.close(file)

    def forget_all(self, rows: Collection[int]) -> None:
        """Give up all blocks of these files that are not in flight."""
        for row in self._resident.rows.union(row for row, _ in self._loads).intersection(rows):
            self.forget(row)

    def is_stuck(self, load: Load) -> None:
        """Give up the unread blocks of a file at which the source does not answer, but for those that a server waits
        for."""
        for key, ahead in list(self._loads.items()):
            if key[0] == load.row and ahead.left and not ahead.running and not ahead.waiters:
                ahead.failed = True
                ahead.file.users -= 1  # the stuck one has it
                self._drop(key)

    def close_idle(self, before_s: float) -> bool:
        """Close the files that were last used before then (time.monotonic()); False when no other is open."""
        for row, file in list(self._files.items()):
            if not file.users and file.used_s < before_s:
                self._queue.close(self._files.pop(row))
        return bool(self._files)

    def ended(self, load: Load) -> None:
        """Note that a block was read, or failed."""
        file = load.file
        file.users -= 1
        file.used_s = time.monotonic()
        kept = self._files.get(load.row) is file
        if load.failed:
            key = (load.row, load.start // self.block)
            if self._loads.get(key) is load:
                self._drop(key)
            if kept and not file.users:
                del self._files[load.row]
                kept = False
        if not kept and not file.users:
            self._queue.close(file)
        if not (load.failed or load.from_disk):
            self._copies.keep(load)
            self._may_stay(load)

    def _may_stay(self, load: Load) -> None:
        """Let a block of a large file stay, if there is room, and the file has no copy on disk."""
        key = (load.row, load.start // self.block)
        is_large = self._source.size(load.row) > self._copies.limit and load.row not in self._copies
        if is_large and self._resident.budget and self._loads.get(key) is load:
            stays, gone = self._resident.offer(key, load)
            if stays:
                del self._loads[key]
                self.used -= load.length
            if gone is not None:
                self._pool.retire(gone.arena)

    def disk_hangs(self, load: Load, worker: Worker) -> None:
        """Give up a block whose copy on disk does not come. The worker may still write to its extent."""
        worker.lost, worker.load = load.arena, None
        load.file.users -= 1
        load.file.used_s = time.monotonic()
        key = (load.row, load.start // self.block)
        if self._loads.get(key) is load:
            del self._loads[key]
            self.used -= load.length

    # ---- copies on disk -----------------------------------------------------------------------------------

    @property
    def has_any_room(self) -> bool:
        """True when at least one block may be in memory."""
        return self.budget >= self.block

    def size(self, row: int) -> int:
        """The bytes of a file."""
        return self._source.size(row)

    def has(self, row: int, number: int) -> bool:
        """True when the block is in memory, or on its way."""
        return (row, number) in self._loads or (row, number) in self._resident

    def read_blocks(self, row: int, version: int) -> list[Load]:
        """The blocks of a file that are in memory."""
        there = [load for (other, _), load in self._loads.items() if other == row] + self._resident.of_row(row)
        return [load for load in there if load.left == 0 and not load.failed and load.version == version]

    def begin_ahead(self, row: int, number: int, version: int) -> Load | None:
        """Begin a block that nobody waits for, to be written to disk; None without room."""
        length = self._length(row, number)
        while self.used + length > self.budget:
            if not self.drop_oldest():
                return None
        load = self._begin(row, number, length, version)
        if load is not None:
            load.ahead = True
        return load

    def on_disk(self, load: Load) -> None:
        """Note that a block is on disk. One that no reader has asked for is the first to make room."""
        key = (load.row, load.start // self.block)
        if load.ahead and self._loads.get(key) is load:
            self._loads.move_to_end(key, last=False)

    def _use(self, row: int, number: int, version: int) -> Load | None:
        load = self._loads.get((row, number))
        if load is None:
            return self._use_resident(row, number, version)
        if load.left == 0 and not load.waiters and load.version != version:
            self._drop((row, number))
            return None
        self._loads.move_to_end((row, number))
        return load

    def _use_resident(self, row: int, number: int, version: int) -> Load | None:
        load = self._resident.use((row, number))
        if load is not None and load.version != version:
            self._drop_resident((row, number))
            return None
        return load

    def _begin(self, row: int, number: int, length: int, version: int) -> Load | None:
        try:
            arena = self._pool.allocate(length)
        except NoRoom:
            self.drop_oldest(spared=(row, number))  # its memory comes back after a grace: for the next one
            return None
        tier, expected = self._copies.place_of(row, number, version)
        load = Load(
            row, number * self.block, length, arena, False, self._file(row), version, block=self.block,
            from_disk=tier, expected=expected, unconfirmed=tier > 0 and self._copies.is_unconfirmed(row),
        )  # fmt: skip
        load.file.users += 1
        self._loads[row, number] = load
        self.used += length
        return load

    def _length(self, row: int, number: int) -> int:
        return min(self.block, self._source.size(row) - number * self.block)

    def _drop(self, key: Key) -> None:
        load = self._loads.pop(key)
        self.used -= load.length
        self._pool.retire(load.arena)

    def _drop_resident(self, key: Key) -> None:
        self._pool.retire(self._resident.take(key).arena)

    def _file(self, row: int) -> SharedOpen:
        file = self._files.get(row)
        if file is None:
            file = self._files[row] = SharedOpen(self._source, row)
            idle = [r for r, f in self._files.items() if not f.users and r != row]
            for old in idle[: max(0, len(self._files) - OPEN_FILES)]:
                self._queue.close(self._files.pop(old))
        self._files.move_to_end(row)
        return file
