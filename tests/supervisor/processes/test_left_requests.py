"""Each left block comes to one heir at a time until it is taken over; none is given to two processes."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.supervisor.processes.left_requests import LeftRequests
from tests.examples import examples

SIZE = 4


class Pool:
    """Blocks, of which some are not empty."""

    def __init__(self, given: list[int] | None = None) -> None:
        self.full: set[int] = set()
        self.given = given or [0] * SIZE
        self.left = LeftRequests(lambda block: block not in self.full, self.given)


def test_a_dead_servers_block_comes_to_a_living_one_and_is_free_then() -> None:
    pool = Pool()
    dead, heir = pool.left.assign(), pool.left.assign()
    pool.full.add(dead)
    pool.left.left(dead)
    assert pool.left.hand_out([]) == [], "nobody lives"
    assert pool.left.hand_out([heir]) == [(dead, heir)]
    assert pool.left.hand_out([heir]) == [], "once"
    assert pool.left.assign() not in (dead, heir)
    pool.left.taken_over(dead)
    assert pool.left.assign() == dead


def test_an_empty_block_is_free_at_once() -> None:
    pool = Pool()
    block = pool.left.assign()
    pool.left.left(block)
    assert (pool.given, pool.left.hand_out([3])) == ([0] * SIZE, [])


def test_an_heir_that_dies_leaves_both() -> None:
    pool = Pool()
    dead, heir, last = (pool.left.assign() for _ in range(3))
    pool.full |= {dead, heir}
    pool.left.left(dead)
    pool.left.hand_out([heir])
    pool.left.left(heir)
    assert sorted(pool.left.hand_out([last])) == [(dead, last), (heir, last)]
    pool.left.taken_over(dead)
    pool.left.taken_over(heir)
    assert sum(pool.given) == 1


def test_a_block_of_one_that_is_asleep_is_looked_at_again_and_free_only_then() -> None:
    pool = Pool()
    asleep, heir = pool.left.assign(), pool.left.assign()
    pool.left.left(asleep, final=False)
    assert pool.left.hand_out([heir]) == [(asleep, heir)]
    pool.left.taken_over(asleep)
    assert pool.given[asleep], "it may yet take a request"
    pool.full.add(asleep)
    pool.left.left(asleep)
    assert pool.left.hand_out([heir]) == [(asleep, heir)]
    pool.left.taken_over(asleep)
    assert not pool.given[asleep]


def test_one_that_ends_while_an_heir_is_at_its_block_is_handed_out_again() -> None:
    pool = Pool()
    asleep, heir = pool.left.assign(), pool.left.assign()
    pool.full.add(asleep)
    pool.left.left(asleep, final=False)
    pool.left.hand_out([heir])
    pool.left.left(asleep)
    assert pool.left.hand_out([heir]) == []
    pool.left.taken_over(asleep)
    assert pool.given[asleep]
    assert pool.left.hand_out([heir]) == [(asleep, heir)]
    pool.left.taken_over(asleep)
    assert not pool.given[asleep]


def test_what_a_supervisor_before_had_given_is_inherited() -> None:
    pool = Pool([1, 0, 1, 0])
    pool.full.add(2)
    own = pool.left.assign()
    assert (own, pool.left.inherited) == (1, [0, 2])
    for block in pool.left.inherited:
        pool.left.left(block)
    assert pool.left.hand_out([own]) == [(2, own)]
    assert pool.given == [0, 1, 1, 0]


def test_where_no_block_is_free_no_process_is_started_now() -> None:
    pool = Pool()
    for _ in range(SIZE):
        pool.left.assign()
    with pytest.raises(OSError, match="no room") as raised:
        pool.left.assign()
    assert raised.value.errno == errno.EBUSY


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["start", "die", "sleep", "done"]), st.integers(0, SIZE), st.booleans())))
def test_nothing_is_lost_whoever_dies(steps: list[tuple[str, int, bool]]) -> None:
    pool = Pool()
    living: list[int] = []
    asleep: list[int] = []
    at: list[tuple[int, int]] = []  # heirs at work

    def dies(block: int, holds: bool, final: bool) -> None:
        if holds:
            pool.full.add(block)
        at[:] = [(other, heir) for other, heir in at if heir != block]
        pool.left.left(block, final=final)

    for what, place, holds in steps:
        if what == "start" and not all(pool.given):
            block = pool.left.assign()
            pool.full.discard(block)
            assert block not in living + asleep
            living.append(block)
        elif what in ("die", "sleep") and living:
            block = living.pop(place % len(living))
            dies(block, holds, what == "die")
            if what == "sleep":
                asleep.append(block)
        elif what == "die" and asleep:
            dies(asleep.pop(place % len(asleep)), holds, True)
        elif what == "done" and at:
            block, _ = at.pop(place % len(at))
            pool.left.taken_over(block)
        at += pool.left.hand_out(living)
        assert len({block for block, _ in at}) == len(at), "one heir at a time"
        assert all(heir in living for _, heir in at)
    while asleep:
        dies(asleep.pop(), False, True)
    if not living:
        if all(pool.given):
            return  # each is left, and waits for a server; in a mount there are more blocks than servers
        living.append(pool.left.assign())
    for _ in range(3 * SIZE):
        at += pool.left.hand_out(living)
        for block, _ in at:
            pool.left.taken_over(block)
        at.clear()
    assert {block for block in range(SIZE) if pool.given[block]} == set(living)
