"""The 64-bit Mersenne Twister of C++ (`std::mt19937_64`; Matsumoto and Nishimura, 2004), which numpy does not have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SIZE = 312
_HALF = 156
_MASK = 0xFFFFFFFFFFFFFFFF
_UPPER = np.uint64(0xFFFFFFFF80000000)
_LOWER = np.uint64(0x7FFFFFFF)
_MATRIX = np.uint64(0xB5026F5AA96619E9)
# shift, mask: y ^= (y >> shift) & mask, or << where negative
_TEMPER = ((29, 0x5555555555555555), (-17, 0x71D67FFFEDA60000), (-37, 0xFFF7EEE000000000), (43, _MASK))


class Mersenne64:
    """`std::mt19937_64(seed)`; seed modulo 2**64."""

    def __init__(self, seed: int) -> None:
        state = [seed & _MASK]
        for i in range(1, _SIZE):
            state.append(6364136223846793005 * (state[-1] ^ state[-1] >> 62) + i & _MASK)
        self._state = np.array(state, np.uint64)
        self._left = np.zeros(0, np.uint64)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words, uint64[count]."""
        blocks = -(-max(count - len(self._left), 0) // _SIZE)
        raw = np.empty((blocks, _SIZE), np.uint64)
        for block in raw:
            self._twist()
            block[:] = self._state
        y = raw.reshape(-1)
        for shift, mask in _TEMPER:
            y ^= (y >> np.uint64(shift) if shift > 0 else y << np.uint64(-shift)) & np.uint64(mask)
        ready = np.concatenate([self._left, y])
        self._left = ready[count:].copy()
        return ready[:count]

    def _twist(self) -> None:
        # Each half needs of the other what it is before it was twisted, or after: two steps of 156, the very last word
        # with the first one as it is by then.
        s = self._state
        old = s[_HALF:].copy()
        x = s[:_HALF] & _UPPER | s[1 : _HALF + 1] & _LOWER
        s[:_HALF] = old ^ x >> np.uint64(1) ^ (x & np.uint64(1)) * _MATRIX
        x = old & _UPPER
        x[:-1] |= old[1:] & _LOWER
        x[-1] |= s[0] & _LOWER
        s[_HALF:] = s[:_HALF] ^ x >> np.uint64(1) ^ (x & np.uint64(1)) * _MATRIX


def high(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The upper 64 bits of the products, uint64[m]."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    product: NDArray[np.uint64] = a1 * b1 + (middle >> half) + (other >> half)
    return product
