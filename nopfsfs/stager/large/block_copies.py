"""Copies on disk of files that are too large to be staged whole, as far as each is there.

A copy is a sparse file. Each block that is read from the source is written to it, whoever has asked for the block, and
is in memory until then. So a block is read from the source once. A block that is there is verified by its own checksum
whenever it is read. The copy is published when all blocks are there and were read back.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from nopfsfs.config import MountConfig
from nopfsfs.policy.left_alone import Tiers
from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import RANGE_BLOCK, Load
from nopfsfs.tiers.disk import Disks
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import Source

PARTIAL_MOST = 64  # copies that are not whole: the disk thread has a file open for each
REFUSED_S = 30.0  # a file that finds no room on disk is not tried again for so long, unless the supervisor asks
SWEEP = (-1, 0)  # a task of the disk thread: see to what was given up


class LargeSetup(NamedTuple):
    """The parts that a stager needs to keep large files. `choose(size)`: a disk tier with room for so many bytes, 0 for
    none; `work` gives the disk thread a task, (row, tier) or SWEEP."""

    choose: Callable[[int], int]
    work: Callable[[tuple[int, int]], None]
    kept: KeptRows | None = None

    @classmethod
    def of(
        cls, config: MountConfig, disks: Disks, work: Callable[[tuple[int, int]], None], kept: KeptRows | None
    ) -> LargeSetup | None:  # fmt: skip
        """The parts of a mount; None without disks, and where nodes agree on what each keeps."""
        return cls(disks.with_room, work, kept) if config.disks and not config.peers else None


class BlockCopy:
    """The copy of a version of a row on a disk tier. `there`: 1 for each block that is on disk; `sums`: xxh3 of these.
    `adopted`: another mount has left it, and it is there as a whole, but its blocks are not summed up yet. Fields from
    `fd` on belong to the disk thread."""

    def __init__(self, row: int, version: int, tier: int, size: int, block: int, *, adopted: bool) -> None:
        self.row, self.version, self.tier, self.size, self.block = row, version, tier, size, block
        self.published = adopted
        count = -(-size // block)
        self.there, self.sums, self.left = bytearray(count), array("Q", bytes(8 * count)), count
        self.to_write: deque[Load] = deque()
        self.next = 0  # the first block that was not looked at, to be read ahead
        self.gone = False  # it was given up
        self.fd = -1  # of its file, until it is published
        self.ended = False  # its file has the name of a whole copy
        self.digest, self.summed = xxhash.xxh3_64(), 0  # of the first bytes

    @property
    def is_settled(self) -> bool:
        """True when the copy is published, and the checksum of each block is known."""
        return self.published and not self.left

    def length(self, number: int) -> int:
        """The bytes of a block."""
        return min(self.block, self.size - number * self.block)


class BlockCopies:
    """The copies by row. The caller holds its own lock. `limit`: bytes of the largest file that is staged whole.
    `setup`: None where no large file is kept."""

    def __init__(
        self, setup: LargeSetup | None, columns: Columns, ring: Ring, source: Source, pool: ExtentPool, tiers: Tiers,
        block: int = RANGE_BLOCK, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._setup, self._columns, self._ring, self._source, self._pool = setup, columns, ring, source, pool
        self._tiers, self.block, self._clock = tiers, block, clock
        self.limit = 0
        self._all: dict[int, BlockCopy] = {}
        self._partial = 0
        self._refused: dict[int, float] = {}  # rows, and until when
        self._gone: list[BlockCopy] = []  # whose files the disk thread is to remove

    def of(self, row: int) -> BlockCopy | None:
        """The copy of a row."""
        return self._all.get(row)

    def __contains__(self, row: int) -> bool:
        return row in self._all

    # ---- reading ------------------------------------------------------------------------------------------

    def place_of(self, row: int, number: int, version: int) -> tuple[int, int]:
        """The tier that holds a block of this version and may be read now, and the checksum; (0, 0) for none."""
        copy = self._all.get(row)
        if copy is None or copy.version != version or not copy.there[number] or not self._tiers.may_read(copy.tier):
            return 0, 0
        return copy.tier, copy.sums[number]

    def is_unconfirmed(self, row: int) -> bool:
        """True while the source is to be looked at before the row's copy is used, which another mount has left."""
        kept = self._setup.kept if self._setup is not None else None
        return kept is not None and bool(kept.unconfirmed[row])

    def is_awaited(self, row: int) -> bool:
        """True while the blocks of a copy that is there as a whole are summed up, which begins now, if need be."""
        copy = self._all.get(row)
        if copy is None:
            tier = int(self._columns.disk[row])
            if self._setup is None or not tier or self._source.size(row) <= self.limit or tier in self._tiers:
                return False
            copy = self.begin(row, int(self._columns.version[row]), tier)
        return copy.published and copy.left > 0

    # ---- writing ------------------------------------------------------------------------------------------

    def begin(self, row: int, version: int, tier: int) -> BlockCopy:
        """Begin a copy on that tier, or take up the one that is on disk as a whole."""
        there = int(self._columns.disk[row])
        copy = BlockCopy(row, version, there or tier, self._source.size(row), self.block, adopted=bool(there))
        self._all[row] = copy
        self._refused.pop(row, None)
        if not there:
            self._partial += 1
            self._ring.put(Event.COPYING, row, tier)
        self.attend(copy)
        return copy

    def attend(self, copy: BlockCopy) -> None:
        """Have the disk thread do the next thing for a copy."""
        if self._setup is not None:
            self._setup.work((copy.row, copy.tier))

    def keep(self, load: Load) -> None:
        """Have a block written that was read from the source, if the copy of its file lacks it; a copy begins with the
        first block that a reader has asked for. One that was read ahead for a copy that was given up begins none."""
        copy = self._all.get(load.row) or (None if load.ahead else self._begin_own(load))
        if copy is None or copy.version != load.version or copy.published or load.held:
            return
        if not copy.there[load.start // self.block]:
            load.held = True
            self._pool.pin(load.arena)  # the block may be given up, its bytes stay until they are written
            copy.to_write.append(load)
            self.attend(copy)

    def _begin_own(self, load: Load) -> BlockCopy | None:
        row, size = load.row, self._source.size(load.row)
        if self._setup is None or size <= self.limit or self._partial >= PARTIAL_MOST:
            return None
        if self._columns.version[row] != load.version or self._columns.stale[row] or self._columns.disk[row]:
            return None
        if self._refused.get(row, 0.0) > self._clock():
            return None
        tier = self._setup.choose(size)
        if not tier or tier in self._tiers:
            self.refuse(row)
            return None
        return self.begin(row, load.version, tier)

    def release(self, load: Load) -> None:
        """Note that a block of `keep` is written, or is not to be."""
        load.held = False
        self._pool.unpin(load.arena)

    def written(self, copy: BlockCopy, number: int, check: int) -> None:
        """Note that a block is on disk."""
        if not copy.gone and not copy.there[number]:
            copy.there[number], copy.sums[number] = 1, check
            copy.left -= 1
            if not copy.left:
                self.attend(copy)

    def publish(self, copy: BlockCopy, check: int) -> bool:
        """Publish a copy that is whole; `check`: of all its bytes. False when the row has changed since."""
        row = copy.row
        if copy.gone or self._columns.version[row] != copy.version or self._columns.stale[row]:
            return False
        copy.published = True
        self._partial -= 1
        self._columns.check[row] = check
        self._columns.disk[row] = copy.tier
        self._ring.put(Event.ON_DISK, row, copy.tier)
        return True

    # ---- giving up ----------------------------------------------------------------------------------------

    def refuse(self, row: int) -> None:
        """Begin no copy of the row for a while, but by a command."""
        self._refused[row] = self._clock() + REFUSED_S

    def drop(self, row: int) -> int:
        """Give up the copy of a row: its file changed, or is to go. Return the tier of one that was not whole; the disk
        thread removes it. One that is whole is withdrawn by who calls this."""
        copy = self._all.pop(row, None)
        if copy is None:
            return 0
        copy.gone = True
        while copy.to_write:
            self.release(copy.to_write.popleft())
        if copy.published:
            return 0
        self._partial -= 1
        self._gone.append(copy)
        if self._setup is not None:
            self._setup.work(SWEEP)
        return copy.tier

    def take_gone(self) -> list[BlockCopy]:
        """The copies whose files are to be removed."""
        gone, self._gone = self._gone, []
        return gone

    def on_tier(self, tier: int) -> list[int]:
        """The rows with a copy on that tier."""
        return [row for row, copy in self._all.items() if copy.tier == tier]
