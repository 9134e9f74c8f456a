"""Routing in the peer process. Each message, of a node or of the stager, and each transfer that has ended goes to the
requester, the responder or the supervisor. Nothing here waits; `peer/process.py` calls it. Pure but for the transport.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from nopfsfs.peer.node_health import NodeEnd, NodeHealth
from nopfsfs.peer.requester import Requester
from nopfsfs.peer.responder import Responder
from nopfsfs.peer.transport import Transport
from nopfsfs.protocol.between_peers import (
    FromNode,
    Hurry,
    Leave,
    News,
    NodeAnswer,
    Record,
    Records,
    Want,
    decode,
    encode_records,
)
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.stager_peer import Record as StagerRecord
from nopfsfs.protocol.stager_peer import RecordKind

log = logging.getLogger(__name__)
_GOT, _BACK = RecordKind.GOT, RecordKind.BACK
T = TypeVar("T")
TICK_S = 0.1  # between checks of the limits
# Records kept back for the next ones to come: to wake a process costs more than the rest of a remote fetch.
GOTS_MOST, BACKS_MOST = 16, 64


def _each(records: list[T], do: Callable[[T], None]) -> None:
    """Call `do` for each record, also after a wrong one. Raises ValueError in the end if one was wrong."""
    wrong = None
    for record in records:
        try:
            do(record)
        except ValueError as e:
            wrong = e
    if wrong is not None:
        raise wrong


class PeerRouter:
    """Router of one node; owns its `NodeHealth`, `Requester` and `Responder`. `arena`: the mapped arena. `job`: a
    number that all ranks have in common. `to_stager(kind, records)` sends to the stager; `news(node, body)` takes news
    of another node's supervisor; `over(node, why)`: the node gets no more requests."""

    def __init__(
        self, transport: Transport, arena: memoryview, job: int, *,
        to_stager: Callable[[RecordKind, list[StagerRecord]], None], news: Callable[[int, bytes], None],
        over: Callable[[int, NodeEnd], None], clock: Callable[[], float], checker: Executor | None = None,
    ) -> None:  # fmt: skip
        self._transport, self._job, self._clock = transport, job, clock
        self._send_stager, self._news, self._tell_over = to_stager, news, over
        self.nodes = NodeHealth(transport.rank, transport.size)
        self._out: defaultdict[int, list[Record]] = defaultdict(list)  # by node, oldest first
        # Records by kind, oldest first. Kinds are sent by rising number, in whichever sequence their records came: of
        # one file a BACK is sent after its LEND.
        self._local: defaultdict[RecordKind, list[StagerRecord]] = defaultdict(list)
        self._pressing = False  # a record of `_local` must be sent soon
        self.responder = Responder(transport, arena, self._put, self._put_local)
        self.requester = Requester(
            transport, arena, self.nodes, self._put, self._put_local, self._over, clock, checker
        )
        self._ticked = clock()
        self._left = False
        self.garbage = 0

    # ---- one round ----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Handle messages of nodes and transfers that have ended; return True when there was any."""
        came = self._transport.receive()
        for node, body in came:
            self._take(node, body)
        active = bool(came) | self.requester.checked()
        for key, length in self._transport.done() if self._transport.busy else ():
            active = True
            if not self.requester.received(key, length):
                self.responder.sent(key, length)
        now = self._clock()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self.requester.tick()
        self.flush(more=active)
        return active

    def flush(self, *, more: bool = False) -> None:
        """Send the records that wait. `more`: more may come soon, and records that nothing waits for are sent with
        them."""
        out, self._out = self._out, defaultdict(list)
        for node, records in out.items():
            for message in encode_records(self._job, records):
                self._send(node, message)
        self.responder.send()
        self._flush_local(more=more)

    def _flush_local(self, *, more: bool) -> None:
        local, self._local = self._local, defaultdict(list)
        pressing, self._pressing = self._pressing, False
        if self._transport.has_more and not pressing and 0 < len(local.get(_GOT, ())) < GOTS_MOST:
            self._local[_GOT] = local.pop(_GOT)
        if more and 0 < len(local.get(_BACK, ())) < BACKS_MOST:
            self._local[_BACK] = local.pop(_BACK)
        if self.responder.lends:
            for what in sorted(local):
                self._send_stager(what, local[what])

    def _send(self, node: int, message: bytes) -> None:
        if node not in self.nodes.lost and not self._transport.send(node, message):
            self._over(node, NodeEnd.LOST)

    def _put(self, node: int, record: Record) -> None:
        self._out[node].append(record)

    def _put_local(self, kind: RecordKind, record: StagerRecord, *, soon: bool = True) -> None:
        self._local[kind].append(record)
        if soon:
            self._pressing = True

    # ---- the stager ---------------------------------------------------------------------------------------

    def stager_came(self) -> None:
        self._local.clear()
        self.responder.lends = True

    def use_arena(self, arena: memoryview) -> None:
        """Use the arena of the next stager. Called while there is no stager and nothing writes the arena before."""
        self.responder.use_arena(arena)
        self.requester.use_arena(arena)

    def stager_gone(self) -> None:
        self.responder.stager_gone()
        self.requester.stager_gone()
        self.flush()
        self._local.clear()

    def from_stager(self, kind: RecordKind, records: list[StagerRecord]) -> None:
        """Handle records of the stager. Raises ValueError for an invalid one; the others are handled all the same."""
        match kind:
            case RecordKind.ASK:
                _each(records, lambda record: self.requester.ask(*record))
            case RecordKind.HURRY:
                for (ask,) in records:
                    self.requester.hurry(ask)
            case RecordKind.GIVE_UP:
                for (ask,) in records:
                    self.requester.give_up(ask)
            case RecordKind.LENT:
                for record in records:
                    self.responder.lent(*record)
            case _:
                raise ValueError(f"{kind.name} is not for the peer process")

    # ---- the nodes ----------------------------------------------------------------------------------------

    def send_news(self, node: int, body: bytes) -> None:
        """Send news to the supervisor of `node`; below 0: to those of all others."""
        message = encode(News(self._job, body))
        others = self.nodes.others()
        for one in others if node < 0 else [node] if node in others else []:
            self._send(one, message)

    def leave(self) -> None:
        """Send Leave to all other nodes, once: this node takes no more requests, and sends none."""
        if not self._left:
            self._left = True
            self.flush()
            message = encode(Leave(self._job))
            for node in range(self.nodes.size):
                if node != self.nodes.own:
                    self._transport.send(node, message)  # to lost ones, too: a node that lives waits for Leave

    def _take(self, node: int, body: bytes | None) -> None:
        if node in self.nodes.lost:
            return
        try:
            if body is None:
                raise ValueError("a message too long")
            self._handle(node, decode(body, self._job))
        except ValueError as e:
            self.garbage += 1
            if node not in self.nodes.over:
                log.error("node %d sent garbage: %s", node, e)
            # later messages of the node are still handled: it may have leases, and may leave
            self._over(node, NodeEnd.GARBAGE)

    def _handle(self, node: int, message: FromNode) -> None:
        if isinstance(message, Records):
            _each(message.records, lambda record: self._handle_record(node, record))
        elif isinstance(message, News):
            self._news(node, message.body)
        else:
            self._over(node, NodeEnd.LEFT)

    def _handle_record(self, node: int, record: Record) -> None:
        if isinstance(record, NodeAnswer):
            self.requester.answered(node, record)
        elif isinstance(record, Want):
            self.responder.want(node, record)
        elif isinstance(record, Hurry):
            self.responder.hurry(node, record)
        else:
            self.responder.drop(node, record)

    def _over(self, node: int, why: NodeEnd) -> None:
        """Send `node` no more requests; report that once."""
        was_gone = node in self.nodes.gone
        news = self.nodes.end(node, why)
        if news:
            level = logging.INFO if why == NodeEnd.LEFT else logging.WARNING
            log.log(level, "node %d is asked no more: %s", node, why.value)
            self._tell_over(node, why)
        if news or why == NodeEnd.LOST:
            self.requester.node_gone(node)
        if node in self.nodes.gone and not was_gone:
            self.responder.node_gone(node)
