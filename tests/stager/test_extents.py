"""An extent is free once the server has answered a request that was sent after it was retired, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol.columns import Metric, MetricBlock
from nopfsfs.stager.extents import ExtentPool, GracePeriods
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena, NoRoom

PAGE = 4096


@given(st.lists(st.sampled_from(["retire", "pass", "pass old"])))
def test_extents_are_freed_once_after_a_later_request_has_passed(steps: list[str]) -> None:
    retired_at: dict[int, int] = {}  # by request: how many extents were retired when it was sent
    freed: list[int] = []
    retired = 0

    def ask(number: int) -> bool:
        assert number == len(retired_at) + 1
        retired_at[number] = retired
        return False

    grace = GracePeriods(ask)
    for step in [*steps, "pass", "pass", "pass"]:
        number = len(retired_at)
        if step == "retire":
            retired += 1
            grace.after(partial(freed.append, retired - 1))
        elif step == "pass":
            grace.passed(number)
            assert all(extent < retired_at[number] for extent in freed)
        else:
            before = list(freed)
            grace.passed(number - 1)
            assert freed == before
    assert freed == list(range(retired))


def test_a_request_is_not_repeated_while_one_is_under_way() -> None:
    asked: list[int] = []
    freed: list[int] = []
    grace = GracePeriods(lambda number: bool(asked.append(number)))
    for extent in (10, 11, 12):
        grace.after(partial(freed.append, extent))
    assert asked == [1]
    grace.passed(1)
    assert (freed, asked) == ([10], [1, 2])
    grace.passed(1)  # an answer that came twice
    assert freed == [10]
    grace.passed(2)
    assert freed == [10, 11, 12]


class Pool:
    """A pool of four pages; graces pass when the test says so."""

    def __init__(self) -> None:
        self.fds = [arenas.create(4 * PAGE), MetricBlock.create()]
        self.arena, self.asked = Arena(self.fds[0], 4 * PAGE), 0
        self.metrics = MetricBlock(self.fds[1], writable=True).block
        self.pool = ExtentPool(self.arena, self.metrics, self._ask)

    def _ask(self, number: int) -> bool:
        self.asked = number
        return False

    def pass_grace(self) -> None:
        self.pool.grace.passed(self.asked)


@pytest.fixture
def made() -> Iterator[Pool]:
    made = Pool()
    yield made
    for fd in made.fds:
        os.close(fd)


def test_a_retired_extent_is_free_after_a_grace_and_a_freed_one_at_once(made: Pool) -> None:
    pool = made.pool
    first, second = pool.allocate(PAGE), pool.allocate(2 * PAGE)
    pool.retire(first)
    assert (made.arena.taken, pool.take_freed()) == (3 * PAGE, False)
    made.pass_grace()
    assert (made.arena.taken, pool.take_freed(), pool.take_freed()) == (2 * PAGE, True, False)
    pool.free(second)
    assert (made.arena.taken, pool.take_freed()) == (0, True)


def test_a_pinned_extent_waits_for_its_last_pin_and_then_for_a_grace(made: Pool) -> None:
    pool = made.pool
    extent = pool.allocate(PAGE)
    pool.pin(extent)
    pool.pin(extent)
    pool.retire(extent)
    pool.unpin(extent)
    assert (made.asked, len(pool._pins)) == (0, 1)
    pool.unpin(extent)
    assert (made.asked, len(pool._pins), made.arena.taken) == (1, 0, PAGE)
    made.pass_grace()
    assert made.arena.taken == 0


def test_an_extent_that_was_pinned_for_a_while_stays_until_it_is_retired(made: Pool) -> None:
    extent = made.pool.allocate(PAGE)
    made.pool.pin(extent)
    made.pool.unpin(extent)
    assert (made.asked, made.arena.taken) == (0, PAGE)


def test_what_finds_no_room_is_counted(made: Pool) -> None:
    made.pool.allocate(3 * PAGE)
    for _ in range(2):
        with pytest.raises(NoRoom):
            made.pool.allocate(2 * PAGE)
    assert (made.pool.take_refused(), made.pool.take_refused()) == (2, 0)
    assert made.metrics[Metric.ARENA_USED] == made.arena.used
    made.pool.set_budget(2 * PAGE)
    with pytest.raises(NoRoom):
        made.pool.allocate(PAGE)
