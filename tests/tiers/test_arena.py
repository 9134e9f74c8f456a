"""The allocator never hands out a byte twice and never exceeds its budget; what is freed comes back whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.system.shared_memory import PAGE
from nopfsfs.tiers import arena
from nopfsfs.tiers.arena import Arena, Extents, NoRoom

LENGTH = 64
Make = Callable[[int], tuple[int, Arena]]
apart = st.sets(st.integers(0, LENGTH)).map(sorted)
steps = st.lists(st.tuples(st.sampled_from(["take", "give"]), st.integers(0, LENGTH), st.integers(1, 24)))


@given(apart, steps)
def test_extents_never_overlap_and_coalesce_back_to_one(first: list[int], steps: list[tuple[str, int, int]]) -> None:
    """`first`: where extents that are taken all at once begin and end, in turn."""
    starts, ends = first[: len(first) // 2 * 2 : 2], first[1::2]
    extents, taken = Extents(LENGTH), {s: e - s for s, e in zip(starts, ends, strict=True)}
    extents.take_all(np.array(starts, np.int64), np.array(ends, np.int64))
    for what, at, length in steps:
        if what == "give" and taken:
            start = sorted(taken)[at % len(taken)]
            extents.give(start, taken.pop(start))
        else:
            try:
                start = extents.take(length)
            except NoRoom:
                # Only when it is true: no free run is long enough.
                free = set(range(LENGTH)) - {b for s, n in taken.items() for b in range(s, s + n)}
                assert not any(all(b in free for b in range(s, s + length)) for s in range(LENGTH))
                continue
            taken[start] = length
        used = [b for s, n in taken.items() for b in range(s, s + n)]
        free = [b for s, n in extents.free_extents() for b in range(s, s + n)]
        assert sorted(used + free) == list(range(LENGTH))
    for start, length in taken.items():
        extents.give(start, length)
    assert extents.free_extents() == [(0, LENGTH)]


@pytest.fixture
def make() -> Iterator[Make]:
    fds: list[int] = []

    def build(pages: int) -> tuple[int, Arena]:
        fds.append(arena.create(pages * PAGE))
        return fds[-1], Arena(fds[-1], pages * PAGE)

    yield build
    for fd in fds:
        os.close(fd)


sizes = st.integers(0, 5 * PAGE)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("budget"), st.integers(0, 12)),
    )
)


@given(operations)
def test_budget_and_memory_hold_whatever_happens(operations: list[tuple[str, int]]) -> None:
    with mock.patch.object(arena, "WARM_SHARE", 4):
        check_budget_and_memory(operations)


def check_budget_and_memory(operations: list[tuple[str, int]]) -> None:
    fd = arena.create(12 * PAGE)
    try:
        a = Arena(fd, 12 * PAGE)
        held: dict[int, bytes] = {}
        for number, (what, value) in enumerate(operations):
            if what == "allocate":
                before = a.taken
                try:
                    at = a.allocate(value)
                except NoRoom:
                    assert before + -(-max(value, 1) // PAGE) * PAGE > a.budget, "what is warm gives way"
                    continue
                assert a.used <= a.budget
                held[at] = bytes([number % 255 + 1]) * value
                a.view[at : at + value] = held[at]
            elif what == "free" and held:
                at = sorted(held)[value % len(held)]
                a.free(at)
                del held[at]
            elif what == "budget":
                a.set_budget(value * PAGE)
            for at, data in held.items():
                assert a.view[at : at + len(data)] == data
            assert os.fstat(fd).st_blocks * 512 <= a.used
            assert a.used - a.taken <= a.budget // 4
            assert a.used <= max(a.budget, a.taken)
            assert sum(a._lengths.values()) == a.taken
        for at in list(held):
            a.free(at)
        assert a.taken == 0
        a.set_budget(0)
        assert a.used == 0
        assert os.fstat(fd).st_blocks == 0
        assert a._extents.free_extents() == [(0, os.fstat(fd).st_size)]
        a.view.release()
        a.memory.close()
    finally:
        os.close(fd)


def test_extents_of_another_process_are_adopted_once(make: Make) -> None:
    fd, first = make(8)
    at = first.allocate(2 * PAGE)
    lost = first.allocate(PAGE)
    first.view[at : at + 3] = b"abc"
    first.view[lost : lost + 3] = b"xyz"

    second = Arena(fd, 8 * PAGE)
    # The third reaches into the first, the others lie outside.
    offsets = np.array([at, -PAGE, at + PAGE, 3 * 8 * PAGE], np.int64)
    taken = second.adopt(offsets, np.array([2 * PAGE - 1, PAGE, PAGE, 1], np.int64))
    second.reclaim()

    assert taken.tolist() == [True, False, False, False]
    assert second.used == 2 * PAGE
    assert os.fstat(fd).st_blocks * 512 == PAGE  # only what was written of what was adopted
    assert second.view[at : at + 3] == b"abc"
    assert second.view[lost : lost + 3] == b"\0\0\0"
    assert second.allocate(6 * PAGE) == at + 2 * PAGE
    second.free(at)
    assert second.taken == 6 * PAGE


def test_many_extents_are_adopted_soon_wherever_they_lie(make: Make) -> None:
    """The supervisor waits 30 s for a stager, which may have to adopt millions of files."""
    count = 600_000
    _, a = make(count)
    began = time.process_time()
    assert a.adopt(np.random.default_rng(0).permutation(count) * PAGE, np.full(count, PAGE)).all()
    assert time.process_time() - began < 3
    assert a.taken == count * PAGE


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_what_is_freed_keeps_its_memory_for_the_next_of_that_length(make: Make) -> None:
    fd, a = make(16 * 8)
    first, second = a.allocate(3 * PAGE), a.allocate(3 * PAGE)
    a.view[first : first + 3 * PAGE] = b"a" * 3 * PAGE
    a.view[second : second + 3 * PAGE] = b"b" * 3 * PAGE
    a.free(first)
    a.free(second)
    assert (a.taken, a.used, blocks(fd)) == (0, 6 * PAGE, 6 * PAGE)
    other = a.allocate(2 * PAGE)
    assert other not in (first, second)
    assert a.allocate(3 * PAGE - 5) == second, "the last first"
    assert a.allocate(3 * PAGE) == first
    assert (a.taken, a.used) == (8 * PAGE, 8 * PAGE)


def test_the_oldest_memory_goes_first_and_what_is_too_large_at_once(make: Make) -> None:
    fd, a = make(16 * 4)
    at = [a.allocate(pages * PAGE) for pages in (2, 1, 2, 5)]
    for offset, pages in zip(at, (2, 1, 2, 5), strict=True):
        a.view[offset : offset + pages * PAGE] = b"x" * pages * PAGE
    a.free(at[3])
    assert blocks(fd) == a.used == 5 * PAGE
    for offset in at[:3]:
        a.free(offset)
    assert blocks(fd) == a.used == 3 * PAGE
    assert a.allocate(2 * PAGE) == at[2]
    assert a.allocate(PAGE) == at[1]


def test_what_is_warm_gives_way_to_what_is_taken_and_to_a_smaller_budget(make: Make) -> None:
    fd, a = make(32)
    at = a.allocate(2 * PAGE)
    a.view[at : at + 2 * PAGE] = b"x" * 2 * PAGE
    a.free(at)
    rest = a.allocate(32 * PAGE)
    assert (a.used, blocks(fd)) == (32 * PAGE, 0)
    a.free(rest)
    at = a.allocate(2 * PAGE)
    a.view[at : at + 2 * PAGE] = b"x" * 2 * PAGE
    a.free(at)
    assert a.used == 2 * PAGE
    a.set_budget(31 * PAGE)
    assert (a.used, blocks(fd)) == (0, 0)


def test_where_addresses_are_short_those_of_what_is_warm_are_used(make: Make) -> None:
    _, a = make(16)
    with mock.patch.object(arena, "WARM_SHARE", 1):
        every = [a.allocate(PAGE) for _ in range(16)]
        for at in every:
            a.free(at)
        a._extents.take(3 * 16 * PAGE - 16 * PAGE)
        assert a.allocate(2 * PAGE) in every


def test_an_arena_without_a_budget_has_no_room(make: Make) -> None:
    _, a = make(0)
    with pytest.raises(NoRoom):
        a.allocate(1)
