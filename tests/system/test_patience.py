"""Silence is counted in time in which the one who counts ran."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.system.patience import GAP_S, TICK_MOST_S, Patience


def test_silence_is_counted_until_there_is_an_answer() -> None:
    patience = Patience()
    assert [patience.look(100 + 0.5 * at) for at in range(5)] == [0, 0.5, 1.0, 1.5, 2.0]
    patience.answered()
    assert patience.look(102.5) == 0.5


def test_a_suspended_whole_is_not_silent_when_it_thaws() -> None:
    """Nor soon after: each gets the whole time to answer."""
    patience = Patience()
    for at in range(19):
        patience.look(at * 0.5)
    assert patience.look(9.0 + 3600) == 0.0
    assert patience.look(9.0 + 3600.5) == 0.5


@given(st.lists(st.floats(0, 100), max_size=50))
def test_never_more_than_the_time_in_which_it_ran(steps: list[float]) -> None:
    patience, now = Patience(), 0.0
    patience.look(now)
    ran = 0.0
    for step in steps:
        now += step
        ran += min(step, TICK_MOST_S)
        silent_s = patience.look(now)
        assert silent_s <= ran + 1e-6
        assert step <= GAP_S or silent_s == 0.0
