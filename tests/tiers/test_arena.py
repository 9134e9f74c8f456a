"""The allocator never hands out a byte twice and never exceeds its budget; what is freed comes back whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.tiers import arena
from nopfsfs.tiers.arena import Arena, Extents, NoRoom
from nopfsfs.tiers.shared import PAGE

LENGTH = 64
Make = Callable[[int], tuple[int, Arena]]
steps = st.lists(st.tuples(st.sampled_from(["take", "give", "carve"]), st.integers(0, LENGTH), st.integers(1, 24)))


@given(steps)
def test_extents_never_overlap_and_coalesce_back_to_one(steps: list[tuple[str, int, int]]) -> None:
    extents, taken = Extents(LENGTH), {}
    for what, at, length in steps:
        if what == "give" and taken:
            start = sorted(taken)[at % len(taken)]
            extents.give(start, taken.pop(start))
        else:
            try:
                start = at if what == "carve" else extents.take(length)
                if what == "carve":
                    extents.carve(start, length)
            except NoRoom:
                # Only when it is true: no free run is long enough, or some of the extent is taken.
                free = set(range(LENGTH)) - {b for s, n in taken.items() for b in range(s, s + n)}
                wanted = [at] if what == "carve" else range(LENGTH)
                assert not any(all(b in free for b in range(s, s + length)) for s in wanted)
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


@settings(deadline=None)
@given(operations)
def test_budget_and_memory_hold_whatever_happens(operations: list[tuple[str, int]]) -> None:
    fd = arena.create(12 * PAGE)
    try:
        a = Arena(fd, 12 * PAGE)
        held: dict[int, bytes] = {}
        for number, (what, value) in enumerate(operations):
            if what == "allocate":
                before = a.used
                try:
                    at = a.allocate(value)
                except NoRoom:
                    assert before + -(-max(value, 1) // PAGE) * PAGE > a.budget
                    continue
                assert a.used <= a.budget
                assert not any(a.view[at : at + value]), "fresh bytes are zero"
                held[at] = bytes([number % 255 + 1]) * value
                a.view[at : at + value] = held[at]
            elif what == "free" and held:
                at = sorted(held)[value % len(held)]
                a.free(at)
                del held[at]
            elif what == "budget":
                a.budget = value * PAGE
            for at, data in held.items():
                assert a.view[at : at + len(data)] == data
            assert os.fstat(fd).st_blocks * 512 <= a.used
        for at in list(held):
            a.free(at)
        assert a.used == 0
        assert os.fstat(fd).st_blocks == 0
        a.view.release()
        a.memory.close()
    finally:
        os.close(fd)


def test_an_extent_of_another_process_is_adopted_once(make: Make) -> None:
    fd, first = make(8)
    at = first.allocate(2 * PAGE)
    lost = first.allocate(PAGE)
    first.view[at : at + 3] = b"abc"
    first.view[lost : lost + 3] = b"xyz"

    second = Arena(fd, 8 * PAGE)
    second.adopt(at, 2 * PAGE)
    with pytest.raises(NoRoom):
        second.adopt(at + PAGE, PAGE)
    second.reclaim()

    assert second.used == 2 * PAGE
    assert os.fstat(fd).st_blocks * 512 == PAGE  # only what was written of what was adopted
    assert second.view[at : at + 3] == b"abc"
    assert second.view[lost : lost + 3] == b"\0\0\0"


def test_an_arena_without_a_budget_has_no_room(make: Make) -> None:
    _, a = make(0)
    with pytest.raises(NoRoom):
        a.allocate(1)
