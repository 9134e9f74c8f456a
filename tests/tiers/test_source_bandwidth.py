"""However requests come, prefetches keep to the bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.tiers.source_bandwidth import BURST_S, SourceBandwidth


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def bounded(rate: int) -> tuple[SourceBandwidth, Clock]:
    clock = Clock()
    bandwidth = SourceBandwidth(clock)
    bandwidth.rate = rate
    return bandwidth, clock


def test_without_a_rate_nothing_rests() -> None:
    bandwidth, _ = bounded(0)
    bandwidth.take(1 << 40)
    assert bandwidth.rest_s == 0


@given(st.integers(1000, 10**9), st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 3)), min_size=1, max_size=40))
def test_no_more_bytes_than_the_rate_allows_begin(rate: int, requests: list[tuple[int, float]]) -> None:
    """Each request rests as long as it is told, and comes some time after the one before."""
    bandwidth, clock = bounded(rate)
    taken = 0
    for size, pause in requests:
        clock.now += pause + bandwidth.rest_s
        if (rest := bandwidth.rest_s) > 0:
            assert rest < 0.003  # rounding
            clock.now += rest
        assert taken <= rate * (clock.now + BURST_S) * 1.000001 + 1
        bandwidth.take(size)
        taken += size


def test_demands_pass_and_are_made_up_for() -> None:
    bandwidth, clock = bounded(1000)
    bandwidth.take(3000)
    bandwidth.take(1000)
    assert bandwidth.rest_s == pytest.approx(4.0)
    clock.now = 4.0
    assert bandwidth.rest_s == 0


def test_little_is_saved_up() -> None:
    bandwidth, clock = bounded(1000)
    clock.now = 3600.0
    bandwidth.take(1250)
    assert bandwidth.rest_s == pytest.approx(1.0)


def test_another_rate_takes_effect_at_once_and_what_is_owed_stays() -> None:
    bandwidth, _ = bounded(1000)
    bandwidth.take(1000)
    bandwidth.rate = 10_000
    assert bandwidth.rest_s == pytest.approx(0.1)
    bandwidth.rate = 0
    assert bandwidth.rest_s == 0
