"""The page window alone: its account, and what it never drops, whatever happens."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.command_list import CommandList
from nopfsfs.policy.copy_flags import OPEN, PUSHING
from nopfsfs.policy.push_scheduler import Paged, PushScheduler
from nopfsfs.policy.residency import Residency
from tests.examples import examples

N = 24


def split(pages: int, page_homes: int = 0) -> MemorySplit:
    return MemorySplit(1000, 1000, 0, 0, pages=pages, page_homes=page_homes, whole_limit=1000)


def window(pages: int = 40, sizes: list[int] | None = None, page_homes: int = 0) -> PushScheduler:
    charges = np.array(sizes or [10] * N, np.int64)
    residency = Residency(charges, split(pages, page_homes), [], CommandList())
    return PushScheduler(residency, np.zeros(len(charges), np.uint8))


def push(w: PushScheduler, row: int, position: int = 0) -> None:
    assert w.may_push(row)
    w.push(row, position)
    w.pushed(row)


def test_what_the_kernel_took_is_charged_no_longer_and_may_be_pushed_again() -> None:
    w = window()
    push(w, 3)
    assert w.pages_lost(3, cached=0)
    assert (w.used, w.has(3), 3 in w.awaited) == (0, False, False)
    assert not w.pages_lost(3, cached=0), "no news"
    push(w, 3)
    assert w.pages_lost(3, cached=4)
    assert (w.used, w.has(3), w.paged[3]) == (10, False, Paged.SOME)


def test_what_is_being_pushed_or_dropped_is_not_taken_for_evicted() -> None:
    w = window()
    push(w, 3)
    w.closed(3)
    assert w.make_room(100) == [3]
    assert not w.pages_lost(3, cached=0)
    w.dropped(3)
    w.push(3, 0)
    assert not w.pages_lost(3, cached=0)
    assert w.used == 10


def test_a_read_of_what_was_pushed_long_ago_shows_an_eviction_and_one_just_after_the_push_does_not() -> None:
    w = window()
    for row in (1, 2):
        push(w, row)
    w.read(1)
    assert w.evictions_read == 0, "the READ may have been there before the push"
    w.rotate_recent()
    w.read(2)
    assert w.evictions_read == 0
    w.rotate_recent()
    w.read(2)
    assert (w.evictions_read, w._residency.again) == (1, {2})
    assert (w.paged[2], w.used) == (Paged.SOME, 20)
    w.read(2)
    assert w.evictions_read == 1, "once"


def test_a_push_whose_reader_was_there_first_is_called_off() -> None:
    w = window()
    w.push(1, 0)
    w.opened(1)
    w.push(2, 1)
    w.read(2)
    w.opened(3)
    assert w.paged[[1, 2, 3]].tolist() == [Paged.LATE, Paged.LATE, Paged.NONE]
    w.push_failed(1)
    w.pushed(2)
    assert w.paged[[1, 2]].tolist() == [Paged.SOME, Paged.WHOLE]
    assert w.used == 20, "what was read is there"


steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "done", "failed", "open", "read", "close", "room", "dropped", "gone", "pass", "age",
                         "forsake", "resize"]),
        st.integers(0, N - 1), st.integers(0, 300),
    ),
    max_size=150,
)  # fmt: skip


@settings(max_examples=examples(300))
@given(
    steps, st.lists(st.integers(1, 50), min_size=N, max_size=N), st.integers(0, 300), st.integers(0, 100),
    st.lists(st.integers(-1, 300), min_size=N, max_size=N),
)  # fmt: skip
def test_every_byte_is_accounted_for_and_nothing_awaited_is_dropped(
    steps: list[tuple[str, int, int]], sizes: list[int], pages: int, homes: int, uses: list[int]
) -> None:
    w = window(pages, sizes, min(homes, pages))
    w.behind.next_uses = lambda rows: np.array(uses, np.int64)[rows]
    charges, dropping, opened = np.array(sizes), set(), set()
    holds = w._residency.holds
    for what, row, number in steps:
        before = w.used
        if what == "push" and not holds[row] & PUSHING and w.paged[row] != Paged.WHOLE and w.may_push(row):
            w.push(row, number)
            assert w.used == before or w.used <= w._limit, "pushes never exceed the budget"
        elif what == "done" and holds[row] & PUSHING:
            w.pushed(row)
        elif what == "failed" and holds[row] & PUSHING:
            w.push_failed(row)
        elif what == "open":
            opened.add(row)
            w._residency.hold(row, OPEN)
            w.opened(row)
        elif what == "read" and row in opened:
            w.read(row)
        elif what == "close" and row in opened:
            opened.discard(row)
            w._residency.release(row, OPEN)
            w.closed(row)
        elif what == "room":
            position = number if number % 2 else -1
            rows = w.make_room(number % 30, position)
            assert len(rows) == len(set(rows))
            assert not dropping & set(rows), "twice"
            for gone in rows:
                assert gone not in w.awaited
                assert gone not in opened
                assert not w.home[gone]
                assert not holds[gone] & PUSHING
                assert not 0 <= uses[gone] <= position, "for one that is read later"
            dropping |= set(rows)
        elif what == "dropped" and row in dropping:
            dropping.discard(row)
            w.dropped(row)
        elif what == "gone":
            w.pages_lost(row, number % 2 * 4)
        elif what == "pass":
            w.advance(number, number, lambda start, count: np.zeros(0, np.int64))
        elif what == "age":
            w.rotate_recent()
        elif what == "forsake":
            w.restart(0)
        elif what == "resize":
            w.resize(split(number, number // 3), range(N))
        assert w.used == charges[(w.paged != Paged.NONE) | (holds & PUSHING != 0)].sum()
        assert w.outstanding == np.count_nonzero(holds & PUSHING)
        assert w.homes_used == charges[w.home].sum() <= w._split.page_homes

    for row in range(N):  # and at the end all that may go goes
        w.push_failed(row)
        w._residency.release(row, OPEN)
        w.closed(row)
    w.restart(0)
    for row in [*dropping, *w.make_room()]:
        w.dropped(row)
    for row in w.make_room():  # read while they were dropped
        w.dropped(row)
    assert w.used <= w._split.pages
