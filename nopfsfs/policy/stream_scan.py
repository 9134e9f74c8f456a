"""A scan of the access stream ahead of the reader, in steps of some positions. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Upcoming = Callable[[int, int], Rows]

SCAN = 1024  # stream positions looked at in one step
SCAN_STEPS = 16  # steps in one call, so that the caller stays responsive


def scan(at: int, end: int, upcoming: Upcoming, deal: Callable[[Rows, int], int]) -> tuple[int, bool]:
    """Deal with stream positions [at, end) until `deal` cannot go on, or `SCAN_STEPS` are done. Return the position
    where that was, and False if another call would go on from there. `upcoming(start, count)` gives the rows from
    position `start` on: fewer where the stream is not known further, -1 for positions gone by. `deal(rows, first)`
    returns how many of the rows were dealt with."""
    for _ in range(SCAN_STEPS):
        if at >= end:
            return at, True
        rows = upcoming(at, min(SCAN, end - at))
        dealt = deal(rows, at)
        at += dealt
        if dealt < len(rows) or not len(rows):
            return at, True
    return at, at >= end
