"""Tripwires: the few files whose opens are seen when the kernel opens files by itself.

Once OPEN is refused, an open of a file whose name the kernel knows shows nowhere. One file in some is given a name that
is known for no time at all. Each open of such a file costs a LOOKUP, in every epoch and for every job, with nothing to
re-arm. Which these are follows from their rows alone, so all processes agree upon it.

While somebody reads what no plan explains, all opens are shown again. The kernel is made to forget the attributes of
all files, and is given them for a moment only. So the kernel asks for them at each open, when it checks rights.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

# One file in so many, on average. A LOOKUP wakes two processors and costs up to 120 us, as much as reading seven files
# of 117 KB from tmpfs (docs/decisions/0006-signals.md). Of large files more are tripwires, at the same cost for each
# byte, for each of them is much of a window.
MOST_APART = 32
BYTES_APART = 4 << 20
ENOUGH = 256  # tripwires of a data set, if it has so many files: what they show must tell one order from another
# The same where the order is certain, and all opens can be shown again: tripwires only tell how far each rank is.
FOLLOWED_APART = 128
FOLLOWED_BYTES_APART = 16 << 20
FOLLOWED_ENOUGH = 48  # tripwires of a rank in an epoch: with fewer, a rank may pass for one that has left
# Of xxHash32. Rows must not show in what is made of them: with a multiplication alone, tripwires lie at distances that
# come again and again in the order of the files, and whatever is read looks like an order.
_FIRST, _SECOND, _WORD = 0x9E3779B1, 0x85EBCA77, 1 << 32


class Shown(IntEnum):
    """The opens that the servers see. The supervisor sets the value (`Metric.SHOWN`), and servers follow it at each
    request."""

    OPENED = 0  # all: OPEN is answered
    TRIPWIRES = 1  # OPEN is refused; those of tripwires, as LOOKUPs
    FORGETTING = 2  # the same, while the kernel is made to forget the attributes of all files
    ALL = 3  # OPEN is refused; all, as LOOKUPs or GETATTRs


class Tripwires:
    """The tripwires among `n` rows; those from `first` on are no directories, and have `size` bytes together.

    `apart`: one file in so many is a tripwire; 0: as many files as tell one order from another. Where fewer files are
    tripwires, all of them would be tripwires where more are."""

    def __init__(self, first: int, n: int, size: int = 0, apart: int = 0) -> None:
        self.first, self.n, self.size = first, n, size
        files = n - first
        by_count = min(MOST_APART, files // ENOUGH)
        self.apart = apart or max(1, min(by_count, BYTES_APART * files // size if size else by_count))
        self._below = _WORD // self.apart

    def for_certain(self, each: int) -> Tripwires:
        """The tripwires that suffice to follow a certain order whose ranks read at least `each` files an epoch."""
        apart = min(FOLLOWED_APART, each // FOLLOWED_ENOUGH)
        if self.size:
            apart = min(apart, FOLLOWED_BYTES_APART * (self.n - self.first) // self.size)
        return Tripwires(self.first, self.n, self.size, max(self.apart, apart))

    def __contains__(self, row: int) -> bool:
        mixed = row * _FIRST % _WORD
        mixed = (mixed ^ mixed >> 15) * _SECOND % _WORD
        return row >= self.first and mixed ^ mixed >> 13 < self._below

    def mask(self) -> npt.NDArray[np.bool_]:
        """bool[n]: which rows are tripwires."""
        mixed = np.arange(self.n, dtype=np.uint32) * np.uint32(_FIRST)
        mixed = (mixed ^ mixed >> np.uint32(15)) * np.uint32(_SECOND)
        mixed ^= mixed >> np.uint32(13)
        found: npt.NDArray[np.bool_] = mixed.astype(np.uint64) < np.uint64(self._below)
        found[: self.first] = False
        return found
