"""Tripwires: the few files whose opens are seen when the kernel opens files by itself.

Once OPEN is refused, an open of a file whose name the kernel knows shows nowhere. One file in some is given a name that
is known for no time at all: each open of it costs a LOOKUP, in every epoch and for every job, with nothing to re-arm.
Which these are follows from their rows alone, so all processes agree upon it.

While somebody reads what no plan explains, all opens are shown again: the kernel is made to forget the attributes of
all files, and is given them for a moment only, so that it asks for them at each open, when it checks rights.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

# One file in so many, on average. A LOOKUP costs up to 40 us (docs/decisions/0003), as much as reading 300 KB of the
# page cache: of large files more are tripwires, at the same cost for each byte, for each of them is much of a window.
MOST_APART = 32
BYTES_APART = 4 << 20
ENOUGH = 256  # tripwires of a data set, if it has so many files: what they show must tell one order from another
# Of xxHash32. Rows must not show in what is made of them: with a multiplication alone, tripwires lie at distances that
# come again and again in the order of the files, and whatever is read looks like an order.
_FIRST, _SECOND, _WORD = 0x9E3779B1, 0x85EBCA77, 1 << 32


class Shown(IntEnum):
    """Which opens the servers see. The supervisor says it (`Metric.SHOWN`), servers go by it at each request."""

    OPENED = 0  # all: OPEN is answered
    TRIPWIRES = 1  # OPEN is refused; those of tripwires, as LOOKUPs
    FORGETTING = 2  # the same, while the kernel is made to forget the attributes of all files
    ALL = 3  # OPEN is refused; all, as LOOKUPs or GETATTRs


class Tripwires:
    """The tripwires among `n` rows; those from `first` on are no directories, and have `size` bytes together."""

    def __init__(self, first: int, n: int, size: int = 0) -> None:
        self.first, self.n = first, n
        files = n - first
        self.apart = max(1, min(MOST_APART, files // ENOUGH, BYTES_APART * files // size if size else MOST_APART))
        self._below = _WORD // self.apart

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
