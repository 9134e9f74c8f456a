"""Pauses that grow, and disk tiers that are tried again by one read at a time."""

from __future__ import annotations

import pytest

from nopfsfs.policy.left_alone import TIER_FIRST_S, TIER_MOST_S, TIER_STUCK_MOST, LeftAlone, Tiers


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_pauses_double_up_to_a_limit_and_begin_anew_after_success(clock: Clock) -> None:
    alone = LeftAlone(clock, 1.0, 4.0, 10)
    for pause in (1.0, 2.0, 4.0, 4.0):
        alone.hung(7)
        assert (7 in alone, 8 in alone, len(alone)) == (True, False, 1)
        alone.hung(7)  # says nothing new
        clock.now += pause - 0.01
        assert 7 in alone
        clock.now += 0.01
        assert (7 in alone, len(alone)) == (False, 0)
    alone.worked(7)
    alone.hung(7)
    clock.now += 1.0
    assert 7 not in alone


def test_no_more_is_remembered_than_was_said(clock: Clock) -> None:
    alone = LeftAlone(clock, 1.0, 4.0, 3)
    for number in range(5):
        alone.hung(number)
    assert [number in alone for number in range(5)] == [False, False, True, True, True]


def test_a_tier_whose_reads_are_stuck_is_tried_again_by_one_at_a_time(clock: Clock) -> None:
    tiers = Tiers(clock)
    assert tiers.may_read(1)
    tiers.hung(1)
    assert (1 in tiers, len(tiers), tiers.stuck, tiers.may_read(1), tiers.may_read(2)) == (True, 1, 1, False, True)
    clock.now += TIER_FIRST_S
    assert [tiers.may_read(1), tiers.may_read(1)] == [True, False], "one tries, the others wait for how that ends"
    tiers.worked(1)
    assert [tiers.may_read(1), tiers.may_read(1)] == [True, False], "a read is stuck there still"
    tiers.worked(1)
    tiers.returned(1)
    assert [tiers.may_read(1), tiers.may_read(1)] == [True, True]


def test_a_tier_that_never_answers_costs_a_bounded_number_of_threads(clock: Clock) -> None:
    tiers = Tiers(clock)
    for _ in range(10_000):
        if tiers.may_read(1):
            tiers.hung(1)
        clock.now += TIER_MOST_S
    assert tiers.stuck == TIER_STUCK_MOST
