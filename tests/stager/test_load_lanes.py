"""Lanes that are slow, or do not answer, under a stager: its time is the test's, and all bytes are compared."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash

from nopfsfs.policy.choice import FOREIGN_SHARE, HEDGE_COMING_S, HEDGE_LEAST_S, HEDGED_FEW
from nopfsfs.policy.fetch_lane import WINDOW_S
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.protocol.stager_peer import MARGIN_S, SILENT_S, LeaseStatus
from nopfsfs.stager import remote_fetches, worker_threads
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.remote_fetches import HEDGED_MOST
from nopfsfs.stager.workers import STUCK_LEAST_S
from tests.stager.peer import FakePeer, homes, rigs
from tests.stager.rig import PAGE, Rig, write_files
from tests.waiting import wait_until

FILES = 40
SOURCE_S = 0.01


class Lab:
    """A rig with all files on disk 1, or at node 1. `disk_s`, `source_s`: seconds of a read, which pass by its clock;
    `origins`: where each file came from, in order, with the time."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_files(root, [PAGE] * FILES)
        self.r = r = Rig(root, budget=4 * FILES * PAGE, disks=self)
        self.disk_s, self.source_s = 0.001, SOURCE_S
        self.origins: list[tuple[float, int]] = []
        r.source.while_opening = self._open
        monkeypatch.setattr(worker_threads, "time", SimpleNamespace(monotonic_ns=lambda: int(r.now * 1e9)))
        self.turn = 0

    def _open(self, row: int) -> None:
        self.r.now += self.source_s

    def read(self, disk: int, row: int, into: memoryview) -> None:
        """Of the disk."""
        self.r.now += self.disk_s
        into[:] = self.r.path(row).read_bytes()

    def on_disk(self) -> None:
        for row in self.r.files:
            self.r.columns.check[row] = xxhash.xxh3_64_intdigest(self.r.path(row).read_bytes())
            assert self.r.state.publish_disk(row, 1, 0)

    def next_row(self) -> int:
        self.turn += 1
        return self.r.files[self.turn % FILES]

    def read_for(self, seconds: float, *, prefetch: bool = False) -> None:
        """Read one file after the other, 50 a second at most."""
        r, end = self.r, self.r.now + seconds
        while r.now < end:
            row, began = self.next_row(), r.now
            before = r.metric(Metric.STAGED_DISK_FILES)
            if prefetch:
                r.state.fetch([row])
                r.run()
                assert r.staged(row) == r.contents[row, 0]
            else:
                assert r.read(row).errno == 0
            from_disk = r.metric(Metric.STAGED_DISK_FILES) > before
            self.origins.append((began, Origin.DISK if from_disk else Origin.SOURCE))
            r.state.evict([row])
            r.take()
            r.now = max(r.now, began + 0.02)

    def share(self, origin: int, since: float) -> float:
        found = [one == origin for when, one in self.origins if when >= since]
        return sum(found) / len(found)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path, monkeypatch)
    yield made
    made.r.close()


# ---- disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_disk_twenty_times_slower_than_the_source_is_hardly_read_until_it_is_fast_again(
    lab: Lab, prefetch: bool
) -> None:
    r = lab.r
    lab.read_for(1)  # of the source
    lab.on_disk()
    before = r.source.opens.copy()
    lab.read_for(5, prefetch=prefetch)
    assert r.source.opens == before, "nothing is slow: each byte has left the source once"
    lab.disk_s = 20 * SOURCE_S
    lab.read_for(10, prefetch=prefetch)
    since = r.now
    lab.read_for(10, prefetch=prefetch)
    assert lab.share(Origin.DISK, since) <= 0.05
    assert r.metric(Metric.REROUTED_SLOW) > 400
    lab.disk_s = 0.001
    lab.read_for(30, prefetch=prefetch)
    since = r.now
    lab.read_for(2, prefetch=prefetch)
    assert lab.share(Origin.DISK, since) == 1
    r.check_at_rest()


def test_a_slow_disk_is_read_for_a_reader_that_is_far_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    r, lead = lab.r, [10.0]
    monkeypatch.setattr(r.state._loads._lanes, "_lead", lambda: lead[0])
    lab.read_for(1)
    lab.on_disk()
    lab.disk_s = 20 * SOURCE_S
    lab.read_for(10, prefetch=True)
    assert r.metric(Metric.REROUTED_SLOW) == 0
    lead[0] = 0.1
    lab.read_for(10, prefetch=True)
    assert r.metric(Metric.REROUTED_SLOW) > 100


def assert_true(found: bool) -> None:
    assert found


def passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies on disk are passed for the source."""
    monkeypatch.setattr(LoadLanes, "reads_copy", lambda lanes, size, disk, prefetch: False)


@pytest.mark.parametrize("prefetch", [False, True])
def test_where_the_source_fails_the_copy_that_was_passed_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, prefetch: bool
) -> None:
    r = lab.r
    lab.on_disk()
    passed(monkeypatch)
    row, other = r.files[:2]
    r.source.errors[row] = errno.EIO
    if prefetch:
        r.state.fetch([row])
        r.run()
    else:
        result = r.read(row)
        assert (result.errno, result.origin) == (0, Origin.DISK)
    assert r.staged(row) == r.contents[row, 0]
    assert r.metric(Metric.SOURCE_ERRORS) == 1
    r.source.errors[other] = errno.EIO
    r.state.withdraw_disk(other)
    assert r.read(other).errno == errno.EIO, "without a copy"
    r.check_at_rest()


def test_a_file_that_changed_is_not_read_from_the_copy_that_was_passed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = lab.r
    lab.on_disk()
    passed(monkeypatch)
    row = r.files[0]
    r.path(row).write_bytes(b"new")
    assert r.read(row).errno == errno.ESTALE
    assert r.changed == [row]


def test_where_the_source_hangs_the_copy_that_was_passed_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    r = lab.r
    lab.on_disk()
    passed(monkeypatch)
    row, gate, before = r.files[0], threading.Event(), set(threading.enumerate())
    r.source.while_opening = lambda _: assert_true(gate.wait(30))
    r.workers.start(2, 1)
    number = r.demand(row)
    assert wait_until(lambda: bool(r.source.opens), 10)

    def answered() -> bool:
        r.take()
        return number in r.results

    for _ in range(round(2 * STUCK_LEAST_S / 0.1)):
        r.now += 0.1
        r.workers.look()
    assert wait_until(answered, 10)
    assert (r.results[number].errno, r.results[number].origin) == (0, Origin.DISK)
    assert r.arena.taken == 2 * PAGE, "the read that hangs may still write into the first extent"
    gate.set()
    assert wait_until(lambda: r.arena.taken == PAGE, 10)
    r.state.stop()
    assert wait_until(lambda: set(threading.enumerate()) <= before, 10)
    assert r.columns.tier[row] == Tier.RAM


# ---- nodes --------------------------------------------------------------------------------------------------


class Readers:
    """Four readers of files of node 1. The node answers after `peer_s`; None: never. `sends`: it says at once that it
    sends the file, as of long ones."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.r = lab, lab.r
        homes(self.r, node1=self.r.files)
        self.peer = FakePeer(self.r)
        self.peer_s: float | None = 0.002
        self.sends = False
        self.waits: list[tuple[float, float, int]] = []  # begin, seconds, origin
        self._reading: dict[int, tuple[int, float]] = {}  # by demand: row, begin

    def run(self, seconds: float) -> None:
        r, end, began = self.r, self.r.now + seconds, {}
        step = 0.001
        while r.now < end or self._reading:
            while r.now < end and len(self._reading) < 4:
                row = self.lab.next_row()
                self._reading[r.demand(row)] = row, r.now
            r.state.check_limits()
            while r.workers.run_one():
                pass
            self.peer.take()
            for ask in list(self.peer.writes.values()):
                if self.sends and ask.id not in began:
                    self.peer.refuse(ask, LeaseStatus.SENDING)
                asked = began.setdefault(ask.id, r.now)
                if ask.id in self.peer.given_up:
                    self.peer.free(ask)
                elif self.peer_s is not None and r.now >= asked + self.peer_s:
                    self.peer.bring(ask)
            self._take()
            r.now += step

    def _take(self) -> None:
        r = self.r
        r.take()
        for number in [number for number in self._reading if number in r.results]:
            row, began = self._reading.pop(number)
            self.waits.append((began, r.now - began, r.results[number].origin))
            assert r.results[number].errno == 0
            r.state.evict([row])
            r.take()

    def p99(self, since: float) -> float:
        found = sorted(wait for began, wait, _ in self.waits if began >= since)
        return found[int(0.99 * len(found))]

    def share_of_source(self, since: float) -> float:
        found = [origin == Origin.SOURCE for began, _, origin in self.waits if began >= since]
        return sum(found) / len(found)


@pytest.fixture
def readers(lab: Lab) -> Iterator[Readers]:
    made = Readers(lab)
    yield made
    made.peer.close()


@pytest.mark.long
def test_a_node_that_hangs_costs_a_reader_a_tenth_of_a_second_and_is_asked_again_when_it_answers(
    readers: Readers,
) -> None:
    r = readers.r
    readers.run(4)
    assert r.source.opens == {}, "nothing is slow: the source is not read at all"
    began, readers.peer_s = r.now, None
    readers.run(20)
    assert readers.p99(began) <= 0.1
    assert max(wait for _, wait, _ in readers.waits) <= 2 * HEDGE_LEAST_S + 4 * SOURCE_S
    assert readers.share_of_source(began) > 0.95
    assert r.metric(Metric.FETCHES_HEDGED) < 30
    readers.peer_s = 0.002
    readers.run(11)
    since = r.now
    readers.run(3)
    assert readers.share_of_source(since) == 0
    r.check_at_rest()


@pytest.mark.parametrize("long", [False, True])
def test_a_node_that_is_slow_is_passed_for_few_files(
    readers: Readers, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        readers.sends = True
        monkeypatch.setattr(remote_fetches, "HEDGED_MOST", 0)
    readers.run(4)
    readers.peer_s = 0.2
    readers.run(1 + WINDOW_S)  # until late answers tell it from a dead one, and the healthy time is over
    r, since = readers.r, readers.r.now
    down, hedged = r.metric(Metric.REROUTED_DOWN), r.metric(Metric.FETCHES_HEDGED)
    before = r.metric(Metric.REROUTED_SLOW)
    assert hedged <= 20
    readers.run(19)
    apart = r.metric(Metric.REROUTED_SLOW) - before
    assert 1 <= apart <= 1.1 * FOREIGN_SHARE * sum(began >= since for began, _, _ in readers.waits)
    assert (r.metric(Metric.REROUTED_DOWN), r.metric(Metric.FETCHES_HEDGED)) == (down, hedged)
    r.check_at_rest()


def test_a_long_file_that_goes_on_from_the_source_is_given_up(tmp_path: Path) -> None:
    with rigs(tmp_path, "node1") as make:
        r, peer = make(HEDGED_MOST, HEDGED_MOST + 1, budget=16 * HEDGED_MOST)
        short, long = (r.demand(row) for row in r.files)
        asks = [peer.ask_of(row) for row in r.files]
        r.now += 10 * HEDGE_LEAST_S
        r.state.check_limits()
        peer.take()
        assert peer.given_up == [asks[1].id]
        r.run()
        assert [r.results[number].origin for number in (short, long)] == [Origin.SOURCE] * 2
        peer.free(asks[1])
        r.now += SILENT_S + MARGIN_S
        r.state.check_limits()
        peer.take()
        assert peer.given_up == [asks[1].id, asks[0].id], "it had its time"
        peer.free(asks[0])
        assert r.state.peer_pause() is None
        r.check_at_rest()


def test_bytes_of_a_dead_node_that_were_under_way_cost_no_reader_more_than_a_late_answer(readers: Readers) -> None:
    r, peer = readers.r, readers.peer
    rows = r.files[:12]
    r.state.fetch(rows)
    for row in rows:
        peer.refuse(peer.ask_of(row), LeaseStatus.SENDING)
    r.now += 5
    waits = []
    for row in rows:
        number, began = r.demand(row), r.now
        while number not in r.results and r.now < began + 20:
            r.state.check_limits()
            r.run()
            r.now += 0.01
        assert r.results[number].origin == Origin.SOURCE
        waits.append(r.now - began)
    assert max(waits) <= HEDGE_COMING_S + 4 * SOURCE_S
    assert max(waits[3:]) <= 4 * SOURCE_S, "by then it is down"
    peer.take()
    peer.free(*list(peer.writes.values()))
    r.check_at_rest()


def test_where_no_second_extent_is_free_the_server_reads_what_a_node_does_not_bring(tmp_path: Path) -> None:
    with rigs(tmp_path, "node1") as make:
        r, peer = make(PAGE, budget=PAGE)
        (row,) = r.files
        number = r.demand(row)
        ask = peer.ask_of(row)
        r.now += 2 * HEDGE_LEAST_S
        r.state.check_limits()
        r.take()
        assert r.results[number].errno == errno.ENOSPC, "with which the server reads by itself"
        assert (r.metric(Metric.FETCHES_HEDGED), r.metric(Metric.NO_ROOM)) == (1, 1)
        peer.bring(ask)  # too late
        again = r.demand(row)
        peer.bring(peer.ask_of(row))
        r.take()
        assert r.results[again].origin == Origin.PEER
        r.check_at_rest()


def test_a_node_that_reads_the_file_itself_is_waited_for_longer(readers: Readers) -> None:
    r, peer = readers.r, readers.peer
    number = r.demand(r.files[0])
    ask = peer.ask_of(r.files[0])
    peer.refuse(ask, LeaseStatus.COMING)
    for _ in range(40):
        r.now += 0.01
        r.state.check_limits()
    peer.take()
    assert peer.given_up == []
    assert r.metric(Metric.FETCHES_HEDGED) == 0
    r.now += 0.2
    r.state.check_limits()
    assert r.metric(Metric.FETCHES_HEDGED) == 1
    r.run()
    assert r.results[number].origin == Origin.SOURCE
    peer.bring(ask)  # too late for its reader
    r.check_at_rest()


def test_one_late_answer_of_a_node_that_answers_others_makes_no_dead_node(readers: Readers) -> None:
    r, peer = readers.r, readers.peer
    *hedged, waiting, last = r.files[:5]
    for row in hedged:  # as many as may be
        r.demand(row)
        r.now += 2 * HEDGE_LEAST_S
        r.state.check_limits()
        peer.refuse(peer.ask_of(row), LeaseStatus.NO)
        r.run()
    number = r.demand(waiting)
    for _ in range(100):
        r.now += 0.01
        r.state.check_limits()
    r.demand(last)
    peer.bring(peer.ask_of(last), peer.ask_of(waiting))
    r.take()
    assert r.results[number].origin == Origin.PEER
    assert (r.metric(Metric.FETCHES_HEDGED), r.metric(Metric.REROUTED_DOWN)) == (HEDGED_FEW, 0)
    r.check_at_rest()


def test_a_reader_of_what_a_dead_node_was_asked_for_does_not_wait_for_it(readers: Readers) -> None:
    r, peer = readers.r, readers.peer
    first, *others = r.files[:7]
    r.state.fetch([first])
    for row in others[:4]:
        r.demand(row)
    for late in (3, 4):  # the fourth has waited until it was clear that the node is down
        r.now += 2 * HEDGE_LEAST_S
        r.state.check_limits()
        assert r.metric(Metric.FETCHES_HEDGED) == late
    r.state.fetch(others[4:])
    number = r.demand(first)
    assert r.state.peer_pause() == 0
    r.state.check_limits()
    r.run()
    assert r.results[number].origin == Origin.SOURCE
    assert r.metric(Metric.REROUTED_DOWN) == len(others[4:])
    assert all(r.staged(row) for row in others[4:])
    peer.take()
    peer.free(*list(peer.writes.values()))
    r.check_at_rest()


def test_rows_that_are_to_be_read_from_the_source_are_cancelled_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadLanes, "asks", lambda lanes, size, node, prefetch: False)
    with rigs(tmp_path, "node1") as make:
        r, peer = make(PAGE, PAGE)
        r.state.fetch(r.files)
        r.state.cancel()
        monkeypatch.setattr(LoadLanes, "asks", lambda lanes, size, node, prefetch: True)
        r.state.fetch(r.files)
        peer.take()
        assert [ask.row for ask in peer.asks.values()] == r.files
        peer.bring(*peer.asks.values())
        r.take()
        r.check_at_rest()
