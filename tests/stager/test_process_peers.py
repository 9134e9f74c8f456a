"""A whole stager with a peer process: how it comes, what its loop waits for, how it ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from nopfsfs.protocol import stager_peer, supervisor_stager
from nopfsfs.protocol.columns import HOME_HERE, Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.stager_peer import LeaseStatus, Record, RecordKind
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.system import shared_memory
from tests.stager.peer import pack_one
from tests.stager.rig import PAGE, content, write_files
from tests.stager.running import LIMIT_S, Running, Shared, running

SIZES = [2 * PAGE] * 4


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Shared]:
    root = tmp_path / "source"
    write_files(root, SIZES)
    made = Shared(root, 64 * PAGE)
    made.columns.holder[[made.row(f"f{number:02}") for number in range(len(SIZES))]] = 2
    yield made
    made.close()


class Peer:
    """The test's end of the socket."""

    def __init__(self, base: Shared) -> None:
        self.socket, end = sequenced_pair()
        self.end = end.detach()
        self.socket.settimeout(LIMIT_S)
        self.arena = memoryview(shared_memory.attach(base.fds["arena"], writable=True))

    def take(self, kind: RecordKind) -> list[Record]:
        found, records = stager_peer.unpack(self.socket.recv(stager_peer.MESSAGE_MAX))
        assert found == kind
        return records

    def bring(self, ask: Record, data: bytes) -> None:
        number, _, at, *_ = ask
        self.arena[at : at + len(data)] = data
        self.socket.send(pack_one(RecordKind.GOT, number, xxhash.xxh3_64_intdigest(data), LeaseStatus.OK, 0))


@pytest.fixture
def peer(base: Shared) -> Iterator[Peer]:
    made = Peer(base)
    yield made
    made.socket.close()


def attach(s: Running, peer: Peer) -> None:
    """The supervisor gives a descriptor."""
    (message,) = supervisor_stager.pack_commands(StagerCommand.PEER, np.zeros(0, np.int64))
    socket.send_fds(s.orders, [message], [peer.end])
    os.close(peer.end)


@pytest.mark.parametrize("later", [False, True])
def test_rows_come_from_the_peer_process_that_it_is_given(base: Shared, peer: Peer, later: bool) -> None:
    row = base.row("f00")
    with running(base, peer=-1 if later else peer.end) as s:
        if later:
            attach(s, peer)
        s.command(StagerCommand.FETCH, [row])
        (ask,) = peer.take(RecordKind.ASK)
        peer.bring(ask, content(1, 2 * PAGE))
        s.wait_for(Event.STAGED, row)
        assert s.read(row) == (0, content(1, 2 * PAGE))
        assert (base.metrics[Metric.PEER_FETCHES], base.metrics[Metric.SOURCE_OPENS]) == (1, 0)


def test_a_reader_is_answered_although_the_peer_process_says_nothing(
    base: Shared, peer: Peer
) -> None:
    with running(base, peer=peer.end) as s:
        for number in range(4):
            assert s.read(base.row(f"f{number:02}")) == (0, content(number + 1, 2 * PAGE))
        assert base.metrics[Metric.PEER_LATE] == 0, "no reader has waited until a request ran out"
        assert base.metrics[Metric.FETCHES_HEDGED] == 3
        assert base.metrics[Metric.REROUTED_DOWN] == 1, "the last is not asked for"


def test_what_it_was_to_bring_is_read_from_the_source_when_it_ends_and_another_may_come(
    base: Shared, peer: Peer
) -> None:
    rows = [base.row(f"f{number:02}") for number in range(4)]
    with running(base, peer=peer.end) as s:
        s.command(StagerCommand.FETCH, rows[:2])
        assert len(peer.take(RecordKind.ASK)) == 2
        peer.socket.close()
        for row in rows[:2]:
            s.wait_for(Event.STAGED, row)
        other = Peer(base)
        attach(s, other)
        s.command(StagerCommand.FETCH, rows[2:3])
        ((_, row, *_),) = other.take(RecordKind.ASK)
        assert row == rows[2]
        third = Peer(base)
        attach(s, third)
        s.wait_for(Event.STAGED, rows[2])
        assert other.socket.recv(1) == b""
        s.command(StagerCommand.FETCH, rows[3:])
        (ask,) = third.take(RecordKind.ASK)
        third.bring(ask, content(4, 2 * PAGE))
        s.wait_for(Event.STAGED, rows[3])
        assert base.metrics[Metric.SOURCE_OPENS] == 3
        other.socket.close()
        third.socket.close()


def test_what_is_lent_is_said_when_its_load_has_ended_by_whatever_thread(base: Shared, peer: Peer) -> None:
    row = base.row("f00")
    base.columns.holder[row] = HOME_HERE
    mtime_ns = int(base.index.mtime_ns[row])
    with running(base, peer=peer.end) as s:
        peer.socket.send(pack_one(RecordKind.LEND, 7, row, 2 * PAGE, mtime_ns, 1))
        ((*_, status),) = peer.take(RecordKind.LENT)
        assert status == LeaseStatus.COMING
        ((number, at, length, _, status),) = peer.take(RecordKind.LENT)
        assert (number, status, length) == (7, LeaseStatus.OK, 2 * PAGE)
        s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        assert bytes(peer.arena[at : at + 2 * PAGE]) == content(1, 2 * PAGE)
        peer.socket.send(pack_one(RecordKind.BACK, 7))


def test_answers_that_find_the_socket_full_are_sent_when_it_is_not(base: Shared, peer: Peer) -> None:
    row = base.row("f00")
    many = 3000
    with running(base, peer=peer.end) as s:

        def ask() -> None:
            for number in range(1, many + 1):
                peer.socket.send(pack_one(RecordKind.LEND, number, row, 1, 0, 0))

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(LIMIT_S)
        assert not asking.is_alive(), "it takes what is sent to it, whether or not it can answer"
        assert s.read(base.row("f01"), 0, 0) == (0, b""), "and serves others"
        numbers = [peer.take(RecordKind.LENT)[0][0] for _ in range(many)]
        assert numbers == list(range(1, many + 1))
