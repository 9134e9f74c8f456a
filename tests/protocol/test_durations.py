"""Durations in log2 counters, and the quantiles that are read off them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol.durations import BOUNDS_S, BUCKETS, bucket_of, most_s, quantile_s


def counted(seconds: list[float]) -> list[float]:
    counts = [0.0] * BUCKETS
    for one in seconds:
        counts[bucket_of(int(one * 1e9))] += 1
    return counts


@pytest.mark.parametrize(
    ("nanoseconds", "bucket"),
    [(0, 0), (1, 0), ((1 << 19) - 1, 0), (1 << 19, 1), ((1 << 20) - 1, 1), (1 << 33, 15), (1 << 60, 15)],
)
def test_each_bucket_ends_at_twice_the_one_before(nanoseconds: int, bucket: int) -> None:
    assert bucket_of(nanoseconds) == bucket


def test_the_bounds_go_from_half_a_millisecond_to_ten_seconds() -> None:
    assert len(BOUNDS_S) == BUCKETS - 1
    assert (round(BOUNDS_S[0], 4), round(BOUNDS_S[-1], 1)) == (0.0005, 8.6)


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile_s([0.0] * BUCKETS, 0.5) is None
    assert most_s([0.0] * BUCKETS) is None


@given(st.lists(st.floats(1e-5, 8.0), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_within_the_bucket_of_the_exact_one(seconds: list[float], share: float) -> None:
    found = quantile_s(counted(seconds), share)
    exact = float(np.quantile(seconds, share, method="inverted_cdf"))
    assert found is not None
    at = bucket_of(int(exact * 1e9))
    lower, upper = (BOUNDS_S[at - 1] if at else 0.0), BOUNDS_S[at]
    assert lower <= found <= upper
    most = most_s(counted(seconds))
    assert most is not None
    assert max(seconds) <= most <= max(2 * max(seconds), BOUNDS_S[0])


def test_what_took_longer_than_the_last_bound_is_said_to_take_that() -> None:
    assert quantile_s(counted([100.0]), 0.99) == most_s(counted([100.0])) == BOUNDS_S[-1]
