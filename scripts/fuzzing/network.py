"""A network of which this process is every node: messages that a node gets are those that a case gives it, and bytes
come as a case says, or not. Bounded: what is begun ends when the case does."""

from __future__ import annotations

from collections import deque
from random import Random

from nopfsfs.peer.transport import CANCELLED, FAILED, Done, NodeMessage

Transfer = tuple[int, memoryview | None]  # key, where bytes are to come, None: they are sent


class Transport:
    """The `peers.transport.Transport` of node 0."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size
        self.inbox: deque[NodeMessage] = deque()
        self.sent: list[tuple[int, bytes]] = []
        self.under_way: dict[int, Transfer] = {}
        self._ended: list[Done] = []
        self._keys = 0

    def send(self, node: int, message: bytes) -> bool:
        self.sent.append((node, message))
        return node != self.size - 1  # the last node cannot be reached

    def receive(self) -> list[NodeMessage]:
        return [self.inbox.popleft() for _ in range(min(64, len(self.inbox)))]

    def start_send(self, node: int, tag: int, view: memoryview) -> int:
        return self._start(None)

    def start_receive(self, node: int, tag: int, view: memoryview) -> int:
        return self._start(view)

    def _start(self, view: memoryview | None) -> int:
        self._keys += 1
        self.under_way[self._keys] = (self._keys, view)
        return self._keys

    def cancel(self, key: int) -> None:
        if self.under_way.pop(key, None) is not None:
            self._ended.append((key, CANCELLED))

    def finish(self, rng: Random) -> None:
        """One transfer ends: with all bytes, some, too many, or none."""
        if self.under_way:
            key, view = self.under_way.pop(rng.choice(list(self.under_way)))
            length = len(view) if view is not None else rng.randrange(1 << 16)
            if view is not None:
                view[: len(view)] = rng.randbytes(1) * len(view)
            self._ended.append((key, rng.choice((length, length, length - 1, length + 1, FAILED, 0))))

    def done(self) -> list[Done]:
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_more(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return bool(self.under_way or self._ended)
