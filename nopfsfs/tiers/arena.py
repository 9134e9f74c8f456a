"""The RAM arena: staged bytes in one shared mapping, and the allocator that never exceeds its budget.

The mapping's address range is several times the budget, and freed extents give their memory back, so fragmentation
costs addresses, not memory. Some of what is freed keeps its memory for a while, for the next file of that length. The
kernel takes longer to give and zero pages than a file takes to be copied into them. The stager owns the allocator;
servers only map the bytes.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from nopfsfs.system import shared_memory

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
ADDRESS_FACTOR = 3  # address range over budget; first-fit with coalescing stays well below
WARM_MOST = 64 << 20  # bytes that are free and keep their memory
WARM_SHARE = 16  # and this part of the budget
_libc = ctypes.CDLL(None, use_errno=True)
Bytes = npt.NDArray[np.int64]


class NoRoom(Exception):
    """The budget does not allow this allocation now."""


def create(max_budget: int) -> int:
    """A descriptor of an arena whose budget will never be above `max_budget` bytes."""
    return shared_memory.create("arena", ADDRESS_FACTOR * shared_memory.page_rounded(max_budget))


class Extents:
    """Next-fit allocator of page-aligned extents with coalescing. Pure: it touches no memory."""

    def __init__(self, length: int) -> None:
        self._length = length
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
                return self._take_at(at, length)
        raise NoRoom

    def _take_at(self, at: int, length: int) -> int:
        start = self._starts[at]
        if self._lengths[at] == length:
            del self._starts[at], self._lengths[at]
        else:
            self._starts[at] += length
            self._lengths[at] -= length
        return start

    def take_all(self, starts: Bytes, ends: Bytes) -> None:
        """Take these extents, in the sequence of their offsets and apart from each other, while nothing is taken."""
        first, last = np.append(0, ends), np.append(starts, self._length)  # of what is free between them
        free = first < last
        self._starts, self._lengths = first[free].tolist(), (last - first)[free].tolist()

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


class WarmExtents:
    """Extents that are free and keep their memory, in the order in which they were freed. Pure: it touches none."""

    def __init__(self) -> None:
        self._by_length: dict[int, OrderedDict[int, None]] = {}
        self._extents: OrderedDict[int, int] = OrderedDict()
        self.bytes = 0

    def put(self, offset: int, length: int) -> None:
        self._extents[offset] = length
        self._by_length.setdefault(length, OrderedDict())[offset] = None
        self.bytes += length

    def take(self, length: int) -> int | None:
        """The extent of exactly that length that was freed last: some of it may be in the processor's caches."""
        offsets = self._by_length.get(length)
        if not offsets:
            return None
        offset = next(reversed(offsets))
        self._remove(offset)
        return offset

    def take_oldest(self) -> tuple[int, int]:
        """(offset, length). There must be one."""
        offset = next(iter(self._extents))
        return offset, self._remove(offset)

    def _remove(self, offset: int) -> int:
        length = self._extents.pop(offset)
        offsets = self._by_length[length]
        del offsets[offset]
        if not offsets:
            del self._by_length[length]
        self.bytes -= length
        return length


class Arena:
    """The stager's view: allocate, write, free. Not thread-safe; the caller holds its own lock.

    `taken` bytes are allocated, `used` hold memory: those, and what is warm. `budget` bytes may change at any time;
    neither ever grows above it, and what is warm gives way.
    """

    def __init__(self, fd: int, budget: int) -> None:
        self._fd = fd
        self.memory: mmap.mmap = shared_memory.attach(fd, writable=True)
        self.view = memoryview(self.memory)
        self._extents = Extents(os.fstat(fd).st_size)
        # Of what is taken, by page number: a dict finds multiples of a page's size only after several looks.
        self._lengths: dict[int, int] = {}
        self._warm = WarmExtents()
        self.taken = 0
        self.budget = budget

    def set_budget(self, budget: int) -> None:
        """Change the budget. What is taken stays."""
        self.budget = budget
        self._cool(min(self._warm_most(), max(0, budget - self.taken)))

    @property
    def used(self) -> int:
        """Bytes of memory."""
        return self.taken + self._warm.bytes

    def _warm_most(self) -> int:
        return min(WARM_MOST, self.budget // WARM_SHARE)

    def _cool(self, most: int) -> None:
        """Keep at most so many bytes warm."""
        while self._warm.bytes > most:
            self._give(*self._warm.take_oldest())

    def _give(self, offset: int, length: int) -> None:
        punch(self._fd, offset, length)
        self._extents.give(offset, length)

    def allocate(self, size: int) -> int:
        """Offset of `size` bytes, whatever they hold (whole pages are charged). Raises NoRoom."""
        length = shared_memory.page_rounded(max(size, 1))
        if self.taken + length > self.budget:
            raise NoRoom
        offset = self._warm.take(length)
        if offset is None:
            self._cool(self.budget - self.taken - length)
            offset = self._take(length)
        self._lengths[offset // shared_memory.PAGE] = length
        self.taken += length
        return offset

    def _take(self, length: int) -> int:
        try:
            return self._extents.take(length)
        except NoRoom:
            self._cool(0)  # addresses are short, which what is warm has, too
            return self._extents.take(length)

    def free(self, offset: int) -> None:
        """Give the extent at `offset` back, and its memory in time."""
        length = self._lengths.pop(offset // shared_memory.PAGE)
        self.taken -= length
        most = min(self._warm_most(), max(0, self.budget - self.taken))
        if length > most:
            self._give(offset, length)
            return
        self._warm.put(offset, length)
        self._cool(most)

    def adopt(self, offsets: Bytes, sizes: Bytes) -> npt.NDArray[np.bool_]:
        """Take what an earlier stager had filled, while nothing is taken; False for each that lies outside, or reaches
        into one of a lower offset. All at once: there may be millions, and nobody is served meanwhile."""
        lengths = -(-np.maximum(sizes, 1) // shared_memory.PAGE) * shared_memory.PAGE
        kept = np.argsort(offsets, kind="stable")
        kept = kept[(offsets[kept] >= 0) & ((offsets + lengths)[kept] <= len(self.view))]
        ends = np.maximum.accumulate((offsets + lengths)[kept])
        kept = kept[offsets[kept] >= np.append(0, ends)[:-1]]
        starts, lengths = offsets[kept], lengths[kept]
        self._extents.take_all(starts, starts + lengths)
        self._lengths = dict(zip((starts // shared_memory.PAGE).tolist(), lengths.tolist(), strict=True))
        self.taken = int(lengths.sum())
        taken = np.zeros(len(offsets), np.bool_)
        taken[kept] = True
        return taken

    def reclaim(self) -> None:
        """Give back the memory of all that is not taken, whoever had written it."""
        for offset, length in self._extents.free_extents():
            punch(self._fd, offset, length)


def punch(fd: int, offset: int, length: int) -> None:
    """Give back the memory of a range; it reads as zeros from then on. Raises OSError."""
    if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
