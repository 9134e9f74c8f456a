"""Copies that pass between the nodes of a cluster, beside the stream: staged copies that are held until their home node
has fetched them, and rows to be fetched from another node. Pure."""

from __future__ import annotations

from collections.abc import Callable

from nopfsfs.policy.budget import MemorySplit


class Passing:
    """Held copies, and rows to pull. `sizes`: bytes by row; `let_go` evicts a copy that has no other hold."""

    def __init__(self, sizes: memoryview, split: MemorySplit, let_go: Callable[[int], None]) -> None:
        self._sizes, self.split, self._let_go = sizes, split, let_go
        self._held: dict[int, None] = {}
        self.held_bytes = 0
        self.pulls: dict[int, None] = {}  # rows to fetch in this order, before those of the stream

    def __contains__(self, row: int) -> bool:
        return row in self._held

    def hold(self, row: int) -> bool:
        """Hold the staged copy of a row until `end`; return False when there is no room. Held copies may take half of
        the room for the stream."""
        if row not in self._held:
            if self.held_bytes + self._sizes[row] > self.split.stream // 2:
                return False
            self._held[row] = None
            self.held_bytes += self._sizes[row]
        return True

    def recharge(self, row: int, more: int) -> None:
        """Count `more` bytes for the row, if it is held: its size has changed."""
        if row in self._held:
            self.held_bytes += more

    def end(self, row: int) -> None:
        """End the hold: the home node has the copy, or has not come for it."""
        if row in self._held:
            del self._held[row]
            self.held_bytes -= self._sizes[row]
            self._let_go(row)

    def pull(self, row: int) -> None:
        """Fetch a row that has its home here and that another node has staged."""
        self.pulls[row] = None

    def pull_no_more(self, row: int) -> None:
        """Withdraw the pull of a row, if its fetch has not begun."""
        self.pulls.pop(row, None)
