"""How the memory budget is divided and follows the node, for any numbers."""

from __future__ import annotations

import dataclasses
import mmap

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.policy import budget

amounts = st.one_of(st.integers(0, 5000), st.integers(0, 1 << 45))
shares = st.one_of(st.none(), amounts)  # for the page cache


def test_a_copy_is_charged_whole_pages_and_the_kernels_inode() -> None:
    page = mmap.PAGESIZE
    sizes = np.array([0, 1, page, page + 1])
    assert budget.charges(sizes).tolist() == [0, page + 1024, page + 1024, 2 * page + 1024]


@given(amounts, amounts, shares, amounts)
def test_the_parts_never_exceed_the_whole(total: int, data: int, page_cache: int | None, large: int) -> None:
    large = min(large, data)
    split = budget.split(total, data, page_cache, large)
    assert all(value >= 0 for value in dataclasses.astuple(split))
    assert split.arena + split.pages <= total
    assert split.homes + split.stream + split.ranges + split.resident <= split.arena
    assert split.page_homes <= split.pages
    assert split.homes <= data - large
    assert split.resident <= large
    assert split.pages <= data
    assert split.whole_limit <= total // 8
    assert page_cache is None or split.pages <= page_cache


@given(amounts, amounts, amounts)
def test_the_page_cache_gets_what_was_said_and_the_arena_the_rest(total: int, data: int, page_cache: int) -> None:
    split = budget.split(total, data, page_cache)
    way = split.arena - split.homes
    assert split.pages == min(data, page_cache, total - way)
    assert split.homes == min(data, total - way - split.pages)
    assert 2 * split.page_homes >= split.pages - 1 or split.pages - split.page_homes <= budget.WINDOW_MOST


@given(amounts, amounts, amounts, shares)
def test_blocks_of_large_files_stay_where_the_others_leave_room(
    total: int, small: int, large: int, page_cache: int | None
) -> None:
    split, without = budget.split(total, small + large, page_cache, large), budget.split(total, small, page_cache)
    way = budget.on_their_way(total, small + large)
    if split.resident:
        assert split.homes == small, "all others may stay"
        assert page_cache is not None or split.pages >= min(small, total - way - small)
    assert split.homes <= without.homes
    if page_cache is None and total >= way + 2 * small + large + budget.WINDOW_MOST:
        assert split.resident == large


@given(amounts)
def test_the_automatic_budget_lets_everything_stay_where_there_is_memory(data: int) -> None:
    split = budget.split(budget.automatic(1 << 60, data), data)
    assert split.homes == split.page_homes == split.pages == data


@given(amounts, amounts)
def test_the_automatic_budget_is_at_most_half_of_what_is_available(available: int, data: int) -> None:
    assert 0 <= budget.automatic(available, data) <= available // 2


@given(amounts, amounts, amounts, shares)
def test_a_larger_budget_keeps_no_less(smaller: int, more: int, data: int, page_cache: int | None) -> None:
    a, b = budget.split(smaller, data, page_cache), budget.split(smaller + more, data, page_cache)
    assert b.homes >= a.homes
    assert b.homes + b.pages >= a.homes + a.pages


memories = st.tuples(amounts, amounts, amounts, amounts, amounts, amounts)


@given(memories)
def test_under_pressure_the_budget_stays_within_bounds(numbers: tuple[int, int, int, int, int, int]) -> None:
    configured, allowed, used, available, memory, held = numbers
    allowed = min(allowed, configured)
    now = budget.under_pressure(configured, allowed, used, available, memory, held)
    most = budget.affordable(held, available, memory)
    assert 0 <= now <= configured
    floor = budget.kept_free(memory)
    if available < floor:
        assert now <= allowed
        assert now == 0 or used - now >= floor - available or now == allowed
    elif allowed > most:
        assert now <= most
    else:
        assert allowed <= now <= most


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=8), amounts, amounts)
def test_mounts_beside_each_other_give_together_what_is_missing(held: list[int], available: int, memory: int) -> None:
    """In proportion to what they hold."""
    missing = budget.kept_free(memory) - available
    if missing <= 0:
        return
    total = sum(held)
    left = [budget.under_pressure(one, one, one, available, memory, one, 0, total - one) for one in held]
    given_up = [one - now for one, now in zip(held, left, strict=True)]
    assert min(missing, total) - len(held) <= sum(given_up) <= min(missing, total)
    assert all(abs(gave - min(missing, total) * one // total) <= 1 for gave, one in zip(given_up, held, strict=True))


@given(st.integers(1, 1 << 45), amounts)
def test_when_the_pressure_is_over_the_budget_grows_back_in_few_steps(configured: int, memory: int) -> None:
    allowed, available = 0, 3 * memory + configured + 3
    for _ in range(16):
        allowed = budget.under_pressure(configured, allowed, 0, available, memory, 0)
    assert allowed == configured


def test_a_budget_that_a_cgroup_has_no_room_for_is_filled_as_far_as_there_is_room() -> None:
    """As in a container of 150 MB whose mount was told that it may take 300: it fills faster than it is looked at."""
    configured, limit, own = 300 * budget.MIB, 150 * budget.MIB, 60 * budget.MIB
    allowed = min(configured, budget.affordable(0, limit - own, limit, 1))
    own += budget.PROCESS_BYTES // 2
    for _ in range(50):
        held = allowed  # all of it, before the next look
        assert own + held < limit - 30 * budget.MIB
        allowed = budget.under_pressure(configured, allowed, held, limit - own - held, limit, held)
    assert allowed > 10 * budget.MIB
