"""Memory shared by the processes of one mount: anonymous files (memfd) passed by descriptor at exec.

Nothing has a name, so nothing can be left behind, whichever processes die, and when.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE


def page_rounded(size: int) -> int:
    """Bytes of memory that `size` bytes take up: whole pages."""
    return -(-size // PAGE) * PAGE


def create(name: str, size: int) -> int:
    """Make an anonymous file of `size` bytes, at least a page, all zero, no memory used until written. Returns its
    descriptor."""
    fd = os.memfd_create(f"nopfs-{name}", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(size, PAGE))
    return fd


def attach(fd: int, *, writable: bool) -> mmap.mmap:
    """Map a whole shared file. The mapping outlives the descriptor."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, prot)


Layout = Mapping[str, tuple[str, int]]  # name -> (numpy dtype, length), as they lie in memory


def layout_size(layout: Layout) -> int:
    """Bytes that a layout takes, where each array begins on a cache line of its own."""
    return sum(_aligned(np.dtype(dtype).itemsize * length) for dtype, length in layout.values())


def arrays(memory: mmap.mmap, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a layout over one mapping, by name, in the layout's sequence."""
    result: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, (dtype, length) in layout.items():
        result[name] = np.frombuffer(memory, dtype=dtype, count=length, offset=offset)
        offset += _aligned(np.dtype(dtype).itemsize * length)
    return result


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
