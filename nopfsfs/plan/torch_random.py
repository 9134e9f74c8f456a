"""The random numbers of torch's CPU generator, in numpy.

Owns: raw Mersenne Twister words and `randperm` as torch 1.9 to 2.13 draws it
(`aten/src/ATen/CPUGeneratorImpl.cpp`, `aten/src/ATen/native/TensorFactories.cpp`). Knows nothing of samplers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# From this n on torch draws 64-bit numbers for randperm; no file system holds so many samples.
MAX_N = (2**32 - 1) // 20
# Words thrown away at a time when skipping: bounds memory at 4 MiB.
_SKIP_CHUNK = 1 << 20


def generator(seed: int, skip: int = 0) -> np.random.RandomState:
    """A generator whose `words` are those of `torch.Generator().manual_seed(seed)` after `skip` words.

    torch keeps the low 32 bits of the seed only; a negative seed counts from 2**64.
    """
    state = np.random.RandomState(seed & 0xFFFFFFFF)
    while skip > 0:
        chunk = min(skip, _SKIP_CHUNK)
        words(state, chunk)
        skip -= chunk
    return state


def words(state: np.random.RandomState, count: int) -> NDArray[np.uint32]:
    """The next `count` raw 32-bit words, uint32[count]."""
    drawn: NDArray[np.uint32] = state.randint(0, 1 << 32, size=count, dtype=np.uint32)
    return drawn


def randperm(state: np.random.RandomState, n: int, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` (default: all) entries of `torch.randperm(n)`, int64[min(count, n)].

    A head costs time and words in proportion to `count` only (the generator is then not where torch's would
    be). Raises ValueError when n is negative or at least `MAX_N`.

    torch swaps r[i] with r[i + word % (n - i)] for i = 0 .. n-2. Instead of swapping one by one: place i is
    final after step i, and what step i puts into its target is what stood at i. So the entry at i is what
    the last earlier step with the same target had put there, or else the target itself; and what stood at i
    is found by following "the last step that aimed at i" to its beginning, for all i by pointer doubling.
    """
    if not 0 <= n < MAX_N:
        raise ValueError(f"randperm of {n}: must be between 0 and {MAX_N - 1}")
    count = n if count is None else min(count, n)
    target = _targets(state, n, count)
    earlier, last = _links(target)
    origin = _follow(last)
    moved = np.flatnonzero(earlier >= 0)
    target[moved] = origin[earlier[moved]]
    return target


def _targets(state: np.random.RandomState, n: int, count: int) -> NDArray[np.int64]:
    """The place that each of the first `count` steps swaps with, int64[count]. The step n-1 draws no word."""
    step = np.arange(count, dtype=np.int64)
    drawn = min(count, max(n - 1, 0))
    target: NDArray[np.int64] = step.copy()
    target[:drawn] += words(state, drawn) % (n - step[:drawn])
    return target


def _links(target: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`earlier[i]`: the last step before i with i's target, or -1.
    `last[i]`: the last step before i that aims at i, or i itself."""
    count = len(target)
    # Sorting (target, step) in one word is several times faster than a stable argsort.
    key = (target << 32) | np.arange(count, dtype=np.int64)
    key.sort()
    step = (key & 0xFFFFFFFF).astype(np.int32)
    key >>= 32
    same = key[1:] == key[:-1]
    earlier = np.full(count, -1, dtype=np.int32)
    earlier[step[1:][same]] = step[:-1][same]
    ends = np.flatnonzero(np.append(~same, True)) if count else np.zeros(0, dtype=np.int64)
    ends = ends[key[ends] < count]
    aimed, by = key[ends], step[ends]
    by = np.where(by == aimed, earlier[by], by)
    last = np.arange(count, dtype=np.int32)
    found = by >= 0
    last[aimed[found]] = by[found]
    return earlier, last


def _follow(last: NDArray[np.int32]) -> NDArray[np.int32]:
    """The end of every chain i, last[i], last[last[i]], ...; chains are of logarithmic length."""
    further: NDArray[np.int32] = last[last]
    while not np.array_equal(further, last):
        last, further = further, further[further]
    return last
