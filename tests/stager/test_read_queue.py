"""The order in which workers take what is queued, without anything that begins, reads or ends a load."""

from __future__ import annotations

from nopfsfs.stager.load import DONE, Load, SharedOpen
from nopfsfs.stager.read_queue import CLOSING_MOST, SPARE_SLOTS, BlockRead, ReadQueue, RowToBegin
from nopfsfs.stager.workers import FILE_MOST, Worker, Workers


def load_of(row: int, blocks: int = 1) -> Load:
    return Load(row, 0, 10 * blocks, 0, True, file_of(row), 0, block=10)


def file_of(row: int) -> SharedOpen:
    return SharedOpen(None, row)  # type: ignore[arg-type]


def queue_of(slots: int = 2) -> ReadQueue:
    return ReadQueue(slots, Workers(lambda: 0.0, lambda row: 0, 1))


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
    queue = queue_of()
    load = load_of(0, blocks=3)
    queue.follow(load)
    queue.demand(load, [1])
    assert take_all(queue) == [(0, 1), (0, 0), (0, 2)]
    assert load.running == 3


def test_no_more_loads_have_slots_than_there_are() -> None:
    queue = queue_of(slots=2)
    loads = [load_of(row) for row in range(3)]
    for load in loads:
        queue.queue(load)
    assert take_all(queue) == [(0, 0), (1, 0)]
    queue.ended(loads[0])
    assert take_all(queue) == [(2, 0)]


def test_a_row_is_begun_by_the_caller_and_takes_a_slot_then() -> None:
    queue = queue_of(slots=1)
    queue.fetch([5, 6])
    assert queue.take(False) == RowToBegin(5), "and it may get no load"
    assert queue.take(False) == RowToBegin(6)
    load = load_of(6, blocks=2)
    assert queue.take_slot(load) == BlockRead(load, 0)
    queue.fetch([7])
    assert take_all(queue) == [(6, 1)], "no slot for another"


def test_a_load_that_was_read_for_who_waits_takes_no_slot() -> None:
    queue = queue_of(slots=1)
    load = load_of(0)
    queue.queue(load)
    load.blocks[0] = DONE
    assert (take_all(queue), load.slot) == ([], False)


def test_a_stuck_load_gives_its_slot_to_another_once() -> None:
    queue = queue_of(slots=1)
    stuck, other = load_of(0), load_of(1)
    queue.queue(stuck)
    queue.queue(other)
    assert take_all(queue) == [(0, 0)]
    queue.give_on(stuck)
    queue.give_on(stuck)
    assert take_all(queue) == [(1, 0)]
    queue.ended(stuck)
    assert queue._taken == 1
    queue.ended(other)
    assert queue._taken == queue._given_on == 0


def test_so_many_slots_are_given_on_and_no_more() -> None:
    queue = queue_of(slots=SPARE_SLOTS + 1)
    loads = [load_of(row) for row in range(SPARE_SLOTS + 1)]
    for load in loads:
        queue.queue(load)
    take_all(queue)
    for load in loads:
        queue.give_on(load)
    assert [load.slot for load in loads] == [False] * SPARE_SLOTS + [True]


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
        queue.begin(worker, step, freed=False)
    assert workers[-1].load is other
    assert queue.take(False) is None
    queue.take_wakes()
    assert not queue.end(workers[0])
    assert queue.take_wakes() == (2, 2)
    assert queue.take(False) == BlockRead(large, FILE_MOST)


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
