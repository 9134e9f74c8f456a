"""The rivals of the tuner: each does what its paper or its code says, at the simulated sources."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nopfsfs.policy.limit_policy import LimitPolicy
from nopfsfs.sim.tuning.contest import Contest, ContestResult
from nopfsfs.sim.tuning.rivals import AimdLimit, FixedLimit, Gradient2Limit, PrismaLimit, ProbingLimit
from nopfsfs.sim.tuning.shared_source import SourceChange, ThroughputCurve
from nopfsfs.sim.tuning.simulated_mount import MountSpec

CURVE = ThroughputCurve(0.04, 500.0, 4.0)  # a knee at 20


def run(policy: LimitPolicy, seconds: float = 60.0, **spec: float) -> ContestResult:
    return Contest(CURVE, [MountSpec(lambda: policy, **spec)], seconds).run(1)  # type: ignore[arg-type]


def limits(result: ContestResult) -> list[int]:
    return [limit for _, limit, _ in result.histories[0].decisions]


def test_a_fixed_limit_stays() -> None:
    assert set(limits(run(FixedLimit(64), 5.0))) == {64}


def test_prisma_stops_at_eight_threads_for_a_reader_that_waits_and_never_goes_down() -> None:
    found = limits(run(PrismaLimit()))
    assert found[0] == 1
    assert found == sorted(found)
    assert 7 <= found[-1] <= 9


def test_prisma_finds_its_buffer_full_where_the_reader_does_not_wait() -> None:
    assert limits(run(PrismaLimit(), pace=5.0))[-1] < 8


def test_aimd_goes_up_by_one_and_down_by_three_tenths() -> None:
    found = limits(run(AimdLimit()))
    steps = [after / before for before, after in pairwise(found) if after < before]
    assert all(step == pytest.approx(0.7, abs=0.1) for step in steps)
    assert max(after - before for before, after in pairwise(found)) == 1
    assert 20 < found[-1] < 80


def test_gradient2_keeps_to_its_bounds_and_takes_its_own_queue_for_normal() -> None:
    found = limits(run(Gradient2Limit(), 200.0))
    assert found[0] == 20
    assert 20 <= min(found) <= max(found) <= 200
    assert found[-1] > found[len(found) // 4], "it drifts up"


def test_probing_climbs_while_that_brings_throughput() -> None:
    result = run(ProbingLimit(), 120.0)
    assert limits(result)[0] == 16
    assert result.share_of_best(80.0, 120.0) > 0.9


@pytest.mark.parametrize("policy", [PrismaLimit, AimdLimit, Gradient2Limit, ProbingLimit])
def test_a_stall_upsets_none(policy: type[LimitPolicy]) -> None:
    contest = Contest(CURVE, [MountSpec(policy)], 30.0, [SourceChange(10.0, stalled=True), SourceChange(15.0)])
    assert all(1 <= limit <= 256 for limit in limits(contest.run(1)))
