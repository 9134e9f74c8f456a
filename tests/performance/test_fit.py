"""The model's figures from readings: what is recovered from times that are known, and when it is said not to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.performance import fit
from nopfsfs.performance.fit import Level, Readings

LATENCIES = st.floats(1e-5, 1.0)
STREAMS = st.floats(1e6, 1e10)
SEEDS = st.integers(0, 2**32 - 1)
NONE = np.empty(0)


def sizes_of(seed: int, count: int = 200) -> np.ndarray:
    """Of the usual kind: most small, some large."""
    return np.round(np.random.default_rng(seed).lognormal(11.5, 0.7, count))


@given(LATENCIES, STREAMS, SEEDS)
def test_exact_times_give_the_line_back(latency: float, stream: float, seed: int) -> None:
    sizes = sizes_of(seed)

    line = fit.draw_line(sizes, latency + sizes / stream)

    assert line is not None
    assert line.latency == pytest.approx(latency, rel=1e-3, abs=1e-6 * float(sizes.mean()) / stream)
    assert line.latency + line.per_byte * sizes.mean() == pytest.approx(latency + sizes.mean() / stream, rel=1e-6)


@given(LATENCIES, STREAMS, SEEDS, st.floats(0.01, 0.2))
def test_a_latency_from_noisy_times_is_right_within_what_it_claims(
    latency: float, stream: float, seed: int, noise: float
) -> None:
    sizes = sizes_of(seed)
    times = (latency + sizes / stream) * np.random.default_rng(seed + 1).normal(1, noise, len(sizes)).clip(0.1)

    found = fit.latency_of(sizes, times, np.full(9, latency))

    assert found.seconds == pytest.approx(latency, abs=8 * found.error, rel=1e-9)
    assert not found.fitted or found.error <= found.seconds / fit.KNOWN


def test_a_few_readings_that_took_far_too_long_change_little() -> None:
    sizes = sizes_of(1)
    times = 0.005 + sizes / 1e8
    times[::20] += 1.0

    assert fit.latency_of(sizes, times, NONE).seconds == pytest.approx(0.005, rel=0.02)


def test_of_files_of_one_size_the_first_byte_tells_the_latency() -> None:
    found = fit.latency_of(np.full(50, 1e5), np.full(50, 0.007), np.array([0.004, 0.005, 0.1]))

    assert (found.seconds, found.fitted) == (0.005, False)
    assert found.stream == pytest.approx(1e5 / 0.002)


def test_a_stream_that_cannot_be_told_is_infinite() -> None:
    assert fit.latency_of(np.full(50, 1e5), np.full(50, 0.005), np.full(3, 0.005)).stream == math.inf


def test_without_first_bytes_the_whole_time_is_the_latency() -> None:
    assert fit.latency_of(np.array([1e5]), np.array([0.007]), NONE).seconds == 0.007
    with pytest.raises(ValueError, match="nothing was timed"):
        fit.latency_of(NONE, NONE, NONE)


@given(SEEDS, st.integers(0, 7))
def test_no_line_is_drawn_through_too_few_readings(seed: int, count: int) -> None:
    sizes = sizes_of(seed, count)

    assert fit.draw_line(sizes, sizes) is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-6, 10.0)), min_size=1, max_size=40))
def test_whatever_was_timed_gives_a_latency(rows: list[tuple[int, float]]) -> None:
    found = fit.latency_of(*np.array(rows, np.float64).T, NONE)

    assert 0 < found.seconds < math.inf
    assert found.stream > 0


@pytest.mark.parametrize(
    ("points", "x"),
    [
        ([(1, 100.0)], 1),
        ([(1, 100.0), (2, 104.0)], 1),
        ([(1, 100.0), (2, 200.0), (4, 390.0), (8, 400.0), (16, 405.0)], 4),
        ([(1, 100.0), (2, 50.0)], 1),
        ([(4, 400.0), (2, 200.0), (1, 100.0)], 4),
    ],
)
def test_the_knee_is_the_fewest_that_are_about_as_fast_as_any(points: list[tuple[int, float]], x: int) -> None:
    assert fit.knee(points) == x


@given(st.dictionaries(st.integers(1, 64), st.floats(1.0, 1e12), min_size=1))
def test_the_knee_reaches_its_share(measured: dict[int, float]) -> None:
    x = fit.knee(list(measured.items()))

    assert measured[x] >= fit.REACHES * max(measured.values())
    assert all(rate < fit.REACHES * max(measured.values()) for y, rate in measured.items() if y < x)


def test_a_curve_goes_through_what_was_measured() -> None:
    curve = fit.curve([(4, 300.0), (1, 100.0)])

    assert (curve.at(1), curve.at(2.5), curve.at(8)) == (100.0, 200.0, 300.0)
    for points in ([], [(1, 0.0)], [(1, math.inf)]):
        with pytest.raises(ValueError, match="not a curve"):
            fit.curve(points)


def readings(rows: list[tuple[float, float, float, float, int]]) -> Readings:
    return Readings(*np.array(rows, np.float64).T)


@given(st.integers(1, 64), st.integers(2, 20), st.floats(1e-4, 10.0), st.floats(0.0, 0.5))
def test_threads_that_read_without_a_pause_add_up(threads: int, each: int, takes: float, skew: float) -> None:
    """However they begin, one after the other within half a read."""
    rows = [
        ((n + skew * t / threads) * takes, (n + 1 + skew * t / threads) * takes, 1000.0, 1.0, t)
        for t in range(threads)
        for n in range(each)
    ]

    level = fit.throughput(readings(rows), threads)

    assert level.files == pytest.approx(threads / takes, rel=1e-6)
    assert level.bytes == pytest.approx(1000 * threads / takes, rel=1e-6)


def test_a_long_read_at_the_end_does_not_count_as_all_threads_reading() -> None:
    rows = [(n, n + 1.0, 10.0, 1.0, t) for t in (0, 1) for n in range(10)]
    level = fit.throughput(readings([*rows, (10.0, 14.0, 10.0, 1.0, 0)]), 2)

    assert level.files == pytest.approx(2.0)


def test_reads_that_never_met_are_not_taken_for_parallel_ones() -> None:
    level = fit.throughput(readings([(float(t), t + 1.0, 10.0, 1.0, t) for t in range(8)]), 8)

    assert level.files == pytest.approx(1.0)


def test_a_file_that_was_cut_short_counts_for_its_part() -> None:
    level = fit.throughput(readings([(0.0, 1.0, 500.0, 0.5, 0), (1.0, 2.0, 500.0, 0.5, 0)]), 1)

    assert (level.files, level.bytes) == (pytest.approx(0.5), pytest.approx(500.0))


def levels(*files: float, size: float = 100.0) -> list[Level]:
    return [Level(2**n, rate, rate * size) for n, rate in enumerate(files)]


@pytest.mark.parametrize(
    ("measured", "first_bytes", "rate", "least"),
    [
        pytest.param(levels(10, 20, 38, 39), Level(8, 100, 100), 3900, False, id="the line is full"),
        pytest.param(levels(10, 20, 40, 80), Level(8, 200, 200), 8000, True, id="it still grows"),
        pytest.param(levels(10, 20, 38, 39), Level(8, 45, 45), 3900, True, id="so many requests at a time"),
        pytest.param(levels(10, 20, 38, 39), None, 3900, True, id="nothing to compare with"),
        pytest.param(levels(10), Level(1, 100, 100), 1000, True, id="one at a time"),
    ],
)
def test_a_bandwidth_is_a_lower_bound_unless_bytes_are_the_limit(
    measured: list[Level], first_bytes: Level | None, rate: float, least: bool
) -> None:
    assert fit.bandwidth(measured, first_bytes, None) == fit.Bandwidth(rate, least)


def test_large_files_raise_the_bound() -> None:
    found = fit.bandwidth(levels(10, 20, 38, 39), Level(8, 45, 45), Level(4, 20, 20_000))

    assert found == fit.Bandwidth(20_000, False)


def test_the_overlap_is_what_was_gained_over_one_at_a_time() -> None:
    assert fit.overlap(levels(10, 20, 38, 35)) == pytest.approx(3.8)
