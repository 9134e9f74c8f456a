"""The other nodes, as this one sees them: who may be asked. Pure.

A node that left, or that cannot be believed, is asked no more. One that does not answer is left alone for a while.
"""

from __future__ import annotations

from enum import Enum

STRIKES = 3  # requests in a row that ran out, or answers with wrong bytes, after which a node is not asked
REST_S = 10.0  # the first time; then twice as long each time
REST_MOST_S = 640.0


class NodeEnd(str, Enum):
    """Why a node is asked no more."""

    LEFT = "left"
    LOST = "lost"
    CORRUPT = "corrupt"
    GARBAGE = "garbage"


class NodeHealth:
    """State of the nodes 0 .. size - 1; `own` is this one. Times are those of any clock, seconds."""

    def __init__(self, own: int, size: int) -> None:
        self.own, self.size = own, size
        self.over: dict[int, NodeEnd] = {}  # asked no more
        self.gone: set[int] = set()  # and will not ask any more
        self.lost: set[int] = set()  # and cannot be reached
        self._silent = [0] * size
        self._corrupt = [0] * size
        self._rests_until = [0.0] * size
        self._rest = [REST_S] * size

    def others(self) -> list[int]:
        """Those that have not left."""
        return [node for node in range(self.size) if node != self.own and node not in self.gone]

    @property
    def alone(self) -> bool:
        """Whether all others have left."""
        return len(self.gone) == self.size - 1

    def usable(self, node: int, now: float) -> bool:
        """Whether it may be asked now."""
        return 0 <= node < self.size and node != self.own and node not in self.over and now >= self._rests_until[node]

    def resting(self, now: float) -> list[int]:
        """Those that did not answer."""
        return [node for node in range(self.size) if node not in self.over and now < self._rests_until[node]]

    def heard(self, node: int) -> None:
        """It answered, with bytes or a no: it can do more than say that they are coming."""
        self._silent[node] = 0

    def answered(self, node: int) -> None:
        """It sent what was asked for."""
        self._silent[node] = self._corrupt[node] = 0
        self._rest[node] = REST_S

    def silent(self, node: int, now: float) -> None:
        """A request to it ran out. Those that ran out with the one that was too many say nothing new."""
        if now < self._rests_until[node]:
            return
        self._silent[node] += 1
        if self._silent[node] >= STRIKES:
            self._silent[node] = 0
            self._rests_until[node] = now + self._rest[node]
            self._rest[node] = min(REST_MOST_S, 2 * self._rest[node])

    def corrupt(self, node: int) -> bool:
        """It sent other bytes than it said; whether that was once too often."""
        self._corrupt[node] += 1
        return self._corrupt[node] >= STRIKES

    def end(self, node: int, why: NodeEnd) -> bool:
        """Ask it no more; whether that is news."""
        if why in (NodeEnd.LEFT, NodeEnd.LOST):
            self.gone.add(node)
        if why == NodeEnd.LOST:
            self.lost.add(node)
        if node in self.over:
            return False
        self.over[node] = why
        return True
