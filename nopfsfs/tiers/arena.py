"""The RAM arena: staged bytes in one shared mapping, and the allocator that never exceeds its budget.

The mapping's address range is several times the budget, and freed extents give their memory back at once, so
fragmentation costs addresses, not memory. The stager owns the allocator; servers only map the bytes.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os

from nopfsfs.tiers import shared

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
ADDRESS_FACTOR = 3  # address range over budget; first-fit with coalescing stays well below
_libc = ctypes.CDLL(None, use_errno=True)


class NoRoom(Exception):
    """The budget does not allow this allocation now."""


def create(max_budget: int) -> int:
    """A descriptor of an arena whose budget will never be above `max_budget` bytes."""
    return shared.create("arena", ADDRESS_FACTOR * shared.page_rounded(max_budget))


class Extents:
    """Next-fit allocator of page-aligned extents with coalescing. Pure: it touches no memory."""

    def __init__(self, length: int) -> None:
        self._starts: list[int] = [0] if length else []
        self._lengths: list[int] = [length] if length else []
        self._next = 0  # where the last search ended: addresses are plentiful, so the next one ends soon

    def take(self, length: int) -> int:
        """Offset of a free extent of `length` bytes, now taken. Raises NoRoom."""
        count = len(self._starts)
        for step in range(count):
            at = (self._next + step) % count
            if self._lengths[at] >= length:
                self._next = at
                start = self._starts[at]
                self._cut(at, start, length)
                return start
        raise NoRoom

    def carve(self, start: int, length: int) -> None:
        """Take exactly this extent. Raises NoRoom when some of it is taken."""
        at = bisect.bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] + self._lengths[at] < start + length:
            raise NoRoom
        self._cut(at, start, length)

    def _cut(self, at: int, start: int, length: int) -> None:
        first, end = self._starts[at], self._starts[at] + self._lengths[at]
        pieces = [(a, b - a) for a, b in ((first, start), (start + length, end)) if b > a]
        self._starts[at : at + 1] = [a for a, _ in pieces]
        self._lengths[at : at + 1] = [n for _, n in pieces]

    def give(self, start: int, length: int) -> None:
        """Return an extent; neighbours that are free grow together."""
        at = bisect.bisect_left(self._starts, start)
        joins_left = at > 0 and self._starts[at - 1] + self._lengths[at - 1] == start
        joins_right = at < len(self._starts) and start + length == self._starts[at]
        if joins_left and joins_right:
            self._lengths[at - 1] += length + self._lengths[at]
            del self._starts[at], self._lengths[at]
        elif joins_left:
            self._lengths[at - 1] += length
        elif joins_right:
            self._starts[at] = start
            self._lengths[at] += length
        else:
            self._starts.insert(at, start)
            self._lengths.insert(at, length)

    def free_extents(self) -> list[tuple[int, int]]:
        """(offset, length) of what is free."""
        return list(zip(self._starts, self._lengths, strict=True))


class Arena:
    """The stager's view: allocate, write, free. Not thread-safe; the caller holds its own lock.

    `budget` bytes may change at any time; `used` never grows above it.
    """

    def __init__(self, fd: int, budget: int) -> None:
        self._fd = fd
        self.memory: mmap.mmap = shared.attach(fd, writable=True)
        self.view = memoryview(self.memory)
        self._extents = Extents(os.fstat(fd).st_size)
        self._taken: dict[int, int] = {}
        self.used = 0
        self.budget = budget

    def allocate(self, size: int) -> int:
        """Offset of `size` fresh bytes (whole pages are charged). Raises NoRoom."""
        length = shared.page_rounded(max(size, 1))
        if self.used + length > self.budget:
            raise NoRoom
        offset = self._extents.take(length)
        self._taken[offset] = length
        self.used += length
        return offset

    def free(self, offset: int) -> None:
        """Give the extent at `offset` and its memory back."""
        length = self._taken.pop(offset)
        punch(self._fd, offset, length)
        self._extents.give(offset, length)
        self.used -= length

    def adopt(self, offset: int, size: int) -> None:
        """Take an extent that an earlier stager had filled (after a restart). Raises NoRoom if it is not free."""
        length = shared.page_rounded(max(size, 1))
        self._extents.carve(offset, length)
        self._taken[offset] = length
        self.used += length

    def reclaim(self) -> None:
        """Give back the memory of all that is not taken, whoever had written it."""
        for offset, length in self._extents.free_extents():
            punch(self._fd, offset, length)


def punch(fd: int, offset: int, length: int) -> None:
    """Give back the memory of a range; it reads as zeros from then on. Raises OSError."""
    if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
