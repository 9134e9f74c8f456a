"""The order in which workers take what is queued, without anything that begins, reads or ends a load."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.stager.load import DONE, Load, SharedOpen
from nopfsfs.stager.read_queue import CLOSING_MOST, REST_S, SPARE_SLOTS, BlockRead, ReadQueue, ReadsBeside, RowToBegin
from nopfsfs.stager.workers import FILE_MOST, Worker, Workers
from nopfsfs.tiers.source_slots import DISK_SLOTS, ReadLane, SourceSlots


def load_of(row: int, blocks: int = 1, disk: int = 0, block: int = 10) -> Load:
    return Load(row, 0, block * blocks, 0, True, file_of(row), 0, block=block, from_disk=disk)


def file_of(row: int) -> SharedOpen:
    return SharedOpen(None, row)  # type: ignore[arg-type]


class Queue(ReadQueue):
    """A queue with workers that take what there is for them; `now` is its clock."""

    def __init__(self, limit: int) -> None:
        self.now = 0.0
        self.metrics = memoryview(bytearray(8 * METRICS)).cast("q")
        clock = lambda: self.now  # noqa: E731
        super().__init__(SourceSlots(limit, self.metrics, clock), Workers(clock, lambda row: 0, 1))

    def work(self, *, urgent: bool = False) -> Worker:
        """A worker that takes the next step, if there is one."""
        worker = Worker(urgent=urgent)
        self._workers.enter(worker)
        self.go_on(worker)
        return worker

    def go_on(self, worker: Worker) -> None:
        step = self.take(worker.urgent)
        if step is not None:
            assert not isinstance(step, RowToBegin)
            self.begin(worker, step)
        self.pass_on()

    def end_and_go_on(self, worker: Worker) -> None:
        self.end(worker)
        self.go_on(worker)

    def under_way(self) -> tuple[int, int]:
        """All requests at the source, and the demands among them, as the metrics say."""
        return self.metrics[Metric.UNDER_WAY], self.metrics[Metric.DEMANDS_UNDER_WAY]


def queue_of(slots: int = 2) -> Queue:
    return Queue(slots)


def rows_of(workers: list[Worker]) -> list[int | None]:
    return [worker.load.row if worker.load is not None else None for worker in workers]


def take_all(queue: ReadQueue, demands_only: bool = False) -> list[object]:
    found = []
    while (step := queue.take(demands_only)) is not None:
        found.append((step.load.row, step.block) if isinstance(step, BlockRead) else step)
    return found


def test_demands_are_first_then_leases_then_followups_then_what_needs_a_slot() -> None:
    queue = queue_of(slots=8)
    rows = [load_of(row) for row in range(4)]
    queue.fetch([9])
    queue.queue(rows[3])
    queue.follow(rows[2])
    queue.lease(rows[1])
    queue.demand(rows[0], [0])
    assert take_all(queue) == [(0, 0), (1, 0), (2, 0), (3, 0), RowToBegin(9)]


def test_workers_for_demands_take_nothing_that_nobody_waits_for() -> None:
    queue = queue_of()
    queue.fetch([9])
    queue.follow(load_of(2))
    queue.lease(load_of(1))
    queue.demand(load_of(0), [0])
    assert take_all(queue, demands_only=True) == [(0, 0), (1, 0)]


def test_a_demand_that_has_waited_long_is_before_others() -> None:
    queue = queue_of()
    queue.demand(load_of(0), [0])
    queue.demand(load_of(1, blocks=2), [0, 1], first=True)
    assert take_all(queue) == [(1, 0), (1, 1), (0, 0)]


def test_a_block_is_taken_once_however_often_it_is_queued() -> None:
    queue = queue_of(slots=4)
    load = load_of(0, blocks=3)
    queue.follow(load)
    queue.demand(load, [1])
    assert take_all(queue) == [(0, 1), (0, 0), (0, 2)]
    assert load.running == 3


def test_no_more_prefetches_are_under_way_than_there_are_slots() -> None:
    queue = queue_of(slots=2)
    for row in range(4):
        queue.queue(load_of(row))
    workers = [queue.work() for _ in range(3)]
    assert rows_of(workers) == [0, 1, None]
    assert queue.under_way() == (2, 0)
    queue.end_and_go_on(workers[0])
    assert rows_of(workers) == [2, 1, None]


def test_each_block_of_a_large_file_that_nobody_waits_for_needs_a_slot() -> None:
    queue = queue_of(slots=3)
    queue.queue(load_of(0, blocks=5))
    workers = [queue.work() for _ in range(5)]
    assert rows_of(workers) == [0, 0, 0, None, None]
    queue.demand(load_of(1), [0])
    assert rows_of([queue.work(urgent=True)]) == [1], "and a demand needs none"


def test_prefetches_have_what_demands_leave_of_the_limit_and_at_least_one() -> None:
    queue = queue_of(slots=4)
    demands = [load_of(row) for row in range(10, 13)]
    for load in demands:
        queue.demand(load, [0])
    for row in range(4):
        queue.queue(load_of(row))
    workers = [queue.work() for _ in range(6)]
    assert rows_of(workers) == [10, 11, 12, 0, None, None]
    assert queue.under_way() == (4, 3)
    for load in (load_of(13), load_of(14)):
        queue.demand(load, [0])
        queue.work(urgent=True)
    queue.end_and_go_on(workers[3])
    assert rows_of(workers[3:4]) == [1], "five demands are more than the limit, and one prefetch goes on"
    for worker in workers[:3]:
        queue.end_and_go_on(worker)
    assert queue.under_way() == (4, 2)


def test_a_demand_that_ends_at_a_worker_for_demands_wakes_one_that_prefetches() -> None:
    queue = queue_of(slots=2)
    queue.demand(load_of(10), [0])
    waited_for = queue.work(urgent=True)
    for row in range(2):
        queue.queue(load_of(row))
    queue.work()
    queue.take_wakes()
    queue.end_and_go_on(waited_for)
    assert queue.take_wakes() == (1, 0)


def test_one_prefetch_after_the_other_at_one_worker_wakes_nobody() -> None:
    queue = queue_of(slots=1)
    queue.fetch(range(9, 12))
    queue.queue(load_of(0))
    queue.queue(load_of(1))
    worker = queue.work()
    queue.take_wakes()
    queue.end_and_go_on(worker)
    assert queue.take_wakes() == (0, 0)


def test_a_limit_that_rises_wakes_who_may_go_on_and_one_that_falls_lets_what_is_under_way_end() -> None:
    queue = queue_of(slots=1)
    for row in range(8):
        queue.queue(load_of(row))
    workers = [queue.work()]
    queue.take_wakes()
    queue.set_limit(4, 0)
    assert queue.take_wakes() == (3, 0)
    workers += [queue.work() for _ in range(4)]
    assert rows_of(workers) == [0, 1, 2, 3, None]
    queue.set_limit(2, 0)
    for worker in workers[:2]:
        queue.end_and_go_on(worker)
    assert (rows_of(workers), queue.under_way()) == ([None, None, 2, 3, None], (2, 0))
    queue.end_and_go_on(workers[2])
    assert rows_of(workers) == [None, None, 4, 3, None]


def test_copies_on_disk_have_slots_of_their_own() -> None:
    queue = queue_of(slots=1)
    for row in range(2):
        queue.queue(load_of(row))
    for row in range(DISK_SLOTS + 1):
        queue.queue(load_of(10 + row, disk=1))
    workers = [queue.work() for _ in range(DISK_SLOTS + 2)]
    assert rows_of(workers) == [0, *range(10, 10 + DISK_SLOTS), None]
    assert queue.under_way() == (1, 0), "a disk is not the source"
    queue.demand(load_of(50, disk=1), [0])
    assert rows_of([queue.work(urgent=True)]) == [50]
    assert queue.under_way() == (1, 0)


def test_a_row_whose_copy_on_disk_is_gone_waits_for_a_slot_of_the_source() -> None:
    queue = queue_of(slots=1)
    queue.queue(load_of(0))
    worker = queue.work()
    queue.fetch([], [5])
    assert queue.take(False) == RowToBegin(5)
    load = load_of(5)
    assert queue.take_begun(load) is None
    queue.end_and_go_on(worker)
    assert worker.load is load


def test_the_time_in_which_a_prefetch_waits_for_a_slot_and_the_requests_under_way_are_integrated() -> None:
    queue = queue_of(slots=1)
    queue.queue(load_of(0))
    queue.queue(load_of(1))
    worker = queue.work()
    queue.take_wakes()
    queue.now = 2.0
    queue.end_and_go_on(worker)
    queue.take_wakes()
    queue.now = 5.0
    queue.end_and_go_on(worker)
    queue.take_wakes()
    queue.now = 9.0
    queue._slots.count()
    assert queue.metrics[Metric.UNDER_WAY_NS] == 5_000_000_000
    assert queue.metrics[Metric.SLOTS_WAITED_NS] == 2_000_000_000


def test_a_row_is_begun_by_the_caller_and_takes_a_slot_then() -> None:
    queue = queue_of(slots=1)
    queue.fetch([5, 6])
    assert queue.take(False) == RowToBegin(5), "and it may get no load"
    assert queue.take(False) == RowToBegin(6)
    load = load_of(6, blocks=2)
    assert queue.take_begun(load) == BlockRead(load, 0)
    queue.fetch([7])
    assert take_all(queue) == [], "no slot for another"


def test_a_load_that_was_read_for_who_waits_takes_no_slot() -> None:
    queue = queue_of(slots=1)
    load = load_of(0)
    queue.queue(load)
    load.blocks[0] = DONE
    assert (take_all(queue), queue.under_way()) == ([], (0, 0))


def test_a_stuck_worker_gives_its_slot_to_another_once() -> None:
    queue = queue_of(slots=1)
    for row in range(3):
        queue.queue(load_of(row))
    stuck = queue.work()
    queue.give_on(stuck)
    queue.give_on(stuck)
    assert queue.under_way() == (0, 0)
    workers = [queue.work(), queue.work()]
    assert rows_of(workers) == [1, None]
    queue.end(stuck)
    assert (queue.under_way(), queue._given_on) == ((1, 0), 0)


def test_a_stuck_demand_takes_no_slot_from_prefetches_once_others_end() -> None:
    queue = queue_of(slots=2)
    queue.demand(load_of(10), [0])
    stuck = queue.work(urgent=True)
    for row in range(2):
        queue.queue(load_of(row))
    queue.give_on(stuck)
    assert rows_of([queue.work(), queue.work()]) == [0, 1]


def test_so_many_slots_are_given_on_and_no_more() -> None:
    queue = queue_of(slots=SPARE_SLOTS + 1)
    for row in range(SPARE_SLOTS + 1):
        queue.queue(load_of(row))
    workers = [queue.work() for _ in range(SPARE_SLOTS + 1)]
    for worker in workers:
        queue.give_on(worker)
    assert queue.under_way() == (1, 0)


def test_no_file_takes_all_workers_and_what_was_set_aside_comes_back() -> None:
    queue = queue_of(slots=64)
    large, other = load_of(0, blocks=FILE_MOST + 2), load_of(1)
    queue.demand(large, range(FILE_MOST + 2))
    queue.demand(other, [0])
    workers = [Worker(urgent=False) for _ in range(FILE_MOST + 1)]
    for worker in workers:
        queue._workers.enter(worker)
        step = queue.take(False)
        assert isinstance(step, BlockRead)
        queue.begin(worker, step)
    assert workers[-1].load is other
    assert queue.take(False) is None
    queue.take_wakes()
    queue.end(workers[0])
    assert queue.take_wakes() == (2, 2)
    assert queue.take(False) == BlockRead(large, FILE_MOST, ReadLane.DEMAND)


def test_files_are_closed_last_unless_there_are_many() -> None:
    queue = queue_of()
    files = [file_of(row) for row in range(CLOSING_MOST + 1)]
    for file in files:
        queue.close(file)
    queue.demand(load_of(0), [0])
    assert take_all(queue, demands_only=True) == [(0, 0)]
    assert take_all(queue) == files
    queue.close(files[0])
    queue.demand(load_of(1), [0])
    assert take_all(queue) == [(1, 0), files[0]]


def test_cancelled_rows_are_returned_and_not_taken() -> None:
    queue = queue_of()
    queue.fetch([1, 2])
    assert (queue.cancel(), take_all(queue)) == ([1, 2], [])


def test_what_is_queued_wakes_as_many_as_may_take_it() -> None:
    queue = queue_of(slots=2)
    queue.demand(load_of(0, blocks=3), [0, 1, 2])
    assert queue.take_wakes() == (3, 3)
    queue.fetch([1, 2, 3])
    queue.close(file_of(9))
    assert queue.take_wakes() == (3, 0)
    assert queue.take_wakes() == (0, 0)


def test_prefetches_keep_to_the_bandwidth_and_one_worker_keeps_its_time() -> None:
    queue = queue_of(slots=8)
    queue.set_limit(8, 1000)
    queue.demand(load_of(9, block=100), [0])
    demand = queue.work(urgent=True)  # owes 100 bytes: a tenth of a second
    for row in range(4):
        queue.queue(load_of(row, block=100))
    idle = [queue.work(), queue.work()]
    assert rows_of([demand, *idle]) == [9, None, None]
    assert [queue.rest_s(worker) for worker in idle] == [pytest.approx(0.1), REST_S]
    assert queue.rest_s(idle[0]) == pytest.approx(0.1), "it goes on keeping the time"
    assert queue.rest_s(demand) == REST_S, "demands wait for no bandwidth"
    queue.take_wakes()

    queue.now = 0.1
    queue.go_on(idle[0])
    assert rows_of(idle) == [0, None]
    assert queue.take_wakes()[0] >= 1, "another worker keeps the time"
    assert queue.rest_s(idle[1]) == pytest.approx(0.1)
    queue.set_limit(8, 0)
    assert queue.take_wakes()[0] >= 3, "whoever rests need not wait any more"
    queue.go_on(idle[1])
    assert rows_of(idle) == [0, 1]


def test_a_bandwidth_that_is_used_up_is_no_want_of_slots() -> None:
    """Or the tuner would take an idle source for one that is busy with this mount's requests."""
    queue = queue_of(slots=2)
    queue.set_limit(2, 1000)
    queue.demand(load_of(9, block=5000), [0])
    queue.end(queue.work(urgent=True))
    queue.queue(load_of(0))
    queue.work()
    queue.take_wakes()
    queue.now = 1.0
    queue._slots.count()
    assert queue.metrics[Metric.SLOTS_WAITED_NS] == 0


def test_rows_that_come_last_come_after_all_that_is_queued_later() -> None:
    queue = queue_of(slots=8)
    queue.fetch_last([1, 2, 3, 4])
    queue.fetch([9, 3])
    assert take_all(queue) == [RowToBegin(9), RowToBegin(3), RowToBegin(1), RowToBegin(2), RowToBegin(4)]


def test_rows_that_come_last_are_cancelled_apart() -> None:
    queue = queue_of(slots=8)
    queue.fetch_last([1, 2])
    queue.fetch([9])
    assert queue.cancel() == [9]
    queue.fetch([8])
    assert queue.cancel_last() == [1, 2]
    assert take_all(queue) == [RowToBegin(8)]
    assert queue.cancel_last() == []


def test_rows_that_come_last_wake_workers_and_wait_for_slots() -> None:
    queue = queue_of(slots=2)
    queue.fetch_last([1, 2, 3])
    assert queue.take_wakes() == (2, 0)
    assert queue.take(demands_only=True) is None


def test_a_read_beside_the_workers_has_a_slot_and_its_end_wakes_one() -> None:
    queue = queue_of(slots=2)
    beside = ReadsBeside(nullcontext(), queue, queue._slots, queue.metrics)
    assert [beside.begin(0), beside.begin(5), beside.begin(5)] == [True, True, False]
    assert queue.under_way() == (2, 0)
    queue.fetch([9])
    assert queue.take_wakes() == (0, 0)
    assert queue.take(demands_only=False) is None
    beside.end(5)
    assert queue.take_wakes() == (1, 0)
    assert queue.take(demands_only=False) == RowToBegin(9)
    assert (queue.metrics[Metric.SOURCE_OPENS], queue.metrics[Metric.SOURCE_READ_BYTES]) == (1, 5)
