"""Reads that do not end: of one file, of many, of a device, of a disk tier. Whatever else is read goes on.

Time is the test's: the stager takes `Rig.now` for it, and is made to look at what hangs.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash

from nopfsfs.policy.left_alone import ROW_FIRST_S, TIER_FIRST_S
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.stager import load, worker_threads
from nopfsfs.stager.workers import DEVICE_MOST, FILE_MOST, SPARE_MOST, Worker, Workers
from tests.stager.rig import PAGE, Rig, write_files
from tests.waiting import wait_until


class Stuck:
    """A rig whose source, and whose disk, can be made to hang for some rows."""

    def __init__(self, root: Path, sizes: list[int], **options: object) -> None:
        write_files(root, sizes)
        self.before = set(threading.enumerate())
        self.rig = Rig(root, budget=4096 * PAGE, disks=self, **options)  # type: ignore[arg-type]
        self.hanging: dict[int, threading.Event] = {}
        self.disk_hangs: threading.Event | None = None
        self.inside = 0
        self._lock = threading.Lock()
        self.rig.source.while_opening = self._open

    def _open(self, row: int) -> None:
        self._wait(self.hanging.get(row))

    def _wait(self, event: threading.Event | None) -> None:
        if event is None:
            return
        with self._lock:
            self.inside += 1
        event.wait(30)
        with self._lock:
            self.inside -= 1

    def read(self, disk: int, row: int, into: memoryview) -> None:
        """Of the disk: late, and rotten then."""
        event = self.disk_hangs
        self._wait(event)
        into[:] = bytes(len(into)) if event is not None else self.rig.path(row).read_bytes()

    def hang(self, rows: list[int]) -> threading.Event:
        event = threading.Event()
        self.hanging |= dict.fromkeys(rows, event)
        return event

    def threads(self) -> int:
        return len(set(threading.enumerate()) - self.before)

    def pass_time(self, seconds: float) -> None:
        """Look as often as the stager's watch does."""
        for _ in range(round(seconds / 0.1)):
            self.rig.now += 0.1
            self.rig.workers.look()

    def until(self, done: Callable[[], bool]) -> bool:
        """Wait for it while the server takes its answers; no time passes for the stager."""

        def look() -> bool:
            self.rig.take()
            return done()

        return wait_until(look, 10)

    def answered(self, number: int) -> bool:
        return self.until(lambda: number in self.rig.results)

    def on_disk(self, row: int) -> None:
        self.rig.columns.check[row] = xxhash.xxh3_64_intdigest(self.rig.path(row).read_bytes())
        assert self.rig.state.publish_disk(row, 1, 0)
        self.rig.told()

    def close(self) -> None:
        for event in (*self.hanging.values(), *([self.disk_hangs] if self.disk_hangs else [])):
            event.set()
        self.rig.state.stop()
        assert wait_until(lambda: self.threads() == 0)
        self.rig.close()


Make = Callable[..., Stuck]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Stuck] = []

    def build(sizes: list[int], **options: object) -> Stuck:
        made.append(s := Stuck(tmp_path, sizes, **options))
        # The time of reads, too: a read that a busy machine makes slow would count as usual, and a stuck one as none.
        monkeypatch.setattr(worker_threads, "time", SimpleNamespace(monotonic_ns=lambda: int(s.rig.now * 1e9)))
        return s

    yield build
    for one in made:
        one.close()


def test_eighty_stuck_reads_leave_others_the_threads_there_were(make: Make) -> None:
    s = make([PAGE] * 100)
    r = s.rig
    sick, healthy = r.files[:80], r.files[80:]
    gate = s.hang(sick)
    r.workers.start(64, 16)
    numbers = [r.demand(row) for row in sick]
    assert s.until(lambda: s.inside == 80)
    first = r.demand(healthy[0])
    s.pass_time(0.2)
    assert s.answered(first), "at once a thread more, where none takes a demand"
    s.pass_time(1)
    assert r.metric(Metric.STUCK_READS) == 80
    assert s.threads() >= 160, "each stuck thread has another in its place"
    others = [r.demand(row) for row in healthy[1:]]
    assert all(s.answered(number) for number in others)
    assert not any(number in r.results for number in numbers)
    gate.set()
    assert all(s.answered(number) for number in numbers)
    assert s.until(lambda: s.threads() == 80), "the surplus ends"
    r.workers.look()
    assert (r.metric(Metric.STUCK_READS), r.metric(Metric.SPARE_WORKERS), r.metric(Metric.STUCK_EVER)) == (0, 0, 80)
    assert r.source.opens == dict.fromkeys(r.files, 1)


def test_stuck_reads_take_a_bounded_number_of_threads(make: Make) -> None:
    s = make([1] * (SPARE_MOST + 20))
    r = s.rig
    *sick, healthy = r.files
    gate = s.hang(sick)
    r.workers.start(4, 2)
    for row in sick:
        r.demand(row)
    for _ in range(20):
        s.pass_time(2)
        assert s.until(lambda: s.inside == s.threads()), "each has one to read"
    assert (s.inside, s.threads()) == (SPARE_MOST + 6, SPARE_MOST + 6)
    s.pass_time(0.3)
    number = r.demand(healthy)
    assert s.answered(number)
    assert r.results[number].errno == errno.ENOSPC, "the server has threads of its own"
    gate.set()
    assert s.until(lambda: len(r.results) == len(r.files)), "all are answered when the source is back"
    s.pass_time(0.3)
    assert not r.read(healthy).errno
    assert s.until(lambda: s.threads() == 6)


def test_one_stuck_file_holds_few_workers(make: Make) -> None:
    s = make([(FILE_MOST + 20) * PAGE, PAGE])
    r = s.rig
    large, other = r.files
    gate = s.hang([large])
    r.workers.start(FILE_MOST + 2, 0)
    number = r.demand(large)  # all of its blocks
    assert s.answered(r.demand(other)), "though nobody has looked yet"
    assert number not in r.results
    gate.set()
    assert s.answered(number)
    assert r.results[number].data == r.path(large).read_bytes()


def test_prefetches_go_on_past_a_sick_target_which_is_left_alone(make: Make) -> None:
    s = make([PAGE] * 30)
    r = s.rig
    sick, healthy = r.files[:4], r.files[4:]  # as many as the source is read by at once
    gate = s.hang(sick)
    r.workers.start(4, 1)
    r.state.fetch(sick[:3] + healthy[:10] + sick[3:])
    assert s.until(lambda: s.inside == 4)
    assert all(r.staged(row) for row in healthy[:10])
    assert set(r.told()) == {(Event.STAGED, row) for row in healthy[:10]}
    s.pass_time(1.2)
    assert set(r.told()) == {(Event.STUCK, row) for row in sick}
    assert r.metric(Metric.LEFT_ALONE) == 4
    r.state.fetch(healthy[10:20])
    assert not s.rig.workers.run_one(), "nothing has ended since they began: the whole source may be stuck"
    assert s.answered(r.demand(healthy[-1]))
    s.pass_time(0.2)
    assert s.until(lambda: all(r.staged(row) for row in healthy[:20])), "it is not: their places are given on"
    r.told()
    r.state.fetch(sick)
    again: set[tuple[Event, int]] = set()
    assert s.until(lambda: bool(again.update(r.told())) or again == {(Event.STUCK, row) for row in sick}), again
    gate.set()
    assert s.until(lambda: all(r.staged(row) for row in sick))
    assert s.until(lambda: s.threads() == 5)
    assert set(r.told()) == {(Event.STAGED, row) for row in sick}
    s.pass_time(1)
    assert r.metric(Metric.LEFT_ALONE) == 0


def test_a_row_that_failed_after_it_was_stuck_is_left_alone_for_longer_and_longer(make: Make) -> None:
    s = make([PAGE])
    r = s.rig
    (row,) = r.files
    r.workers.start(4, 1)
    for pause in (ROW_FIRST_S, 2 * ROW_FIRST_S):
        gate = s.hang([row])
        r.source.errors[row] = errno.EIO
        r.state.fetch([row])
        assert s.until(lambda: s.inside == 1)
        s.pass_time(1.2)
        gate.set()
        assert s.until(lambda: s.inside == 0)
        assert s.until(lambda: (Event.FAILED, row) in r.told())
        opens = r.source.opens[row]
        r.now += pause - 2
        r.state.fetch([row])
        assert s.until(lambda: r.told() == [(Event.FAILED, row)])
        assert r.source.opens[row] == opens
        r.now += 2
    r.source.errors.clear()
    s.hanging.clear()
    r.state.fetch([row])
    assert s.until(lambda: bool(r.staged(row)))


def test_a_demand_gets_no_error_of_a_load_that_failed_before_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block has failed, another is being read: the server reads the source itself, which may be well again."""
    s = make([2 * PAGE])
    r = s.rig
    (row,) = r.files
    gate, both = threading.Event(), threading.Barrier(2)

    def read(fd: int, identity: object, into: memoryview, offset: int) -> None:
        both.wait(10)  # or the second would not be begun any more
        if offset == 0:
            raise OSError(errno.EIO, "told to fail")
        s._wait(gate)
        raise OSError(errno.EIO, "told to fail")

    with monkeypatch.context() as patched:
        patched.setattr(load, "read_exactly", read)
        r.workers.start(2, 0)
        first = r.demand(row)
        assert s.answered(first)
        assert s.until(lambda: s.inside == 1)
        second = r.demand(row)
        assert s.answered(second)
        gate.set()
        assert s.until(lambda: s.inside == 0)
    assert (r.results[first].errno, r.results[second].errno) == (errno.EIO, errno.ENOSPC)


def test_a_demand_tries_a_row_that_is_left_alone(make: Make) -> None:
    s = make([PAGE])
    r = s.rig
    (row,) = r.files
    gate = s.hang([row])
    r.source.errors[row] = errno.EIO
    r.workers.start(1, 1)
    r.state.fetch([row])
    assert s.until(lambda: s.inside == 1)
    s.pass_time(1.2)
    gate.set()
    assert s.until(lambda: s.inside == 0)
    assert s.until(lambda: (Event.FAILED, row) in r.told())
    r.source.errors.clear()
    number = r.demand(row)
    assert s.answered(number)
    assert r.results[number].data == r.path(row).read_bytes()


def test_what_hangs_on_one_device_is_not_prefetched_while_others_are(make: Make) -> None:
    s = make([PAGE] * (2 * DEVICE_MOST + 10), concurrency=DEVICE_MOST)
    r = s.rig
    sick, healthy = r.files[: 2 * DEVICE_MOST], r.files[2 * DEVICE_MOST :]
    device = [int(row in sick) for row in range(r.index.n)]
    workers = Workers(lambda: r.now, device.__getitem__, 2)
    for part in (r.state, r.state._queue, r.state._stuck, r.state._demands):
        part._workers = workers  # type: ignore[attr-defined]
    gate = s.hang(sick)
    r.workers.start(DEVICE_MOST, 1)
    r.state.fetch(sick[:DEVICE_MOST])
    assert s.until(lambda: s.inside == DEVICE_MOST)
    s.pass_time(1.2)
    r.told()
    assert s.answered(r.demand(healthy[0]))
    s.pass_time(0.1)
    r.state.fetch(sick[DEVICE_MOST:] + healthy)
    assert s.until(lambda: all(r.staged(row) for row in healthy))
    assert {row for event, row in r.told() if event == Event.FAILED} == set(sick[DEVICE_MOST:])
    gate.set()
    assert s.until(lambda: all(r.staged(row) for row in sick[:DEVICE_MOST]))
    r.state.fetch(sick)
    assert s.until(lambda: all(r.staged(row) for row in sick)), "it answers again"


def test_closing_files_at_a_source_that_hangs_leaves_others_their_threads(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make([PAGE] * 12)
    r = s.rig
    gate = s.hang([-1])
    real = load.close

    def close(fd: int) -> None:
        slow = os.readlink(f"/proc/self/fd/{fd}").encode() in {os.fsencode(r.path(row)) for row in r.files[:8]}
        real(fd)
        s._wait(gate if slow else None)

    monkeypatch.setattr(load, "close", close)
    r.workers.start(4, 4)
    numbers = [r.demand(row) for row in r.files[:8]]
    assert all(s.answered(number) for number in numbers), "before the file is closed"
    assert all(r.staged(row) for row in r.files[:8])
    assert s.until(lambda: s.inside == 8)
    last = r.demand(r.files[8])
    s.pass_time(1.2)
    assert s.answered(last)
    assert not any(event == Event.STUCK for event, _ in r.told()), "these are staged"
    gate.set()
    assert s.until(lambda: s.threads() == 8)


# ---- disk tiers ---------------------------------------------------------------------------------------------


def test_a_disk_that_hangs_is_passed_by_and_writes_into_nothing_that_is_used(make: Make) -> None:
    s = make([3 * PAGE] * 6)
    r = s.rig
    demanded, fetched, later, fine, *_ = r.files
    for row in r.files:
        s.on_disk(row)
    r.workers.start(4, 1)
    s.disk_hangs = threading.Event()
    number = r.demand(demanded)
    r.state.fetch([fetched])
    assert s.until(lambda: s.inside == 2)
    s.pass_time(1.4)
    assert number not in r.results
    s.pass_time(0.2)
    assert s.answered(number)
    assert r.results[number].origin == Origin.SOURCE
    assert s.until(lambda: r.staged(fetched) is not None)
    assert (r.metric(Metric.DISK_LATE), r.metric(Metric.DISKS_BYPASSED)) == (2, 1)
    number = r.demand(later)
    assert s.answered(number), "without trying the disk"
    assert s.inside == 2
    taken = r.arena.taken
    gate, s.disk_hangs = s.disk_hangs, None
    gate.set()
    assert s.until(lambda: r.arena.taken == taken - 2 * 3 * PAGE), "the extents that the disk could write"
    for row in (demanded, fetched, later):
        assert r.staged(row) == r.path(row).read_bytes()
    assert sorted(r.copies_lost) == sorted([(demanded, 1), (fetched, 1)]), "copies that came too late, and rotten"
    assert r.columns.disk[[demanded, fetched, later]].tolist() == [0, 0, 1]
    r.now += TIER_FIRST_S
    number = r.demand(fine)
    assert s.answered(number)
    assert r.results[number].origin == Origin.DISK
    assert s.until(lambda: s.threads() == 5)
    r.check_at_rest()


def test_a_worker_that_gets_no_processor_for_long_reads_into_nothing_that_is_used(make: Make) -> None:
    """The load went on without the worker before the worker had begun to read: other processes had the processors, or
    all were suspended."""
    s = make([3 * PAGE] * 2)
    r = s.rig
    slow, other = r.files
    s.on_disk(slow)
    number = r.demand(slow)
    worker = Worker(urgent=False)
    r.state.enter(worker)
    step = r.state.next_step(worker, wait=False)
    assert step is not None
    r.now += 2.0
    r.state.check_stuck()
    r.run()
    assert r.results[number].origin == Origin.SOURCE
    r.state.evict([slow])
    r.run()
    assert r.read(other).data == r.path(other).read_bytes()
    taken = r.arena.taken
    r.workers.do(worker, step)
    assert r.staged(other) == r.path(other).read_bytes()
    assert r.arena.taken == taken - 3 * PAGE, "the extent that the worker could write"
    assert r.columns.tier[slow] == Tier.NONE
    r.state.leave(worker)
    r.check_at_rest()


def test_a_disk_that_hangs_where_there_is_no_other_room_leaves_the_read_to_the_server(make: Make) -> None:
    s = make([3 * PAGE], range_budget=0)
    r = s.rig
    (row,) = r.files
    s.on_disk(row)
    r.workers.start(2, 1)
    s.disk_hangs = threading.Event()
    r.state.set_budget(3 * PAGE, 3 * PAGE, 0)
    number = r.demand(row)
    assert s.until(lambda: s.inside == 1)
    s.pass_time(1.7)
    assert s.answered(number)
    assert r.results[number].errno == errno.ENOSPC
    assert r.columns.tier[row] == Tier.NONE
    s.disk_hangs.set()
    assert s.until(lambda: r.arena.taken == 0)


def test_a_row_that_only_another_node_waits_for_is_read_when_its_disk_hangs(make: Make) -> None:
    s = make([2 * PAGE])
    r = s.rig
    (row,) = r.files
    s.on_disk(row)
    r.workers.start(2, 1)
    s.disk_hangs = threading.Event()
    with r.state._acting:
        assert r.state._loads.load_to_lease(row, urgent=True)
    assert s.until(lambda: s.inside == 1)
    s.pass_time(1.7)
    assert s.until(lambda: r.staged(row) == r.path(row).read_bytes())
