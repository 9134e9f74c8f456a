"""The tuner alone: where its limit rests, and what it does when the source, the reader or the clock is unusual."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.limit_policy import Reason, SourceSample
from nopfsfs.policy.source_base import SourceMemory
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.protocol.columns import SIZE_CLASSES
from tests.examples import examples
from tests.policy.fed_policy import FULL_MINUTE, FedPolicy

IDLE = 0.04


def seen(seconds: float = IDLE, knees: tuple[float, ...] = ()) -> SourceMemory:
    """What an earlier mount left of a source whose requests of class 3 take so long when it is idle."""
    log2_ns = [None if at != 3 else math.log2(seconds * 1e9) for at in range(SIZE_CLASSES)]
    return SourceMemory(tuple(log2_ns), tuple(1000.0 if at == 3 else 0.0 for at in range(SIZE_CLASSES)), knees)


def servers(number: int, seconds: float = IDLE) -> Callable[[int], float]:
    """A source that takes so many requests at once, and queues the others."""
    return lambda under_way: seconds * max(1.0, under_way / number)


def rest(tuner: SlowdownTuner, seconds: Callable[[int], float], *, lead: float | None = None) -> int:
    """The limit after most of a minute."""
    fed = FedPolicy(tuner)
    fed.lead = lead
    fed.run(50, seconds)
    return fed.limit


def test_it_begins_with_few_and_doubles_while_that_brings_throughput() -> None:
    fed = FedPolicy(SlowdownTuner(seen()))
    fed.run(0.01)
    assert fed.limit == 4
    fed.run(2.0, servers(100))
    assert 100 <= fed.limit <= 200


@pytest.mark.parametrize("at_once", [10, 100])
def test_it_rests_where_limit_and_slowdown_balance_the_aim(at_once: int) -> None:
    tuner = SlowdownTuner(seen())
    limit = rest(tuner, servers(at_once))
    assert limit * (limit / at_once - 1) ** 1.5 == pytest.approx(tuner.aim, rel=0.15)


def test_a_weight_and_the_ranks_of_a_job_change_the_share() -> None:
    # All see the same slowdown at a shared source; here each is alone, and rests where its own share is balanced.
    slow = servers(30)
    usual = rest(SlowdownTuner(seen()), slow)
    assert rest(SlowdownTuner(seen(), weight=4.0), slow) > usual > rest(SlowdownTuner(seen(), ranks=16), slow)


def test_a_reader_with_enough_staged_leaves_the_source_to_others() -> None:
    hurried, leisurely = SlowdownTuner(seen()), SlowdownTuner(seen())
    assert rest(leisurely, servers(30), lead=60.0) < rest(hurried, servers(30), lead=0.0)
    assert leisurely.aim == pytest.approx(hurried.aim / 10, rel=0.15)


def test_without_a_knee_it_takes_more_once_it_knows() -> None:
    def smooth(under_way: int) -> float:
        return IDLE * (1 + under_way / 48)

    assert rest(SlowdownTuner(seen(knees=(1.0,) * 9)), smooth) > 1.5 * rest(SlowdownTuner(seen()), smooth)


def test_beyond_a_sharp_knee_it_takes_less_once_it_knows() -> None:
    assert rest(SlowdownTuner(seen(knees=(6.0,) * 9)), servers(8)) < rest(SlowdownTuner(seen()), servers(8))


def test_it_finds_by_itself_that_there_is_no_knee() -> None:
    tuner = SlowdownTuner(seen())
    FedPolicy(tuner).run(600, lambda under_way: IDLE * (1 + under_way / 48))
    assert tuner.base.knee == pytest.approx(1.0, abs=0.2)


def test_it_grows_faster_and_faster_while_there_is_room() -> None:
    fed = FedPolicy(SlowdownTuner(seen(), first=4))
    fed.run(20, servers(8))
    before = fed.limit
    fed.run(10, servers(200))
    assert before < 25
    assert fed.limit > 150


def test_on_the_full_minute_it_holds_back_and_finds_what_idle_is() -> None:
    tuner = SlowdownTuner()
    fed = FedPolicy(tuner, clock=FULL_MINUTE + 30.5)
    fed.run(29.4, servers(20))
    assert not tuner.base.proven
    loaded = fed.limit
    fed.run(0.3, servers(20))
    assert (fed.reasons[-1], fed.limit) == (Reason.DRAIN, max(2, loaded // 16))
    fed.run(2.0, servers(20))
    assert tuner.base.proven
    assert tuner.memory.log2_ns[3] == pytest.approx(math.log2(IDLE * 1e9), abs=0.05)
    assert fed.limit == pytest.approx(loaded, rel=0.3)


def test_all_mounts_hold_back_at_the_same_time() -> None:
    drained = []
    for began in (0.0, 7.03, 21.77):
        fed = FedPolicy(SlowdownTuner(seen()), clock=FULL_MINUTE + began)
        fed.run(62.0 - began, servers(50))
        full = [one.reason is Reason.DRAIN and one.limit < 9 for one in fed.decisions]
        first = full.index(True)
        drained.append(FULL_MINUTE + began + sum(decision.wait for decision in fed.decisions[:first]))
    assert max(drained) - min(drained) < 0.01


def test_a_clock_that_is_not_disciplined_measures_nothing() -> None:
    fed = FedPolicy(SlowdownTuner(), disciplined=False)
    fed.run(300, servers(500))
    assert Reason.DRAIN not in fed.reasons
    assert fed.limit <= 64


@pytest.mark.parametrize("disciplined", [True, False])
def test_without_a_base_the_limit_comes_back_after_a_stall_as_far_as_its_start_went_or_to_64(disciplined: bool) -> None:
    fed = FedPolicy(SlowdownTuner(), disciplined=disciplined)
    fed.run(5, servers(20))
    started = max(one.limit for one in fed.decisions)
    fed.run(10, servers(20), ends=False)
    assert fed.limit == 2
    fed.run(30, servers(500))
    assert 8 < fed.limit <= (started if disciplined else 64), "before the first drain"


def test_a_clock_that_is_set_back_and_forth_drains_no_more_often() -> None:
    fed = FedPolicy(SlowdownTuner(seen()))
    for _ in range(20):
        fed.run(1.0, servers(50))
        fed.clock += 600.0 if fed.clock < FULL_MINUTE + 300 else -600.0
    starts = [at for at, one in enumerate(fed.decisions[1:]) if one.limit < fed.decisions[at].limit / 8]
    assert len(starts) <= 1


def test_nothing_changes_in_an_idle_hour() -> None:
    tuner = SlowdownTuner(seen())
    fed = FedPolicy(tuner)
    fed.run(50, servers(50))
    fed.run(1, busy=False)
    before, memory = fed.limit, tuner.memory
    fed.run(3600, busy=False)
    assert (fed.limit, tuner.memory) == (before, memory)
    fed.run(5, servers(50))
    assert fed.limit == pytest.approx(before, rel=0.2)


def test_a_limit_that_is_not_used_shrinks_towards_what_is() -> None:
    fed = FedPolicy(SlowdownTuner(seen()))
    fed.run(40, servers(100))
    before = fed.limit
    fed.run(40, servers(100), used=0.2)
    assert fed.limit < before / 2


def test_a_source_that_stalls_gets_few_requests_within_ten_seconds() -> None:
    fed = FedPolicy(SlowdownTuner(seen(), first=256))
    fed.run(10, ends=False)
    assert fed.limit <= 8
    assert Reason.HANG in fed.reasons
    fed.run(60, servers(100))
    assert fed.limit > 90


def test_requests_that_all_fail_count_as_none_that_end() -> None:
    fed = FedPolicy(SlowdownTuner(seen(), first=256))
    for _ in range(40):
        fed.errors += 10
        fed.run(0.25, ends=False, busy=False)
    assert fed.limit <= 8


def test_a_source_that_became_another_is_known_after_the_next_minute() -> None:
    tuner = SlowdownTuner(seen())
    fed = FedPolicy(tuner)
    fed.run(40, servers(100))
    before = fed.limit
    fed.run(10, servers(100, 3 * IDLE))
    assert fed.limit < before / 3
    fed.run(60, servers(100, 3 * IDLE))
    assert fed.limit == pytest.approx(before, rel=0.3)


def test_far_from_idle_it_has_few_requests_until_the_rise_is_forgotten() -> None:
    fed = FedPolicy(SlowdownTuner(seen()))
    fed.run(40, servers(1000))
    assert fed.limit > 150
    fed.run(60, servers(1000, 10 * IDLE))
    assert 30 < fed.limit <= 48
    fed.run(240, servers(1000, 10 * IDLE))
    assert fed.limit > 150


def test_a_source_that_is_slow_while_a_minute_begins_is_forgotten_when_it_is_fast_again() -> None:
    fed = FedPolicy(SlowdownTuner(seen()))
    fed.run(40, servers(100))
    before = fed.limit
    fed.run(45, servers(100, 10 * IDLE))
    assert fed.limit < 50
    fed.run(25, servers(100))
    assert fed.limit > 0.7 * before


def test_what_was_a_guess_is_not_what_the_base_rises_from() -> None:
    """The first requests may be answered from a cache of the source."""
    fed = FedPolicy(SlowdownTuner())
    fed.run(5, servers(100, IDLE / 50))
    fed.run(115, servers(100))
    assert fed.limit > 80


def test_a_base_that_is_too_high_comes_down_between_drains() -> None:
    tuner = SlowdownTuner(seen(5 * IDLE))
    FedPolicy(tuner).run(50, servers(100))
    assert (tuner.memory.log2_ns[3] or 0.0) < math.log2(3 * IDLE * 1e9)


def test_larger_files_are_no_slowdown() -> None:
    tuner = SlowdownTuner(seen())
    fed = FedPolicy(tuner)
    fed.run(35, servers(100))
    before = fed.limit
    for _ in range(10):  # large files have a base of their own from their first tick on
        fed.run(1.0, servers(100, 8 * IDLE), size_class=6)
        fed.run(1.0, servers(100))
    assert fed.limit == pytest.approx(before, rel=0.25)


def test_a_cap_is_kept_and_named() -> None:
    fed = FedPolicy(SlowdownTuner(seen(), cap=20))
    fed.run(30, servers(100))
    assert fed.limit == 20
    assert fed.reasons[-1] in (Reason.CAP, Reason.HOLD)
    assert Reason.CAP in fed.reasons


def test_a_memory_is_handed_on_and_a_broken_one_refused() -> None:
    assert SlowdownTuner(seen(knees=(1.0, 2.0))).memory.knees == (1.0, 2.0)
    with pytest.raises(ValueError):
        SlowdownTuner(SourceMemory((1.0,), (1.0,)))
    with pytest.raises(ValueError):
        SlowdownTuner(SourceMemory((math.nan,) * SIZE_CLASSES, (1.0,) * SIZE_CLASSES))


@st.composite
def samples(draw: st.DrawFn) -> list[SourceSample]:
    """Metrics that only grow, however fast, and any clock."""
    found = []
    now = under_way_seconds = waited = 0.0
    ended, log2_ns = [0] * SIZE_CLASSES, [0.0] * SIZE_CLASSES
    for _ in range(draw(st.integers(1, 60))):
        passed = draw(st.sampled_from([0.0, 1e-6, 0.125, 0.125, 0.125, 1.0, 100.0]))
        now += passed
        at, count = draw(st.integers(0, SIZE_CLASSES - 1)), draw(st.sampled_from([0, 0, 1, 8, 50, 10_000]))
        ended[at] += count
        log2_ns[at] += count * draw(st.floats(0.0, 45.0))
        under_way = draw(st.integers(0, 2000))
        under_way_seconds += passed * under_way
        waited += passed * draw(st.booleans())
        found.append(
            SourceSample(
                now, draw(st.floats(-1e9, 1e10)), tuple(ended), tuple(log2_ns), tuple(ended), tuple(log2_ns),
                under_way_seconds, waited, under_way, errors=draw(st.integers(0, 10)),
                lead=draw(st.none() | st.floats(-10, 1e6)), disciplined=draw(st.booleans()),
            )
        )  # fmt: skip
    return found


@settings(max_examples=examples(300))
@given(samples(), st.integers(2, 1024), st.booleans())
def test_whatever_the_metrics_say_the_limit_stays_in_its_bounds(
    samples: list[SourceSample], cap: int, known: bool
) -> None:
    tuner = SlowdownTuner(seen() if known else None, cap=cap)
    for sample in samples:
        decision = tuner.step(sample)
        assert 2 <= decision.limit <= cap
        assert 0 < decision.wait <= 0.125
    assert all(value is None or math.isfinite(value) for value in tuner.memory.log2_ns)
