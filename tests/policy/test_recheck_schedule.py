"""When rows are looked at again: each within its time, never more at once than allowed, what is in use in front."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.recheck_schedule import BURST, DIRECTORIES_S, NEVER, RATE, Schedule, file_rate, round_s
from tests.examples import examples

NONE = np.zeros(0, np.int64)


def schedule(n_dirs: int, n_files: int, period_s: float, used: np.ndarray = NONE) -> Schedule:
    return Schedule(
        n_dirs, np.arange(n_dirs, n_dirs + n_files), period_s, 0.0,
        dirs_in_use=lambda: used[used < n_dirs], files_in_use=lambda: used[used >= n_dirs],
    )  # fmt: skip


def looks(made: Schedule, until_s: float, tick_s: float, start_s: float = 0.0) -> list[tuple[float, int]]:
    """(when, row) of all looks."""
    return [
        (start_s + i * tick_s, row)
        for i in range(int((until_s - start_s) / tick_s) + 1)
        for row in made.take(start_s + i * tick_s)
    ]


def longest_gaps(found: list[tuple[float, int]], end_s: float) -> dict[int, float]:
    last: dict[int, float] = defaultdict(float)
    gaps: dict[int, float] = defaultdict(float)
    for now, row in found:
        gaps[row] = max(gaps[row], now - last[row])
        last[row] = now
    return {row: max(gaps[row], end_s - last[row]) for row in last}


@settings(max_examples=examples(40))
@given(
    n_dirs=st.integers(1, 300), n_files=st.integers(0, 2000), period_s=st.sampled_from([60.0, 90.0, 200.0]),
    tick_s=st.sampled_from([0.02, 0.25]), data=st.data(),
)  # fmt: skip
def test_every_row_is_looked_at_within_its_time_and_none_too_often(
    n_dirs: int, n_files: int, period_s: float, tick_s: float, data: st.DataObject
) -> None:
    used = np.array(data.draw(st.lists(st.integers(0, n_dirs + n_files - 1), unique=True, max_size=50)), np.int64)
    made = schedule(n_dirs, n_files, period_s, used)
    end_s = 2.5 * period_s
    found = looks(made, end_s, tick_s)
    gaps = longest_gaps(found, end_s)
    assert set(gaps) == set(range(n_dirs + n_files))
    assert all(gap <= (DIRECTORIES_S if row < n_dirs else period_s) for row, gap in gaps.items())
    times = np.array([now for now, _ in found])
    in_a_second = np.searchsorted(times, times + 1.0) - np.arange(len(times))
    assert in_a_second.max(initial=0) <= RATE


def test_a_tree_that_is_too_large_keeps_what_is_in_use_within_the_period_and_gets_round() -> None:
    n_files, period_s = 200_000, 60.0
    used = np.arange(5000, 6000)
    made = schedule(10, n_files, period_s, used)
    takes_s = round_s(10, n_files, period_s)
    assert takes_s > period_s
    found = looks(made, takes_s + 1, 0.02)
    gaps = longest_gaps(found, takes_s)
    assert max(gaps[row] for row in used.tolist()) <= period_s
    assert max(gaps[row] for row in range(10)) <= DIRECTORIES_S
    assert len(gaps) == n_files + 10
    times = np.array([now for now, _ in found])
    assert (np.searchsorted(times, times + 1.0) - np.arange(len(times))).max() <= RATE


def test_a_million_files_take_longer_than_a_quarter_of_an_hour_and_eight_hundred_thousand_do_not() -> None:
    assert round_s(1000, 700_000, 900.0) <= 900.0
    assert round_s(1000, 1_000_000, 900.0) > 900.0


def test_the_clock_may_stand_still_or_jump() -> None:
    made = schedule(5, 100_000, 300.0)
    for now in (0.0, 10.0, 10.0, 5.0, 10_000.0):
        assert len(made.take(now)) <= 2 * BURST


def test_what_is_asked_for_is_given_out_at_once_and_whole() -> None:
    made = schedule(20, 3000, 900.0)
    looks(made, 100.0, 0.25)
    made.request(7)
    found: list[int] = []
    now = 100.0
    while made.given_out != 7:
        now += 0.02
        found += made.take(now)
    assert set(found) == set(range(3020))
    assert now - 100.0 < 1.2 * 3000 / file_rate(20)
    gaps = longest_gaps(looks(made, now + 900.0, 0.25, start_s=now), now + 900.0)
    assert len(gaps) == 3020, "and then it goes on as before"


def test_a_request_that_comes_while_one_is_served_is_served_whole_after_it() -> None:
    made = schedule(2, 500, NEVER)
    assert looks(made, 1000.0, 0.25) == [], "nothing unless it is asked for"
    made.request(1)
    seen = [row for _, row in looks(made, 1000.1, 0.02, start_s=1000.0)]
    assert 0 < len(seen) < 502
    made.request(2)
    made.request(3)
    rest = [row for _, row in looks(made, 1010.0, 0.02, start_s=1000.1)]
    assert made.given_out == 3
    assert len(seen) + len(rest) == 2 * 502


def test_an_empty_tree_is_done_at_once() -> None:
    made = schedule(1, 0, 900.0)
    made.request(1)
    looks(made, 1.0, 0.02)
    assert made.given_out == 1
    assert math.isfinite(round_s(1, 0, 900.0))
