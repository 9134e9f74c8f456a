"""State of the other nodes: which of them this node may send requests to. Pure.

A node that left, was lost, or sent wrong data gets no more requests. A node that does not answer gets none for a while.
"""

from __future__ import annotations

from enum import Enum

STRIKES = 3  # requests in a row without an answer, or answers with wrong bytes: then a node gets no requests
REST_S = 10.0  # the first rest; each further one is twice as long
REST_MOST_S = 640.0


class NodeEnd(str, Enum):
    """Reason why a node gets no more requests."""

    LEFT = "left"
    LOST = "lost"
    CORRUPT = "corrupt"
    GARBAGE = "garbage"


class NodeHealth:
    """State of the nodes 0 .. size - 1; `own` is this node. All times are seconds of one clock, whichever."""

    def __init__(self, own: int, size: int) -> None:
        self.own, self.size = own, size
        self.over: dict[int, NodeEnd] = {}  # nodes that get no more requests, and why
        self.gone: set[int] = set()  # those of them that send none any more either
        self.lost: set[int] = set()  # those of `gone` that cannot be reached
        self._silent = [0] * size
        self._corrupt = [0] * size
        self._rests_until = [0.0] * size
        self._rest = [REST_S] * size

    def others(self) -> list[int]:
        """The other nodes that have neither left nor been lost."""
        return [node for node in range(self.size) if node != self.own and node not in self.gone]

    @property
    def alone(self) -> bool:
        """True when all other nodes have left or were lost."""
        return len(self.gone) == self.size - 1

    def usable(self, node: int, now: float) -> bool:
        """True when this node may send `node` a request now."""
        return 0 <= node < self.size and node != self.own and node not in self.over and now >= self._rests_until[node]

    def resting(self, now: float) -> list[int]:
        """The nodes that get no requests for a while, because they did not answer."""
        return [node for node in range(self.size) if node not in self.over and now < self._rests_until[node]]

    def heard(self, node: int) -> None:
        """Note an answer of `node`, with bytes or a refusal: the node sends more than COMING."""
        self._silent[node] = 0

    def answered(self, node: int) -> None:
        """Note that `node` sent the bytes of a request, and that they are right."""
        self._silent[node] = self._corrupt[node] = 0
        self._rest[node] = REST_S

    def silent(self, node: int, now: float) -> None:
        """Note a request to `node` without an answer in time. Requests that run out while the node rests do not
        count."""
        if now < self._rests_until[node]:
            return
        self._silent[node] += 1
        if self._silent[node] >= STRIKES:
            self._silent[node] = 0
            self._rests_until[node] = now + self._rest[node]
            self._rest[node] = min(REST_MOST_S, 2 * self._rest[node])

    def corrupt(self, node: int) -> bool:
        """Note wrong bytes of `node`; return True when that has happened too often."""
        self._corrupt[node] += 1
        return self._corrupt[node] >= STRIKES

    def end(self, node: int, why: NodeEnd) -> bool:
        """Note that `node` gets no more requests; return True when that is new."""
        if why in (NodeEnd.LEFT, NodeEnd.LOST):
            self.gone.add(node)
        if why == NodeEnd.LOST:
            self.lost.add(node)
        if node in self.over:
            return False
        self.over[node] = why
        return True
