"""Loads of whole files and fetches from other nodes, with nothing but the parts below them."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nopfsfs.policy import left_alone
from nopfsfs.policy.left_alone import Tiers
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.server_stager import Answer, Origin
from nopfsfs.protocol.stager_peer import LeaseStatus, Record, RecordKind
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import Load, Waiter
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.peer_link import PeerOutbox
from nopfsfs.stager.read_queue import BlockRead, ReadQueue, RowToBegin
from nopfsfs.stager.remote_fetches import RemoteFetches
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.stager.workers import Workers
from nopfsfs.tiers.source_slots import SourceSlots
from tests.stager.rig import PAGE, Rig, write_files


class Outbox(PeerOutbox):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.sent: list[tuple[RecordKind, list[Record]]] = []

    def send(self, kind: RecordKind, records: Sequence[Record]) -> None:
        self.sent.append((kind, list(records)))


class Parts:
    """The parts over the columns, the ring and the arena of a rig, whose own parts do nothing."""

    def __init__(self, root: Path) -> None:
        write_files(root, [PAGE, 3 * PAGE])
        self.rig = r = Rig(root, budget=8 * PAGE)
        self.small, self.large = r.files
        self.answers: list[Answer] = []
        metrics = r.metrics
        self.pool = ExtentPool(r.arena, metrics, lambda number: True)
        slots = SourceSlots(2, r.metrics, lambda: r.now)
        self.queue = ReadQueue(slots, Workers(lambda: r.now, lambda row: 0, 1))
        lanes = LoadLanes(metrics, lambda: r.now)
        self.loads = WholeLoads(
            self.pool, self.queue, index=r.index, columns=r.columns, metrics=metrics, ring=r.state._ring,
            source=r.source, answer=self.answers.append, left_alone=left_alone.rows(lambda: r.now),
            tiers=Tiers(lambda: r.now), lanes=lanes, block=PAGE,
        )  # fmt: skip
        self.loads.limit = 8 * PAGE
        self.outbox = Outbox()
        self.remote = RemoteFetches(
            self.pool, self.queue, self.loads, lanes, self.outbox, columns=r.columns, source=r.source, metrics=metrics,
            poke=lambda: None, clock=lambda: r.now,
        )  # fmt: skip

    def begin(self, row: int) -> Load:
        load = self.loads.begin_prefetch(row)
        assert load is not None
        return load


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.rig.close()


def test_a_load_is_published_when_it_ends_well(parts: Parts) -> None:
    load = parts.begin(parts.small)
    load.running = 1
    assert parts.loads.block_ended(load, 0, 0, 5)
    assert not parts.loads.ended
    parts.loads.finish(load)
    assert list(parts.loads.ended) == [parts.small]
    assert parts.rig.columns.tier[parts.small] == Tier.RAM
    assert parts.loads.of(parts.small) is None


def test_a_load_has_the_size_of_its_version(parts: Parts) -> None:
    """A copy that was shorter than its version would be read beyond its end. The next version counts at once after the
    size was looked up."""
    source, row = parts.rig.source, parts.small
    size = source.size

    def look_up(asked: int) -> int:
        found = size(asked)
        parts.rig.path(asked).write_bytes(bytes(3 * PAGE))
        parts.rig.take_up(asked)
        return found

    source.size = look_up  # type: ignore[method-assign]
    load = parts.begin(row)
    source.size = size  # type: ignore[method-assign]
    assert (load.length, load.version) == (PAGE, 0)
    load.running = 1
    assert parts.loads.block_ended(load, 0, 0, 5)
    parts.loads.finish(load)
    assert parts.rig.columns.tier[row] == Tier.NONE


def test_a_load_that_fails_gives_its_extent_back(parts: Parts) -> None:
    load = parts.begin(parts.small)
    load.waiters.append(Waiter(7, 0, 10))
    load.running = 1
    assert parts.loads.block_ended(load, 0, errno.EIO, 5)
    parts.loads.finish(load)
    assert (parts.answers, parts.rig.arena.taken) == ([Answer(7, errno.EIO, 0, 0)], 0)
    assert list(parts.loads.ended) == [parts.small]
    assert parts.rig.columns.tier[parts.small] == Tier.NONE


def test_who_waits_is_answered_with_the_last_block_of_the_range(parts: Parts) -> None:
    load = parts.begin(parts.large)
    load.waiters.append(Waiter(7, PAGE, 3 * PAGE))
    load.running = 3
    assert not parts.loads.block_ended(load, 2, 0, 5)
    assert parts.answers == []
    assert not parts.loads.block_ended(load, 1, 0, 5)
    assert parts.answers == [Answer(7, 0, load.arena + PAGE, 2 * PAGE, Origin.SOURCE)]
    assert parts.loads.block_ended(load, 0, 0, 5)


def test_a_row_of_another_node_is_asked_for_when_it_is_sent(parts: Parts) -> None:
    r, row = parts.rig, parts.small
    r.columns.holder[row] = 2
    assert parts.remote.node_of(row) is None, "there is no peer process"
    parts.remote.attach()
    assert parts.remote.node_of(row) == 1
    parts.remote.queue(row, 1)
    assert parts.outbox.sent == []
    parts.remote.send_next()
    ((kind, (record,)),) = parts.outbox.sent
    assert (kind, record[0], record[1], record[5]) == (RecordKind.ASK, 1, row, 1)
    parts.remote.received([(1, 77, LeaseStatus.OK, 0)])
    assert (list(parts.loads.ended), int(r.columns.check[row])) == ([row], 77)
    assert r.metric(Metric.PEER_FETCHES) == 1


def test_what_was_asked_for_is_read_here_when_the_peer_process_ends(parts: Parts) -> None:
    r, rows = parts.rig, [parts.small, parts.large]
    r.columns.holder[rows] = 2
    parts.remote.attach()
    parts.remote.queue(parts.small, 1)
    parts.remote.send_next()
    parts.remote.queue(parts.large, 1)
    parts.remote.detach()
    parts.remote.send_next()
    load = parts.loads.of(parts.small)
    assert load is not None
    assert load.from_peer is None
    assert [parts.queue.take(False) for _ in range(2)] == [BlockRead(load, 0), RowToBegin(parts.large)]


def test_an_extent_that_may_still_be_written_to_is_free_when_the_peer_process_says_so(parts: Parts) -> None:
    r = parts.rig
    r.columns.holder[parts.small] = 2
    parts.remote.attach()
    parts.remote.queue(parts.small, 1)
    parts.remote.send_next()
    load = parts.loads.of(parts.small)
    assert load is not None
    asked = load.arena
    parts.remote.received([(1, 0, LeaseStatus.LATE, 1)])
    assert load.arena != asked
    assert r.arena.taken == 2 * PAGE
    parts.remote.freed([(1,)])
    assert r.arena.taken == PAGE
