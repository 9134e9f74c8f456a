"""The page window alone: its account, and what it never drops, whatever happens."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.push_scheduler import Paged, PushScheduler

N = 24


def split(pages: int, page_homes: int = 0) -> MemorySplit:
    return MemorySplit(1000, 1000, 0, 0, pages=pages, page_homes=page_homes, whole_limit=1000)


def window(pages: int = 40, sizes: list[int] | None = None, page_homes: int = 0) -> tuple[PushScheduler, set[int]]:
    """A window, and the rows that are open."""
    opened: set[int] = set()
    charges = np.array(sizes or [10] * N, np.int64)
    return PushScheduler(charges, np.zeros(len(charges), np.uint8), split(pages, page_homes), opened), opened


def push(w: PushScheduler, row: int, position: int = 0) -> None:
    assert w.may_push(row)
    w.push(row, position)
    w.pushed(row)


def test_what_the_kernel_took_is_charged_no_longer_and_may_be_pushed_again() -> None:
    w, _ = window()
    push(w, 3)
    assert w.gone(3, cached=0)
    assert (w.used, w.has(3), 3 in w.awaited) == (0, False, False)
    assert not w.gone(3, cached=0), "no news"
    push(w, 3)
    assert w.gone(3, cached=4)
    assert (w.used, w.has(3), w.paged[3]) == (10, False, Paged.SOME)


def test_what_is_being_pushed_or_dropped_is_not_taken_for_evicted() -> None:
    w, _ = window()
    push(w, 3)
    w.closed(3)
    assert w.make_room(100) == [3]
    assert not w.gone(3, cached=0)
    w.dropped(3)
    w.push(3, 0)
    assert not w.gone(3, cached=0)
    assert w.used == 10


def test_a_read_of_what_was_pushed_long_ago_shows_an_eviction_and_one_just_after_the_push_does_not() -> None:
    w, _ = window()
    for row in (1, 2):
        push(w, row)
    assert not w.read(1), "the READ may have been there before the push"
    w.rotate_recent()
    assert not w.read(2)
    w.rotate_recent()
    assert w.read(2)
    assert (w.paged[2], w.used) == (Paged.SOME, 20)
    assert not w.read(2), "once"


def test_a_push_whose_reader_was_there_first_is_called_off() -> None:
    w, _ = window()
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


@settings(deadline=None, max_examples=300)
@given(
    steps, st.lists(st.integers(1, 50), min_size=N, max_size=N), st.integers(0, 300), st.integers(0, 100),
    st.lists(st.integers(-1, 300), min_size=N, max_size=N),
)  # fmt: skip
def test_every_byte_is_accounted_for_and_nothing_awaited_is_dropped(
    steps: list[tuple[str, int, int]], sizes: list[int], pages: int, homes: int, uses: list[int]
) -> None:
    w, opened = window(pages, sizes, min(homes, pages))
    w.behind.next_uses = lambda rows: np.array(uses, np.int64)[rows]
    charges, dropping = np.array(sizes), set()
    for what, row, number in steps:
        before = w.used
        if what == "push" and not w.pushing[row] and w.paged[row] != Paged.WHOLE and w.may_push(row):
            w.push(row, number)
            assert w.used == before or w.used <= w._limit, "pushes never exceed the budget"
        elif what == "done" and w.pushing[row]:
            w.pushed(row)
        elif what == "failed" and w.pushing[row]:
            w.push_failed(row)
        elif what == "open":
            opened.add(row)
            w.opened(row)
        elif what == "read" and row in opened:
            w.read(row)
        elif what == "close" and row in opened:
            opened.discard(row)
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
                assert not w.pushing[gone]
                assert not 0 <= uses[gone] <= position, "for one that is read later"
            dropping |= set(rows)
        elif what == "dropped" and row in dropping:
            dropping.discard(row)
            w.dropped(row)
        elif what == "gone":
            w.gone(row, number % 2 * 4)
        elif what == "pass":
            w.advance(number)
        elif what == "age":
            w.rotate_recent()
        elif what == "forsake":
            w.forget_expected()
        elif what == "resize":
            w.resize(split(number, number // 3), range(N))
        assert w.used == charges[(w.paged != Paged.NONE) | w.pushing].sum()
        assert w.outstanding == w.pushing.sum()
        assert w.homes_used == charges[w.home].sum() <= w._split.page_homes

    for row in range(N):  # and at the end all that may go goes
        w.push_failed(row)
        opened.discard(row)
        w.closed(row)
    w.forget_expected()
    for row in [*dropping, *w.make_room()]:
        w.dropped(row)
    for row in w.make_room():  # read while they were dropped
        w.dropped(row)
    assert w.used <= w._split.pages
