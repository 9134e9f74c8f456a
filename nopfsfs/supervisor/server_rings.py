"""The rings of events of all servers, read as one."""

from __future__ import annotations

from collections.abc import Sequence

from nopfsfs.protocol.ring import Ring, TimedEvents, take_all_timed


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

    def all_taken(self, moment: int) -> bool:
        """True where no event that a server put before that moment, as of `monotonic_ns`, is yet to be taken."""
        firsts = [ring.first() for ring in self._rings]
        return all(first is None or first >= moment for first in firsts)

    def take(self, most: int, until: int | None) -> TimedEvents:
        """Take at most so many events of each ring, as `take_all_timed`."""
        return take_all_timed(self._rings, most, until)
