"""The rings of events of all servers, read as one; opens as they were found there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nopfsfs.protocol.ring import Ring, TimedEvents, take_all


class SeenOpens(NamedTuple):
    """Opens in the order in which they were made."""

    times: npt.NDArray[np.uint64]  # u64[k], as of `monotonic_ns`
    readers: npt.NDArray[np.int64]  # i64[k], processes
    rows: npt.NDArray[np.int64]  # i64[k]
    foreseen: npt.NDArray[np.bool_] | None  # b[k]; None: there is no plan
    stand_for: float  # the number of opens that each tells of: more than 1 while OPEN is refused


class ServerRings:
    """The rings, one for each server."""

    def __init__(self, rings: Sequence[Ring]) -> None:
        self._rings = rings

    @property
    def pending(self) -> int:
        """Events that are yet to be taken."""
        return sum(ring.pending() for ring in self._rings)

    @property
    def fullest(self) -> int:
        """Events that are yet to be taken from the ring that has most."""
        return max(ring.pending() for ring in self._rings)

    @property
    def lost(self) -> int:
        """Events that found no room, ever."""
        return sum(ring.lost for ring in self._rings)

    def take(self, most: int) -> TimedEvents:
        """Take at most so many events of each ring, as `take_all`."""
        return take_all(self._rings, most)
