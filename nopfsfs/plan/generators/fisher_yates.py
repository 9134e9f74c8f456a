"""Shuffling by swaps, all swaps at once.

A Fisher-Yates shuffle swaps place after place with a drawn place; one by one that takes seconds a million in Python.
Owns the computation of its outcome from the drawn places; knows no random numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Steps are int32; and of longer lists Python would take two words a draw. No file system holds so many samples.
MAX_N = 2**31


def check(n: int) -> None:
    """Raises ValueError when n is negative or not below `MAX_N`."""
    if not 0 <= n < MAX_N:
        raise ValueError(f"shuffling {n}: must be between 0 and {MAX_N - 1}")


def forward(target: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries at the first places after a shuffle by swaps; int64[len(target)]. At first place i holds i. Step i =
    0, 1, ... swaps place i with place `target[i]`, i <= target[i] < 2**31. `target` is overwritten and returned. A head
    of the targets gives a head of the outcome.

    Place i is final after step i, and what step i puts into its target is what stood at i. So the entry at i is what
    the last earlier step with the same target had put there, or else the target itself. What stood at i is found by
    following "the last step that aimed at i" to its beginning, for all i by pointer doubling.
    """
    earlier, last = links(target)
    origin = follow(last)
    moved = np.flatnonzero(earlier >= 0)
    target[moved] = origin[earlier[moved]]
    return target


def backward(drawn: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """A list 0..n-1 after place i has been swapped with a drawn place <= i, for i = n-1, n-2, and so on. `drawn` holds
    those places in that order. The outcome is returned in that order too, last place first: int64[len(drawn)]. `drawn`
    is overwritten and returned."""
    np.subtract(n - 1, drawn, out=drawn)
    result = forward(drawn)
    return np.subtract(n - 1, result, out=result)


def links(target: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`earlier[i]`: the last step before i with i's target, or -1.
    `last[i]`: the last step before i that aims at i, or i itself."""
    count = len(target)
    # Sorting (target, step) in one word is several times faster than a stable argsort.
    key = target << 32
    key |= np.arange(count, dtype=np.int64)
    key.sort()
    step = key.astype(np.uint32).view(np.int32)
    key >>= 32
    same = key[1:] == key[:-1]
    earlier = np.full(count, -1, dtype=np.int32)
    earlier[step[1:][same]] = step[:-1][same]
    ends = np.ones(count, dtype=np.bool_)
    np.logical_not(same, out=ends[:-1])
    ends &= key < count
    aimed, by = key[ends], step[ends]
    del key, step, same, ends  # the most that is held at once is here
    by = np.where(by == aimed, earlier[by], by)
    last = np.arange(count, dtype=np.int32)
    found = by >= 0
    last[aimed[found]] = by[found]
    return earlier, last


def follow(last: NDArray[np.int32]) -> NDArray[np.int32]:
    """The end of every chain i, last[i], last[last[i]], ...; chains are of logarithmic length."""
    further: NDArray[np.int32] = last[last]
    while not np.array_equal(further, last):
        last, further = further, further[further]
    return last
