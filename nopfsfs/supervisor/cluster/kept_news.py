"""Copies that earlier mounts have left on the disks of a cluster: each node says once which it has, before the first
placement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import trio
from numpy.typing import NDArray

from nopfsfs.placement.cluster_homes import CopiesByNode
from nopfsfs.protocol.between_supervisors import BITS_MOST, CopiesKept
from nopfsfs.protocol.columns import Metric

KNOWN_S = 5.0  # for the stager to have looked at what was kept here: what it finds later is not said
LOOK_S = 0.05  # between looks whether it has
_ROWS = 8 * BITS_MOST  # of one message


class KeptNews:
    """The copies that node `node` has on its disks, and those of which other nodes speak. `disk` u8[n]: the column;
    `metrics`: of the stager, which says there when it has published what was kept; `mounted()` returns when all ranks
    have mounted."""

    def __init__(
        self, node: int, disk: NDArray[np.uint8], metrics: memoryview, mounted: Callable[[], Awaitable[None]]
    ) -> None:
        self._node, self._disk, self._metrics, self._mounted = node, disk, metrics, mounted
        self.copies = CopiesByNode.none(len(disk))

    async def send_due(self, send: Callable[[CopiesKept], Awaitable[None]]) -> None:
        """Send all other nodes which copies are on the disks here, once that is known and all ranks have mounted."""
        await self._mounted()
        with trio.move_on_after(KNOWN_S):
            while not self._metrics[Metric.KEPT_FILES]:  # noqa: ASYNC110 another process finds out
                await trio.sleep(LOOK_S)
        disk = self._disk.copy()
        for tier in np.unique(disk[disk > 0]).tolist():
            self.copies.add(self._node, tier, np.flatnonzero(disk == tier))
            for first in range(0, len(disk), _ROWS):
                some = disk[first : first + _ROWS] == tier
                if some.any():
                    await send(CopiesKept(tier, first, np.packbits(some).tobytes()))

    def bytes_here(self, charges: NDArray[np.int64], tiers: int) -> list[int]:
        """The bytes of the copies on each of the tiers here now. `charges` i64[n]."""
        return [int(charges[self._disk == tier].sum()) for tier in range(1, tiers + 1)]

    def receive(self, node: int, message: CopiesKept) -> None:
        """Take a message of another node. Raises ValueError."""
        rows = message.first + np.flatnonzero(np.unpackbits(np.frombuffer(message.bits, np.uint8)))
        if len(rows) and rows[-1] >= len(self._disk):
            raise ValueError("first, bits: there are no such rows")
        self.copies.add(node, message.tier, rows)
