"""A cache that knows the future: of what was read it keeps what is read again soonest (Belady), and passes by what
would be read later than all that it holds. Pure.

`Belady` decides one reading at a time; `keep` decides for a whole epoch of many nodes at once.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from nopfsfs.policy.placement import take

Ints = NDArray[np.int64]
NEVER = 1 << 62  # as the next use of what is not read again, as far as is known
_STALE_LEAST = 64  # entries that the heap may have beyond twice those it needs before it is made anew


class Belady:
    """`room`: bytes that it may hold."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.used = 0
        self._held: dict[int, tuple[int, int]] = {}  # row: (next use, bytes)
        self._furthest: list[tuple[int, int]] = []  # heap of (-next use, row); stale where it is not the row's

    def __contains__(self, row: int) -> bool:
        return row in self._held

    def __len__(self) -> int:
        return len(self._held)

    def read(self, row: int, size: int, next_use: int) -> list[int]:
        """The row, of `size` bytes, is read now and next at `next_use`. It is kept where that is sooner than the next
        use of what must go for it: the rows that go, the row itself where it is not to be kept."""
        self.drop(row)
        if next_use >= NEVER or size > self.room:
            return [row]
        gone: dict[int, tuple[int, int]] = {}
        room = self.room - self.used
        while room < size:
            at, other = self._furthest[0]
            held = self._held.get(other)
            if held is not None and held[0] == -at and other not in gone:
                if held[0] <= next_use:
                    break
                gone[other] = held
                room += held[1]
            heapq.heappop(self._furthest)
        if room < size:
            for other, (at, _) in gone.items():  # all that are read later are not enough: they stay
                heapq.heappush(self._furthest, (-at, other))
            return [row]
        for other in gone:
            self.drop(other)
        self._hold(row, size, next_use)
        return list(gone)

    def _hold(self, row: int, size: int, next_use: int) -> None:
        self._held[row] = (next_use, size)
        self.used += size
        heapq.heappush(self._furthest, (-next_use, row))
        if len(self._furthest) > 2 * len(self._held) + _STALE_LEAST:
            self._furthest = [(-at, other) for other, (at, _) in self._held.items()]
            heapq.heapify(self._furthest)

    def drop(self, row: int) -> None:
        """The row is gone."""
        held = self._held.pop(row, None)
        if held is not None:
            self.used -= held[1]

    def resize(self, room: int) -> list[int]:
        """Another room; the rows that go, the furthest first."""
        self.room = room
        gone: list[int] = []
        while self.used > room:
            at, row = heapq.heappop(self._furthest)
            if row in self._held and self._held[row][0] == -at:
                gone.append(row)
                self.drop(row)
        return gone


def keep(
    node: NDArray[np.integer], next_use: NDArray[np.integer], sizes: Ints, room: Ints
) -> NDArray[np.bool_]:  # fmt: skip
    """At the end of an epoch: which of m samples, each held or just read by a node, it goes on holding, b[m]: those
    that it reads again soonest, as far as its room goes. `room` i64[nodes], bytes. Within the epoch what is yet to be
    read takes room too, so that this holds a little more than `Belady` does."""
    again: NDArray[np.bool_] = next_use < NEVER
    load = np.bincount(node, weights=np.where(again, sizes, 0), minlength=len(room))
    kept: NDArray[np.bool_] = again & (load <= room)[node]  # all that such a node wants has room
    order = np.flatnonzero(again & ~kept)
    if len(order):
        order = order[np.lexsort((next_use[order], node[order]))]
        kept[order[take(node[order].astype(np.int64), sizes[order], room.copy())]] = True
    return kept
