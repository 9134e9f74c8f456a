"""A cache that knows the future, one reading at a time: `policy.belady` and `policy.kept` are held against it."""

from __future__ import annotations

import heapq

from nopfsfs.placement.belady import NEVER


class Belady:
    """Of what was read it keeps what is read again soonest, and passes by what would be read later than all that it
    holds. `room`: bytes that it may hold."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.used = 0
        self._held: dict[int, tuple[int, int]] = {}  # row: (next use, bytes)
        self._furthest: list[tuple[int, int]] = []  # heap of (-next use, row); stale where it is not the row's

    def __contains__(self, row: int) -> bool:
        return row in self._held

    def read(self, row: int, size: int, next_use: int) -> None:
        """The row, of `size` bytes, is read now and next at `next_use`. It is kept where that is sooner than the next
        use of what must go for it."""
        self._drop(row)
        if next_use >= NEVER or size > self.room:
            return
        gone: dict[int, int] = {}
        room = self.room - self.used
        while room < size:
            at, other = self._furthest[0]
            held = self._held.get(other)
            if held is not None and held[0] == -at and other not in gone:
                if held[0] <= next_use:
                    break
                gone[other] = at
                room += held[1]
            heapq.heappop(self._furthest)
        if room < size:  # all that are read later are not enough: they stay
            for other, at in gone.items():
                heapq.heappush(self._furthest, (at, other))
            return
        for other in gone:
            self._drop(other)
        self._held[row] = (next_use, size)
        self.used += size
        heapq.heappush(self._furthest, (-next_use, row))

    def _drop(self, row: int) -> None:
        held = self._held.pop(row, None)
        if held is not None:
            self.used -= held[1]
