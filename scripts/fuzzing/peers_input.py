"""Messages between nodes, and between the processes of one: the formats, the exchange of a peer process, and the
state of a stager with a peer process and servers at its sockets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from msgspec import structs

from fuzzing.core import Input, Wrong
from fuzzing.mutate import garbage, mutated, number, signed
from fuzzing.network import Transport
from fuzzing.trees import make_tree
from nopfsfs.peer.router import PeerRouter
from nopfsfs.peer.transport import NodeMessage
from nopfsfs.protocol import between_peers, stager_peer, supervisor_peer, supervisor_server, supervisor_stager
from nopfsfs.protocol import server_stager as local
from nopfsfs.protocol.between_peers import TAGS, Drop, Hurry, Leave, News, NodeAnswer, Record, Records, Want
from nopfsfs.protocol.between_supervisors import (
    CopiesOffered,
    CopiesTaken,
    NamedFiles,
    NamedOrder,
    NamedSpec,
    NodeRoom,
    PlacementBegins,
    PlacementComputed,
    ProposedPlacement,
    from_cluster,
)
from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.columns import HOME_HERE, Columns, MetricBlock
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.stager_peer import RecordKind as Local
from nopfsfs.protocol.supervisor_peer import (
    AllMounted,
    ArenaQuiet,
    MountEnds,
    NewsOf,
    NodeOver,
    NoStager,
    PeerStatus,
    SendNews,
    UseArena,
    UseStager,
)
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.peer_exchange import PeerExchange
from nopfsfs.stager.server_links import ServerLinks
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import WorkerThreads
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.source import Source

JOB = 0x0123_4567_89AB_CDEF
NODES = 4
ARENA = 1 << 20
BLOCK = 4096
OF_PEER = (Local.GOT, Local.FREED, Local.LEND, Local.BACK)
MESSAGES = 40  # of a case
HELD_MOST = 4096  # of anything that is kept for a node that sends nonsense: far above what is bounded
FORMATS: dict[Any, str] = {Want: "HqqqB", Hurry: "H", Drop: "H", NodeAnswer: "HQB"} | {
    kind: one.format.strip("<") for kind, one in stager_peer.RECORDS.items()
}
_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64, "q": 64}


def record(rng: Random, kind: Any, known: list[int]) -> tuple[int, ...]:
    """A record of a kind: some of its numbers are known ones, others small, others anything that fits."""
    found = []
    for letter in FORMATS[kind]:
        bits = _BITS[letter]
        any_number = signed(rng, bits) if letter.islower() else number(rng, bits)
        small = rng.randrange(4)
        found.append(rng.choice((small, rng.choice(known) % (1 << (bits - 1)), any_number)))
    return tuple(found)


class PeersInput(Input):
    """See the module. Whatever comes, an exchange goes on, and a stager answers readers."""

    name = "peers"

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.root = work / "source"
        self.root.mkdir()
        self.index = make_tree(self.root)
        self.files = np.flatnonzero(self.index.mode >> 12 == 0o10).tolist()
        self.known = [0, 1, 2, 3, 4096, *self.files, *self.index.size.tolist(), *self.index.mtime_ns.tolist()]

    def play(self, rng: Random) -> None:
        rng.choice((self._formats, self._nodes, self._nodes, self._stager, self._stager))(rng)

    # ---- the formats --------------------------------------------------------------------------------------

    def _formats(self, rng: Random) -> None:
        def of_job(message: bytes) -> object:
            return between_peers.decode(message, JOB)

        readers: list[Callable[[bytes], object]] = [
            of_job, supervisor_peer.from_supervisor.decode, supervisor_peer.from_peer.decode, from_cluster.decode,
            stager_peer.unpack, supervisor_server.to_server.decode, supervisor_server.from_server.decode,
            supervisor_stager.unpack_command, local.to_stager.decode, local.to_server.decode,
        ]  # fmt: skip
        for _ in range(MESSAGES):
            data = garbage(rng, 4096) if rng.random() < 0.3 else mutated(rng, self._valid(rng))
            for read in readers:
                try:
                    read(data)
                except ValueError as e:
                    self.tell_error(e)
                else:
                    self.tell("read")

    def _valid(self, rng: Random) -> bytes:
        match rng.randrange(6):
            case 0:
                return encode(self._of_supervisor(rng))
            case 4:
                return encode(self._of_cluster(rng))
            case 1:
                rows = np.array([signed(rng) for _ in range(rng.randrange(5))], np.int64)
                command = rng.choice(list(supervisor_stager.StagerCommand))
                return supervisor_stager.pack_commands(command, rows, signed(rng))[0]
            case 2:
                return encode(rng.choice((self._of_server, self._to_server))(rng))
            case 3:
                return self._between_nodes(rng)
        return self._of_processes(rng, rng.choice(list(Local)))

    def _of_supervisor(self, rng: Random) -> Message:
        """Or of the peer process, or of a server."""
        n = number(rng)
        messages: tuple[Message, ...] = (
            UseArena(), UseStager(), NoStager(), SendNews(signed(rng, 32), garbage(rng)), MountEnds(), ArenaQuiet(),
            NewsOf(signed(rng, 32), garbage(rng)), NodeOver(signed(rng, 32), "lost"), AllMounted(),
            PeerStatus(n, n, n, n, n, n, n, n, {"1": "lost"}, [signed(rng)]),
            supervisor_server.Interrupt(n), supervisor_server.MeetStager(n, n), supervisor_server.Ready(),
        )  # fmt: skip
        return rng.choice(messages)

    def _of_server(self, rng: Random) -> local.ToStager:
        """A message to the stager. Some numbers are out of their ranges, others those of a file that there is."""
        n, row = number(rng), rng.choice((rng.choice(self.files), number(rng, 40), signed(rng)))
        start = rng.choice((rng.randrange(20_000), signed(rng)))
        young = local.YoungRead(row, rng.randrange(2), start, number(rng, 12), n)
        demand, youngs = local.Demand(number(rng, 8), row, start, number(rng, 32)), [young] * rng.randrange(3)
        news = local.FileChanged(row), local.GracePassed(n), local.StagerPing(), local.YoungFilesRead(youngs)
        return rng.choice((demand, *news))

    def _to_server(self, rng: Random) -> local.ToServer:
        n = number(rng)
        answer = local.Answer(n, number(rng, 8), n, n, rng.choice(list(local.Origin)))
        return rng.choice((answer, local.Welcome(), local.AskGrace(n), local.StagerPong()))

    def _of_cluster(self, rng: Random) -> Message:
        """A message of another node's supervisor."""
        n, rows = number(rng), [signed(rng, 40) for _ in range(rng.randrange(4))]
        spec = NamedSpec("distributed", signed(rng), {"drop_last": True, "base_seed": n})
        order = NamedOrder(spec, number(rng, 31), number(rng, 20), rng.choice((None, spec)))
        files = NamedFiles(number(rng, 40), "image_folder", rng.choice((None, order)))
        messages: tuple[Message, ...] = (
            NodeRoom(n, tuple(rows), n), CopiesOffered(rows, n), CopiesTaken(rows, n), PlacementComputed(n),
            PlacementBegins(n), ProposedPlacement(n, [rows] * 3, n, "homes", n, rng.choice((None, files))),
        )  # fmt: skip
        return rng.choice(messages)

    def _between_nodes(self, rng: Random) -> bytes:
        match rng.randrange(6):
            case 0:
                return encode(News(JOB, garbage(rng)))
            case 1:
                return encode(Leave(JOB))
        return encode(Records(JOB, [self._of_node(rng) for _ in range(rng.randrange(4))]))

    def _of_node(self, rng: Random) -> Record:
        kind: Any = rng.choice((Want, Want, Hurry, Drop, NodeAnswer, NodeAnswer))
        made: Record = kind(*record(rng, kind, self.known))
        if rng.random() < 0.5:  # else hardly any would be within all ranges
            made = structs.replace(made, tag=1 + made.tag % TAGS)
            if isinstance(made, Want):
                made = structs.replace(made, row=made.row % (1 << 40), length=1 + made.length % (1 << 31), urgent=False)
            elif isinstance(made, NodeAnswer):
                made = structs.replace(made, status=rng.choice(list(stager_peer.LeaseStatus)))
        return made

    def _of_processes(self, rng: Random, kind: Local) -> bytes:
        return stager_peer.pack(kind, [record(rng, kind, self.known) for _ in range(rng.randint(1, 4))])[0]

    # ---- a peer process -----------------------------------------------------------------------------------

    def _nodes(self, rng: Random) -> None:
        """An exchange among nodes, and with a stager, that send anything."""
        now = 1000.0
        transport = Transport(NODES)
        arena = memoryview(bytearray(ARENA))
        told: list[Any] = []
        exchange = PeerRouter(
            transport, arena, JOB, to_stager=lambda kind, records: told.extend(records),
            news=lambda node, body: told.append(body), over=lambda node, why: told.append(why), clock=lambda: now,
        )  # fmt: skip
        exchange.stager_came()
        for _ in range(MESSAGES):
            now += rng.choice((0.0, 0.0, 0.01, 0.2, 3.0, 70.0))
            match rng.randrange(10):
                case 0 | 1 | 2 | 3 | 4:
                    data = self._between_nodes(rng)
                    body = None if rng.random() < 0.02 else mutated(rng, data) if rng.random() < 0.2 else data
                    self._from_node(transport, rng.randrange(1, NODES), body)
                case 5 | 6 | 7:
                    self._from_stager(exchange, rng)
                case 8:
                    transport.finish(rng)
                case _ if rng.random() < 0.1:
                    exchange.stager_gone()
                    exchange.stager_came()
            exchange.step()
        exchange.leave()
        self._check(exchange, transport, told)

    def _from_node(self, transport: Transport, node: int, body: bytes | None) -> None:
        transport.inbox.append(NodeMessage(node, body))
        self.tell("a node said something")

    def _from_stager(self, exchange: PeerRouter, rng: Random) -> None:
        kind = rng.choice(list(Local))
        records: list[tuple[int, ...]]
        if rng.random() < 0.6:  # what can be asked
            kind = Local.ASK
            length = rng.randrange(1, 5000)
            records = [(number(rng, 16), rng.choice(self.files), rng.randrange(ARENA - length), length, 1,
                        rng.randrange(NODES), rng.randrange(2))]  # fmt: skip
        else:
            records = [record(rng, kind, self.known) for _ in range(rng.randint(1, 3))]
        try:
            exchange.from_stager(kind, records)
        except ValueError as e:
            self.tell_error(e)
        else:
            self.tell("the stager said something")

    def _check(self, exchange: PeerRouter, transport: Transport, told: list[Any]) -> None:
        kept = {"wants": len(exchange.requester), "loans": len(exchange.responder), "told": len(told),
                "sent": len(transport.sent)}  # fmt: skip
        for what, count in kept.items():
            if count > HELD_MOST:
                raise Wrong(f"{count} {what} after {MESSAGES} messages")
        writes = exchange.requester.writes()
        if not all(0 <= offset < offset + length <= ARENA for offset, length in writes):
            raise Wrong("it writes outside of the arena")

    # ---- a stager -----------------------------------------------------------------------------------------

    def _stager(self, rng: Random) -> None:
        with Bench(self.root, self.index, rng) as bench:
            for _ in range(MESSAGES):
                match rng.randrange(6):
                    case 0 | 1:
                        bench.peer_says(self._of_processes(rng, rng.choice(OF_PEER)))
                    case 2:
                        bench.peer_says(mutated(rng, self._of_processes(rng, rng.choice(list(Local)))))
                    case 3:
                        data = encode(self._of_server(rng))
                        bench.server_says(mutated(rng, data) if rng.random() < 0.2 else data)
                    case 4:
                        bench.server_asks(rng.choice(self.files), rng.randrange(20_000), rng.randrange(1, 20_000))
                    case 5:
                        bench.state.fetch([rng.choice(self.files) for _ in range(3)])
                bench.work()
                self.tell("the stager heard something")
            bench.check()


class Bench:
    """A stager, with a peer process at one socket and a server at another, both played by the case."""

    def __init__(self, root: Path, index: Any, rng: Random) -> None:
        self.index, self.now = index, 1000.0
        self.fds = [Columns.create(index.n), MetricBlock.create(), Ring.create("fuzz"), arenas.create(ARENA)]
        self.columns = Columns(self.fds[0], index.n, writable=True)
        self.columns.holder[:] = rng.choices((0, HOME_HERE, 1, 2), k=index.n)
        self.arena = Arena(self.fds[3], ARENA)
        self.links = ServerLinks()
        self.source = Source(os.fsencode(root), index, self.columns)
        metrics = MetricBlock(self.fds[1], writable=True).block
        self.young = YoungFiles(source=self.source, columns=self.columns, metrics=metrics, file_system=None, n=index.n)
        self.state = StagerState(
            index=index, columns=self.columns, metrics=metrics, ring=Ring(self.fds[2], writable=True),
            arena=self.arena, source=self.source, concurrency=4, answer=self.links.answer, ask_grace=self.links.ask,
            block=BLOCK, range_block=BLOCK, clock=lambda: self.now,
        )  # fmt: skip
        self.state.set_budget(ARENA, ARENA // 2, ARENA // 4)
        reader = BlockReader(
            self.columns, metrics, self.arena, self.source, None, withdraw_copy=lambda row, disk: False  # type: ignore[arg-type]
        )
        self.workers = WorkerThreads(self.state, reader, changed=lambda row: None)
        self.exchange = PeerExchange(self.state)
        self.server, end = sequenced_pair()
        self.link = self.links.add(end)
        self.peer, other = sequenced_pair()
        for ours in (self.server, self.peer):
            ours.setblocking(False)
        self.exchange.attach(other)
        self.asked: dict[int, tuple[int, int, int]] = {}
        self.answered: set[int] = set()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.state.stop()
        self.peer.close()
        self.attend()
        self.server.close()
        self.links.remove(self.link)
        for fd in self.fds:
            os.close(fd)

    def peer_says(self, message: bytes) -> None:
        if message:  # an empty one is an end
            self.peer.send(message)
        self.attend()

    def attend(self) -> None:
        link = self.exchange.wants()[0]
        if link is not None:
            self.exchange.attend(link)
        try:
            while self.peer.fileno() >= 0 and self.peer.recv(1 << 16):
                pass
        except BlockingIOError:
            pass

    def server_says(self, message: bytes) -> None:
        """As the stager takes it (`StagerProcess._take_message`)."""
        try:
            found = self.links.take(self.link, local.to_stager.decode(message))
        except ProtocolError:
            return
        if passed := self.links.take_passed():
            self.state.grace_passed(passed)
        if isinstance(found, local.Demand):
            self.state.demand(found)
        elif isinstance(found, local.YoungFilesRead):
            for read in found.reads:
                self.young.note_read(read)

    def server_asks(self, row: int, offset: int, length: int) -> None:
        number = 1 << 32 | len(self.asked) + 1
        self.asked[number] = (row, offset, length)
        self.server_says(encode(local.Demand(number, row, offset, length)))

    def work(self) -> None:
        """All that there is to do; the server takes its answers."""
        for _ in range(1000):
            self.now += 0.05
            self.state.check_limits()
            if not self.workers.run_one() and not self._take():
                return
        raise Wrong("it never comes to rest")

    def _take(self) -> bool:
        try:
            message = local.to_server.decode(self.server.recv(local.TO_SERVER_MAX))
        except BlockingIOError:
            return False
        if isinstance(message, local.Answer):
            self.answered.add(message.id)
            self._compare(message)
        elif isinstance(message, local.AskGrace):
            self.server_says(encode(local.GracePassed(message.number)))
        return True

    def _compare(self, answer: local.Answer) -> None:
        """Bytes of rows that live here are right, whatever the peer process says. Of others it is believed: it has
        compared checksums."""
        row, offset, _ = self.asked.get(answer.id, (0, 0, 0))
        if row and not answer.errno and self.columns.holder[row] in (0, HOME_HERE):
            right = Path(os.fsdecode(self.source.path(row))).read_bytes()[offset : offset + answer.length]
            if bytes(self.arena.view[answer.arena : answer.arena + answer.length]) != right:
                raise Wrong(f"wrong bytes of row {row}")

    def check(self) -> None:
        """Every demand that makes sense is answered in the end, though the peer process is gone."""
        self.peer.close()
        self.attend()
        for _ in range(100):
            self.now += 5.0
            self.work()
        if set(self.asked) - self.answered:
            raise Wrong(f"{len(set(self.asked) - self.answered)} demands were never answered")
