"""What passes between the nodes of a cluster beside the stream: copies that are held until the node where they live has
taken them, and rows that are to be taken from another. Pure."""

from __future__ import annotations

from collections.abc import Callable

from nopfsfs.policy.budget import MemorySplit


class Passing:
    """`sizes`: bytes by row; `let_go` frees a copy that is held for no other reason."""

    def __init__(self, sizes: memoryview, split: MemorySplit, let_go: Callable[[int], None]) -> None:
        self._sizes, self.split, self._let_go = sizes, split, let_go
        self._held: dict[int, None] = {}
        self.held_bytes = 0
        self.pulls: dict[int, None] = {}  # to be fetched before what the stream fetches, in this order

    def __contains__(self, row: int) -> bool:
        return row in self._held

    def hold(self, row: int) -> bool:
        """Hold what is staged until `end`; whether there is room for that: half of what is for the stream."""
        if row not in self._held:
            if self.held_bytes + self._sizes[row] > self.split.stream // 2:
                return False
            self._held[row] = None
            self.held_bytes += self._sizes[row]
        return True

    def recharge(self, row: int, more: int) -> None:
        """The row's size is another, by so many bytes."""
        if row in self._held:
            self.held_bytes += more

    def end(self, row: int) -> None:
        """It was taken, or nobody has come for it."""
        if row in self._held:
            del self._held[row]
            self.held_bytes -= self._sizes[row]
            self._let_go(row)

    def pull(self, row: int) -> None:
        """Fetch a row that lives here, and that another node has."""
        self.pulls[row] = None

    def pull_no_more(self, row: int) -> None:
        """If that has not begun."""
        self.pulls.pop(row, None)
