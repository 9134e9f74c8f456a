"""Copies on disk of files that are too large to be staged whole. Pure.

The stager copies files that the access stream reads, in its order, and files of which a reader has read a block. Each
file goes from the source to disk by blocks. A copy has its home, and its room, on a disk tier as other files have.
"""

from __future__ import annotations

from nopfsfs.policy.copy_flags import KERNEL_READS, ON_DISK, WRITING
from nopfsfs.policy.homes import Home
from nopfsfs.policy.residency import Residency
from nopfsfs.policy.stream_scan import Rows
from nopfsfs.protocol.supervisor_stager import StagerCommand

_DISK = Home.DISK  # bound once, as in `residency`


class LargeFiles:
    """Commands the copies. Where `Homes.keeps_large` is False, there are none."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._asked: set[int] = set()  # rows that were commanded for this stream

    def is_large(self, row: int) -> bool:
        """True when the row is not staged whole, and may have its copy on disk."""
        residency = self._residency
        return residency.homes.keeps_large and residency.charge_of[row] > residency.split.whole_limit

    def upcoming(self, rows: Rows) -> None:
        """Ask for those of these rows, i64[k], -1 for none, that are large, in this order."""
        residency = self._residency
        if residency.homes.keeps_large:
            large = (rows >= 0) & (residency.charges[rows] > residency.split.whole_limit)
            for row in rows[large & (residency.state[rows] & KERNEL_READS == 0)].tolist():
                self.ask(row)

    def ask(self, row: int) -> None:
        """Ask for the copy of a large row, in the room that is free, where it has a home on disk. The stager looks
        through a copy that another mount has left."""
        residency = self._residency
        residency.place(row)
        if residency.home_of[row] == _DISK and row not in self._asked:
            self._asked.add(row)
            if not residency.state_of[row] & ON_DISK:
                residency.hold(row, WRITING)
            residency.commands.add(StagerCommand.COPY_LARGE, row, residency.homes.tier(row))

    def begun(self, row: int, tier: int) -> None:
        """Record that the stager has begun a copy, perhaps because a reader reads the row. One that has no room goes.
        """
        residency = self._residency
        if self.is_large(row) and residency.homes.claim(row, tier):
            residency.hold(row, WRITING)
        else:
            residency.commands.add(StagerCommand.OFF_DISK, row, 1)

    def restart(self) -> None:
        """Ask anew for what another stream reads, in its order."""
        self._asked.clear()

    def copy_gone(self, row: int) -> None:
        """Record that the row has no copy."""
        self._asked.discard(row)
