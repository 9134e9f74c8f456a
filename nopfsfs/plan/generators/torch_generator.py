"""The random numbers of torch's CPU generator, in numpy.

Owns: raw Mersenne Twister words and `randperm` as torch 1.9 to 2.13 draws it
(`aten/src/ATen/CPUGeneratorImpl.cpp`, `aten/src/ATen/native/TensorFactories.cpp`). Knows nothing of samplers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates

# From this n on torch draws 64-bit numbers for randperm; no file system holds so many samples.
MAX_N = (2**32 - 1) // 20
# Words of a generator's state, and after them the index of the next one to be drawn.
_STATE_WORDS = 624
# Where `torch.Generator.get_state()` keeps them: CPUGeneratorImplStateLegacy, an array of uint64 but for two int32.
_TORCH_LEFT, _TORCH_NEXT, _TORCH_STATE = 8, 16, 24
# Words thrown away at a time when skipping: bounds memory at 4 MiB.
_SKIP_CHUNK = 1 << 20
# Steps that are made of words at a time: larger arrays come from the kernel, page by page.
_PIECE = 1 << 15


def generator(seed: int, skip: int = 0) -> np.random.RandomState:
    """A generator whose `words` are those of `torch.Generator().manual_seed(seed)` after `skip` words.

    torch keeps the low 32 bits of the seed only; a negative seed counts from 2**64.
    """
    return skipped(np.random.RandomState(seed & 0xFFFFFFFF), skip)


def generator_from_state(text: str, skip: int = 0) -> np.random.RandomState:
    """A generator in the state that `torch_state` wrote, after `skip` words.

    Raises ValueError when the text is not such a state.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("state: not base64") from None
    if len(raw) != 4 * (_STATE_WORDS + 1):
        raise ValueError(f"state: {len(raw)} bytes are not the state of a generator")
    numbers = np.frombuffer(raw, dtype="<u4").astype(np.uint32)
    if numbers[-1] > _STATE_WORDS or not numbers[:-1].any():
        raise ValueError("state: not the state of a generator")
    state = np.random.RandomState(0)
    state.set_state(("MT19937", numbers[:-1], int(numbers[-1]), 0, 0.0))
    return skipped(state, skip)


def torch_state(raw: bytes) -> str:
    """The state of a generator as torch gives it: `torch_state(generator.get_state().numpy().tobytes())`. The text is
    base64 of 624 words and the index of the next one, little-endian uint32.

    Raises ValueError when that is not the state of a CPU generator that was seeded.
    """
    if len(raw) < _TORCH_STATE + 8 * _STATE_WORDS:
        raise ValueError(f"state: {len(raw)} bytes are not the state of torch's CPU generator")
    left = int.from_bytes(raw[_TORCH_LEFT : _TORCH_LEFT + 4], "little")
    following = int.from_bytes(raw[_TORCH_NEXT : _TORCH_NEXT + 8], "little")
    key = np.frombuffer(raw, dtype="<u8", count=_STATE_WORDS, offset=_TORCH_STATE)
    # torch makes the next 624 words when one is left, whatever the index says
    position = _STATE_WORDS if left == 1 else following
    if position > _STATE_WORDS or key.max() > 0xFFFFFFFF:
        raise ValueError("state: not the state of torch's CPU generator")
    return base64.b64encode(np.append(key, position).astype("<u4").tobytes()).decode()


def skipped(state: np.random.RandomState, skip: int) -> np.random.RandomState:
    """The generator after `skip` more words. Takes 4 ms a million."""
    while skip > 0:
        chunk = min(skip, _SKIP_CHUNK)
        words(state, chunk)
        skip -= chunk
    return state


def words(state: np.random.RandomState, count: int) -> NDArray[np.uint32]:
    """The next `count` raw 32-bit words, uint32[count]."""
    drawn: NDArray[np.uint32] = state.randint(0, 1 << 32, size=count, dtype=np.uint32)
    return drawn


def overlapping(
    state: np.random.RandomState, start: int, limit: int, chunk: int, beyond: int
) -> Iterator[tuple[int, int, NDArray[np.uint32]]]:
    """The words from `start` to `limit` - 1 of a generator that has given those before, in chunks. A chunk: (the first
    word's number, how many there are, these and `beyond` more, uint32[count + beyond])."""
    ahead = words(state, beyond)
    for begin in range(start, limit, chunk):
        count = min(chunk, limit - begin)
        here = np.concatenate((ahead, words(state, count)))
        ahead = here[count:]
        yield begin, count, here


def randperm(state: np.random.RandomState, n: int, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` (default: all) entries of `torch.randperm(n)`, int64[min(count, n)].

    A head costs time and words in proportion to `count` only (the generator is then not where torch's would
    be). Raises ValueError when n is negative or at least `MAX_N`.

    torch swaps r[i] with r[i + word % (n - i)] for i = 0 .. n-2.
    """
    return fisher_yates.forward(targets(state, n, n if count is None else min(count, n)))


def randint(state: np.random.RandomState, n: int, count: int) -> NDArray[np.int64]:
    """`torch.randint(n, (count,))`, int64[count]. Raises ValueError unless 0 < n < `MAX_N`."""
    if not 0 < n < MAX_N:
        raise ValueError(f"randint below {n}: must be between 1 and {MAX_N - 1}")
    drawn: NDArray[np.int64] = words(state, count).astype(np.int64)
    drawn %= n
    return drawn


def randperm_heads(drawn: NDArray[np.uint32], n: int) -> NDArray[np.int64]:
    """The beginnings of several permutations of n, int64[m, k], k <= n: each from its own words, uint32[m, k].

    All at once: step j of permutation i is step i*k + j of one long row of swaps, whose places do not meet.
    """
    m, k = drawn.shape
    step = np.arange(k, dtype=np.int64)
    target = step + drawn % (n - step)
    base = np.arange(m, dtype=np.int64)[:, None]
    # a place below k is the step that makes it final; the others come after all steps
    place = np.where(target < k, base * k + target, m * k + base * n + target)
    earlier, last = fisher_yates.links(place.reshape(-1))
    origin = fisher_yates.follow(last)
    moved = np.flatnonzero(earlier >= 0)
    result: NDArray[np.int64] = target.reshape(-1)
    result[moved] = origin[earlier[moved]] % k
    return result.reshape(m, k)


def targets(
    state: np.random.RandomState, n: int, count: int, buffer: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The place that each of the first `count` steps of `randperm` swaps with, int64[count], count <= n: i + word %
    (n - i). The step n-1 draws no word. Written into `buffer`, if that is given. Raises ValueError when n is negative
    or at least `MAX_N`."""
    if not 0 <= n < MAX_N:
        raise ValueError(f"randperm of {n}: must be between 0 and {MAX_N - 1}")
    target = np.empty(count, dtype=np.int64) if buffer is None else buffer[:count]
    target[-1:] = n - 1  # unless that draws a word
    steps = min(count, max(n - 1, 0))
    for begin in range(0, steps, _PIECE):
        end = min(begin + _PIECE, steps)
        drawn = words(state, end - begin)
        # 32-bit numbers are divided twice as fast as 64-bit ones
        drawn %= np.arange(n - begin, n - end, -1, dtype=np.uint32)
        np.add(drawn, np.arange(begin, end), out=target[begin:end])
    return target
