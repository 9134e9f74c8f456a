"""In which of the epochs to come each row is read, where every epoch reads another part of the files: as one of many
ranks does. There the next reading of most files lies further ahead than the tables of two epochs show.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import registry
from nopfsfs.plan.epochs import EpochOrder, Hypothesis

HORIZON = 64  # epochs, as many as a word has bits: 8 bytes for each file
TABLES = 2  # epochs from the one that is read on whose order is known in full elsewhere
# An epoch that reads fewer of the files reads a part.
_ALL = 0.99
_GOLDEN = 0x9E3779B1


class Foresight:
    """Of `n` rows. Epochs are numbered from the one that is read now, which is 0."""

    def __init__(self, n: int, first: Hypothesis) -> None:
        self.first = first  # epoch 0
        self.last = first  # the last one known
        self.known = 0
        self._bits = np.zeros(n, np.uint64)  # bit i: read in epoch i

    @property
    def wants(self) -> bool:
        """Whether more epochs can be taken."""
        return self.known < HORIZON

    def add(self, order: EpochOrder) -> None:
        """The epoch after the last one known."""
        rows = order.rows[order.rows >= 0]
        self._bits[rows] |= np.uint64(1 << self.known)
        self.known += 1
        self.last = order.hypothesis

    def advance(self) -> None:
        """Epoch 0 is over. Raises ValueError: that was the last one known."""
        if self.known <= 1:
            raise ValueError("nothing is known of the next epoch")
        self._bits >>= np.uint64(1)
        self.known -= 1

    def next_epochs(self, rows: NDArray[np.int64], after: int = TABLES) -> NDArray[np.int64]:
        """The first epoch from `after` on in which each row is read, i64[m]; -1: in none that is known."""
        bits = (self._bits[rows] >> np.uint64(after)).astype(np.uint64)
        lowest = bits & (~bits + np.uint64(1))
        found = np.log2(lowest.astype(np.float64), where=lowest > 0, out=np.zeros(len(rows)))
        return np.where(lowest > 0, found.astype(np.int64) + after, -1)


def reads_a_part(order: EpochOrder, files: int) -> bool:
    """Whether an epoch does not read all of the files that it is about."""
    return bool(np.count_nonzero(np.asarray(order.place) >= 0) < _ALL * files)


def successor(hypothesis: Hypothesis, *, repeats: bool = False) -> Hypothesis:
    """The epoch that is thought to follow."""
    if repeats:
        return hypothesis
    here = hypothesis.spec
    spec, epoch = registry.sampler(here.sampler).following(here, hypothesis.epoch)[0]
    return replace(hypothesis, spec=spec, epoch=epoch)


def places(rows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Where within an epoch of which only the rows are known each may be read: anywhere, always the same, i64[m]."""
    spread = rows * _GOLDEN & 0xFFFFFFFF
    return spread * length >> 32

