"""The division of a mount's memory budget, and its change with the memory of the node. Pure.

The arena is the home of files that stay: their bytes are there until they are evicted. The page cache of the mount
makes a hit as fast as a local read, but the kernel may take its pages at any time. So the page cache holds copies only.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20
KERNEL_INODE_BYTES = 1024  # memory that a known inode and its name take in the kernel
WHOLE_FRACTION = 8  # a file above 1/8 of the budget is never staged whole
PASSAGE_LEAST = 32 * MIB
PASSAGE_MOST = 1024 * MIB
KEEP_FREE_FRACTION = 0.05  # of the node's memory (or the cgroup's) that staging leaves alone
# The least that is left alone: the processes of a mount grow by so much under load. At most a quarter of the memory.
KEEP_FREE_LEAST = 48 * MIB
PROCESS_BYTES = 40 * MIB  # memory of a server or a stager that has just started
WINDOW_FRACTION = 6  # 1/6 of the budget less the passage: pages pushed ahead of the reader, when not all can stay
WINDOW_MOST = 256 * MIB


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Parts of the budget, in bytes. `arena` + `pages` is at most the whole budget.

    Of the arena, `homes` is for files that stay, `stream` for files that do not. Of files that are read by ranges,
    `ranges` is for blocks that pass through, `resident` for blocks that stay. Of `pages`, `page_homes` stay and the
    rest is a window ahead of the reader. A file larger than `whole_limit` is never staged whole; `large` bytes are in
    such files."""

    arena: int
    homes: int
    stream: int
    ranges: int
    pages: int
    page_homes: int
    whole_limit: int
    resident: int = 0
    large: int = 0

    @property
    def for_stager(self) -> tuple[int, int, int, int, int]:
        """The figures of `StagerCommand.BUDGET`: its value, and its rows."""
        return self.arena, self.whole_limit, self.ranges, self.resident, self.large


def charges(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The memory that each of n files costs when it is held once: whole pages and the kernel's inode. An empty file
    costs 0. i64[n]; `sizes` i64[n]; bytes."""
    pages = -(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.where(sizes > 0, pages + KERNEL_INODE_BYTES, 0).astype(np.int64)


def charge(size: int) -> int:
    """The memory that one file of `size` bytes costs, as in `charges`."""
    return int(charges(np.array([size], np.int64))[0])


def passage(data: int) -> int:
    """Arena bytes for files that do not stay, given a data set of `data` bytes and enough memory."""
    return min(max(data // 16, PASSAGE_LEAST), PASSAGE_MOST)


def on_their_way(total: int, data: int) -> int:
    """Arena bytes for files that do not stay, in a budget of `total` bytes. Half is for whole files, half for blocks of
    files that are read by ranges."""
    return min(passage(data), total // 4)


def automatic(available: int, data: int) -> int:
    """The budget when the user names none: half of the available memory (docs/decisions/0002-memory.md). The budget is
    at most the bytes that the data set takes in the arena and in the page cache."""
    return max(0, min(available // 2, 2 * data + passage(data)))


def whole_limit(total: int) -> int:
    """Bytes of the largest file that is staged whole, in a budget of `total` bytes."""
    return total // WHOLE_FRACTION


def split(total: int, data: int, page_cache: int | None = None, large: int = 0) -> MemorySplit:
    """Divide `total` bytes for a data set of `data` bytes (as files are charged), of which `large` are in files above
    `whole_limit`. `page_cache`: bytes that the pages may take, less where the passage needs them. None: the pages get
    what the homes leave, and at least a window. Blocks of large files may stay in what the other files leave."""
    way = on_their_way(total, data)
    rest, small = total - way, data - large
    if page_cache is None:
        window = min(rest // WINDOW_FRACTION, WINDOW_MOST)
        homes = min(small, rest - window)
        resident = min(large, rest - homes - min(max(window, small), rest - homes))
        pages = min(data, rest - homes - resident)
    else:
        pages = min(data, page_cache, rest)
        window = min(pages // 2, WINDOW_MOST)
        homes = min(small, rest - pages)
        resident = min(large, rest - pages - homes)
    page_homes = pages if pages >= data else max(0, pages - window)
    return MemorySplit(
        arena=homes + way + resident, homes=homes, stream=way // 2, ranges=way - way // 2, pages=pages,
        page_homes=page_homes, whole_limit=whole_limit(total), resident=resident, large=large,
    )  # fmt: skip


def kept_free(memory: int) -> int:
    """Bytes that staging leaves alone on a node with `memory` bytes."""
    return max(int(memory * KEEP_FREE_FRACTION), min(KEEP_FREE_LEAST, memory // 4))


def affordable(held: int, available: int, memory: int, processes: int = 0) -> int:
    """The largest budget that memory allows when `held` bytes of the budget are filled: the unfilled rest must find
    room, too. A cgroup's limit is reached sooner than memory is checked again, and then processes of the mount are
    killed. `processes`: the number of processes still to be started."""
    return max(0, held + available - kept_free(memory) - processes * PROCESS_BYTES)


def under_pressure(
    configured: int, allowed: int, used: int, available: int, memory: int, held: int, promised: int = 0,
    beside: int = 0,
) -> int:  # fmt: skip
    """The budget from now on, given the memory that the node has available. The budget shrinks at once and grows back
    by an eighth at a time, as far as it is `affordable`. `used`: bytes in arena and page cache; `held`: those that the
    kernel cannot take back. `promised`: bytes of the available ones that other mounts will fill. Promised bytes bound
    the budget, and nothing is given up for them. `beside`: bytes that other mounts hold, which see the same pressure:
    each gives in proportion to what it holds."""
    floor = kept_free(memory)
    if available < floor:
        given = (floor - available) * held // (held + beside) if beside > 0 else floor - available
        return max(0, min(allowed, used - given))
    most, step = affordable(held, available - promised, memory), max(configured // 8, 1)
    if allowed > most:
        return max(0, most - step // 2)  # half a step less, so that the budget does not change again each second
    if allowed < configured and available > 2 * floor and min(configured, allowed + step) <= most:
        return min(configured, allowed + step)
    return allowed
