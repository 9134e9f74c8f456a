"""Loads: contiguous parts of source files on their way into the arena. Values only; `desk.py` owns and locks them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from nopfsfs.protocol.server_stager import Origin
from nopfsfs.tiers.source import Identity, Source, close

BLOCK = 4 << 20  # bytes of one read of a file that is staged whole; a demand waits for its own blocks only
NOWHERE = -1  # for an extent
RANGE_BLOCK = 1 << 20  # bytes of one block of a file that is too large, or finds no room, to be staged whole


class SharedOpen:
    """One open of a source file, shared by all reads of one load or of one large file."""

    def __init__(self, source: Source, row: int) -> None:
        self._source = source
        self.row = row
        self._lock = threading.Lock()
        self._fd = -1
        self._identity: Identity | None = None
        self.users = 0
        self.opens = 0
        self.used_s = 0.0  # when it was last used, by time.monotonic()

    def ensure(self) -> tuple[int, Identity]:
        """(descriptor, identity), opened by whoever comes first. Raises Changed, OSError."""
        with self._lock:
            if self._identity is None:
                self._fd, self._identity = self._source.open(self.row)
                self.opens += 1
            return self._fd, self._identity

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
    """Bytes [start, start + length) of a row, going to `arena`. `whole`: the file as a staged copy; else one
    range block. `blocks` holds PENDING, RUNNING or DONE for each `block` bytes."""

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
    ask: int = 0  # under which number
    prefetch: bool = False  # ordered by the supervisor, and nobody waited when it was begun
    slot: bool = False  # one of those that the source is read by ahead of need
    given_on: bool = False  # it had one, and is stuck
    stuck: bool = False  # the source takes far too long
    blocks: bytearray = field(default_factory=bytearray)
    waiters: list[Waiter] = field(default_factory=list)
    left: int = 0
    running: int = 0
    failed: bool = False
    error: int = 0
    checksum: int = 0

    def __post_init__(self) -> None:
        self.divide(self.block)

    def divide(self, block: int) -> None:
        """All of it is to be read, in blocks of that size."""
        self.block = block
        self.blocks = bytearray(max(1, -(-self.length // block)))
        self.left = len(self.blocks)

    def origin(self) -> Origin:
        """Where these bytes came from."""
        if self.from_peer is not None:
            return Origin.PEER
        return Origin.DISK if self.from_disk else Origin.SOURCE

    def blocks_of(self, start: int, end: int) -> range:
        """Numbers of the blocks that hold file bytes [start, end)."""
        first = (start - self.start) // self.block
        return range(first, max(first, (end - self.start - 1) // self.block) + 1)

    def ready(self, start: int, end: int) -> bool:
        """Whether file bytes [start, end) are all in the arena."""
        return all(self.blocks[b] == DONE for b in self.blocks_of(start, end))
