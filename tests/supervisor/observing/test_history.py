"""The history: a row a second, and what longer steps make of these, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.supervisor.observing.history import COLUMNS, STEPS, History, Row

OPENS, P99, LIMIT = (COLUMNS.index(name) for name in ("opens", "wait_p99", "limit"))


def row(opens: float, p99: float = 0.0, limit: float = np.nan) -> Row:
    made = np.zeros(len(COLUMNS), np.float32)
    made[OPENS], made[P99], made[LIMIT] = opens, p99, limit
    return made


def opens(history: History, step: int, since: float = 0.0, most: int = 10**6) -> list[float]:
    found: list[float] = history.rows(step, since, most)[1][:, OPENS].tolist()
    return found


def test_there_are_27_columns_and_no_more_than_two_megabytes() -> None:
    history = History(0.0)
    assert len(COLUMNS) == len(set(COLUMNS)) == 27
    assert sum(rows.nbytes for rows in history._rows.values()) <= 2 << 20


def test_a_second_has_one_row() -> None:
    history = History(100.2)
    assert [history.due(now) for now in (100.9, 101.0, 103.5)] == [0, 1, 3]
    for second in range(1, 4):
        history.add(100.3 + second, row(second))
    assert history.rows(1, 0.0, 99)[0] == 100.0
    assert opens(history, 1) == [1, 2, 3]
    assert opens(history, 1, since=101.5) == [3]
    assert opens(history, 1, most=2) == [1, 2]


def test_seconds_without_a_look_have_the_mean_of_that_time() -> None:
    history = History(0.0)
    history.add(1.0, row(4))
    history.add(6.5, row(2))
    assert opens(history, 1) == [4, 2, 2, 2, 2, 2]


def test_a_longer_step_is_the_mean_and_of_the_longest_wait_the_most() -> None:
    history = History(100.0)
    for second in range(1, 121):
        history.add(100.0 + second, row(second % 10, p99=second))
    assert opens(history, 10) == [4.5] * 12
    begin, rows = history.rows(10, 0.0, 99)
    assert (begin, rows[:, P99].tolist()) == (100.0, [float(10 * (n + 1)) for n in range(12)])
    assert opens(history, 60) == pytest.approx([4.5, 4.5])  # the minutes that began at 60 (from 100 on) and at 120


def test_what_was_not_known_is_left_out_of_a_mean() -> None:
    history = History(0.0)
    for second in range(1, 11):
        history.add(float(second), row(1, limit=64 if second == 3 else np.nan))
    assert history.rows(10, 0.0, 9)[1][:, LIMIT].tolist() == [64]
    for second in range(11, 21):
        history.add(float(second), row(1))
    assert np.isnan(history.rows(10, 10.0, 9)[1][0, LIMIT])


def test_a_step_that_there_is_not() -> None:
    with pytest.raises(KeyError):
        History(0.0).rows(2, 0.0, 1)


@given(st.floats(0, 1e6), st.lists(st.floats(0.1, 30_000), min_size=1, max_size=40))
def test_rows_of_any_gaps_are_as_those_of_each_second(begin: float, gaps: list[float]) -> None:
    history, now = History(begin), begin
    seconds: list[float] = []
    for number, gap in enumerate(gaps):
        now += gap
        if history.due(now):
            seconds += [float(number)] * (int(now) - int(begin) - len(seconds))
            history.add(now, row(number))
    found = opens(history, 1)
    assert found == seconds[-STEPS[1] :]
    for step, kept in list(STEPS.items())[1:]:
        first, ends = int(begin), int(begin) + len(seconds)
        whole = [(max(at * step, first), (at + 1) * step) for at in range(first // step, ends // step)][-kept:]
        means = [float(np.mean(seconds[a - first : b - first])) for a, b in whole]
        found = opens(history, step)
        assert found[1:] == pytest.approx(means[1:], rel=1e-4)
        assert len(found) == len(means)
        for value in found[:1]:  # the first may have begun within a shorter row: all these count as one
            assert min(seconds) <= value <= max(seconds)
