"""Requests of other nodes to this one: they go to the stager, whose answers and bytes go back to the nodes. Pure but
for the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nopfsfs.peer.transport import Transport
from nopfsfs.protocol.between_peers import Drop, Hurry, NodeAnswer, Record, Want
from nopfsfs.protocol.stager_peer import LENGTH_MOST, LeaseStatus, RecordKind

LENT_A_NODE = 1024  # requests of one node that wait or are answered; one more is invalid
TO_BE_SENT = -1
Out = Callable[[int, Record], None]


class SendToStager(Protocol):
    """Function that sends a record to the stager; `soon`: without waiting for more records."""

    def __call__(self, kind: RecordKind, record: tuple[int, ...], *, soon: bool = True) -> None: ...


@dataclass(slots=True, eq=False)
class NodeLease:
    """File that `node` wants under `tag`. `key`: of its transfer; 0 before the stager leases the file, TO_BE_SENT after
    that. `recalled`: the stager that leased the file is gone."""

    id: int
    node: int
    tag: int
    row: int
    length: int
    mtime_ns: int
    urgent: bool
    key: int = 0
    recalled: bool = False


class Responder:
    """Leases of this node's files to others. `out(node, record)` sends to a node, `to_stager(kind, record)` to the
    stager, while there is one."""

    def __init__(self, transport: Transport, arena: memoryview, out: Out, to_stager: SendToStager) -> None:
        self._transport, self._arena, self._out, self._to_stager = transport, arena, out, to_stager
        self._loans: dict[int, NodeLease] = {}
        self._of: dict[tuple[int, int], NodeLease] = {}  # by node and tag, until the answer
        self._by_key: dict[int, NodeLease] = {}
        self._to_send: list[tuple[NodeLease, memoryview]] = []
        self._count = [0] * transport.size
        self._next = 1
        self.lends = False  # there is a stager
        self.under_way = 0  # bytes that are requested and not sent yet
        self.files = self.bytes = 0

    def __len__(self) -> int:
        return len(self._loans)

    def want(self, node: int, want: Want) -> None:
        """Send a node's request for a file to the stager. Raises ValueError for one request too many."""
        tag, length = want.tag, want.length
        if (node, tag) in self._of or self._count[node] >= LENT_A_NODE:
            raise ValueError("a request too many")
        if not self.lends or length > LENGTH_MOST:
            self._out(node, NodeAnswer(tag, 0, LeaseStatus.NO))
            return
        loan = NodeLease(self._next, node, tag, want.row, length, want.mtime_ns, want.urgent)
        self._next += 1
        self._loans[loan.id] = self._of[node, tag] = loan
        self._count[node] += 1
        self.under_way += length
        self._to_stager(RecordKind.LEND, (loan.id, loan.row, length, loan.mtime_ns, loan.urgent))

    def hurry(self, node: int, hurry: Hurry) -> None:
        """Mark a request as urgent: a reader of `node` waits for its file. An answered request needs no hurry."""
        loan = self._of.get((node, hurry.tag))
        if loan is not None and not loan.urgent:
            loan.urgent = True
            self._to_stager(RecordKind.LEND, (loan.id, loan.row, loan.length, loan.mtime_ns, 1))

    def drop(self, node: int, drop: Drop) -> None:
        """End a request that `node` has given up. Bytes that are on their way arrive all the same."""
        loan = self._of.get((node, drop.tag))
        if loan is not None:
            self._give_back(loan.id)
            self._end(loan)
            self._out(node, NodeAnswer(drop.tag, 0, LeaseStatus.NO))

    def lent(self, id: int, extent: int, length: int, check: int, status: int) -> None:
        """Handle the stager's answer. `send` sends the bytes of a lease, once the answer to the node is on its way.
        Bytes that come first delay the answer at a node that looks for messages."""
        loan = self._loans.get(id)
        if loan is None or loan.key:
            if status == LeaseStatus.OK and loan is None:
                self._give_back(id)  # dropped meanwhile
            return
        if status == LeaseStatus.COMING:
            self._out(loan.node, NodeAnswer(loan.tag, 0, LeaseStatus.COMING))
            return
        whole = length == loan.length and extent >= 0 and extent + length <= len(self._arena)
        if status != LeaseStatus.OK or not whole:
            if status == LeaseStatus.OK:
                self._give_back(id)
            self._end(loan)
            self._out(loan.node, NodeAnswer(loan.tag, 0, LeaseStatus.NO))
            return
        self._out(loan.node, NodeAnswer(loan.tag, check, LeaseStatus.OK))
        loan.key = TO_BE_SENT
        self._to_send.append((loan, self._arena[extent : extent + length]))
        del self._of[loan.node, loan.tag]  # a node that has the bytes may use the tag again

    def send(self) -> None:
        """Begin to send the bytes of new leases."""
        some, self._to_send = self._to_send, []
        for loan, view in some:
            loan.key = self._transport.start_send(loan.node, loan.tag, view)
            self._by_key[loan.key] = loan

    def sent(self, key: int, length: int) -> None:
        """Handle the end of transfer `key`, if it is that of a lease."""
        loan = self._by_key.pop(key, None)
        if loan is None:
            return
        if length >= 0:
            self.files += 1
            self.bytes += loan.length
        if not loan.recalled:
            self._give_back(loan.id)
        self._end(loan)

    def use_arena(self, arena: memoryview) -> None:
        """Use this arena for extents from now on."""
        self._arena = arena

    def stager_gone(self) -> None:
        """Answer waiting requests with NO. Bytes that are being sent were leased by the stager that is gone, and may be
        overwritten: the node that receives them compares their checksum."""
        self.lends = False
        for loan in list(self._loans.values()):
            if loan.key:
                loan.recalled = True
            else:
                self._end(loan)
                self._out(loan.node, NodeAnswer(loan.tag, 0, LeaseStatus.NO))

    def node_gone(self, node: int) -> None:
        """End the requests of `node` whose bytes are not being sent yet."""
        for loan in [loan for loan in self._loans.values() if loan.node == node and not loan.key]:
            if self.lends:
                self._give_back(loan.id)
            self._end(loan)

    def _give_back(self, id: int) -> None:
        self._to_stager(RecordKind.BACK, (id,), soon=False)

    def _end(self, loan: NodeLease) -> None:
        del self._loans[loan.id]
        if not loan.key:
            del self._of[loan.node, loan.tag]
        self._count[loan.node] -= 1
        self.under_way -= loan.length
