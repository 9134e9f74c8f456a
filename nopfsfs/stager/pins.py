"""Extents of staged files that somebody reads without a server's grace: the pusher, the disk thread, other nodes."""

from __future__ import annotations

from collections.abc import Callable


class Pins:
    """How often each extent is pinned; one that is given up meanwhile is retired with its last pin. Not thread-safe;
    the caller holds its own lock."""

    def __init__(self, retire: Callable[[int], None]) -> None:
        self._retire = retire
        self._counts: dict[int, int] = {}
        self._given_up: set[int] = set()

    def pin(self, slot: int) -> None:
        self._counts[slot] = self._counts.get(slot, 0) + 1

    def unpin(self, slot: int) -> None:
        self._counts[slot] -= 1
        if not self._counts[slot]:
            del self._counts[slot]
            if slot in self._given_up:
                self._given_up.discard(slot)
                self._retire(slot)

    def give_up(self, slot: int) -> None:
        """No column names the extent any more: retire it, now or when nobody has it pinned."""
        if slot in self._counts:
            self._given_up.add(slot)
        else:
            self._retire(slot)

    def __len__(self) -> int:
        return len(self._counts)
