"""Which rows behind the reader go first; and what that saves over the oldest first."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.placement.belady import NEVER
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.next_use import NextUseOrder
from tests.conftest import long
from tests.policy.simulated import World


def spare(rows: list[int], uses: dict[int, int]) -> NextUseOrder:
    made = NextUseOrder()
    made.next_uses = lambda wanted: np.array([uses.get(row, -1) for row in wanted.tolist()], np.int64)
    for row in rows:
        made.add(row)
    return made


def drain(s: NextUseOrder, after: int = -1) -> list[int]:
    found = []
    while (row := s.pop_last_used(after)) is not None:
        found.append(row)
    return found


def test_what_is_read_last_goes_first_and_what_is_never_read_again_before_it_the_oldest_first() -> None:
    assert drain(spare([1, 2, 3, 4, 5, 6], {1: 10, 2: 30, 5: 20})) == [3, 4, 6, 2, 5, 1]


def test_nothing_goes_that_is_read_before_what_needs_the_room() -> None:
    s = spare([1, 2, 3, 4], {1: 10, 2: 30, 3: 20})
    assert drain(s, after=20) == [4, 2]
    assert (1 in s, 3 in s, len(s)) == (True, True, 2)
    assert drain(s) == [3, 1]


def test_what_came_again_is_judged_anew() -> None:
    uses = {1: 10, 2: 20}
    s = spare([1, 2], uses)
    assert s.pop_last_used(after=25) is None
    s.discard(1)
    uses[1] = 50
    s.add(1)
    assert drain(s) == [1, 2]


def test_another_stream_is_another_order() -> None:
    uses = {1: 10, 2: 20}
    s = spare([1, 2], uses)
    assert s.pop_last_used(after=25) is None
    uses[1] = 50
    s.invalidate()
    assert drain(s) == [1, 2]


def test_the_soonest_of_some() -> None:
    s = spare([], {1: 10, 2: 20})
    assert (s.first_use([2, 1, 3]), s.first_use([3]), s.first_use([])) == (10, NEVER, NEVER)


@given(st.dictionaries(st.integers(0, 99), st.integers(-1, 500)), st.integers(-1, 500))
def test_for_any_uses_the_order_is_that_of_a_sort(uses: dict[int, int], after: int) -> None:
    expected = sorted(uses, key=lambda row: -(uses[row] if uses[row] >= 0 else NEVER))
    assert drain(spare(list(uses), uses), after) == [row for row in expected if not 0 <= uses[row] <= after]


def test_many_are_sorted_seldom() -> None:
    asked = []
    s = NextUseOrder()

    def next_uses(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return rows

    s.next_uses = next_uses
    for row in range(10_000):
        s.add(row)
    for row in range(10_000, 20_000):  # one comes, one goes, as in a window that is full
        s.pop_last_used()
        s.add(row)
    assert sum(asked) < 20 * 10_000


# ---- what it is good for ------------------------------------------------------------------------------------


def epochs(n: int, count: int) -> list[int]:
    chance = random.Random(n)
    stream: list[int] = []
    for _ in range(count):
        order = list(range(n))
        chance.shuffle(order)
        stream += order
    return stream


def read_through(n: int, pages: int, count: int, *, foretold: bool) -> World:
    """Read all epochs, with a page cache for `pages` of the n files of ten bytes; all are in the arena."""
    split = MemorySplit(10 * n, 10 * n, 0, 0, pages=10 * pages, page_homes=0, whole_limit=10 * n)
    w = World([10] * n, epochs(n, count), split, foretold=foretold)
    w.upcoming = lambda start, most: w.stream[start : min(start + most, (w.position // n + 2) * n)]  # type: ignore[method-assign]
    w.settle()
    while w.position < len(w.stream):
        w.read_next()
        w.settle()
        assert w.policy.pages_used <= 10 * pages
        assert len(w.pages) <= pages
    return w


@pytest.mark.parametrize(("pages", "fewer"), [long(50, 0.02), long(100, 0.08), (150, 0.14)])
def test_fewer_pushes_are_needed_than_when_the_oldest_go_first(pages: int, fewer: float) -> None:
    n, count = 200, 4
    oldest, furthest = (read_through(n, pages, count, foretold=foretold) for foretold in (False, True))
    assert furthest.reads <= oldest.reads
    assert furthest.pushes + furthest.reads <= (1 - fewer) * (oldest.pushes + oldest.reads)
