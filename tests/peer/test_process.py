"""The peer process's loop, in a thread: a supervisor and a stager at real sockets, other nodes in memory."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from nopfsfs.peer import process
from nopfsfs.peer.process import LONGEST_S, PeerProcess
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.between_peers import NEWS_MAX, Leave, NodeAnswer, Record, Records, Want, decode, encode_records
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.stager_peer import LeaseStatus, RecordKind
from nopfsfs.protocol.supervisor_peer import (
    ALL_OTHERS,
    MESSAGE_MAX,
    ArenaQuiet,
    FromPeer,
    FromSupervisor,
    MountEnds,
    NewsOf,
    NodeOver,
    NoStager,
    PeerStatus,
    SendNews,
    UseArena,
    UseStager,
    from_peer,
)
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.system import shared_memory
from tests.peer.network import Network
from tests.peer.stagers import JOB, SLOT, SLOTS, check_of, content, length_of, mtime_of
from tests.stager.peer import pack_one
from tests.waiting import wait_until

LIMIT_S = 20.0
M = TypeVar("M")
LENGTH = SLOT * SLOTS


class Mount:
    """A peer process in a thread, and the other ends of its sockets."""

    def __init__(self, network: Network, rank: int, *, arena: bool = True) -> None:
        self.supervisor, theirs = sequenced_pair()
        self.supervisor.settimeout(LIMIT_S)
        self.peer = PeerProcess(network.ends[rank], theirs, JOB)
        self.code: int | None = None
        self.error: BaseException | None = None
        self.fd = shared_memory.create("test", LENGTH)
        self.memory = memoryview(shared_memory.attach(self.fd, writable=True))
        self.stager: socket.socket | None = None
        self._theirs = theirs
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if arena:
            self.say(UseArena(), self.fd)

    def _run(self) -> None:
        try:
            self.code = self.peer.run()
        except BaseException as e:
            self.error = e

    # ---- supervisor ---------------------------------------------------------------------------------------

    def say(self, message: FromSupervisor, *fds: int) -> None:
        socket.send_fds(self.supervisor, [encode(message)], fds)

    def hear(self, kind: type[M]) -> M:
        """What it says next of this type."""
        while True:
            message: FromPeer = from_peer.decode(self.supervisor.recv(MESSAGE_MAX))
            if isinstance(message, kind):
                return message

    def status(self, wanted: Callable[[PeerStatus], bool]) -> None:
        while not wanted(self.hear(PeerStatus)):
            pass

    def end(self, *, bye: bool = True) -> None:
        if bye:
            self.say(MountEnds())
        self.supervisor.close()

    def ended(self) -> int:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error
        assert self.code is not None
        return self.code

    # ---- stager -------------------------------------------------------------------------------------------

    def new_stager(self) -> socket.socket:
        if self.stager is not None:
            self.stager.close()
        self.stager, theirs = sequenced_pair()
        self.stager.settimeout(LIMIT_S)
        self.say(UseStager(), theirs.fileno())
        theirs.close()
        return self.stager

    def lose_stager(self) -> None:
        """The stager dies, and nothing writes the arena for it any more."""
        assert self.stager is not None
        self.stager.close()
        self.say(NoStager())
        self.hear(ArenaQuiet)

    def has_stager(self) -> None:
        """The peer process has taken it."""
        assert wait_until(lambda: self.peer._stager is not None)

    def order(self, kind: RecordKind, *records: tuple[int, ...]) -> None:
        assert self.stager is not None
        for message in stager_peer.pack(kind, list(records)):
            self.stager.send(message)

    def answers(self, *kinds: RecordKind) -> tuple[RecordKind, list[tuple[int, ...]]]:
        """The stager's next message, of one of these kinds."""
        assert self.stager is not None
        kind, records = stager_peer.unpack(self.stager.recv(stager_peer.MESSAGE_MAX))
        assert kind in kinds
        return kind, records

    def ask(self, id: int, node: int, row: int, slot: int = 0, *, urgent: int = 1) -> None:
        self.order(RecordKind.ASK, (id, row, slot * SLOT, length_of(row), mtime_of(row), node, urgent))

    def lend(self, id: int, row: int, slot: int) -> None:
        at = slot * SLOT
        self.memory[at : at + length_of(row)] = content(row)
        self.order(RecordKind.LENT, (id, at, length_of(row), check_of(row), LeaseStatus.OK))

    def close(self) -> None:
        for sock in (self.supervisor, self.stager):
            if sock is not None:
                sock.close()
        self._thread.join(LIMIT_S)
        self.peer._close()
        self._theirs.close()
        os.close(self.fd)


@pytest.fixture
def mounts() -> Iterator[list[Mount]]:
    """Three, with stagers."""
    network = Network(3, automatic=True)
    made = [Mount(network, rank) for rank in range(3)]
    for mount in made:
        mount.new_stager()
    for mount in made:
        mount.has_stager()
    yield made
    for mount in made:
        with suppress(OSError):
            mount.end()
    for mount in made:
        mount.close()


def fetch(mount: Mount, home: Mount, node: int, row: int, id: int = 1, slot: int = 0) -> None:
    mount.ask(id, node, row, slot)
    _, [(loan, *rest)] = home.answers(RecordKind.LEND)
    assert rest == [row, length_of(row), mtime_of(row), 1]
    home.lend(loan, row, 50)
    assert home.answers(RecordKind.BACK) == (RecordKind.BACK, [(loan,)])
    assert mount.answers(RecordKind.GOT) == (RecordKind.GOT, [(id, check_of(row), LeaseStatus.OK, 0)])
    assert bytes(mount.memory[slot * SLOT :][: length_of(row)]) == content(row)


# ---- a job ------------------------------------------------------------------------------------------------


def test_rows_are_brought_from_one_arena_to_another(mounts: list[Mount]) -> None:
    first, second, third = mounts
    for number, row in enumerate((3, 4, 5)):
        fetch(first, second, 1, row, id=number + 1, slot=number)
    fetch(third, first, 0, 9)
    first.status(lambda said: said.fetched_files == 3 and said.lent_files == 1)
    second.status(lambda said: said.lent_bytes == sum(map(length_of, (3, 4, 5))))


def test_news_go_from_supervisor_to_supervisor(mounts: list[Mount]) -> None:
    mounts[0].say(SendNews(2, b"you"))
    mounts[0].say(SendNews(ALL_OTHERS, b"all"))
    assert mounts[2].hear(NewsOf) == NewsOf(0, b"you")
    assert mounts[2].hear(NewsOf) == NewsOf(0, b"all")
    assert mounts[1].hear(NewsOf) == NewsOf(0, b"all")


def test_all_end_with_0_when_all_have_left(mounts: list[Mount]) -> None:
    for mount in mounts:
        mount.end()
    assert [mount.ended() for mount in mounts] == [0, 0, 0]


def test_who_has_ended_stays_until_the_others_have(mounts: list[Mount]) -> None:
    mounts[0].end()
    for mount in mounts[1:]:
        assert mount.hear(NodeOver) == NodeOver(0, "left")
    fetch(mounts[1], mounts[2], 2, 7)
    mounts[1].ask(2, 0, 8)
    assert mounts[1].answers(RecordKind.GOT) == (RecordKind.GOT, [(2, 0, LeaseStatus.LOST, 0)])
    assert mounts[0].code is None
    for mount in mounts[1:]:
        mount.end()
    assert [mount.ended() for mount in mounts] == [0, 0, 0]


@pytest.mark.parametrize("bye", [True, False])
def test_a_mount_that_ends_before_it_began_is_waited_for_by_nobody(bye: bool) -> None:
    network = Network(2, automatic=True)
    first, second = Mount(network, 0), Mount(network, 1, arena=False)
    second.end(bye=bye)
    assert first.hear(NodeOver) == NodeOver(1, "left")
    first.end()
    assert [first.ended(), second.ended()] == [0, 0]
    first.close()
    second.close()


def test_a_mount_that_is_killed_has_left(mounts: list[Mount]) -> None:
    mounts[0].end(bye=False)
    assert mounts[1].hear(NodeOver) == NodeOver(0, "left")


def test_what_a_supervisor_said_last_is_heard_though_it_left_messages_unread(
    mounts: list[Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a mount that was unmounted in the ordinary way would be taken for one that was killed, and the whole job be
    ended where bytes of a node that hangs are under way."""
    mounts[1].say(SendNews(0, b"unread"))
    peer = mounts[0].peer
    assert wait_until(lambda: peer._router is not None and peer._said is not None)
    mounts[0].end()
    assert wait_until(lambda: peer._over)
    assert peer._said_bye


# ---- the stager -------------------------------------------------------------------------------------------


def test_a_stager_that_dies_is_replaced_when_all_is_quiet(mounts: list[Mount]) -> None:
    first, second, _ = mounts
    assert first.stager is not None
    fetch(second, first, 0, 3)
    first.lose_stager()
    second.ask(2, 0, 4)
    assert second.answers(RecordKind.GOT) == (RecordKind.GOT, [(2, 0, LeaseStatus.NO, 0)])
    first.new_stager()
    first.has_stager()
    fetch(second, first, 0, 5, id=3)
    fetch(first, second, 1, 6)


def test_the_next_stager_may_have_another_arena(mounts: list[Mount]) -> None:
    """The one before is asleep in the kernel, and may yet write to its own."""
    first, second, _ = mounts
    assert first.stager is not None
    fetch(second, first, 0, 3)
    before, first.fd = first.memory, shared_memory.create("test", LENGTH)
    first.say(UseArena(), first.fd)  # refused: the one before is in use
    first.lose_stager()
    untouched = bytes(before)
    first.memory = memoryview(shared_memory.attach(first.fd, writable=True))
    first.say(UseArena(), first.fd)
    first.new_stager()
    first.has_stager()
    fetch(second, first, 0, 5, id=3)
    fetch(first, second, 1, 6)
    assert bytes(before) == untouched


def test_without_its_arena_the_next_stager_gets_nothing(
    mounts: list[Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no memory for another mapping. The bytes would arrive in the arena of the stager before."""
    first, second, _ = mounts
    assert first.stager is not None
    fetch(second, first, 0, 3)
    first.lose_stager()
    with monkeypatch.context() as short:
        short.setattr(process.mmap, "mmap", failing(OSError(errno.ENOMEM, "no memory")))
        first.say(UseArena(), first.fd)
        assert first.new_stager().recv(1) == b"", "it is refused"
    assert first.peer._stager is None
    first.say(UseArena(), first.fd)
    first.new_stager()
    first.has_stager()
    fetch(second, first, 0, 5, id=3)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_stager_may_be_replaced_at_once(mounts: list[Mount]) -> None:
    """Its end and the next one's beginning, in one turn of the loop."""
    first = mounts[0]
    for row in range(20):
        assert first.stager is not None
        with suppress(OSError):
            first.ask(1, 1, row)
        first.stager.close()
        first.new_stager()
        first.say(NoStager())
        first.new_stager()
        first.hear(ArenaQuiet)
    first.has_stager()
    fetch(mounts[2], first, 0, 3)


OF_STAGERS = {
    "a byte": b"?",
    "kind 0": bytes(8),
    "noise": b"\xff" * 40,
    "too long": bytes(60_000),
    "cut short": pack_one(RecordKind.ASK, 2, 1, 0, 30, 0, 1, 0)[:-1],
    "what only the peer process says": pack_one(RecordKind.GOT, 1, 2, 0, 0),
    "another such": pack_one(RecordKind.LEND, 1, 2, 3, 4, 0),
    "an extent before the arena": pack_one(RecordKind.ASK, 7, 1, -64, 30, 0, 1, 0),
    "an extent behind it": pack_one(RecordKind.ASK, 7, 1, LENGTH, 30, 0, 1, 0),
    "a row that cannot be": pack_one(RecordKind.ASK, 7, -1, 0, 30, 0, 1, 0),
    "hurry for nothing": pack_one(RecordKind.HURRY, 9),
    "a row that nobody wanted": pack_one(RecordKind.LENT, 77, 0, 30, 0, 0),
}


@pytest.mark.parametrize("name", OF_STAGERS)
def test_garbage_of_the_stager_is_survived(mounts: list[Mount], name: str) -> None:
    first, second, _ = mounts
    assert first.stager is not None
    first.stager.send(OF_STAGERS[name])
    if name == "a row that nobody wanted":
        assert first.answers(RecordKind.BACK) == (RecordKind.BACK, [(77,)])
    fetch(first, second, 1, 3)


OF_SUPERVISORS = {
    "a byte": b"?",
    "noise": b"\xff" * 40,
    "no arena": encode(UseArena()),
    "no stager": encode(UseStager()),
    "what only the peer process says": encode(ArenaQuiet()),
    "news too long": encode(SendNews(1, bytes(NEWS_MAX + 1))),
    "news for nobody": encode(SendNews(77, b"?")),
    "news for a node that cannot be": encode(SendNews(-2, b"?")),
}


@pytest.mark.parametrize("name", OF_SUPERVISORS)
def test_garbage_of_the_supervisor_is_survived(mounts: list[Mount], name: str) -> None:
    mounts[0].supervisor.send(OF_SUPERVISORS[name])
    fetch(mounts[0], mounts[1], 1, 3)


def test_descriptors_that_are_of_no_use_are_closed(mounts: list[Mount]) -> None:
    first = mounts[0]

    def count() -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found += os.path.samestat(os.fstat(int(name)), os.fstat(first.fd))
        return found

    before = count()
    for message in (encode(UseArena()), encode(MountEnds()), encode(UseStager()), encode(ArenaQuiet()), b"garbage"):
        socket.send_fds(first.supervisor, [message], [first.fd])
    first.say(SendNews(ALL_OTHERS, b"after them"))
    mounts[1].hear(NewsOf)
    assert count() == before


def test_a_stager_that_takes_nothing_is_given_up(mounts: list[Mount], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BEHIND_MOST", 1000)
    first, second, _ = mounts
    asked = 0
    while second.peer._stager is not None or asked == 0:
        for _ in range(100):
            asked += 1
            first.ask(asked, 1, 3)
            first.order(RecordKind.GIVE_UP, (asked,))
        freed = 0
        while freed < 100:
            kind, records = first.answers(RecordKind.GOT, RecordKind.FREED)
            freed += len(records) if kind == RecordKind.FREED else 0


def test_without_a_supervisor_that_reads_its_messages_are_not_heaped_up(
    mounts: list[Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STATUS_PAUSE_S", 0.0)
    first, second, _ = mounts
    for number in range(1500):
        fetch(first, second, 1, 3, id=number + 1)
    assert len(first.peer._supervisor._waiting) <= 1


# ---- bytes that do not arrive -----------------------------------------------------------------------------


class Half:
    """A mount, and another node that is played by the test."""

    def __init__(self) -> None:
        self.network = Network(2, automatic=True)
        self.mount = Mount(self.network, 0)
        self.mount.new_stager()
        self.other = self.network.ends[1]

    def hear(self) -> list[Record]:
        while True:
            for message in self.other.receive():
                assert message.body is not None
                found = decode(message.body, JOB)
                if isinstance(found, Records):
                    return found.records
            time.sleep(0.001)

    def leave(self) -> None:
        self.other.send(0, encode(Leave(JOB)))

    def begin(self, row: int = 3) -> int:
        """Have the mount receive what never comes; the tag."""
        self.mount.ask(1, 1, row)
        (want,) = self.hear()
        assert isinstance(want, Want)
        self.network.late_cancels = True
        self.network.automatic = False
        self.network.ends[0].done = list  # type: ignore[method-assign]
        for message in encode_records(JOB, [NodeAnswer(want.tag, check_of(row), LeaseStatus.OK)]):
            self.other.send(0, message)
        self.network.deliver_all()
        assert wait_until(lambda: bool(self.mount.peer._router and self.mount.peer._router.requester.writes()))
        return want.tag


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Iterator[Half]:
    made = Half()
    yield made
    monkeypatch.setattr(process, "END_LIMIT_S", 0.01)
    made.network.automatic = True
    made.network.ends[0].__dict__.pop("done", None)
    made.leave()
    with suppress(OSError):
        made.mount.end()
    made.mount.close()


def test_a_stager_s_place_is_free_only_when_nothing_is_written_any_more(half: Half) -> None:
    mount = half.mount
    half.begin()
    assert mount.stager is not None
    mount.say(NoStager())
    mount.say(UseStager())  # refused: but when that has been said, NO_STAGER was seen to
    assert wait_until(lambda: mount.peer._stager is None)
    mount.stager.setblocking(False)
    with pytest.raises(BlockingIOError):
        mount.stager.recv(1)  # it would take that for the end of all writing
    half.network.ends[0].__dict__.pop("done")
    half.network.decide()
    mount.hear(ArenaQuiet)
    mount.stager.settimeout(LIMIT_S)
    assert mount.stager.recv(1) == b""
    assert bytes(mount.memory[:SLOT]) == bytes(SLOT)


def test_a_process_that_cannot_stop_to_write_ends(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def ends(status: int) -> None:
        assert status == 1
        raise Ended

    monkeypatch.setattr(process, "os", SimpleNamespace(**{**vars(os), "_exit": ends}))
    half.begin()
    half.mount.say(NoStager())
    with pytest.raises(Ended):
        half.mount.ended()


def test_bytes_under_way_arrive_before_the_end(half: Half) -> None:
    """Nobody wants them any more; but whoever sends them waits for that."""
    tag = half.begin()
    half.mount.end()
    half.leave()
    half.network.deliver_all()
    router = half.mount.peer._router
    assert wait_until(lambda: router is not None and router.nodes.alone)
    half.network.ends[0].__dict__.pop("done")
    half.network.decide()
    half.other.start_send(0, tag, memoryview(content(3)))
    assert wait_until(lambda: bool(half.network.matched))
    assert half.mount.code is None
    half.network.finish()
    assert half.mount.ended() == 0


def test_bytes_that_never_arrive_do_not_keep_it_for_ever(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_LIMIT_S", 0.05)
    half.begin()
    half.mount.end()
    half.leave()
    half.network.deliver_all()
    assert half.mount.ended() == 0


# ---- how it waits -----------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


class Slept:
    """In place of `select` and of the clock: nothing ever comes, and time passes only in waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most_s: float) -> None:
        self.now, self.until = 1000.0, 1000.0 + most_s
        self.waits: list[float] = []
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(process, "select", SimpleNamespace(select=self.select))

    def select(self, reads: list[Any], writes: list[Any], errors: list[Any], limit_s: float) -> tuple[Any, ...]:
        self.waits.append(limit_s)
        self.now += limit_s + 5e-6
        if self.now > self.until:
            raise Stop
        return [], [], []


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[PeerProcess, Slept]]]:
    """A peer with an arena and a stager, to which nothing happens."""
    ends = sequenced_pair()

    def make(most_s: float) -> tuple[PeerProcess, Slept]:
        slept = Slept(monkeypatch, most_s)
        peer = PeerProcess(Network(2).ends[0], ends[1], JOB)
        peer._begin(memoryview(bytearray(LENGTH)))
        assert peer._router is not None
        peer._router.stager_came()
        return peer, slept

    yield make
    for end in ends:
        end.close()


def run(peer: PeerProcess) -> None:
    with pytest.raises(Stop):
        peer.run()


def test_an_idle_peer_looks_fifty_times_a_second(quiet: Callable[..., tuple[PeerProcess, Slept]]) -> None:
    peer, slept = quiet(10.0)
    run(peer)
    assert slept.waits[-1] == LONGEST_S
    assert sorted(slept.waits) == slept.waits, "they only grow"
    last = slept.waits.count(LONGEST_S)
    assert last * LONGEST_S > 9.7
    assert len(slept.waits) - last < 200


def test_a_mount_that_has_ended_waits_for_nodes_that_have_not_left_until_it_is_told_not_to(
    quiet: Callable[..., tuple[PeerProcess, Slept]],
) -> None:
    peer, slept = quiet(100.0)
    told_at = slept.now + 90.0
    peer._alone = lambda: slept.now > told_at
    peer._mount_ended()
    assert peer.run() == 0
    assert slept.now == pytest.approx(told_at + process.END_LIMIT_S, abs=0.1)


def test_it_waits_for_a_part_of_the_time_for_which_nothing_came(
    quiet: Callable[..., tuple[PeerProcess, Slept]],
) -> None:
    peer, slept = quiet(10.0)
    run(peer)
    waited = 0.0
    assert len(set(slept.waits)) > 10, "it waits longer and longer"
    for wait in slept.waits:
        assert wait in (process.SHORTEST_S, LONGEST_S) or wait <= process.PART * (waited + 0.001)
        waited += wait


def test_while_bytes_are_under_way_it_looks_more_often_but_not_for_ever(
    quiet: Callable[..., tuple[PeerProcess, Slept]],
) -> None:
    peer, slept = quiet(100.0)
    router = peer._router
    assert router is not None
    router.requester.ask(1, 3, 0, length_of(3), 0, 1, 1)
    router.requester.answered(1, NodeAnswer(1, 0, LeaseStatus.OK))
    run(peer)
    assert slept.waits.count(process.MOVING_S) > 1000
    assert slept.waits[-1] == LONGEST_S


def test_the_arena_is_mapped_whole(mounts: list[Mount]) -> None:
    first, second, _ = mounts
    fetch(first, second, 1, 3, slot=SLOTS - 1)
    assert bytes(first.memory[:SLOT]) == bytes(SLOT)


FAILING = """
import gc, socket, sys, time, types
from nopfsfs.config import MountConfig
from nopfsfs.peer import process

class Transport:
    rank, size, busy, has_more = 0, 2, False, False
    def __init__(self, comm): pass

def turn():
    if not turns:
        checker = next(o for o in gc.get_objects() if isinstance(o, process.ThreadPoolExecutor))
        checker.submit(time.sleep, 60)  # long files are being checked, and written
    turns.append(1)
    if len(turns) == 5:
        raise RuntimeError("MPI says no")

turns = []
sys.modules["nopfsfs.peer.mpi_transport"] = types.SimpleNamespace(MpiTransport=Transport)
config = MountConfig(source="/s", mountpoint="/m", foreground=True)
process.serve(None, socket.socket(fileno=int(sys.argv[1])), config, 1, turn)
"""


def test_a_peer_process_that_fails_ends_at_once() -> None:
    """With all its threads: whoever sees the end of its sockets takes it that nothing is written any more."""
    supervisor, theirs = sequenced_pair()
    with supervisor, subprocess.Popen(
        [sys.executable, "-c", FAILING, str(theirs.fileno())], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE,
        text=True,
    ) as failing:  # fmt: skip
        theirs.close()
        supervisor.settimeout(LIMIT_S)
        assert supervisor.recv(100) == b""
        assert failing.wait(LIMIT_S) == 1
        assert failing.stderr is not None
        assert "MPI says no" in failing.stderr.read()
