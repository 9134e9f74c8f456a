"""How much memory a mount is to be given, so that files of so many bytes have a home in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nopfsfs.policy import budget


def charges(source: Path) -> np.ndarray:
    """What each file's copy is charged, in the order of names, i64[files]."""
    sizes = np.array([path.stat().st_size for path in sorted(source.rglob("*.jpg"))])
    return np.asarray(-(-sizes // 4096) * 4096 + budget.KERNEL_INODE_BYTES)


def memory_for(homes: int, data: int, page_cache: int) -> int:
    """The --ram with which files of so many bytes have a home, of `data` in all."""
    low, high = 0, 8 * (homes + data + budget.PASSAGE_LEAST)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if budget.split(middle, data, page_cache).homes < homes else (low, middle)
    return high
