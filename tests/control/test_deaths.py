"""A process that dies again and again for nothing is told from one that dies now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.control.deaths import DEATHS, DONE, LIVED_S, WINDOW_S, Deaths


class Life:
    """A process that is replaced, with a clock and a count of the test's."""

    def __init__(self) -> None:
        self.done, self.now = 0, 100.0
        self.deaths = Deaths(lambda: self.done, lambda: self.now)
        self.deaths.started()

    def dies(self, after_s: float = 0.0, done: int = 0) -> bool:
        self.now += after_s
        self.done += done
        often = self.deaths.died()
        self.deaths.started()
        return often


def test_the_fifth_death_in_vain_is_too_often_and_so_is_each_that_follows() -> None:
    life = Life()
    assert [life.dies(1.0) for _ in range(DEATHS + 2)] == [False] * (DEATHS - 1) + [True] * 3


@pytest.mark.parametrize(("after_s", "done"), [(LIVED_S, 0), (0.0, DONE)])
def test_who_lived_long_or_did_much_did_not_die_in_vain(after_s: float, done: int) -> None:
    life = Life()
    for _ in range(DEATHS - 1):
        life.dies()
    assert not life.dies(after_s, done)
    assert [life.dies() for _ in range(DEATHS)] == [False] * (DEATHS - 1) + [True], "and all before is forgotten"


def test_what_those_before_had_done_is_not_counted_again() -> None:
    life = Life()
    life.dies(done=10 * DONE)
    assert [life.dies(done=DONE - 1) for _ in range(DEATHS)] == [False] * (DEATHS - 1) + [True]


def test_deaths_that_are_rare_are_not_too_often() -> None:
    life = Life()
    assert not any(life.dies(LIVED_S - 1) for _ in range(10 * DEATHS)), "four lives take longer than the window"


lives = st.lists(st.tuples(st.integers(0, 2 * int(LIVED_S)), st.integers(0, 2 * DONE)), max_size=30)


@given(lives)
def test_it_is_too_often_when_the_last_five_were_in_vain_within_a_minute(lives: list[tuple[int, int]]) -> None:
    life = Life()
    vain: list[float] = []
    for after_s, done in lives:
        often = life.dies(after_s, done)
        vain = [*vain, life.now] if done < DONE and after_s < LIVED_S else []
        assert often == (len(vain) >= DEATHS and life.now - vain[-DEATHS] < WINDOW_S)
