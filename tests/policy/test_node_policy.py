"""The policy with a simulated stager and reader: budgets, progress, and books that always agree with the truth."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nopfsfs.placement.methods import UNCOVERED
from nopfsfs.policy import stream_scan
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.copy_flags import KERNEL_READS
from nopfsfs.policy.fetch_scheduler import FETCHES_OUTSTANDING
from nopfsfs.policy.homes import Home
from nopfsfs.policy.large_reads import DROP_BYTES
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.open_files import FORGOTTEN_AFTER
from nopfsfs.policy.pending_reads import PASSED_BY
from nopfsfs.policy.push_scheduler import PUSHES_OUTSTANDING, Paged
from nopfsfs.policy.stream_scan import SCAN, SCAN_STEPS
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.examples import examples
from tests.policy.simulated import World
from tests.policy.splits import split

# ---- cases --------------------------------------------------------------------------------------------------


def test_what_fits_is_fetched_once_and_stays_for_all_epochs() -> None:
    w = World([10] * 50, list(range(50)) * 3, split(homes=500, stream=0, pages=500, page_homes=500))
    w.settle()
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
    assert sorted(w.fetched) == list(range(50))
    assert w.demands == 0
    assert len(w.pages) == 50


def test_what_does_not_fit_streams_through_the_window_without_a_miss() -> None:
    w = World([10] * 200, list(range(200)) * 3, split(homes=500, stream=100, pages=150))
    w.settle()
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
        assert len(w.pages) * 10 <= 150
    assert w.demands == 0
    assert len(w.fetched) == 50 + 150 * 3, "those that stay once, the others once in each epoch"


def test_the_window_does_not_run_away_from_a_reader_that_stands_still() -> None:
    """What is pushed ahead is not dropped to push what is further ahead."""
    w = World([10] * 200, list(range(200)), split(homes=2000, stream=0, pages=160))
    for _ in range(20):
        w.settle()
    assert {0, 1, 2, 3} <= w.pages
    assert len(w.pages) <= 16


def test_a_file_too_large_for_the_window_does_not_stop_the_others() -> None:
    w = World([10, 500, 10, 10], [0, 1, 2, 3], split(homes=600, stream=0, pages=100))
    w.settle()
    assert w.pages == {0, 2, 3}


def test_a_file_too_large_to_stream_does_not_stop_the_others() -> None:
    w = World([10, 500, 10, 10], [0, 1, 2, 3], split(homes=0, stream=100, pages=100))
    w.settle()
    assert w.staged == {0, 2, 3}


def test_files_that_were_passed_by_make_room_again() -> None:
    """The window is full of files that the reader skips; it goes on when the reader is far enough past them."""
    w = World([10] * 3000, list(range(3000)), split(homes=0, stream=100, pages=100))
    w.settle()
    w.skip(PASSED_BY + 100)
    w.settle()
    assert w.staged == set(range(w.position, w.position + 10))
    assert w.pages <= set(range(w.position, w.position + 10))


def test_a_fetch_that_ends_after_the_reader_has_passed_is_let_go() -> None:
    w = World([10] * 3000, list(range(3000)), split(homes=0, stream=100, pages=100))
    w.supervise()
    w.skip(PASSED_BY + 100)
    w.supervise()
    w.settle()
    assert w.staged == set(range(w.position, w.position + 10))


def test_files_found_far_ahead_in_one_look_are_not_taken_for_passed_by() -> None:
    """5,000 files that stay come before the first that streams; all are looked at in one call."""
    n = 5010
    w = World([10] * n, list(range(n)), split(homes=50_000, stream=100, pages=100))
    w.settle()
    assert set(range(5000, n)) <= w.staged
    w.skip(PASSED_BY + 500)
    w.settle()
    assert set(range(5000, n)) <= w.staged, "evicted before its reading"


def test_a_row_that_is_to_be_read_again_soon_is_not_let_go_for_its_first_reading() -> None:
    w = World([10] * 20, list(range(20)) * 60, split(homes=0, stream=100, pages=50))
    for _ in range(60 * 20):
        w.settle()
        w.read_next()
    assert w.demands == 0


def test_demanded_files_are_let_go_when_they_are_closed() -> None:
    """Without a plan, nothing else would ever make room."""
    w = World([10] * 300, list(range(300)), split(homes=0, stream=100, pages=100))
    w.upcoming = lambda start, count: np.zeros(0, np.int64)  # type: ignore[method-assign]
    for _ in range(300):
        w.read_next()
        assert len(w.pages) * 10 <= 100, "the reserve takes what is read before room is made"
        w.settle()
        assert w.policy.pages_used <= 100
    assert w.staged == set()
    assert w.policy.residency.stream_used == 0


def test_a_copy_reported_after_its_reader_has_closed_is_let_go() -> None:
    c = NodePolicy(np.array([10]), np.zeros(1, np.uint8), split(0, 100, 100), [])
    c.opened(0)
    c.read(0, 10)
    c.released(0)
    assert c.take_commands() == []
    c.staged(0)
    assert c.take_commands() == [(StagerCommand.EVICT, [0], 0)]
    c.evicted(0)
    assert c.residency.stream_used == 0


def test_a_copy_reported_before_its_open_was_seen_is_kept() -> None:
    c = NodePolicy(np.array([10]), np.zeros(1, np.uint8), split(0, 100, 100), [])
    c.staged(0)
    c.opened(0)
    assert c.take_commands() == []


def test_a_copy_whose_last_close_was_never_heard_of_goes_in_the_end() -> None:
    """The server that had taken it was killed."""
    c = NodePolicy(np.array([10, 10]), np.zeros(2, np.uint8), split(0, 100, 100), [])
    c.opened(0)
    c.staged(0)
    c.kernel_reads(0)
    assert c.take_commands() == []
    for _ in range(2 * FORGOTTEN_AFTER + 2):
        c.opened(1)
        c.released(1)
        if orders := c.take_commands():
            break
    assert orders == [(StagerCommand.EVICT, [0], 0)]


def test_what_a_stager_that_died_was_to_be_told_is_vain() -> None:
    """Else the next one writes a copy that nobody counts on, and then fails to write it again."""
    w = World([1], [0] * 4, split(0, 0, 0), disk=[1], foretold=False, passes=(0,))
    for _ in range(3):
        w.read_next()
    w.restart_stager()
    w.policy.resize(split(0, 2, 0), w.policy.held())
    w.policy.restart(w.position)
    w.settle()
    assert set(w.on_disk) == {0}
    assert w.policy.residency.home[0] == Home.DISK
    assert w.policy.residency.state[0] & KERNEL_READS


def test_cancelled_fetches_are_ordered_again_when_the_new_plan_wants_them() -> None:
    w = World([10] * 50, list(range(50)), split(homes=500, stream=0, pages=500, page_homes=500))
    w.supervise()
    w.policy.restart(0)
    w.settle()
    assert w.staged == set(range(50))


def test_copies_that_the_new_plan_reads_as_well_are_kept_however_far_ahead() -> None:
    """One look goes over some 16,000 files; a plan changes some times in each epoch, mostly by little."""
    n = 3 * SCAN * SCAN_STEPS
    c = NodePolicy(np.full(n, 10), np.zeros(n, np.uint8), split(homes=9 * n, stream=2 * n, pages=100), [])
    evicted: list[int] = []

    def follow(stream: np.ndarray) -> None:
        for _ in range(n // 256 + 9):
            c.advance(0, n, lambda start, count: stream[start : start + count])
            for do, rows, _ in c.take_commands():
                if do == StagerCommand.EVICT:
                    evicted.extend(rows)
                for row in rows:
                    if do in (StagerCommand.FETCH, StagerCommand.EVICT):
                        (c.staged if do == StagerCommand.FETCH else c.evicted)(row)

    follow(np.arange(n))
    streaming = np.flatnonzero(c.residency.home != Home.RAM)
    assert len(c.residency.staged_rows()) == n
    assert len(streaming) > n // 20
    for row in range(2 * FETCHES_OUTSTANDING):
        c.evicted(row)  # lost: these are fetched first
    c.restart(0)
    follow(np.arange(n))
    assert evicted == []
    c.restart(0)
    c.take_commands()
    c.restart(0)  # again, before it was looked that far
    follow(np.delete(np.arange(n), streaming[-3:]))
    assert sorted(evicted) == streaming[-3:].tolist(), "which the new plan does not read"


def test_a_drop_and_a_push_of_one_row_do_not_unbalance_the_books() -> None:
    """Dropped to make room, and pushed anew before that was reported."""
    sizes = np.array([10, 10])
    c = NodePolicy(sizes, np.zeros(2, np.uint8), split(homes=20, stream=0, pages=15), [])
    c.staged(0)
    c.opened(0)
    c.read(0, 10)
    c.released(0)
    c.resize(split(homes=20, stream=0, pages=5), np.array([0]))
    assert (StagerCommand.DROP, [0], 0) in c.take_commands()
    c.resize(split(homes=20, stream=0, pages=15), np.array([0]))
    c.advance(0, 1, lambda start, count: np.array([0]))
    assert (StagerCommand.PUSH, [0], 0) in c.take_commands()
    c.dropped(0)
    assert c.pages_used == 10
    c.pushed(0)
    assert c.pages_used == 10
    c.dropped(0)
    assert c.pages_used == 0


def test_a_file_closed_twice_is_dropped_once() -> None:
    c = NodePolicy(np.array([10] * 3), np.zeros(3, np.uint8), split(0, 100, 20), [])
    for _ in range(3):
        c.opened(0)
        c.read(0, 10)
        c.released(0)
    for row in (1, 2):
        c.opened(row)
        c.read(row, 10)
    drops = [rows for do, rows, _ in c.take_commands() if do == StagerCommand.DROP]
    assert drops == [[0]]
    c.dropped(0)
    assert c.pages_used == 20
    assert c.take_commands() == []


def test_pages_read_while_they_are_dropped_stay_charged() -> None:
    """Whether the READ came before the drop or after it, nobody can tell."""
    c = NodePolicy(np.array([10] * 2), np.zeros(2, np.uint8), split(0, 100, 15), [])
    for row in (0, 1):
        c.opened(row)
        c.read(row, 10)
        c.released(row)
    assert (StagerCommand.DROP, [0], 0) in c.take_commands()
    c.opened(0)
    c.read(0, 10)
    c.dropped(0)
    assert c.pages_used == 20
    c.released(0)
    assert [do for do, _, _ in c.take_commands()] == [StagerCommand.DROP]


@pytest.mark.parametrize("before", [4, 40])
def test_a_file_that_grew_above_what_is_staged_whole_leaves_its_room_and_comes_back(before: int) -> None:
    w = World([before, 10, 10], [0, 1, 2] * 3, split(homes=60, stream=40, pages=60, page_homes=60, whole_limit=50))
    c = w.policy
    w.settle()
    w.read_next()
    w.settle()
    assert (c.residency.home[0], c.residency.homes.used, c.pages_used) == (Home.RAM, before + 20, before + 20)
    w.change(0, 4000)
    w.settle()
    r = c.residency
    assert (r.home[0] == Home.RAM, r.homes.used, c.pages_used, r.stream_used) == (False, 20, 20, 0)
    assert not c.has_room_for_all
    assert w.fetched == [0, 1, 2], "it is not staged whole"
    c.opened(0)
    c.read(0, DROP_BYTES + 1)
    commands = [(command, rows) for command, rows, _ in c.take_commands()]
    assert (StagerCommand.DROP, [0]) in commands, "its pages go while it is read"
    w.change(0, 6)
    w.skip(2)
    w.settle()
    assert (c.residency.home[0], c.residency.homes.used, c.has_room_for_all) == (Home.RAM, 26, True)
    assert w.fetched == [0, 1, 2, 0]


def test_a_file_that_grew_leaves_memory_to_others_when_it_does_not_fit_any_more() -> None:
    w = World([10] * 6, list(range(6)) * 3, split(homes=60, stream=40, pages=60, page_homes=60))
    w.settle()
    w.change(3, 30)
    w.settle()
    assert (w.policy.residency.home[3] == Home.RAM, w.policy.residency.homes.used) == (False, 50)
    assert w.policy.pages_used <= 60


def test_large_files_lose_the_pages_behind_their_reader() -> None:
    c = NodePolicy(np.array([1 << 30]), np.zeros(1, np.uint8), split(0, 100, 100, whole_limit=1 << 20), [])
    c.opened(0)
    for end in range(0, 4 * DROP_BYTES, 1 << 20):
        c.read(0, end)
    drops = [value for do, rows, value in c.take_commands() if do == StagerCommand.DROP]
    assert drops == sorted(drops)
    assert len(drops) == 3
    c.released(0)
    assert c.take_commands() == [(StagerCommand.DROP, [0], 0)]
    assert c.pages_used == 0


def test_what_was_written_to_disk_comes_from_there_and_what_was_not_streams() -> None:
    w = World([10] * 30, list(range(30)) * 3, split(homes=100, stream=50, pages=100), disk=[100])
    w.settle()
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
    homes = [w.policy.residency.home[row] for row in range(30)]
    assert homes == [Home.RAM] * 10 + [Home.DISK] * 10 + [Home.STREAM] * 10
    assert set(w.on_disk) == set(range(10, 20))
    assert w.demands == 0


def test_room_on_disk_is_free_again_when_a_copy_went_but_not_when_it_could_not_be_written() -> None:
    c = NodePolicy(np.array([10] * 4), np.zeros(4, np.uint8), split(0, 100, 100), [20])
    for row in (0, 1):
        c.staged(row)
    assert (StagerCommand.TO_DISK, [0, 1], 1) in c.take_commands()
    c.on_disk(0, 1)
    c.off_disk(1)  # full, before it should have been
    c.staged(2)
    assert c.residency.home[2] == Home.STREAM
    c.off_disk(0)  # it changed
    c.staged(3)
    assert c.residency.home[3] == Home.DISK


def test_what_a_tier_refused_for_a_while_may_go_there_at_its_next_use() -> None:
    c = NodePolicy(np.array([10] * 3), np.zeros(3, np.uint8), split(0, 100, 100), [20])
    for row in (0, 1):
        c.staged(row)
    c.take_commands()
    c.on_disk(0, 1)
    c.off_disk(0, again=True)  # its copy was lost
    c.off_disk(1, again=True)  # the tier had failed
    assert [c.residency.home[row] for row in (0, 1)] == [Home.UNPLACED] * 2
    assert (StagerCommand.EVICT, [0, 1], 0) in c.take_commands()
    for row in (0, 1):
        c.evicted(row)
        c.staged(row)
    assert (StagerCommand.TO_DISK, [0, 1], 1) in c.take_commands()
    c.staged(2)
    assert c.residency.home[2] == Home.STREAM, "there is room for two, as before"


@pytest.mark.parametrize(("room", "homes"), [(20, [Home.DISK, Home.DISK, Home.RAM]), (40, [Home.RAM] * 3)])
def test_what_a_mount_before_has_left_on_a_disk_that_is_short_stays_there(room: int, homes: list[Home]) -> None:
    """A copy that is of no use would take the place of a file that is read again. A disk with room for all is no
    reason to leave the memory empty."""
    c = NodePolicy(np.array([10] * 4), np.zeros(4, np.uint8), split(30, 100, 100), [room])
    for row in (0, 1):
        c.on_disk(row, 1)
    for row in (0, 1, 2):
        c.staged(row)
    assert [c.residency.home[row] for row in (0, 1, 2)] == homes
    assert not [order for order in c.take_commands() if order[0] == StagerCommand.TO_DISK]


def test_more_than_fits_is_not_at_home_where_it_was_left() -> None:
    """As a disk has become smaller, or memory: a file that is too large to be staged is read through."""
    c = NodePolicy(np.array([10, 10, 90, 10]), np.zeros(4, np.uint8), replace(split(80, 0, 160), whole_limit=20), [100])
    for row in (2, 0, 1):
        c.on_disk(row, 1)
    assert [c.residency.home[row] for row in range(4)] == [Home.DISK, Home.DISK, Home.UNPLACED, Home.UNPLACED]
    few = NodePolicy(np.array([10] * 4), np.zeros(4, np.uint8), split(30, 100, 100), [15])
    for row in (0, 1):
        few.on_disk(row, 1)
    assert few.residency.home[1] == Home.UNPLACED


def test_room_is_counted_on_the_tier_that_has_the_copy_and_not_on_the_one_that_was_asked() -> None:
    """Whose news were lost asks again, perhaps another tier."""
    c = NodePolicy(np.array([10] * 4), np.zeros(4, np.uint8), split(0, 100, 100), [10, 20])
    c.staged(0)
    c.on_disk(0, 2)
    c.staged(1)
    c.staged(2)
    c.staged(3)
    assert [order for order in c.take_commands() if order[0] == StagerCommand.TO_DISK] == [
        (StagerCommand.TO_DISK, [0], 1), (StagerCommand.TO_DISK, [1], 1), (StagerCommand.TO_DISK, [2], 2),
    ]  # fmt: skip
    assert c.residency.home[3] == Home.STREAM
    c.off_disk(0)
    c.residency.home[3] = Home.UNPLACED
    c.evicted(3)
    c.staged(3)
    assert (StagerCommand.TO_DISK, [3], 2) in c.take_commands()


# ---- a reader who is faster, a kernel that takes pages back -------------------------------------------------


def ready(n: int, rows: range) -> NodePolicy:
    """All is staged; the reader is at position 0, and the pushes of the first rows are under way."""
    c = NodePolicy(np.full(n, 10), np.zeros(n, np.uint8), split(10 * n, 0, 10 * n, 10 * n), [])
    c.foresee(lambda wanted: wanted)
    for row in range(n):
        c.staged(row)
    c.advance(0, n, lambda start, count: np.arange(start, min(n, start + count)))
    assert pushes(c) == list(rows)
    return c


def pushes(c: NodePolicy) -> list[int]:
    return [row for do, rows, _ in c.take_commands() if do == StagerCommand.PUSH for row in rows]


def test_pushes_get_ahead_of_a_reader_who_has_overtaken_them() -> None:
    n = 2000
    c = ready(n, range(PUSHES_OUTSTANDING))
    for row in range(PUSHES_OUTSTANDING):
        c.pushed(row)
    c.advance(100, n, lambda start, count: np.arange(start, min(n, start + count)))
    assert pushes(c) == list(range(200, 200 + PUSHES_OUTSTANDING)), "as far as the reader came in the meantime"
    for row in range(200, 200 + PUSHES_OUTSTANDING):
        c.pushed(row)
    c.advance(110, n, lambda start, count: np.arange(start, min(n, start + count)))
    assert pushes(c)[0] == 200 + PUSHES_OUTSTANDING, "and then nothing is left out"


def test_what_is_open_is_not_pushed_for_the_reading_that_has_begun() -> None:
    n = 4 * SCAN
    c = ready(n, range(PUSHES_OUTSTANDING))
    coming = range(PUSHES_OUTSTANDING, 2 * PUSHES_OUTSTANDING)
    for row in coming[:3]:
        c.opened(row)
    for row in range(PUSHES_OUTSTANDING):
        c.pushed(row)
    c.advance(0, n, lambda start, count: np.arange(start, min(n, start + count)))
    assert pushes(c) == list(range(coming[3], coming[3] + PUSHES_OUTSTANDING))


def test_what_the_kernel_took_is_pushed_again_before_its_next_reading() -> None:
    parts = split(homes=500, stream=0, pages=500, page_homes=500)
    w = World([10] * 50, list(range(50)) * 3, parts)
    w.settle()
    w.evict(20)
    w.look()
    assert w.policy.pages_used == 300
    w.settle()
    assert (len(w.pages), w.policy.pages_used) == (50, 500)
    assert sorted(w.fetched) == list(range(50)), "from the arena"
    for _ in range(2):
        w.policy.pushes.rotate_recent()
    w.evict(50)
    for _ in range(50):
        w.read_next()
        w.settle()
    assert w.policy.pushes.evictions_read == w.reads == 50
    assert w.pushes == 50 + 20 + 50, "each once more, for the next epoch"

def test_what_the_kernel_reads_from_disk_is_fetched_once_and_never_pushed() -> None:
    large = tuple(range(5, 20))  # those before 10 are at home in the arena
    w = World([10] * 30, list(range(30)) * 3, split(homes=100, stream=50, pages=100), disk=[100], passes=large)
    w.settle()
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
        assert not w.pages & set(range(10, 20))
    assert set(w.on_disk) == set(range(10, 20))
    assert [w.fetched.count(row) for row in large] == [1] * 15
    assert w.demands == 0
    assert not w.staged & set(w.on_disk), "not held in memory, too"


def test_a_copy_on_disk_that_the_kernel_may_not_read_is_pushed_as_any_other() -> None:
    c = NodePolicy(np.array([10] * 2), np.zeros(2, np.uint8), split(0, 100, 100), [20])
    c.let_pass(np.ones(2, np.bool_))

    def orders(position: int) -> list[tuple[StagerCommand, list[int], int]]:
        c.advance(position, 2, lambda start, count: np.array([0, 1, 0, 1])[start : start + count])
        return c.take_commands()

    assert orders(0) == [(StagerCommand.FETCH, [0, 1], 0)]
    c.staged(0)
    c.staged(1)
    assert orders(0) == [(StagerCommand.TO_DISK, [0, 1], 1)]
    for row in (0, 1):
        c.on_disk(row, 1)
        c.kernel_reads(row, row == 0)
    assert orders(0) == [(StagerCommand.EVICT, [0], 0)]
    assert orders(2) == [(StagerCommand.PUSH, [1], 0)]


# ---- resizing -----------------------------------------------------------------------------------------------


def test_under_pressure_files_leave_the_arena_furthest_first_whether_paged_or_not() -> None:
    w = World([10] * 40, list(range(40)), split(homes=400, stream=100, pages=100))
    w.settle()
    assert len(w.staged) == 40
    smaller = split(homes=200, stream=0, pages=50)
    w.policy.resize(smaller, np.arange(39, -1, -1))
    w.settle()
    assert w.staged == set(range(20))
    assert len(w.pages) <= 5
    w.policy.resize(split(homes=400, stream=100, pages=100), np.zeros(0, np.int64))
    w.policy.restart(0)
    w.settle()
    assert w.staged == set(range(40))


def test_a_budget_of_nothing_holds_nothing() -> None:
    w = World([10] * 40, list(range(40)), split(homes=400, stream=100, pages=400, page_homes=400))
    w.settle()
    w.policy.resize(split(homes=0, stream=0, pages=0, whole_limit=0), w.policy.held())
    w.settle()
    assert (w.staged, w.pages) == (set(), set())
    assert (w.policy.residency.homes.used, w.policy.residency.stream_used, w.policy.pages_used) == (0, 0, 0)


# ---- what was lost ------------------------------------------------------------------------------------------


def test_lost_events_of_the_stager_are_made_up_for() -> None:
    w = World([10] * 60, list(range(60)), split(homes=300, stream=100, pages=100))
    w.supervise()
    while w.work():
        pass
    w.events.clear()
    w.policy.resync(np.isin(np.arange(60), list(w.staged)))
    w.policy.restart(0)
    w.settle()
    assert set(range(40)) == w.staged
    w.check()


def test_lost_events_of_the_server_do_not_hold_copies_for_ever() -> None:
    w = World([10] * 60, list(range(60)), split(homes=0, stream=100, pages=100))
    for _ in range(8):
        w.settle()
        w.read_next(hold=True)
    w.settle()
    w.server.clear()
    w.open.clear()  # their RELEASE is never seen
    w.policy.events_lost()
    w.settle()
    assert w.staged == set(range(8, 18))


# ---- another supervisor -------------------------------------------------------------------------------------


def test_what_is_staged_and_paged_is_taken_over_and_accounted_for_once() -> None:
    parts = split(homes=300, stream=100, pages=250, page_homes=100)
    w = World([10] * 60, list(range(60)) * 2, parts)
    for _ in range(5):
        w.settle()
        w.read_next()
    w.settle()
    staged, pages = set(w.staged), set(w.pages)
    assert (len(staged), len(pages)) == (40, 21), "both are full"
    w.replace_supervisor(parts)
    c = w.policy
    assert c.residency.homes.used == 300
    assert c.residency.homes.used + c.residency.stream_used == 10 * len(staged)
    assert c.pages_used == 10 * len(pages)
    assert c.pushes.homes_used == 100
    while w.position < len(w.stream):
        w.settle()
        w.read_next()
    w.settle()
    assert w.demands == 0
    assert c.residency.stream_used == 0


def test_a_smaller_budget_holds_for_what_was_taken_over() -> None:
    w = World([10] * 60, list(range(60)) * 2, split(homes=400, stream=100, pages=500, page_homes=300))
    w.settle()
    w.replace_supervisor(split(homes=150, stream=50, pages=100, page_homes=20))
    assert w.policy.residency.homes.used == 150
    assert w.policy.pushes.homes_used == 20
    while w.position < len(w.stream):
        w.settle()
        assert w.policy.residency.stream_used <= 50
        assert 10 * len(w.staged) <= 150 + 50
        assert 10 * len(w.pages) == w.policy.pages_used <= 100
        w.read_next()


def test_what_was_taken_over_can_be_given_up_again() -> None:
    w = World([10] * 60, list(range(60)), split(homes=600, stream=0, pages=600, page_homes=600))
    w.settle()
    w.replace_supervisor(split(homes=600, stream=0, pages=600, page_homes=600))
    w.settle()
    assert (len(w.staged), len(w.pages)) == (60, 60)
    w.policy.resize(split(homes=0, stream=0, pages=0, whole_limit=0), w.policy.held())
    w.settle()
    assert (w.staged, w.pages) == (set(), set())
    assert (w.policy.residency.homes.used, w.policy.residency.stream_used, w.policy.pages_used) == (0, 0, 0)


def test_what_was_taken_over_and_is_not_in_the_plan_does_not_stay_for_ever() -> None:
    """Whatever had it open and will read it, nobody knows."""
    w = World([10] * 30, list(range(10)), split(homes=0, stream=300, pages=100))
    w.upcoming = lambda start, count: np.zeros(0, np.int64)  # type: ignore[method-assign]
    w.stream = np.arange(20, 30)
    for _ in range(5):
        w.read_next(hold=True)
    w.supervise()
    assert w.staged == set(range(20, 25))
    w.replace_supervisor(split(homes=0, stream=300, pages=100))
    w.settle()
    assert w.staged == set()
    assert w.policy.residency.stream_used == 0
    while w.open:
        w.close_one()
    w.settle()
    w.check()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(list(Paged)), st.booleans()), max_size=30),
    st.integers(0, 300), st.integers(0, 600), st.integers(0, 600),
)  # fmt: skip
def test_any_state_can_be_taken_over(
    rows: list[tuple[int, Paged, bool]], homes: int, page_homes: int, window: int
) -> None:
    sizes, staged = np.array([row[0] for row in rows], np.int64), np.array([row[2] for row in rows], np.bool_)
    paged = np.array([row[1] for row in rows], np.uint8)
    before = np.where(paged == Paged.LATE, Paged.SOME, paged)  # whoever was to push it is gone
    c = NodePolicy(sizes, paged, split(homes, 100, page_homes + window, page_homes), [])
    c.adopt(staged)
    assert c.pages_used == sizes[paged != Paged.NONE].sum()
    assert c.residency.homes.used == sizes[c.residency.home == Home.RAM].sum() <= homes
    assert c.residency.homes.used + c.residency.stream_used == sizes[staged].sum()
    assert c.pushes.homes_used == sizes[c.pushes.home].sum() <= page_homes
    assert (paged[c.pushes.home] == Paged.WHOLE).all(), "what is there in part is no home"
    assert (paged == before).all()
    orders = c.take_commands()
    gone: dict[StagerCommand, list[int]] = {StagerCommand.EVICT: [], StagerCommand.DROP: []}
    for command, rows, _ in orders:
        gone.get(command, []).extend(rows)
    assert gone[StagerCommand.EVICT] == np.flatnonzero(staged & (c.residency.home != Home.RAM)).tolist()
    for row in gone[StagerCommand.EVICT]:
        c.evicted(row)
    for row in gone[StagerCommand.DROP]:
        c.dropped(row)
    assert c.residency.stream_used == 0
    assert c.pages_used == sizes[paged != Paged.NONE].sum() <= page_homes + window


# ---- everything at once -------------------------------------------------------------------------------------

actions = st.lists(
    st.sampled_from(
        ["read", "read", "read", "hold", "close", "skip", "work", "work", "work", "supervise", "supervise", "settle",
         "restart", "restart stager", "replace supervisor", "rule anew", "shrink", "grow", "evict", "look", "place",
         "pass on", "passed", "pull", "change", "change"]
    ),
    max_size=120,
)  # fmt: skip
splits = st.builds(
    lambda page_homes, window, **parts: split(pages=page_homes + window, page_homes=page_homes, **parts),
    st.integers(0, 200), st.integers(0, 200),
    homes=st.integers(0, 300), stream=st.integers(0, 120), whole_limit=st.integers(20, 60),
)  # fmt: skip


@example(
    [21], split(homes=0, stream=21, pages=0, whole_limit=21), split(homes=0, stream=0, pages=0, whole_limit=20),
    ["read", "shrink", "replace supervisor"], random.Random(1), [], 0.0, False, 0, 100,
)  # fmt: skip
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40), splits, splits, actions, st.randoms(use_true_random=False),
    st.lists(st.integers(0, 200), max_size=2), st.sampled_from([0.0, 0.2]), st.booleans(),
    st.sampled_from([0, 20, 51]), st.sampled_from([1, 100]),
)  # fmt: skip
def test_books_agree_and_nothing_gets_stuck_in_any_order(
    sizes: list[int], first: MemorySplit, second: MemorySplit, actions: list[str], chance: object, disk: list[int],
    fail: float, foretold: bool, pass_from: int, scan_steps: int,
) -> None:  # fmt: skip
    """`scan_steps`: few steps of few positions each, after which a look at the stream ends, as in a large data set; or
    enough for all of it."""
    with patch.multiple(stream_scan, SCAN=4, SCAN_STEPS=scan_steps):
        play(sizes, first, second, actions, chance, disk, fail, foretold, pass_from)


def play(
    sizes: list[int], first: MemorySplit, second: MemorySplit, actions: list[str], chance: object, disk: list[int],
    fail: float, foretold: bool, pass_from: int,
) -> None:  # fmt: skip
    stream: list[int] = []
    for _ in range(4):
        order = list(range(len(sizes)))
        chance.shuffle(order)  # type: ignore[attr-defined]
        stream += order
    passes = tuple(row for row, size in enumerate(sizes) if size >= pass_from)
    w = World(
        sizes, stream, first, disk=disk, seed=len(actions), fail=fail, foretold=foretold, passes=passes
    )  # fmt: skip
    c = w.policy
    for action in actions:
        if action == "read":
            w.read_next()
        elif action == "hold":
            w.read_next(hold=True)
        elif action == "close":
            w.close_one()
        elif action == "skip":
            w.skip(3)
        elif action == "work":
            w.work()
        elif action == "supervise":
            w.supervise()
        elif action == "settle":
            w.settle()
        elif action == "restart":
            c.restart(w.position)
        elif action == "restart stager":
            w.restart_stager()
        elif action == "evict":
            w.evict(3)
        elif action == "look":
            w.look()
        elif action == "place":
            w.place([chance.randint(UNCOVERED, 2) for _ in sizes])  # type: ignore[attr-defined]
        elif action == "pass on":
            w.pass_on(chance.randrange(len(sizes)))  # type: ignore[attr-defined]
        elif action == "passed":
            w.passed()
        elif action == "pull":
            c.pull(chance.randrange(len(sizes)))  # type: ignore[attr-defined]
        elif action == "change":
            w.change(chance.randrange(len(sizes)), chance.randint(0, 60))  # type: ignore[attr-defined]
        elif action == "rule anew":
            c.use_belady(not c.residency.belady)
        elif action == "replace supervisor":
            w.replace_supervisor(first)
            c = w.policy
        else:
            c.resize(first if action == "grow" else second, c.held()[::-1])
    while w.open:
        w.close_one()
    w.fail = 0.0
    w.passed()
    w.settle()
    c.restart(w.position)
    w.settle()
    sizes = w.sizes.tolist()  # of now

    # All is staged up to the first file for which the stream has no room; that one waits for the reader.
    ahead = list(dict.fromkeys(w.stream[w.position :].tolist()))
    missing = [row for row in ahead if 0 < sizes[row] <= c.split.whole_limit and row not in w.staged]
    missing = [row for row in missing if not c.residency.state[row] & KERNEL_READS]
    home = c.residency.home
    missing = [r for r in missing if home[r] == Home.RAM or (sizes[r] <= c.split.stream and not c.pushes.has(r))]
    if not foretold:  # its pages were there when it was looked at, and nobody knew that they would be needed
        missing = [row for row in missing if c.residency.home[row] == Home.RAM or row not in w.dropped]
    if missing:
        assert c.residency.home[missing[0]] != Home.RAM
        assert c.residency.stream_used + sizes[missing[0]] > c.split.stream, "there is room, and it is not fetched"
    held = {r for r in w.staged if c.residency.home[r] != Home.RAM}
    assert held <= set(ahead), "held without a reason"
    assert c.fetches.outstanding == c.pushes.outstanding == 0
    limit = min(first.whole_limit, second.whole_limit)
    counted = {r for r in w.pages if 0 < sizes[r] <= limit}
    assert counted <= set(np.flatnonzero(c.pushes.paged != Paged.NONE).tolist()), "pages that nobody knows of"

    # The reader reads on to the end: nothing stops it, and then nothing is held but what stays.
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
    w.settle()
    held = {r for r in w.staged if c.residency.home[r] != Home.RAM}
    if held:  # it was too large for its pages to be counted, so no READ was to be seen: its reader has to pass it by
        assert held <= {r for r in w.pages if sizes[r] > limit}
        w.position += PASSED_BY + 1
        w.settle()
    assert {r for r in w.staged if c.residency.home[r] != Home.RAM} == set()
    assert c.residency.stream_used == 0
    assert c.pages_used <= c.split.pages


@pytest.mark.parametrize("size", [0, 1])
def test_an_empty_data_set_is_no_trouble(size: int) -> None:
    w = World([0] * size, [0] * size, split(0, 0, 0))
    w.settle()
    w.read_next()
    w.settle()
    assert w.fetched == []


def test_a_fetch_that_hangs_counts_no_more_but_keeps_its_room_until_it_ends() -> None:
    w = World([10] * 4, [0, 1, 2, 3], split(homes=0, stream=40, pages=40))
    c = w.policy
    w.supervise()
    assert (c.fetches.outstanding, c.residency.stream_used) == (4, 40)
    for row in (0, 1, 2, 2):
        c.fetch_stuck(row)
    assert (c.fetches.outstanding, c.residency.stream_used) == (1, 40)
    c.fetch_failed(0)
    assert (c.fetches.outstanding, c.residency.stream_used) == (1, 30)
    c.staged(1)
    assert (c.fetches.outstanding, c.residency.stream_used) == (1, 30)
    c.stager_restarted()  # it will never end
    assert (c.fetches.outstanding, c.residency.stream_used) == (0, 10)
