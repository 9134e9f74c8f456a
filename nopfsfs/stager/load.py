"""Loads: contiguous parts of source files on their way into the arena. Also the reading of one block of a load, from a
copy on disk if there is a good one, else from the source."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from nopfsfs.policy.fetch_lane import FetchLane
from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.disk import Disks
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import Identity, Source, close, read_exactly

log = logging.getLogger(__name__)

BLOCK = 4 << 20  # bytes of one read of a file that is staged whole; a demand waits for its own blocks only
NOWHERE = -1  # for an extent
RANGE_BLOCK = 1 << 20  # bytes of one block of a file that is too large, or finds no room, to be staged whole


class SharedOpen:
    """Open of a source file, shared by all reads of one load or of one large file."""

    def __init__(self, source: Source, row: int) -> None:
        self._source = source
        self.row = row
        self._lock = threading.Lock()
        self._fd = -1
        self._identity: Identity | None = None
        self.users = 0
        self._opens = self._told = 0
        self.used_s = 0.0  # when it was last used, by time.monotonic()

    def ensure(self) -> tuple[int, Identity]:
        """(descriptor, identity) of the file, opened by the first call. Raises Changed, OSError."""
        with self._lock:
            if self._identity is None:
                self._fd, self._identity = self._source.open(self.row)
                self._opens += 1
            return self._fd, self._identity

    def new_opens(self) -> int:
        """Opens since the last call. One thread at a time calls this, and an open that hangs delays no call."""
        opens = self._opens
        new, self._told = opens - self._told, opens
        return new

    def close(self) -> None:
        with self._lock:
            if self._identity is not None:
                close(self._fd)
                self._identity = None


@dataclass(slots=True)
class Waiter:
    """A demand that waits for bytes [start, end) of the file."""

    id: int
    start: int
    end: int


PENDING, RUNNING, DONE = 0, 1, 2


@dataclass(slots=True, eq=False)
class Load:
    """Bytes [start, start + length) of a row, on their way to the extent `arena`. `whole`: the file as a staged copy;
    else one range block. `blocks` holds PENDING, RUNNING or DONE for each `block` bytes."""

    row: int
    start: int
    length: int
    arena: int
    whole: bool
    file: SharedOpen
    version: int
    block: int = BLOCK
    from_disk: int = 0
    from_peer: int | None = None  # the node that is asked for it
    ask: int = 0  # the number of that request
    lane: FetchLane | None = None  # on which it counts as under way
    confirmed: bool = False  # it was looked at for this load
    unconfirmed: bool = False  # the copy was left by another mount: the source is to be looked at first
    passed_disk: int = 0  # the tier with a copy, which is slow: the source is read instead
    prefetch: bool = False  # ordered by the supervisor, and nobody waited when it was begun
    stuck: bool = False  # the source takes far too long
    blocks: bytearray = field(default_factory=bytearray)
    waiters: list[Waiter] = field(default_factory=list)
    left: int = 0
    running: int = 0
    failed: bool = False
    error: int = 0
    checksum: int = 0
    expected: int = 0  # xxh3 of a range block that is on disk
    held: bool = False  # a range block that is being written to disk: its extent stays
    ahead: bool = False  # a range block that no reader has asked for, read for its copy on disk
    used_at: int = 0  # of a range block that stays: see `ResidentBlocks`
    served: int = 0  # bytes that readers got of a range block

    def __post_init__(self) -> None:
        self.divide(self.block)

    def divide(self, block: int) -> None:
        """Make all of it be read, in blocks of that size."""
        self.block = block
        self.blocks = bytearray(max(1, -(-self.length // block)))
        self.left = len(self.blocks)

    def serve(self, size: int) -> Origin:
        """Count bytes that a reader gets, and say where they come from. What is more than the range block has comes
        from memory: the block was read once."""
        if self.served >= self.length and not self.whole:
            return Origin.RAM
        self.served += size
        return self.origin()

    def origin(self) -> Origin:
        """The place from which the bytes of the load were read."""
        if self.from_peer is not None:
            return Origin.PEER
        return Origin.DISK if self.from_disk else Origin.SOURCE

    def blocks_of(self, start: int, end: int) -> range:
        """Numbers of the blocks that hold file bytes [start, end)."""
        first = (start - self.start) // self.block
        return range(first, max(first, (end - self.start - 1) // self.block) + 1)

    def extent_of(self, block: int) -> tuple[int, int]:
        """The part of the arena, first and last offset, that a block goes to."""
        start = block * self.block
        return self.arena + start, self.arena + min(self.length, start + self.block)

    def size_of(self, block: int) -> int:
        """The bytes of a block."""
        return min(self.block, self.length - block * self.block)

    def ready(self, start: int, end: int) -> bool:
        """True when file bytes [start, end) are all in the arena."""
        return all(self.blocks[b] == DONE for b in self.blocks_of(start, end))

    @property
    def needs_checksum(self) -> bool:
        """True for a whole load whose bytes were read in several blocks: no block has its checksum."""
        return self.whole and len(self.blocks) > 1 and not self.failed


class GivenUp(Exception):
    """The load has gone on without this read, which took too long."""


class BlockReader:
    """Reads blocks. Holds no lock: the worker that reads a block is the only one to write its bytes."""

    def __init__(
        self, columns: Columns, metrics: memoryview, arena: Arena, source: Source, disks: Disks,
        withdraw_copy: Callable[[int, int], bool], young: YoungFiles | None = None, kept: KeptRows | None = None,
        copy_confirmed: Callable[[int, int], None] = lambda row, disk: None,
    ) -> None:  # fmt: skip
        """`withdraw_copy(row, disk)` withdraws a copy that is of no use; False when it was withdrawn before.
        `copy_confirmed(row, disk)` is called for a copy that another mount left, and that is good."""
        self._columns, self._metrics, self._arena, self._source, self._disks = columns, metrics, arena, source, disks
        self._withdraw_copy = withdraw_copy
        self._logged: set[tuple[int, Metric]] = set()  # failures that were logged, by tier
        self._young, self._kept, self._copy_confirmed = young, kept, copy_confirmed

    def confirm(self, load: Load) -> None:
        """Look at the source: the copy that another mount left may be of a file that has changed since. Raises Changed,
        OSError."""
        if self._kept is not None:
            self._kept.confirm(load.row)

    def read(
        self, load: Load, block: int, into: tuple[int, int], tier: int, file: SharedOpen, still: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Read a block of a load into the arena, offsets `into`. With `tier` 1 or more the copy on that disk tier is
        read first. Without a copy, or after a bad one, the block is read from `file`, at the source.

        A load goes on elsewhere when its worker hangs. So the arguments are those of the moment at which the worker
        took the block. `still()` is called when the disk has answered; it returns False when the load no longer waits
        for that. Raises Changed, OSError, GivenUp.
        """
        view = self._arena.view[slice(*into)]
        if tier:
            found = self._read_copy(load, tier, view)
            if not still():
                raise GivenUp
            if found:
                if load.confirmed:
                    self._copy_confirmed(load.row, tier)
                return
            load.from_disk = 0
        start = block * load.block
        fd, identity = file.ensure()
        read_exactly(fd, identity, view, load.start + start)
        if load.extent_of(block) != into:
            return  # the load has gone on elsewhere
        if load.whole and len(load.blocks) == 1:
            load.checksum = xxhash.xxh3_64_intdigest(view)
            if self._young is not None:
                self._young.note_own(load.row, load.version, load.length, load.checksum)
        elif self._young is not None:
            self._young.note(load.row, load.version, load.start + start, view)

    def complete(self, load: Load) -> None:
        """Sum up a whole load that was read in several blocks."""
        load.checksum = xxhash.xxh3_64_intdigest(self._arena.view[load.arena : load.arena + load.length])

    def _read_copy(self, load: Load, tier: int, view: memoryview) -> bool:
        """Read the copy on disk tier `tier`; False for a copy that cannot be read, or is not what was written: it is
        withdrawn."""
        try:
            if load.whole:
                self._disks.read(tier, load.row, view)
            else:
                self._disks.read_block(tier, load.row, view, load.start)
        except OSError as e:
            self._give_up(load, tier, Metric.DISK_ERRORS, f"cannot be read: {e}")
            return False
        if xxhash.xxh3_64_intdigest(view) == (int(self._columns.check[load.row]) if load.whole else load.expected):
            return True
        self._give_up(load, tier, Metric.CORRUPT_COPIES, "is corrupt")
        return False

    def _give_up(self, load: Load, tier: int, counter: Metric, why: str) -> None:
        if not self._withdraw_copy(load.row, tier):
            return  # removed in good order while it was read
        self._metrics[counter] += 1
        if (tier, counter) not in self._logged:  # a disk that fails has many
            self._logged.add((tier, counter))
            log.log(
                logging.ERROR if counter == Metric.CORRUPT_COPIES else logging.WARNING,
                "a copy of %r on disk tier %d %s; reading the source. Further ones are counted: nopfs status",
                self._source.path(load.row), tier, why,
            )  # fmt: skip
