"""A process that dies again and again for nothing is told from one that dies now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.supervisor.processes.deaths import DONE, FREE, HOPELESS, LIVED_S, Deaths
from nopfsfs.system.outages import FIRST_S, MOST_S


class Life:
    """A process that is replaced, with a clock and a count of the test's."""

    def __init__(self) -> None:
        self.done, self.now = 0, 100.0
        self.deaths = Deaths(lambda: self.done, lambda: self.now)
        self.deaths.started()

    def dies(self, after_s: float = 0.0, done: int = 0) -> float:
        self.now += after_s
        self.done += done
        pause = self.deaths.pause()
        self.deaths.started()
        return pause


def test_deaths_in_vain_cost_pauses_that_double_up_to_a_minute_and_never_end() -> None:
    life = Life()
    pauses = [life.dies(1.0) for _ in range(FREE + 50)]
    assert pauses[: FREE + 4] == [*[0.0] * FREE, FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert set(pauses[FREE + 8 :]) == {MOST_S}
    assert life.deaths.hopeless


def test_hope_comes_back_with_one_that_lives() -> None:
    life = Life()
    for _ in range(HOPELESS):
        life.dies()
    assert not life.deaths.hopeless
    life.dies()
    assert life.deaths.hopeless
    assert life.dies(done=DONE) == 0.0
    assert not life.deaths.hopeless


@pytest.mark.parametrize(("after_s", "done"), [(LIVED_S, 0), (0.0, DONE)])
def test_who_lived_long_or_did_much_did_not_die_in_vain(after_s: float, done: int) -> None:
    life = Life()
    for _ in range(FREE + 3):
        life.dies()
    assert life.dies(after_s, done) == 0.0
    assert [life.dies() for _ in range(FREE + 1)] == [*[0.0] * FREE, FIRST_S], "and all before is forgotten"


def test_what_those_before_had_done_is_not_counted_again() -> None:
    life = Life()
    life.dies(done=10 * DONE)
    assert [life.dies(done=DONE - 1) for _ in range(FREE + 1)] == [*[0.0] * FREE, FIRST_S]


lives = st.lists(st.tuples(st.integers(0, 2 * int(LIVED_S)), st.integers(0, 2 * DONE)), max_size=30)


@given(lives)
def test_a_pause_comes_after_so_many_in_vain_one_after_the_other(lives: list[tuple[int, int]]) -> None:
    life = Life()
    vain = 0
    for after_s, done in lives:
        pause = life.dies(after_s, done)
        vain = vain + 1 if done < DONE and after_s < LIVED_S else 0
        assert (pause == 0.0) == (vain <= FREE)
        assert pause <= MOST_S
        assert life.deaths.hopeless == (vain > HOPELESS)
