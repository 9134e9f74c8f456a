"""The simulated source: what it ends in a time, whoever asks, and that it does so as the slow way of counting says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.limit_policy import LimitDecision, Reason, SourceSample
from nopfsfs.sim.tuning.contest import Contest
from nopfsfs.sim.tuning.rivals import FixedLimit
from nopfsfs.sim.tuning.shared_source import Lane, SharedSource, SourceChange, ThroughputCurve, draw_works
from nopfsfs.sim.tuning.simulated_mount import MountSpec
from tests.examples import examples
from tests.sim.paced import starved

CURVE = ThroughputCurve(0.02, 500.0, 4.0, falls_from=40.0, halves_after=40.0)


def busy(source: SharedSource, under_way: int) -> Lane:
    """A lane with always so many under way."""
    lane = Lane(lambda seconds: None)
    for _ in range(under_way):
        source.begin(lane)
    lane.refill = True
    return lane


def test_throughput_rises_to_a_knee_and_falls_where_the_source_thrashes() -> None:
    rates = CURVE.at(np.array([1.0, 5.0, 10.0, 40.0, 80.0]))
    assert rates[0] == pytest.approx(50.0, rel=0.01), "one at a time, each as long as at the idle source"
    assert rates[3] == pytest.approx(500.0, rel=0.01)
    assert rates[4] == pytest.approx(250.0, rel=0.01)
    assert CURVE.best == pytest.approx(500.0, rel=0.01)
    assert 10 < CURVE.knee() < 13


@pytest.mark.parametrize("under_way", [1, 8, 40, 80])
def test_so_many_end_in_a_second_as_the_curve_says(under_way: int) -> None:
    source = SharedSource(CURVE, 1, noise=0.0)
    lane = busy(source, under_way)
    source.run_until(100.0)
    assert lane.ended / 100.0 == pytest.approx(float(CURVE.at(under_way)), rel=0.01)


def test_noise_leaves_the_mean_as_it_is() -> None:
    source = SharedSource(CURVE, 1)
    lane = busy(source, 20)
    source.run_until(200.0)
    assert lane.ended / 200.0 == pytest.approx(float(CURVE.at(20)), rel=0.05)
    assert draw_works(np.random.default_rng(1), 200_000).mean() == pytest.approx(1.0, rel=0.02)


def test_it_says_when_something_happens_next() -> None:
    source = SharedSource(CURVE, 1, noise=0.0)
    assert source.next_at == math.inf
    lane = busy(source, 3)
    lane.refill = False
    source.run_until(math.nextafter(source.next_at, 0.0) - 1e-9)
    assert lane.ended == 0
    source.run_until(source.next_at + 1e-9)
    assert lane.ended == 3
    source.call_at(7.0, lambda: None)
    assert source.next_at == 7.0


def test_stopping_at_each_end_changes_nothing() -> None:
    one, other = SharedSource(CURVE, 1), SharedSource(CURVE, 1)
    at_once, by_steps = busy(one, 12), busy(other, 12)
    one.run_until(5.0)
    while other.next_at < 5.0:
        other.run_until(other.next_at)
    other.run_until(5.0)
    assert at_once.ended == pytest.approx(by_steps.ended, abs=1)
    assert at_once.log2_seconds == pytest.approx(by_steps.log2_seconds, rel=1e-3)


def test_a_seed_gives_the_same_run() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(8)), MountSpec(lambda: FixedLimit(20), joins=2.0)], 10.0)
    one, again, other = contest.run(3), contest.run(3), contest.run(4)
    assert (one.ended == again.ended).all()
    assert (one.ended != other.ended).any()


def test_requests_share_the_source_equally() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(4)), MountSpec(lambda: FixedLimit(12))], 100.0)
    few, many = contest.run(1).rates(0.0, 100.0)
    assert many / few == pytest.approx(3.0, rel=0.1)


def test_nothing_ends_while_it_stalls_and_all_goes_on_afterwards() -> None:
    contest = Contest(
        CURVE, [MountSpec(lambda: FixedLimit(8))], 30.0, [SourceChange(10.0, stalled=True), SourceChange(20.0)]
    )
    result = contest.run(1)
    assert result.rates(10.5, 20.0).sum() == 0
    assert result.share_of_best(21.0, 30.0) == pytest.approx(result.share_of_best(1.0, 10.0), rel=0.15)


@pytest.mark.parametrize(
    ("change", "part"), [(SourceChange(0.0, slower=4.0), 0.25), (SourceChange(0.0, bandwidth=0.25), 0.25)]
)
def test_a_slower_source_and_one_with_less_bandwidth_end_fewer(change: SourceChange, part: float) -> None:
    usual = Contest(CURVE, [MountSpec(lambda: FixedLimit(30), demands=0.0)], 40.0, noise=0.0).run(1)
    changed = Contest(CURVE, [MountSpec(lambda: FixedLimit(30), demands=0.0)], 40.0, [change], noise=0.0).run(1)
    assert changed.rates(1, 40).sum() == pytest.approx(part * usual.rates(1, 40).sum(), rel=0.05)
    assert changed.share_of_best(1, 40) == pytest.approx(usual.share_of_best(1, 40), rel=0.05)


def test_reads_of_others_take_their_part() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(10), demands=0.0)], 60.0, [SourceChange(0.0, background=30)])
    assert contest.run(1).share_of_best(5.0, 60.0) == pytest.approx(0.25, rel=0.1)


def test_a_mount_comes_and_goes() -> None:
    result = Contest(CURVE, [MountSpec(lambda: FixedLimit(8), joins=5.0, leaves=10.0)], 15.0).run(1)
    assert result.ended[10, 0] == 0
    assert result.rates(5.0, 10.0)[0] > 100
    assert result.rates(12.0, 15.0)[0] == 0


def test_demands_pass_the_limit_and_prefetches_make_room_for_them() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(2), demands=200.0)], 20.0)
    result = contest.run(1)
    assert result.mean_under_way(5.0, 20.0) > 4
    assert len(result.histories[0].demands) == pytest.approx(4000, rel=0.1)


def test_a_reader_with_a_pace_takes_no_more_than_it_reads_and_what_may_be_staged() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(20), pace=100.0, room=50.0, demands=0.0)], 30.0)
    result = contest.run(1)
    assert result.rates(5.0, 30.0)[0] == pytest.approx(100.0, rel=0.05)
    assert starved(result) < 0.5


def test_a_reader_that_is_faster_than_the_source_starves() -> None:
    result = Contest(CURVE, [MountSpec(lambda: FixedLimit(2), pace=200.0, demands=0.0)], 20.0).run(1)
    assert starved(result) == pytest.approx(10.0, abs=2.0)


class Recorder:
    """A fixed limit that keeps what it was told, and asks for a mark in the middle."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.samples: list[SourceSample] = []

    def step(self, sample: SourceSample) -> LimitDecision:
        self.samples.append(sample)
        return LimitDecision(self.limit, Reason.HOLD, 0.125, mark=len(self.samples) == 40)


def test_the_metrics_agree_with_each_other() -> None:
    recorder = Recorder(8)
    Contest(CURVE, [MountSpec(lambda: recorder, demands=0.0)], 20.0, noise=0.0).run(1)
    first, last = recorder.samples[1], recorder.samples[-1]
    passed = last.now - first.now
    ended = sum(last.ended) - sum(first.ended)
    mean_ns = 2.0 ** ((sum(last.log2_ns) - sum(first.log2_ns)) / ended)
    assert (last.under_way_seconds - first.under_way_seconds) / passed == pytest.approx(8.0)
    assert passed * 8 / ended == pytest.approx(mean_ns * 1e-9, rel=0.02), "Little's law"
    assert last.waited_seconds - first.waited_seconds == pytest.approx(passed)


def test_young_are_requests_that_began_after_the_mark() -> None:
    recorder = Recorder(8)
    Contest(CURVE, [MountSpec(lambda: recorder, demands=0.0)], 10.0, noise=0.0).run(1)
    marked = recorder.samples[39]
    later = recorder.samples[-1]
    young = sum(later.young_ended) - sum(marked.young_ended)
    assert young == sum(later.ended) - sum(marked.ended) - 8, "all but those that were under way"


@settings(max_examples=examples(40))
@given(st.integers(1, 12), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_it_does_what_counting_each_request_in_small_steps_does(under_way: int, noise: float, seed: int) -> None:
    source = SharedSource(CURVE, seed, noise=0.0)
    works = (draw_works(np.random.default_rng(seed), under_way, noise) * CURVE.seconds).tolist()
    source._works = iter([*works])
    ends: list[float] = []
    lane = Lane(lambda seconds: ends.append(source.now))
    for _ in works:
        source.begin(lane)
    source.run_until(60.0)
    assert ends == pytest.approx(in_small_steps(works), abs=2e-3)


def in_small_steps(works: list[float], step: float = 1e-3) -> list[float]:
    """The ends of requests that all begin at 0, found without any thought."""
    left, now, ends = list(works), 0.0, []
    while left:
        least = min(left)
        rate = float(CURVE.at(len(left))) / len(left) * CURVE.seconds
        passed = min(step, least / rate)
        now += passed
        left = [each - passed * rate for each in left]
        ends += [now] * sum(each <= 1e-12 for each in left)
        left = [each for each in left if each > 1e-12]
    return ends


def test_jain_is_one_for_equals_and_one_over_their_number_for_a_tyrant() -> None:
    contest = Contest(CURVE, [MountSpec(lambda: FixedLimit(5))] * 4, 40.0)
    assert contest.run(1).jain(2.0, 40.0) > 0.99
    alone = [MountSpec(lambda: FixedLimit(5)), *[MountSpec(lambda: FixedLimit(5), joins=1e9)] * 3]
    assert Contest(CURVE, alone, 10.0).run(1).jain(0.0, 10.0) == pytest.approx(0.25)


def test_best_that_is_never_reached_is_infinitely_far() -> None:
    result = Contest(CURVE, [MountSpec(lambda: FixedLimit(2))], 10.0).run(1)
    assert result.seconds_to(0.9) == math.inf
    assert result.seconds_to(0.1) < 3
