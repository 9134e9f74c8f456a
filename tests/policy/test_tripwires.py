"""The policy where the kernel opens files by itself: neither opens nor closes are seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.policy.open_files import HALF_READ
from nopfsfs.policy.pending_reads import PASSED_BY, PendingReads
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.simulated import World
from tests.policy.splits import split


@pytest.mark.parametrize("after", [0, 30])
def test_what_does_not_fit_streams_through_the_window_without_a_miss(after) -> None:
    w = World([10] * 200, list(range(200)) * 3, split(homes=500, stream=100, pages=150))
    w.settle()
    while w.position < len(w.stream):
        if w.position == after:
            w.hide()
        w.read_next()
        w.settle()
        assert len(w.pages) * 10 <= 150
    assert w.demands == 0
    assert len(w.fetched) == 50 + 150 * 3, "those that stay once, the others once in each epoch"


def test_files_read_on_demand_are_let_go_at_their_end() -> None:
    w = World([50_000] * 200, [], split(homes=0, stream=500_000, pages=1_000_000))
    w.hide()
    for row in range(200):
        for end in (4096, 20_000, 49_000):
            w.staged.add(row)
            w.pages.add(row)
            w.policy.staged(row)
            w.policy.read(row, end)
            w.settle()
            assert (row in w.staged) == (end < 40_000), "held between its READs"
        assert len(w.pages) * 50_000 <= 1_000_000


def test_files_half_read_do_not_stay_for_ever() -> None:
    w = World([100_000] * 300, [], split(homes=0, stream=10_000_000, pages=10_000_000))
    w.hide()
    for row in range(300):
        w.staged.add(row)
        w.pages.add(row)
        w.policy.staged(row)
        w.policy.read(row, 4096)
        w.settle()
        assert len(w.staged) <= HALF_READ
        assert row in w.staged
    assert len(w.pages) <= 100


def test_a_large_file_loses_all_its_pages_at_its_end() -> None:
    w = World([1 << 30], [], split(homes=0, stream=0, pages=1 << 20, whole_limit=1 << 20))
    w.hide()
    for end in range(1 << 20, (1 << 30) + 1, 1 << 20):
        w.policy.read(0, end)
    orders = w.policy.take_commands()
    assert orders[-1] == (StagerCommand.DROP, [0], 0)
    assert len(orders) > 10


@given(st.integers(0, 1 << 20), st.integers(0, 60), st.sampled_from([0.0, 0.2]))
def test_budgets_hold_and_it_comes_to_rest(seed, after, fail) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 5, 10, 40]) for _ in range(40)]
    stream = [row for _ in range(3) for row in chance.sample(range(40), 40)]
    w = World(sizes, stream, split(homes=100, stream=80, pages=150, page_homes=50), seed=seed, fail=fail)
    while w.position < len(w.stream):
        if w.position == after:
            w.hide()
        w.read_next()
        for _ in range(chance.randrange(4)):
            w.work()
        if chance.random() < 0.7:
            w.supervise()
    w.settle()


def test_what_is_awaited_is_passed_at_once() -> None:
    awaited = PendingReads()
    awaited.expect(1, 5)
    awaited.expect(2, 2000)
    awaited.expire_at_position()
    awaited.expect(3, 2100)
    assert awaited.passed(6) == [1]
    assert awaited.passed(2000) == []
    assert awaited.passed(2101) == [2, 3]
    assert PASSED_BY > 0
