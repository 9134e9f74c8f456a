"""Stagers that follow `stager_peer` and do else what the test says, and nodes that have one and an exchange.

A stager knows of each extent what it may hold: one that is free holds FREE in each byte, so that whoever writes it is
seen; one that is lent holds the file until it is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from nopfsfs.peer.node_health import NodeEnd
from nopfsfs.peer.router import PeerRouter
from nopfsfs.protocol.between_peers import Records, Want, decode
from nopfsfs.protocol.stager_peer import LeaseStatus, Record, RecordKind
from tests.peer.network import Network

JOB = 0x0123_4567_89AB_CDEF
ROWS = 40
SLOT, SLOTS = 64, 96
FREE = bytes([0xEE]) * SLOT
FINAL = set(LeaseStatus) - {LeaseStatus.COMING, LeaseStatus.SENDING}


def length_of(row: int) -> int:
    return 1 + row * 29 % SLOT


def mtime_of(row: int) -> int:
    return 1_000_000_007 * row


def content(row: int) -> bytes:
    return bytes((row * 7 + i * 13 + 1) % 251 for i in range(length_of(row)))


def check_of(row: int) -> int:
    return xxhash.xxh3_64_intdigest(content(row))


def types_of(message: bytes) -> list[type]:
    """The types of a message's records; of a message without records its own."""
    found = decode(message, JOB)
    return [type(record) for record in found.records] if isinstance(found, Records) else [type(found)]


@dataclass(eq=False)
class Ask:
    """`given_up`, `held`: it waits for FREED. `freed`: how often that came."""

    id: int
    node: int
    row: int
    slot: int
    final: LeaseStatus | None = None
    goes_on: list[LeaseStatus] = field(default_factory=list)  # COMING or SENDING
    given_up: bool = False
    held: bool = False
    freed: int = 0

    @property
    def is_over(self) -> bool:
        """Nothing writes its extent any more, as far as the stager was told."""
        return self.freed > 0 or (self.final is not None and not self.held)


@dataclass(eq=False)
class Loan:
    id: int
    row: int
    length: int
    mtime_ns: int
    urgent: bool
    slot: int = -1  # once it was lent
    held: bytes = FREE  # what the extent holds


class Stager:
    """One stager. What it is told lies in `inbox` until `take`; what it says in `outbox` until the node's step."""

    def __init__(self, arena: memoryview) -> None:
        self._arena = arena
        self.inbox: deque[tuple[RecordKind, Record]] = deque()
        self.outbox: deque[tuple[RecordKind, list[Record]]] = deque()
        self.free = deque(range(SLOTS))
        self.asks: dict[int, Ask] = {}
        self.loans: dict[int, Loan] = {}
        self.cancelled: set[int] = set()  # loans given back before they were lent
        self.backs = 0
        for slot in self.free:
            self._fill(slot)

    def at(self, slot: int, length: int = SLOT) -> memoryview:
        return self._arena[slot * SLOT : slot * SLOT + length]

    def _fill(self, slot: int) -> None:
        self.at(slot)[:] = FREE

    # ---- asking -------------------------------------------------------------------------------------------

    def ask(self, node: int, row: int, *, urgent: bool = False) -> Ask | None:
        if not self.free:
            return None
        ask = Ask(len(self.asks) + 1, node, row, self.free.popleft())
        self.asks[ask.id] = ask
        record = (ask.id, row, ask.slot * SLOT, length_of(row), mtime_of(row), node, int(urgent))
        self.outbox.append((RecordKind.ASK, [record]))
        return ask

    def hurry(self, ask: Ask) -> None:
        self.outbox.append((RecordKind.HURRY, [(ask.id,)]))

    def give_up(self, ask: Ask) -> None:
        """What has ended, as far as this one knows, is not given up, and nothing twice."""
        if ask.final is None and not ask.given_up:
            ask.given_up = True
            self.outbox.append((RecordKind.GIVE_UP, [(ask.id,)]))

    def open(self) -> list[Ask]:
        return [ask for ask in self.asks.values() if ask.final is None and not ask.given_up]

    def _got(self, id: int, check: int, status: int, held: int) -> None:
        ask = self.asks[id]
        assert ask.final is None, "answered twice"
        assert not ask.freed, "answered after it was freed"
        if status not in FINAL:
            assert not held
            ask.goes_on.append(LeaseStatus(status))
            assert len(ask.goes_on) == 1, "coming again and again"
            return
        ask.final, ask.held = LeaseStatus(status), bool(held)
        if status == LeaseStatus.OK:
            assert not held
            assert bytes(self.at(ask.slot, length_of(ask.row))) == content(ask.row), "wrong bytes"
            assert check == check_of(ask.row)
        if not held:
            self._let_go(ask)

    def _freed(self, id: int) -> None:
        ask = self.asks[id]
        ask.freed += 1
        assert ask.given_up or ask.held, "freed, but nobody gave it up"
        # A final answer and FREED may both have been said when GIVE_UP came: then that is answered too.
        assert ask.freed <= (ask.given_up + ask.held), "freed too often"
        if ask.freed == 1 and (ask.final is None or ask.held):
            self._let_go(ask)

    def _let_go(self, ask: Ask) -> None:
        self._fill(ask.slot)
        self.free.append(ask.slot)

    # ---- lending ------------------------------------------------------------------------------------------

    def _lend(self, id: int, row: int, length: int, mtime_ns: int, urgent: int) -> None:
        known = self.loans.get(id)
        assert id not in self.cancelled, "asked for after it was given back"
        if known is None:
            self.loans[id] = Loan(id, row, length, mtime_ns, bool(urgent))
        else:
            assert (known.row, known.length, known.mtime_ns) == (row, length, mtime_ns)
            assert urgent
            assert not known.urgent, "hurried twice"
            known.urgent = True

    def pending(self) -> list[Loan]:
        return [loan for loan in self.loans.values() if loan.slot < 0]

    def lend(self, loan: Loan, *, check: int | None = None) -> None:
        """Lend it, if there is room and such a file."""
        known = 0 <= loan.row < ROWS and (length_of(loan.row), mtime_of(loan.row)) == (loan.length, loan.mtime_ns)
        if not known or not self.free:
            self.refuse(loan)
            return
        loan.slot = self.free.popleft()
        self.at(loan.slot, loan.length)[:] = content(loan.row)
        loan.held = bytes(self.at(loan.slot))
        said = check_of(loan.row) if check is None else check
        self._say(loan.id, loan.slot * SLOT, loan.length, said, LeaseStatus.OK)

    def lend_wrong(self, loan: Loan, extent: int, length: int) -> None:
        """As a stager that has lost its mind would."""
        loan.slot = self.free.popleft()
        self._say(loan.id, extent, length, 0, LeaseStatus.OK)

    def coming(self, loan: Loan) -> None:
        self._say(loan.id, 0, loan.length, 0, LeaseStatus.COMING)

    def refuse(self, loan: Loan) -> None:
        del self.loans[loan.id]
        self._say(loan.id, 0, 0, 0, LeaseStatus.NO)

    def _say(self, *record: int) -> None:
        self.outbox.append((RecordKind.LENT, [record]))

    def _back(self, id: int) -> None:
        self.backs += 1
        loan = self.loans.pop(id, None)
        if loan is None:
            return  # refused, or cancelled, meanwhile
        if loan.slot < 0:
            self.cancelled.add(id)
            return
        assert bytes(self.at(loan.slot)) == loan.held, "written to while it was lent"
        self._fill(loan.slot)
        self.free.append(loan.slot)

    # ---- both ---------------------------------------------------------------------------------------------

    def take(self, most: int = 1 << 30) -> int:
        """Take what was said; how many."""
        take_by = {
            RecordKind.GOT: self._got, RecordKind.FREED: self._freed, RecordKind.LEND: self._lend,
            RecordKind.BACK: self._back,
        }  # fmt: skip
        count = min(most, len(self.inbox))
        for _ in range(count):
            kind, record = self.inbox.popleft()
            take_by[kind](*record)
        return count

    def check(self) -> None:
        """Nobody has written where nobody may."""
        for slot in self.free:
            assert bytes(self.at(slot)) == FREE, "written to after it was free"
        for loan in self.loans.values():
            if loan.slot >= 0:
                assert bytes(self.at(loan.slot)) == loan.held, "written to while it was lent"


class Node:
    """An exchange, with its end of the network, a stager or none, and what its supervisor was told."""

    def __init__(self, network: Network, rank: int, clock: Callable[[], float]) -> None:
        self.network, self.rank = network, rank
        self.arena = memoryview(bytearray(SLOT * SLOTS))
        self.stager: Stager | None = None
        self.heard: list[tuple[int, bytes]] = []
        self.over: list[tuple[int, NodeEnd]] = []
        self.exchange = PeerRouter(
            network.ends[rank], self.arena, JOB, to_stager=self._to_stager, clock=clock,
            news=lambda node, body: self.heard.append((node, body)),
            over=lambda node, why: self.over.append((node, why)),
        )  # fmt: skip
        self.not_to_be_asked: set[int] = set()
        self.has_left = False

    def _to_stager(self, kind: RecordKind, records: list[Record]) -> None:
        assert self.stager is not None
        self.stager.inbox.extend((kind, record) for record in records)

    @property
    def st(self) -> Stager:
        assert self.stager is not None
        return self.stager

    def stager_comes(self) -> Stager:
        """Only where nothing will write what is another's: the supervisor waits for that."""
        assert self.stager is None
        assert not self.exchange.requester.writes()
        self.stager = Stager(self.arena)
        self.exchange.stager_came()
        return self.stager

    def stager_goes(self) -> None:
        self.network.forgive(self.rank)
        self.stager = None
        self.exchange.stager_gone()

    def leave(self) -> None:
        """As a mount that has ended."""
        self.stager_goes()
        self.exchange.leave()
        self.has_left = True

    def step(self) -> bool:
        """One turn of the loop; whether there was anything."""
        self.not_to_be_asked = set(self.exchange.nodes.over)
        said = False
        if self.stager is not None:
            while self.stager.outbox:
                said = True
                self.exchange.from_stager(*self.stager.outbox.popleft())
        return self.exchange.step() or said

    def check_at_rest(self) -> None:
        """Nothing is left of anything."""
        requester, responder = self.exchange.requester, self.exchange.responder
        assert len(requester) == 0
        assert not requester._by_ask
        assert not requester._by_key
        assert not any(requester._count)
        assert sorted(requester._tags) == list(range(1, 16_385)), "tags are missing"
        assert not requester.writes()
        assert len(responder) == 0
        assert not responder._of
        assert not responder._by_key
        assert not any(responder._count)
        assert not self.network.ends[self.rank].busy
        if self.stager is not None:
            self.stager.check()
            assert all(ask.is_over for ask in self.stager.asks.values()), "never answered"
            assert not any(ask.given_up and not ask.freed for ask in self.stager.asks.values()), "never freed"
            assert not self.stager.loans, "never given back"
            assert len(self.stager.free) == SLOTS


class Cluster:
    """Nodes with a network and a clock, all of which do nothing by themselves."""

    def __init__(self, size: int, *, stagers: bool = True) -> None:
        self.now = 1000.0
        self.network = Network(size)
        self.nodes = [Node(self.network, rank, lambda: self.now) for rank in range(size)]
        self.network.on_send = self._sent
        if stagers:
            for node in self.nodes:
                node.stager_comes()

    def _sent(self, node: int, to: int, message: bytes) -> None:
        assert Want not in types_of(message) or to not in self.nodes[node].not_to_be_asked, "asked though it is over"

    def turn(self, *only: int) -> bool:
        """Everything that lies there arrives, and each node (or only some) does one step."""
        moved = self.network.deliver_all() > 0
        for node in self.nodes:
            if not only or node.rank in only:
                moved |= node.step()
                if node.stager is not None:
                    moved |= node.stager.take() > 0
        return moved

    def settle(self, *only: int) -> None:
        """Turns until nothing moves; loans stay pending, and bytes under way."""
        for _ in range(1000):
            if not self.turn(*only):
                return
        raise AssertionError("it never comes to rest")

    def wait(self, seconds: float, *only: int) -> None:
        """Time passes, in small steps."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.1 + seconds / 100)
            self.turn(*only)

    def drain(self) -> None:
        """Everything that was begun ends: all lend what they have, all bytes arrive."""
        self.network.late_cancels = self.network.slow_bytes = False
        for end in self.network.ends:
            end.has_more = False
        for _ in range(1000):
            moved = self.turn()
            self.network.decide()
            for node in self.nodes:
                if node.stager is not None:
                    for loan in node.stager.pending():
                        node.stager.lend(loan)
                        moved = True
            moved |= self.network.set_out() > 0
            if not (self.network.finish_all() or moved or not self.network.quiet):
                return
        raise AssertionError("it never comes to rest")

    def check_at_rest(self) -> None:
        for node in self.nodes:
            node.check_at_rest()
        assert not self.network.unmatched()
