"""The random numbers of TensorFlow's CPU kernels, in numpy: Philox4x32-10.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); TensorFlow 2.21,
`tensorflow/core/lib/random/philox_random.h`. Any word costs the same: nothing is skipped by drawing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_BLOCK = 4  # words that one counter gives
# Counters worked on at a time: the columns then stay in a core's second cache.
_CHUNK = 1 << 13


def words(seed: int, seed2: int, first: int, count: int) -> NDArray[np.uint32]:
    """The words `first` .. `first + count - 1` of `PhiloxRandom(seed, seed2)`, each taken singly, uint32[count].

    The seeds are taken modulo 2**64.
    """
    skip = first % _BLOCK
    start = first // _BLOCK
    blocks = -(-(skip + count) // _BLOCK)
    drawn = np.empty((blocks, _BLOCK), dtype=np.uint32)
    for at in range(0, blocks, _CHUNK):
        _fill(drawn[at : at + _CHUNK], start + at, seed, seed2)
    return drawn.reshape(-1)[skip : skip + count]


def _fill(out: NDArray[np.uint32], start: int, seed: int, seed2: int) -> None:
    """Put the words of the counters from `start` on into `out`, uint32[blocks, 4]."""
    index = np.arange(start, start + len(out), dtype=np.uint64)
    c0, c1 = index & _LOW, index >> _HIGH
    c2 = np.full(len(out), seed2 & 0xFFFFFFFF, dtype=np.uint64)
    c3 = np.full(len(out), seed2 >> 32 & 0xFFFFFFFF, dtype=np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        c0 *= _MULTIPLIERS[0]
        c2 *= _MULTIPLIERS[1]
        c1 ^= c2 >> _HIGH
        c1 ^= np.uint64(k0)
        c3 ^= c0 >> _HIGH
        c3 ^= np.uint64(k1)
        c0 &= _LOW
        c2 &= _LOW
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = k0 + _WEYL[0] & 0xFFFFFFFF, k1 + _WEYL[1] & 0xFFFFFFFF
    for column, value in enumerate((c0, c1, c2, c3)):
        out[:, column] = value
