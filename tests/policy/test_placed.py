"""A node of a cluster: what the placement says lives here has its room, whatever comes first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.placement.methods import NOWHERE, UNCOVERED
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.fetch_scheduler import FETCHES_OUTSTANDING
from nopfsfs.policy.homes import Home, Homes
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.simulated import World


def split(homes: int, stream: int, whole_limit: int = 1 << 40) -> MemorySplit:
    return MemorySplit(
        arena=homes + 2 * stream, homes=homes, stream=stream, ranges=stream, pages=stream, page_homes=0,
        whole_limit=whole_limit,
    )  # fmt: skip


def placed(n: int, **classes: list[int]) -> list[int]:
    """`ram`, `disk`, `second`: rows of class 0, 1, 2; the others are elsewhere."""
    local = [NOWHERE] * n
    for number, name in enumerate(("ram", "disk", "second")):
        for row in classes.get(name, []):
            local[row] = number
    return local


def in_memory(w: World) -> set[int]:
    return set(np.flatnonzero(w.policy.residency.home == Home.RAM).tolist())


def read_all(w: World) -> None:
    while w.position < len(w.stream):
        w.settle()
        w.read_next()
    w.settle()


# ---- in memory ----------------------------------------------------------------------------------------------


def test_who_comes_first_does_not_take_the_room_of_what_lives_here() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=200, stream=50))
    w.place(placed(40, ram=list(range(25, 40))))
    read_all(w)
    assert in_memory(w) == {*range(5), *range(25, 40)}, "what room is left is for who comes first"
    assert w.fetched.count(30) == 1
    assert w.fetched.count(10) == 3
    assert w.demands == 0


def test_what_came_first_gives_its_room_back() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=200, stream=50))
    w.settle()
    assert in_memory(w) == set(range(20))
    w.place(placed(40, ram=list(range(10, 25))))
    assert in_memory(w) == {*range(5), *range(10, 25)}, "as many as must, the furthest first"
    assert w.policy.residency.homes.used == 200
    read_all(w)
    assert in_memory(w) == {*range(5), *range(10, 25)}
    assert w.demands == 0


def test_what_streams_when_it_is_placed_stays() -> None:
    w = World([10] * 40, list(range(20, 40)) * 2, split(homes=0, stream=60))
    w.settle()
    assert w.staged == set(range(20, 26))
    w.policy.resize(split(homes=100, stream=60), np.zeros(0, np.int64))
    w.place(placed(40, ram=[20, 21, 22]))
    assert w.policy.residency.stream_used == 30
    read_all(w)
    assert {20, 21, 22} <= w.staged
    assert w.fetched.count(20) == 1


def test_what_is_being_let_go_when_it_is_placed_comes_back() -> None:
    c = NodePolicy(np.full(4, 10), np.zeros(4, np.uint8), split(20, 20), [])
    c.foresee(lambda rows: rows)
    c.apply_placement(np.array([UNCOVERED, 0, 0, UNCOVERED], np.int8), c.held())
    c.staged(0)
    assert c.take_commands() == [(StagerCommand.EVICT, [0], 0)]
    c.resize(split(40, 20), c.held())
    c.apply_placement(np.array([0, UNCOVERED, UNCOVERED, UNCOVERED], np.int8), c.held())
    c.advance(0, 1, lambda start, count: np.arange(start, min(1, start + count)))
    c.evicted(0)
    c.advance(0, 1, lambda start, count: np.arange(start, min(1, start + count)))
    assert c.take_commands() == [(StagerCommand.FETCH, [0], 0)]
    assert c.residency.homes.used == 30


def test_a_fetch_that_failed_leaves_the_room_to_its_file() -> None:
    c = NodePolicy(np.full(3, 10), np.zeros(3, np.uint8), split(10, 20), [])
    c.apply_placement(np.array(placed(3, ram=[2]), np.int8), c.held())
    c.fetch_failed(2)
    c.staged(0)
    assert c.residency.home.tolist() == [Home.STREAM, Home.UNPLACED, Home.RAM]
    c.staged(2)
    assert (c.residency.homes.used, c.residency.stream_used) == (10, 10)


def test_belady_rules_what_room_is_left_and_nothing_else() -> None:
    rng = np.random.default_rng(3)
    order = [int(row) for _ in range(12) for row in rng.permutation(80)[:20]]
    w = World([10] * 80, order, split(homes=200, stream=80), disk=[0])
    w.policy.use_belady(True)
    w.settle()
    mine = list(range(0, 80, 8))
    w.place(placed(80, ram=mine))
    first = in_memory(w)
    seen = set()
    while w.position < len(w.stream):
        w.settle()
        w.read_next()
        now = in_memory(w)
        assert set(mine) <= now
        assert not set(mine) & set(w.policy.residency.kept._rows)
        seen |= now
    assert len(in_memory(w)) == 20
    assert seen - first, "the rest goes on being replaced"


def test_a_smaller_budget_takes_what_lives_here_last() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=200, stream=50))
    w.place(placed(40, ram=list(range(15))))
    w.settle()
    assert in_memory(w) == set(range(20))
    w.policy.resize(split(homes=160, stream=50), w.policy.held())
    assert in_memory(w) == {*range(15), 19}
    w.policy.resize(split(homes=100, stream=50), w.policy.held()[::-1])
    assert in_memory(w) == set(range(10))
    w.settle()
    w.policy.resize(split(homes=200, stream=50), w.policy.held())
    read_all(w)
    assert len(in_memory(w)) == 20


def test_a_placement_for_more_room_than_there_is_any_more() -> None:
    w = World([10] * 40, list(range(40)), split(homes=100, stream=50))
    w.place(placed(40, ram=list(range(20))))
    assert in_memory(w) == set(range(10))
    w.settle()
    w.check()


def test_a_further_placement_changes_nothing_of_what_was_covered() -> None:
    w = World([10] * 40, list(range(40)), split(homes=200, stream=50))
    w.place([0] * 10 + [NOWHERE] * 10 + [UNCOVERED] * 20)
    w.place([NOWHERE] * 10 + [0] * 15 + [UNCOVERED] * 15)
    assert in_memory(w) == {*range(10), *range(20, 25)}


# ---- on disk ------------------------------------------------------------------------------------------------


def test_what_lives_on_a_disk_is_written_there_and_nothing_else_is() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=100, stream=50), disk=[100, 100])
    w.place(placed(40, ram=list(range(30, 40)), disk=list(range(5)), second=list(range(5, 15))))
    read_all(w)
    assert w.on_disk == {row: 1 if row < 5 else 2 for row in range(15)}
    assert in_memory(w) == set(range(30, 40))
    assert w.fetched.count(20) == 3
    assert w.demands == 0


def test_what_no_placement_covers_goes_to_disk_as_ever_but_not_into_reserved_room() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=0, stream=50), disk=[100])
    w.place([UNCOVERED] * 20 + [NOWHERE] * 14 + [1] * 6)
    read_all(w)
    assert set(w.on_disk) == {*range(4), *range(34, 40)}


def test_what_came_to_disk_first_makes_room() -> None:
    w = World([10] * 40, list(range(40)) * 3, split(homes=0, stream=50), disk=[100])
    w.settle()
    while len(w.on_disk) < 10:
        w.read_next()
        w.settle()
    w.place(placed(40, disk=[8, 9, *range(20, 27)]))
    read_all(w)
    assert len(w.on_disk) == 10
    assert set(w.on_disk) > {8, 9, *range(20, 27)}


def test_what_is_in_memory_moves_to_the_disk_where_it_lives() -> None:
    w = World([10] * 20, list(range(20)) * 2, split(homes=100, stream=50), disk=[60])
    w.upcoming = lambda start, count: np.zeros(0, np.int64)  # type: ignore[method-assign]
    for _ in range(10):
        w.read_next()
    w.supervise()
    assert in_memory(w) == set(range(10))
    w.place(placed(20, ram=list(range(10, 18)), disk=list(range(6))))
    assert in_memory(w) == {6, 7, *range(10, 18)}
    del w.upcoming
    read_all(w)
    assert set(w.on_disk) == set(range(6))
    assert [w.fetched.count(row) for row in range(10, 18)] == [1] * 8


def test_what_is_on_a_disk_and_was_to_be_in_memory_stays_and_another_is_there_instead() -> None:
    w = World([10] * 20, list(range(20)) * 2, split(homes=50, stream=50), disk=[50])
    w.settle()
    w.read_next()
    w.settle()
    assert (in_memory(w), set(w.on_disk)) == (set(range(5)), set(range(5, 10)))
    w.place(placed(20, ram=list(range(5, 10)), disk=list(range(15, 20))))
    assert in_memory(w) == set(range(15, 20))
    read_all(w)
    assert set(w.on_disk) == set(range(5, 10))


def test_a_disk_that_does_not_pay_is_used_when_it_does() -> None:
    w = World([10] * 20, list(range(20)) * 3, split(homes=0, stream=50), disk=[100])
    w.policy.use_disk(False)
    w.place(placed(20, disk=list(range(5, 10))))
    for _ in range(20):
        w.settle()
        w.read_next()
    assert not w.on_disk
    w.policy.use_disk(True)
    read_all(w)
    assert set(w.on_disk) == set(range(5, 10))


def test_copies_that_went_with_their_stager_have_their_room_still() -> None:
    w = World([10] * 20, list(range(20)) * 3, split(homes=0, stream=50), disk=[100])
    w.place([UNCOVERED] * 10 + [1] * 5 + [UNCOVERED] * 5)
    for _ in range(20):
        w.settle()
        w.read_next()
    assert len(w.on_disk) == 10
    w.restart_stager()
    assert not w.on_disk
    read_all(w)
    assert set(range(10, 15)) <= set(w.on_disk)
    assert len(w.on_disk) == 10


def test_a_disk_that_fails_costs_its_files_their_home() -> None:
    c = NodePolicy(np.full(3, 10), np.zeros(3, np.uint8), split(0, 100), [20])
    c.apply_placement(np.array(placed(3, disk=[0, 1]), np.int8), c.held())
    c.staged(0)
    assert c.take_commands() == [(StagerCommand.TO_DISK, [0], 1)]
    c.off_disk(0)
    assert c.take_commands() == [(StagerCommand.EVICT, [0], 0)]
    assert c.residency.home[0] == Home.STREAM


# ---- passed on ----------------------------------------------------------------------------------------------


def test_what_another_node_is_to_take_is_held_until_it_has() -> None:
    c = NodePolicy(np.full(6, 10), np.zeros(6, np.uint8), split(40, 40), [])
    for row in range(4):
        c.staged(row)
    assert [c.offer(row) for row in (0, 1, 2)] == [True, True, False], "half of what streams"
    c.apply_placement(np.array(placed(6, ram=[3, 4, 5]), np.int8), np.arange(4))
    assert c.residency.home[:4].tolist() == [Home.STREAM, Home.STREAM, Home.RAM, Home.RAM]
    assert c.take_commands() == []
    assert c.offer(0), "again"
    c.end_offer(0)
    assert c.take_commands() == [(StagerCommand.EVICT, [0], 0)]
    assert c.offer(2)
    c.end_offer(2)
    assert c.take_commands() == [], "it has room here besides"
    c.end_offer(1)
    c.end_offer(1)
    assert c.take_commands() == [(StagerCommand.EVICT, [1], 0)]


def test_what_is_to_be_taken_from_another_node_is_fetched_before_the_stream() -> None:
    c = NodePolicy(np.full(40, 10), np.zeros(40, np.uint8), split(100, 40), [50])
    c.apply_placement(np.array(placed(40, ram=[30, 31], disk=[32]), np.int8), c.held())
    c.staged(31)
    for row in (30, 31, 32, 30):
        c.pull(row)
    assert c.fetches.is_coming(30)
    c.advance(0, 8, lambda start, count: np.arange(start, min(8, start + count)))
    assert [order for order in c.take_commands() if order[0] == StagerCommand.FETCH] == [
        (StagerCommand.FETCH, [30, 32], 0), (StagerCommand.FETCH, list(range(8)), 0),
    ]  # fmt: skip
    assert c.fetches.is_coming(30)
    c.fetch_failed(30, cancelled=True)
    assert not c.fetches.is_coming(30)
    c.staged(32)
    assert c.residency.has(32)
    assert (StagerCommand.TO_DISK, [32], 1) in c.take_commands()


def test_pulls_wait_for_others_to_be_fetched() -> None:
    c = NodePolicy(np.full(600, 10), np.zeros(600, np.uint8), split(6000, 40), [])
    c.apply_placement(np.zeros(600, np.int8), c.held())
    for row in range(600):
        c.pull(row)
    assert len(c.take_commands()[0][1]) == c.fetches.outstanding == FETCHES_OUTSTANDING
    c.cancel_pull(FETCHES_OUTSTANDING)
    c.staged(0)
    assert c.take_commands() == [(StagerCommand.FETCH, [FETCHES_OUTSTANDING + 1], 0)]


# ---- any placement ------------------------------------------------------------------------------------------


@given(st.data())
def test_books_of_any_placements(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    sizes = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), np.int64)
    room, disk = data.draw(st.integers(0, 40)), data.draw(st.lists(st.integers(0, 30), max_size=2))
    homes = Homes(sizes, room, disk)
    for row in data.draw(st.lists(st.integers(0, n - 1))):
        homes.place(row, disk=True)
    classes = st.integers(UNCOVERED, 3)
    for _ in range(3):
        local = np.array(data.draw(st.lists(classes, min_size=n, max_size=n)), np.int8)
        before = homes._said.copy()
        here = homes.apply_placement(local, sizes < 9)
        assert set(here.tolist()) <= set(np.flatnonzero((local >= 0) & (before == 0)).tolist())
        said = homes._said.astype(int) + UNCOVERED
        assert homes.used == sizes[homes.home == Home.RAM].sum()
        assert sizes[(homes.home == Home.RAM) & (said == 0)].sum() <= room, "those that live here have room"
        for row in homes.spared(np.arange(n)):
            if homes.free < 0:
                homes.leave(row)
        assert homes.free >= 0
        for row in homes.overflow():
            homes.leave_disk(row, Home.STREAM, empty=True)
        for tier, capacity in enumerate(disk):
            on = [row for row in range(n) if homes.of[row] == Home.DISK and homes.tier(row) == tier + 1]
            assert sizes[on].sum() + homes._disk_room[tier] == capacity
            assert homes._disk_room[tier] >= 0
