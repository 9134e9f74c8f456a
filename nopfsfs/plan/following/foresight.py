"""The coming epochs in which each row is read, where every epoch reads another part of the files: as one of many ranks
does. There the next reading of most files lies further ahead than the tables of two epochs show.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder, Hypothesis

HORIZON = 64  # epochs, as many as a word has bits: 8 bytes for each file
# An epoch that reads fewer of the files reads a part.
_ALL = 0.99
_GOLDEN = 0x9E3779B1


class EpochRows:
    """The epochs that read each of `n` rows. Methods number epochs from the one that is read now, which is 0.

    The words inside count from the epoch in which this object was made: bit i of a row's word says that the row is read
    in the i-th of those, modulo 64. Only the bits of known epochs mean something.
    """

    def __init__(self, n: int, first: Hypothesis) -> None:
        self.first = first  # epoch 0
        self.last = first  # the last one known
        self._begin = self._end = 0  # the bits of epoch 0, and of the first that is not known
        self._bits = np.zeros(n, np.uint64)

    @property
    def known(self) -> int:
        """Epochs."""
        return self._end - self._begin

    @property
    def wants(self) -> bool:
        """True: more epochs can be taken."""
        return self.known < HORIZON

    def write(self, order: EpochOrder) -> None:
        """Note the epoch after the last one known, without making it known: may run beside all else but itself."""
        rows = order.rows[(order.rows >= 0) & (order.rows < len(self._bits))]
        bit = np.uint64(1 << self._end % HORIZON)
        self._bits &= ~bit
        self._bits[rows] |= bit

    def add(self, hypothesis: Hypothesis) -> None:
        """Make known what was written, as the epoch of `hypothesis`."""
        self._end += 1
        self.last = hypothesis

    def advance(self) -> None:
        """Epoch 0 is over. Raises ValueError: that was the last one known."""
        if self.known <= 1:
            raise ValueError("nothing is known of the next epoch")
        self._begin += 1

    def next_epochs(self, rows: NDArray[np.int64], after: int) -> NDArray[np.int64]:
        """The first epoch from `after` on in which each row is read, i64[m]; -1: in none that is known."""
        inside = rows < len(self._bits)
        bits = np.where(inside, self._bits[np.where(inside, rows, 0)], np.uint64(0))
        begin = self._begin % HORIZON
        if begin:
            bits = (bits >> np.uint64(begin)) | (bits << np.uint64(HORIZON - begin))
        bits &= np.uint64((1 << self.known) - (1 << min(after, self.known)))
        lowest = bits & (~bits + np.uint64(1))
        found = np.log2(lowest.astype(np.float64), where=lowest > 0, out=np.full(len(rows), -1.0))
        epochs: NDArray[np.int64] = found.astype(np.int64)
        return epochs


def reads_a_part(order: EpochOrder, files: int) -> bool:
    """True: an epoch does not read all of the files that it is about."""
    return bool(np.count_nonzero(np.asarray(order.place) >= 0) < _ALL * files)


def places(rows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """An assumed place of each row within an epoch of which only the rows are known, i64[m]. The places are spread over
    the epoch, and the same for every epoch of that length."""
    spread = rows * _GOLDEN & 0xFFFFFFFF
    return spread * length >> 32
