"""Remote fetches of this node's stager: requests to other nodes, their limits, the bytes that come, and their
checksums. Pure but for the transport.

A tag is in use from its request until nothing more can come for it. A request that was given up before its answer came
is still answered. Where the answer is bytes, they are received into memory that nothing else uses.
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
from nopfsfs.protocol.between_peers import TAGS, Drop, Hurry, NodeAnswer, Want
from nopfsfs.protocol.stager_peer import SILENT_S, LeaseStatus, RecordKind, limit_s

ASKED_A_NODE = LENT_A_NODE // 2  # requests to one node; more are refused here, or that node would call them invalid

# To read an Enum's attribute is slow.
_OK, _COMING = int(LeaseStatus.OK), int(LeaseStatus.COMING)
_NO, _SENDING = int(LeaseStatus.NO), int(LeaseStatus.SENDING)
_GOT = RecordKind.GOT
TAKES_LONG = 1 << 20  # bytes; so many may take longer than SILENT_S
CHECKED_APART = 1 << 20  # bytes; so many are checked in a thread, while the next ones arrive


@dataclass(slots=True, eq=False)
class NodeRequest:
    """File that another node was asked for. `due`: when this node gives it up; `key`: of its transfer, 0 before that.
    `told`: the stager has the result, or does not wait for it. `held`: the stager waits for FREED, because a transfer
    may still write the extent."""

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
    """Requests of this node to others. `over(node, why)` is called when a node is to get no more requests. `checker`:
    threads that compute checksums of long files."""

    def __init__(
        self, transport: Transport, arena: memoryview, nodes: NodeHealth, out: Out, to_stager: SendToStager,
        over: Callable[[int, NodeEnd], None], clock: Callable[[], float], checker: Executor | None,
    ) -> None:  # fmt: skip
        self._transport, self._arena, self._nodes = transport, arena, nodes
        self._out, self._to_stager, self._over, self._clock = out, to_stager, over, clock
        self._checker = checker
        self._checking: list[tuple[NodeRequest, Future[bool]]] = []  # `key` is set, and nothing writes the extent
        self._tags = deque(range(1, TAGS + 1))
        self._wants: dict[int, NodeRequest] = {}  # by tag
        self._count = [0] * nodes.size  # of `_wants`, by node
        self._by_ask: dict[int, NodeRequest] = {}  # those that the stager waits for, or that are `held`
        self._by_key: dict[int, NodeRequest] = {}
        self.under_way = 0  # bytes that were asked for and not ended
        self.files = self.bytes = self.refused = self.late = self.corrupt = 0

    def __len__(self) -> int:
        return len(self._wants)

    # ---- messages of the stager ---------------------------------------------------------------------------

    def ask(self, ask: int, row: int, extent: int, length: int, mtime_ns: int, node: int, urgent: int) -> None:
        """Request a file of `node` for an extent of the arena. Raises ValueError for invalid values."""
        fits = length > 0 and 0 <= extent <= len(self._arena) - length
        if ask in self._by_ask or not fits or row < 0 or urgent > 1:
            raise ValueError("an order that cannot be")
        now = self._clock()
        if not self._nodes.usable(node, now) or self._count[node] >= ASKED_A_NODE or not self._tags:
            self._to_stager(_GOT, (ask, 0, LeaseStatus.LOST, 0))
            return
        want = NodeRequest(ask, node, self._tags.popleft(), extent, length, bool(urgent), now + SILENT_S)
        self._wants[want.tag] = self._by_ask[ask] = want
        self._count[node] += 1
        self.under_way += length
        self._out(node, Want(want.tag, row, length, mtime_ns, want.urgent))

    def hurry(self, ask: int) -> None:
        """Mark a request as urgent: a reader waits for its file."""
        want = self._by_ask.get(ask)
        if want is not None and not want.urgent and not want.told:
            want.urgent = True
            if want.coming:
                want.due = min(want.due, self._due(want))
            if not want.key:
                self._out(want.node, Hurry(want.tag))

    def give_up(self, ask: int) -> None:
        """Give up a request that the stager does not wait for any more. Sends FREED when nothing will write its
        extent."""
        want = self._by_ask.get(ask)
        if want is None:
            self._to_stager(RecordKind.FREED, (ask,))  # the request has ended, or there never was one
        elif not want.told:
            self._abandon(want)
            if not want.held:
                self._to_stager(RecordKind.FREED, (ask,))

    def use_arena(self, arena: memoryview) -> None:
        """Use this arena for extents from now on."""
        self._arena = arena

    def stager_gone(self) -> None:
        """Give up all requests: there is no stager that waits for them."""
        for want in list(self._by_ask.values()):
            if not want.told:
                self._abandon(want)
            want.held = False  # the next stager may give its requests the same numbers
        self._by_ask.clear()

    def writes(self) -> list[tuple[int, int]]:
        """Extents of the arena that may still be written to, as (offset, length)."""
        return [(want.extent, want.length) for want in self._by_key.values() if want.extent >= 0]

    def _abandon(self, want: NodeRequest) -> None:
        """Stop waiting for a request: cancel its transfer, or send DROP."""
        want.told = True
        if want.key:
            want.held = True
            self._transport.cancel(want.key)
        else:
            self._by_ask.pop(want.ask, None)
            self._out(want.node, Drop(want.tag))

    # ---- messages of nodes --------------------------------------------------------------------------------

    def answered(self, node: int, answer: NodeAnswer) -> None:
        """Handle an answer of `node`. Raises ValueError for an invalid one, or one without a request."""
        status = answer.status
        want = self._wants.get(answer.tag)
        if want is None or want.node != node or want.key:
            raise ValueError("an answer to nothing")
        if status == _OK:
            self._nodes.heard(node)
            if want.length >= TAKES_LONG:
                self._goes_on(want, _SENDING)  # else the stager would give up after SILENT_S
            want.check, want.coming = answer.check, True
            want.due = self._due(want)
            if want.told:
                self._receive_nowhere(want)
            else:
                self._receive(want, self._arena[want.extent : want.extent + want.length])
        elif status == _COMING:
            self._goes_on(want, _COMING)
        elif status == _NO:
            self._nodes.heard(node)
            self._end(want)
            self.refused += 1
            self._tell(want, _NO)
        else:
            raise ValueError("an answer that cannot be")

    def _goes_on(self, want: NodeRequest, status: int) -> None:
        """Send COMING or SENDING to the stager and extend the limit, once: a node that sends COMING again and again is
        late all the same."""
        if not want.coming and not want.told:
            want.coming = True
            want.due = self._due(want)
            self._to_stager(_GOT, (want.ask, 0, status, 0))

    def _receive(self, want: NodeRequest, view: memoryview) -> None:
        want.key = self._transport.start_receive(want.node, want.tag, view)
        self._by_key[want.key] = want

    def _receive_nowhere(self, want: NodeRequest) -> None:
        """Receive bytes that are not needed any more into memory of their own: the sender waits until they are
        received."""
        want.extent = -1
        self._receive(want, memoryview(mmap.mmap(-1, want.length)))

    def received(self, key: int, length: int) -> bool:
        """Handle the end of transfer `key`; return True when it is that of a request."""
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
        """Finish requests whose checksums were computed meanwhile; return True when there was any."""
        some = [one for one in self._checking if one[1].done()]
        for one in some:
            self._checking.remove(one)
            want, right = one
            self._finish(want, want.length, right=right.result())
        return bool(some)

    def _finish(self, want: NodeRequest, length: int, *, right: bool) -> None:
        """Finish a request for which `length` bytes came, or CANCELLED or FAILED, and nothing more will come."""
        self._end(want)
        if want.told:
            self._free(want)
        elif right:
            self._nodes.answered(want.node)
            self.files += 1
            self.bytes += length
            self._tell(want, _OK, want.check, soon=want.urgent or length >= CHECKED_APART)
        elif length == FAILED:
            self._tell(want, LeaseStatus.LOST)
            self._over(want.node, NodeEnd.LOST)
        else:
            self.corrupt += 1
            self._tell(want, LeaseStatus.CORRUPT)
            if self._nodes.corrupt(want.node):
                self._over(want.node, NodeEnd.CORRUPT)

    def _is_right(self, want: NodeRequest) -> bool:
        return bool(xxhash.xxh3_64_intdigest(self._arena[want.extent : want.extent + want.length]) == want.check)

    def _free(self, want: NodeRequest) -> None:
        if want.held:
            want.held = False
            if self._by_ask.pop(want.ask, None) is not None:
                self._to_stager(RecordKind.FREED, (want.ask,))

    def node_gone(self, node: int) -> None:
        """Answer the stager's requests to `node` with LOST: the node gets no more requests."""
        for want in [want for want in self._wants.values() if want.node == node]:
            if not want.told:
                self._give_up_for(want, LeaseStatus.LOST)
            if not want.key and node in self._nodes.lost:
                self._end(want)

    # ---- limits -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Give up requests that have taken too long."""
        now = self._clock()
        for want in list(self._wants.values()):
            if not want.told and want.due < now:
                self.late += 1
                self._nodes.silent(want.node, now)
                self._give_up_for(want, LeaseStatus.LATE)

    def _due(self, want: NodeRequest) -> float:
        """The time at which to give up a request, if nothing more comes for it."""
        return self._clock() + limit_s(coming=want.coming, urgent=want.urgent, length=want.length)

    def _give_up_for(self, want: NodeRequest, status: LeaseStatus) -> None:
        self._abandon(want)
        self._to_stager(_GOT, (want.ask, 0, status, int(want.held)))

    # ---- small parts --------------------------------------------------------------------------------------

    def _end(self, want: NodeRequest) -> None:
        """Remove a request and free its tag: nothing more comes for the tag."""
        del self._wants[want.tag]
        self._tags.append(want.tag)
        self._count[want.node] -= 1
        self.under_way -= want.length

    def _tell(self, want: NodeRequest, status: int, check: int = 0, *, soon: bool = True) -> None:
        if not want.told:
            want.told = True
            del self._by_ask[want.ask]
            self._to_stager(_GOT, (want.ask, check, status, 0), soon=soon)
