"""A network in memory, for as many nodes as a test wants. Messages lie on the wire until the test delivers them, bytes
are under way until it lets them arrive: right, wrong, too few, too many, or not at all.

As with MPI: messages of a pair come in order, bytes are matched in order by pair and tag, a receive that is cancelled
may complete all the same, and what is being sent is read when it arrives, not when it was begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nopfsfs.peer.transport import CANCELLED, FAILED, Done, NodeMessage

RIGHT, WRONG, SHORT, LONG, BROKEN = "right", "wrong", "short", "long", "broken"
HOWS = (RIGHT, WRONG, SHORT, LONG, BROKEN)
Pair = tuple[int, int]


@dataclass(eq=False)
class Half:
    """One side of a transfer. `before`: what was to be sent when the sending began."""

    node: int
    key: int
    match: tuple[int, int, int]
    view: memoryview
    before: bytes | None = None
    is_cancelled: bool = False
    is_matched: bool = False


class Network:
    """See the module. `automatic`: everything arrives by itself."""

    def __init__(self, size: int, *, automatic: bool = False) -> None:
        self.size, self.automatic = size, automatic
        self.wires: dict[Pair, deque[bytes]] = {(a, b): deque() for a in range(size) for b in range(size)}
        self.cut: set[Pair] = set()  # what is sent there is refused
        self.late_cancels = False  # whether a cancel takes until `decide`
        self.slow_bytes = False  # whether bytes meet their receives only after `set_out`
        self._at_home: deque[Half] = deque()  # what was begun to be sent, and has not set out
        self.matched: list[tuple[Half, Half]] = []
        self.on_send: Callable[[int, int, bytes], None] = lambda node, to, message: None
        self.lock = threading.RLock()
        self._sends: dict[tuple[int, int, int], deque[Half]] = {}
        self._receives: dict[tuple[int, int, int], deque[Half]] = {}
        self.ends = [End(self, rank) for rank in range(size)]

    # ---- what the test does -------------------------------------------------------------------------------

    def deliver(self, source: int, to: int, most: int = 1 << 30) -> int:
        """Messages from the wire to where they are received; how many."""
        wire = self.wires[source, to]
        count = min(most, len(wire))
        for _ in range(count):
            self.ends[to].inbox.append(NodeMessage(source, wire.popleft()))
        return count

    def deliver_all(self) -> int:
        return sum(self.deliver(*pair) for pair in self.wires)

    def inject(self, source: int, to: int, message: bytes | None) -> None:
        """A message that nobody sent; None: one that is too long."""
        self.ends[to].inbox.append(NodeMessage(source, message))

    def set_out(self, most: int = 1 << 30) -> int:
        """Bytes that were begun to be sent are on their way from now on; how many."""
        count = min(most, len(self._at_home))
        for _ in range(count):
            self._match(self._at_home.popleft(), sends=True)
        return count

    def finish(self, number: int = 0, how: str = RIGHT) -> None:
        """Let a transfer that both sides have begun end."""
        sent, received = self.matched.pop(number)
        data = bytes(sent.view)
        assert sent.before in (None, data), "changed while it was being sent"
        if how == BROKEN:
            self._end(sent, FAILED)
            self._end(received, FAILED)
            return
        self._end(sent, len(data))
        if how == WRONG:
            data = bytes(byte ^ 0xFF for byte in data)
        elif how == SHORT:
            data = data[:-1]
        elif how == LONG:
            data += b"!"
        room = len(received.view)
        received.view[: min(room, len(data))] = data[:room]
        self._end(received, len(data))

    def finish_all(self) -> int:
        count = len(self.matched)
        for _ in range(count):
            self.finish()
        return count

    def decide(self) -> None:
        """Receives that were cancelled, and for which nothing has come, end so."""
        for queue in self._receives.values():
            for half in [half for half in queue if half.is_cancelled]:
                queue.remove(half)
                self._end(half, CANCELLED)

    def forgive(self, node: int) -> None:
        """What the node sends may be changed from now on."""
        for half in self.ends[node].halves.values():
            half.before = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is on any wire, nor under way between any two."""
        return not (self.matched or any(self.wires.values()) or any(end.inbox or end.ended for end in self.ends))

    def unmatched(self) -> int:
        """Transfers that one side alone has begun."""
        return len(self._at_home) + sum(map(len, (*self._sends.values(), *self._receives.values())))

    # ---- what the ends do ---------------------------------------------------------------------------------

    def begin(self, half: Half, *, sends: bool) -> None:
        if sends and self.slow_bytes:
            self._at_home.append(half)
        else:
            self._match(half, sends=sends)

    def _match(self, half: Half, *, sends: bool) -> None:
        ours, theirs = (self._sends, self._receives) if sends else (self._receives, self._sends)
        waiting = theirs.get(half.match)
        if not waiting:
            ours.setdefault(half.match, deque()).append(half)
            return
        other = waiting.popleft()
        half.is_matched = other.is_matched = True
        self.matched.append((half, other) if sends else (other, half))

    def _end(self, half: Half, length: int) -> None:
        end = self.ends[half.node]
        del end.halves[half.key]
        end.ended.append((half.key, length))


class End:
    """The `Transport` of one node."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self.rank, self.size = network, rank, network.size
        self.inbox: deque[NodeMessage] = deque()
        self.halves: dict[int, Half] = {}
        self.ended: deque[Done] = deque()
        self._keys = 0
        self.has_more = False  # as the test says

    def send(self, node: int, message: bytes) -> bool:
        assert node != self.rank
        with self._network.lock:
            if (self.rank, node) in self._network.cut:
                return False
            self._network.on_send(self.rank, node, message)
            self._network.wires[self.rank, node].append(message)
            return True

    def receive(self) -> list[NodeMessage]:
        with self._network.lock:
            if self._network.automatic:
                for source in range(self.size):
                    self._network.deliver(source, self.rank)
            return [self.inbox.popleft() for _ in range(min(64, len(self.inbox)))]

    def start_send(self, node: int, tag: int, view: memoryview) -> int:
        return self._start((self.rank, node, tag), view, sends=True)

    def start_receive(self, node: int, tag: int, view: memoryview) -> int:
        return self._start((node, self.rank, tag), view, sends=False)

    def _start(self, match: tuple[int, int, int], view: memoryview, *, sends: bool) -> int:
        with self._network.lock:
            self._keys += 1
            half = self.halves[self._keys] = Half(self.rank, self._keys, match, view, bytes(view) if sends else None)
            self._network.begin(half, sends=sends)
            return half.key

    def cancel(self, key: int) -> None:
        with self._network.lock:
            half = self.halves.get(key)
            if half is not None and not half.is_matched:
                half.is_cancelled = True
                if not self._network.late_cancels:
                    self._network.decide()

    def done(self) -> list[Done]:
        with self._network.lock:
            if self._network.automatic:
                self._network.finish_all()
                self._network.decide()
            ended = list(self.ended)
            self.ended.clear()
            return ended

    @property
    def busy(self) -> bool:
        return bool(self.halves or self.ended)
