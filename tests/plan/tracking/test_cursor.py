"""The cursor against a plain model of its definition, and its rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build, window
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.cursor import Cursor, Step


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 20), st.lists(st.integers(0, 119), max_size=150))
def test_window_is_the_next_k_unopened(length: int, beyond: int, k: int, opens: list[int]) -> None:
    cursor = Cursor(length, k)
    cursor.extend(beyond)
    unopened = list(range(length + beyond))
    for place in opens:
        if place >= length + beyond:
            continue
        expected = place in unopened[:k]
        step = cursor.take(place)
        assert (step is Step.HIT) == expected
        if step is Step.AHEAD:
            cursor.mark(place)
        if place in unopened:
            unopened.remove(place)
        assert cursor.lo == (unopened[0] if unopened else length + beyond)


def test_a_second_open_is_a_repeat_and_no_progress() -> None:
    cursor = Cursor(100, 5)
    assert cursor.take(0) is Step.HIT
    before = (cursor.lo, cursor.hi)
    assert cursor.take(0) is Step.REPEAT
    assert (cursor.lo, cursor.hi) == before


def test_what_was_left_far_behind_is_old() -> None:
    cursor = Cursor(100, 5)
    for place in range(50):
        cursor.take(place)
    assert cursor.take(45) is Step.REPEAT
    assert cursor.take(3) is Step.OLD


def test_leftovers_are_abandoned_when_the_epoch_rolls() -> None:
    cursor = Cursor(10, 4)
    cursor.extend(10)
    for place in range(8):
        cursor.take(place)
    assert cursor.take(10) is Step.HIT
    assert cursor.take(11) is Step.HIT
    cursor.roll()
    assert (cursor.lo, cursor.length) == (2, 10)
    assert cursor.take(2) is Step.HIT


def test_places_never_opened_do_not_fill_the_window() -> None:
    cursor = Cursor(20_000, 50)
    hits = sum(cursor.take(place) is Step.HIT for place in range(20_000) if place % 100)
    assert hits == 19_800


@pytest.mark.parametrize(
    ("length", "inflight", "k"),
    [(1, None, 1), (7, None, 1), (16, None, 4), (39, None, 8), (200, None, 10), (10**6, None, 1024), (200, 160, 160)],
)
def test_k(length: int, inflight: int | None, k: int) -> None:
    assert window(length, inflight) == k


def test_tables_link_rows_that_are_read_twice() -> None:
    files = np.array([7, 9, 7, 12])
    epoch = build(Hypothesis(0, 0, Spec("sequential")), [DataSet(0, "", (FileOrder(("image_folder",), files),))])
    assert [epoch.find(row) for row in (7, 8, 9, 12, 13, 6)] == [0, -1, 1, 3, -1, -1]
    assert epoch.again is not None
    assert epoch.again.tolist() == [2, -1, -1, -1]


def test_tables_of_an_empty_data_set() -> None:
    epoch = build(
        Hypothesis(0, 0, Spec("distributed")), [DataSet(0, "", (FileOrder(("image_folder",), np.zeros(0, np.int64)),))]
    )
    assert epoch.length == 0
    assert epoch.find(0) == -1


def test_where_closes_do_not_show_a_file_is_passed_a_lag_after_the_next() -> None:
    """Also where every open shows: a file is looked up, and then read."""
    cursor = Cursor(100, 5, hidden=np.zeros(100, bool), lag=5)
    for place in range(20):
        cursor.take(place)
    assert cursor.lo == 20
    assert cursor.passed == 15
    assert cursor.consumed(0, 100).tolist() == [True] * 20 + [False] * 80


def test_a_place_that_is_never_opened_does_not_hold_up_for_long_where_few_opens_show() -> None:
    n, spacing, lag = 20_000, 32, 80
    shows = np.arange(n) % spacing == 0
    k = 8
    cursor = Cursor(n, k, hidden=~shows, lag=lag)
    skipped = 64 * spacing
    for place in range(0, n // 2, spacing):
        if place != skipped:
            cursor.take(place)
        assert place - cursor.passed <= 2 * (2 * k + 18) * spacing + lag + spacing
