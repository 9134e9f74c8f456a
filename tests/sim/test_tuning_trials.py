"""The tuner at shared sources in virtual time: the bars of docs/tuner.md, and any source that has a knee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import changing_source
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tuner_bars import ALONE, CLOCKS, COMPANY, Column, medians

from nopfsfs.policy.limit_policy import LimitPolicy, Reason
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.sim.tuning import trials
from nopfsfs.sim.tuning.contest import Contest
from nopfsfs.sim.tuning.shared_source import SourceChange, ThroughputCurve
from nopfsfs.sim.tuning.simulated_mount import MountSpec
from nopfsfs.sim.tuning.trials import FIRST_MOUNT, OURS, SOURCES
from tests.examples import examples
from tests.sim.paced import starved

FEWEST, FEW, MANY = (1,), range(1, 4), range(1, 21)
COMPANIES = range(1, 6)  # of eight mounts, which average over themselves
CLOCK_ERRORS = (-0.2, 0.15, 0.0, 0.2, -0.1, 0.05, -0.15, 0.1)  # s


def short(columns: Sequence[Column], seeds: Sequence[int]) -> list[str]:
    """The bars that the tuner misses."""
    found = {
        (column.trial, column.source): [column.trial(OURS, column.source, seed) for seed in seeds] for column in columns
    }
    values = medians(found, columns)
    return [f"{one.title}: {value:.3f}" for one, value in zip(columns, values, strict=True) if not one.holds(value)]


def title(column: Column) -> str:
    return f"{column.trial.__name__}-{column.source}"


def of(columns: Sequence[Column], trial: object, source: str) -> list[Column]:
    return [one for one in columns if (one.trial, one.source) == (trial, source)]


@pytest.mark.long
def test_alone_a_mount_gets_most_of_what_the_source_can_give() -> None:
    assert not short(of(ALONE, trials.alone, "wide"), FEWEST)


def test_a_source_with_less_bandwidth_is_followed() -> None:
    assert not short(of(ALONE, changing_source.step, "wide"), FEWEST)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("trial", "source"),
    [*((trials.alone, source) for source in SOURCES), (changing_source.step, "wide"), (changing_source.slower, "wide")],
)
def test_alone_in_many_runs(trial: object, source: str) -> None:
    assert not short(of(ALONE, trial, source), MANY)


@pytest.mark.long
def test_eight_mounts_share_fairly_and_do_not_overrun_the_source() -> None:
    assert not short(of(COMPANY, trials.company, "small"), FEWEST)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", SOURCES)
def test_eight_mounts_in_many_runs(source: str) -> None:
    assert not short(of(COMPANY, trials.company, source), COMPANIES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("column", [one for one in (*COMPANY, *CLOCKS) if one.over_fixed], ids=title)
def test_eight_mounts_get_more_than_with_a_fixed_limit(column: Column) -> None:
    ours, fixed = (
        np.median([column.trial(who, column.source, seed)["share"] for seed in FEW]) for who in (OURS, "fixed 64")
    )
    assert ours > column.over_fixed * fixed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", SOURCES)
def test_clocks_that_differ_a_little_change_nothing(source: str) -> None:
    columns = [
        Column(one.title, partial(trials.company, clock_errors=CLOCK_ERRORS), source, one.figure, one.least, one.most)
        for one in COMPANY
        if one.source == source
    ]
    assert not short(columns, COMPANIES)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_mounts_with_wrong_clocks_do_not_drive_each_other_up_in_ten_minutes() -> None:
    ours, fixed = (
        trials.company(who, "smooth", 1, clock_errors=trials.ANY_CLOCKS, minutes=10)["share"]
        for who in (OURS, "fixed 64")
    )
    assert ours >= fixed


def test_a_source_that_became_ten_times_slower_for_good_is_followed() -> None:
    curve = SOURCES["wide"]
    mount = MountSpec(trials.policies(OURS, curve, 1, 1)[0])
    result = Contest(curve, [mount], 400.0, [SourceChange(40.0, slower=10.0)]).run(1)
    assert result.share_of_best(280.0, 400.0) >= 0.75


@pytest.mark.slow
def test_a_first_mount_ever_is_as_good_after_some_minutes() -> None:
    for source, share in (("wide", 0.9), ("small", 0.9), ("smooth", 0.5)):
        assert np.median([trials.alone(FIRST_MOUNT, source, seed)["share"] for seed in FEW]) >= share


@pytest.mark.slow
def test_weights_divide_a_source() -> None:
    figures = trials.company(OURS, "wide", 1, mounts=4, weights=(1.0, 1.0, 2.0, 4.0))
    parts = [figures[f"part {at}"] for at in range(4)]
    assert parts[0] == pytest.approx(parts[1], rel=0.3)
    assert parts[2] / parts[0] == pytest.approx(2.0, rel=0.35)
    assert parts[3] / parts[0] == pytest.approx(4.0, rel=0.4)


def test_a_stall_is_met_with_few_requests_and_forgotten_soon() -> None:
    changes = [SourceChange(40.0, stalled=True), SourceChange(70.0)]
    mount = MountSpec(trials.policies(OURS, SOURCES["wide"], 1, 1)[0])
    result = Contest(SOURCES["wide"], [mount], 160.0, changes).run(1)
    stalled = [limit for at, limit, reason in result.histories[0].decisions if 50.0 < at < 70.0]
    assert max(stalled) <= 8
    assert {reason for at, _, reason in result.histories[0].decisions if 42.0 < at < 50.0} >= {Reason.HANG}
    assert result.share_of_best(145.0, 160.0) >= 0.85


def test_a_reader_in_no_hurry_leaves_the_source_to_one_that_waits() -> None:
    curve = SOURCES["small"]
    calm, hurried = trials.policies(OURS, curve, 1, 2)
    alike = Contest(curve, [MountSpec(calm), MountSpec(hurried)], 90.0).run(1)
    # A fifth of the best, and all that is fetched may be staged: the lead grows.
    polite = Contest(curve, [MountSpec(calm, pace=curve.best / 5), MountSpec(hurried)], 90.0).run(1)
    assert polite.rates(60.0, 90.0)[1] > 1.3 * alike.rates(60.0, 90.0)[1]
    assert starved(polite) < 2.0


@st.composite
def contests(draw: st.DrawFn) -> tuple[Contest, float]:
    """A source with a knee, one to three mounts, and what happens; with the time of the last event."""
    seconds = draw(st.floats(0.005, 0.15))
    at_once = draw(st.floats(16.0, min(150.0, 800.0 * seconds + 16.0)))  # what a source can do at a time
    curve = ThroughputCurve(
        seconds, at_once / seconds, draw(st.floats(3.0, 6.0)), falls_from=at_once * draw(st.floats(3.0, 6.0)),
        halves_after=at_once * draw(st.floats(2.0, 6.0)),
    )  # fmt: skip
    known = draw(st.booleans())
    mounts = [
        MountSpec(
            _policy(curve, draw(st.floats(-0.1, 0.1)), known), joins=draw(st.floats(0.0, 40.0)),
            leaves=draw(st.just(math.inf) | st.floats(50.0, 80.0)) if at else math.inf,
            clock_error=draw(st.floats(-0.2, 0.2)), demands=draw(st.sampled_from([0.0, 1.0, 10.0])),
        )
        for at in range(draw(st.integers(1, 3)))
    ]  # fmt: skip
    begin = draw(st.floats(5.0, 60.0))
    event = draw(
        st.none()
        | st.builds(SourceChange, st.just(begin), bandwidth=st.floats(0.4, 1.0))
        | st.builds(SourceChange, st.just(begin), slower=st.floats(0.5, 4.0))
        | st.builds(SourceChange, st.just(begin), stalled=st.just(True))
    )
    changes = [event] if event else []
    if event and (event.stalled or draw(st.booleans())):
        changes.append(SourceChange(begin + draw(st.floats(5.0, 30.0))))
    times = [*(change.at for change in changes), *(mount.joins for mount in mounts)]
    last = max([*times, *(mount.leaves for mount in mounts if math.isfinite(mount.leaves))])
    noise = draw(st.floats(0.0, 1.0))
    return Contest(curve, mounts, math.ceil(last) + 180.0, changes, noise), math.ceil(last) + 120.0


def _policy(curve: ThroughputCurve, error: float, known: bool) -> partial[LimitPolicy]:
    """The tuner; if the source is `known`, with a base that errs by that part."""
    if not known:
        return partial(SlowdownTuner)
    memory = trials.earlier_memory(SOURCES["wide"])
    shift = math.log2(curve.seconds / SOURCES["wide"].seconds * (1.0 + error))
    log2_ns = tuple(None if value is None else value + shift for value in memory.log2_ns)
    return partial(SlowdownTuner, type(memory)(log2_ns, memory.evidence, memory.knees))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(contests(), st.integers(0, 1000))
def test_whatever_the_source_and_what_happens_two_minutes_later_all_is_well(
    drawn: tuple[Contest, float], seed: int
) -> None:
    contest, settled = drawn
    result = contest.run(seed)
    limits = [limit for history in result.histories for _, limit, _ in history.decisions]
    assert 2 <= min(limits) <= max(limits) <= 256
    assert result.share_of_best(settled, settled + 60.0) >= 0.8
