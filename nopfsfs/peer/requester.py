"""What this node's stager asks of other nodes: requests, their limits, the bytes that come, and whether they are right.
Pure but for the transport.

A tag is in use from its request to the end of all that may come for it. A request that was given up before its answer
came is still answered: with bytes, then they are received where they harm nobody.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import xxhash

from nopfsfs.peer.node_health import NodeEnd, NodeHealth
from nopfsfs.peer.responder import LENT_A_NODE, Out, SendToStager
from nopfsfs.peer.transport import CANCELLED, FAILED, Transport
from nopfsfs.protocol.between_peers import TAGS, Kind
from nopfsfs.protocol.stager_peer import SILENT_S, Status, limit_s
from nopfsfs.protocol.stager_peer import Kind as Local

ASKED_A_NODE = LENT_A_NODE // 2  # requests to one node; whoever asks for more is refused here, not taken for a stranger

_OK, _COMING, _NO = int(Status.OK), int(Status.COMING), int(Status.NO)  # an attribute of an Enum takes its time
_GOT, _WANT = Local.GOT, Kind.WANT
TAKES_LONG = 1 << 20  # bytes; so many may arrive late
CHECKED_APART = 1 << 20  # bytes; to check so many takes long enough to do it beside the next ones' arrival


@dataclass(slots=True, eq=False)
class NodeRequest:
    """A file that was asked for. `due`: when it is given up; `key`: of its transfer, 0 before that; `told`: the stager
    knows how it ended, or does not wait for it; `held`: it waits for what may write its extent."""

    ask: int
    node: int
    tag: int
    extent: int
    length: int
    urgent: bool
    due: float
    coming: bool = False
    key: int = 0
    check: int = 0
    told: bool = False
    held: bool = False


class Requester:
    """See the module. `over(node, why)` is called when a node is to be asked no more. `checker`: threads that compute
    checksums of long files."""

    def __init__(
        self, transport: Transport, arena: memoryview, nodes: NodeHealth, out: Out, to_stager: SendToStager,
        over: Callable[[int, NodeEnd], None], clock: Callable[[], float], checker: Executor | None,
    ) -> None:  # fmt: skip
        self._transport, self._arena, self._nodes = transport, arena, nodes
        self._out, self._to_stager, self._over, self._clock = out, to_stager, over, clock
        self._checker = checker
        self._checking: list[tuple[NodeRequest, Future[bool]]] = []  # they have a key, and nothing writes them
        self._tags = deque(range(1, TAGS + 1))
        self._wants: dict[int, NodeRequest] = {}  # by tag
        self._count = [0] * nodes.size  # of them, by node
        self._by_ask: dict[int, NodeRequest] = {}  # those that the stager waits for, or whose extents it does not use
        self._by_key: dict[int, NodeRequest] = {}
        self.under_way = 0  # bytes that were asked for
        self.files = self.bytes = self.refused = self.late = self.corrupt = 0

    def __len__(self) -> int:
        return len(self._wants)

    # ---- what the stager says -----------------------------------------------------------------------------

    def ask(self, ask: int, row: int, extent: int, length: int, mtime_ns: int, node: int, urgent: int) -> None:
        """Bring a file of a node into an extent of the arena. Raises ValueError for what cannot be."""
        fits = length > 0 and 0 <= extent <= len(self._arena) - length
        if ask in self._by_ask or not fits or row < 0 or urgent > 1:
            raise ValueError("an order that cannot be")
        now = self._clock()
        if not self._nodes.usable(node, now) or self._count[node] >= ASKED_A_NODE or not self._tags:
            self._to_stager(Local.GOT, (ask, 0, Status.LOST, 0))
            return
        want = NodeRequest(ask, node, self._tags.popleft(), extent, length, bool(urgent), now + SILENT_S)
        self._wants[want.tag] = self._by_ask[ask] = want
        self._count[node] += 1
        self.under_way += length
        self._out(node, _WANT, (want.tag, row, length, mtime_ns, urgent))

    def hurry(self, ask: int) -> None:
        """A reader waits for it."""
        want = self._by_ask.get(ask)
        if want is not None and not want.urgent and not want.told:
            want.urgent = True
            if want.coming:
                want.due = min(want.due, self._due(want))
            if not want.key:
                self._out(want.node, Kind.HURRY, (want.tag,))

    def give_up(self, ask: int) -> None:
        """The stager does not wait for it any more, and wants to know when nothing will write its extent."""
        want = self._by_ask.get(ask)
        if want is None:
            self._to_stager(Local.FREED, (ask,))  # it has ended, or was never heard of
        elif not want.told:
            self._abandon(want)
            if not want.held:
                self._to_stager(Local.FREED, (ask,))

    def use_arena(self, arena: memoryview) -> None:
        """Extents lie there from now on."""
        self._arena = arena

    def stager_gone(self) -> None:
        """Nobody waits for anything any more."""
        for want in list(self._by_ask.values()):
            if not want.told:
                self._abandon(want)
            want.held = False  # the next one may give its requests the same numbers
        self._by_ask.clear()

    def writes(self) -> list[tuple[int, int]]:
        """(offset, length) of the arena's extents that may still be written to."""
        return [(want.extent, want.length) for want in self._by_key.values() if want.extent >= 0]

    def _abandon(self, want: NodeRequest) -> None:
        """Wait for it no more."""
        want.told = True
        if want.key:
            want.held = True
            self._transport.cancel(want.key)
        else:
            self._by_ask.pop(want.ask, None)
            self._out(want.node, Kind.DROP, (want.tag,))

    # ---- what nodes say -----------------------------------------------------------------------------------

    def answered(self, node: int, tag: int, check: int, status: int) -> None:
        """Raises ValueError for an answer to nothing."""
        want = self._wants.get(tag)
        if want is None or want.node != node or want.key:
            raise ValueError("an answer to nothing")
        if status == _OK:
            self._nodes.heard(node)
            if want.length >= TAKES_LONG:
                self._is_coming(want)  # or the stager's limit were that of a sign of life
            want.check, want.coming = check, True
            want.due = self._due(want)
            if want.told:
                self._receive_nowhere(want)
            else:
                self._receive(want, self._arena[want.extent : want.extent + want.length])
        elif status == _COMING:
            self._is_coming(want)
        elif status == _NO:
            self._nodes.heard(node)
            self._end(want)
            self.refused += 1
            self._tell(want, _NO)
        else:
            raise ValueError("an answer that cannot be")

    def _is_coming(self, want: NodeRequest) -> None:
        """Once: who says no more than that for ever is late all the same."""
        if not want.coming and not want.told:
            want.coming = True
            want.due = self._due(want)
            self._to_stager(_GOT, (want.ask, 0, _COMING, 0))

    def _receive(self, want: NodeRequest, view: memoryview) -> None:
        want.key = self._transport.start_receive(want.node, want.tag, view)
        self._by_key[want.key] = want

    def _receive_nowhere(self, want: NodeRequest) -> None:
        """Bytes that nobody wants any more must be received all the same: the sender waits for that."""
        want.extent = -1
        self._receive(want, memoryview(mmap.mmap(-1, want.length)))

    def received(self, key: int, length: int) -> bool:
        """A transfer has ended; whether it was one of these."""
        want = self._by_key.pop(key, None)
        if want is None:
            return False
        if length == CANCELLED and want.node not in self._nodes.lost:  # the bytes are still to come
            self._receive_nowhere(want)
            self._free(want)
            return True
        whole = length == want.length and not want.told
        if whole and length >= CHECKED_APART and self._checker is not None:
            self._checking.append((want, self._checker.submit(self._is_right, want)))
        else:
            self._finish(want, length, right=whole and self._is_right(want))
        return True

    def checked(self) -> bool:
        """End what was checked meanwhile; whether there was anything."""
        some = [one for one in self._checking if one[1].done()]
        for one in some:
            self._checking.remove(one)
            want, right = one
            self._finish(want, want.length, right=right.result())
        return bool(some)

    def _finish(self, want: NodeRequest, length: int, *, right: bool) -> None:
        """So many bytes came for it, and nothing more will."""
        self._end(want)
        if want.told:
            self._free(want)
        elif right:
            self._nodes.answered(want.node)
            self.files += 1
            self.bytes += length
            self._tell(want, _OK, want.check, soon=want.urgent or length >= CHECKED_APART)
        elif length == FAILED:
            self._tell(want, Status.LOST)
            self._over(want.node, NodeEnd.LOST)
        else:
            self.corrupt += 1
            self._tell(want, Status.CORRUPT)
            if self._nodes.corrupt(want.node):
                self._over(want.node, NodeEnd.CORRUPT)

    def _is_right(self, want: NodeRequest) -> bool:
        return bool(xxhash.xxh3_64_intdigest(self._arena[want.extent : want.extent + want.length]) == want.check)

    def _free(self, want: NodeRequest) -> None:
        if want.held:
            want.held = False
            if self._by_ask.pop(want.ask, None) is not None:
                self._to_stager(Local.FREED, (want.ask,))

    def node_gone(self, node: int) -> None:
        """It will not be asked any more: what it was asked for is LOST."""
        for want in [want for want in self._wants.values() if want.node == node]:
            if not want.told:
                self._give_up_for(want, Status.LOST)
            if not want.key and node in self._nodes.lost:
                self._end(want)

    # ---- limits -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Give up what has taken too long."""
        now = self._clock()
        for want in list(self._wants.values()):
            if not want.told and want.due < now:
                self.late += 1
                self._nodes.silent(want.node, now)
                self._give_up_for(want, Status.LATE)

    def _due(self, want: NodeRequest) -> float:
        """When it is to be given up, if this is the last that is heard of it."""
        return self._clock() + limit_s(coming=want.coming, urgent=want.urgent, length=want.length)

    def _give_up_for(self, want: NodeRequest, status: Status) -> None:
        self._abandon(want)
        self._to_stager(Local.GOT, (want.ask, 0, status, int(want.held)))

    # ---- small parts --------------------------------------------------------------------------------------

    def _end(self, want: NodeRequest) -> None:
        """Nothing more comes for its tag."""
        del self._wants[want.tag]
        self._tags.append(want.tag)
        self._count[want.node] -= 1
        self.under_way -= want.length

    def _tell(self, want: NodeRequest, status: int, check: int = 0, *, soon: bool = True) -> None:
        if not want.told:
            want.told = True
            del self._by_ask[want.ask]
            self._to_stager(_GOT, (want.ask, check, status, 0), soon=soon)
