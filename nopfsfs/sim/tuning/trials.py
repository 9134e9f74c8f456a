"""Trials of `docs/tuner.md`: three sources, who tunes, one mount or several; each returns its figures by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from nopfsfs.policy.limit_policy import LimitPolicy
from nopfsfs.policy.source_base import SourceMemory
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.sim.tuning.contest import Contest
from nopfsfs.sim.tuning.rivals import AimdLimit, FixedLimit, Gradient2Limit, PrismaLimit, ProbingLimit
from nopfsfs.sim.tuning.shared_source import ThroughputCurve
from nopfsfs.sim.tuning.simulated_mount import MountSpec

# Many servers; few, which thrash; and one without a knee: each request more brings a little more.
SOURCES: Mapping[str, ThroughputCurve] = {
    "wide": ThroughputCurve(0.040, 2500.0, 4.0, falls_from=300.0, halves_after=260.0),
    "small": ThroughputCurve(0.008, 2000.0, 4.0, falls_from=32.0, halves_after=64.0),
    "smooth": ThroughputCurve(0.030, 1600.0, 1.0, falls_from=400.0, halves_after=300.0),
}
OURS, FIRST_MOUNT = "ours", "ours, first mount"
FIXED = "fixed "  # and the limit
RIVALS: Mapping[str, Callable[[], LimitPolicy]] = {
    f"{FIXED}64": partial(FixedLimit, 64),
    "PRISMA": PrismaLimit,
    "AIMD": AimdLimit,
    "gradient2": Gradient2Limit,
    "probing": ProbingLimit,
}
EARLIER_SECONDS, EARLIER_SEED = 480.0, 1_000
BASE_ERROR, KNEE_ERROR = 0.05, 0.2  # deviations of ln base and of the knee between mounts that saw the source earlier
SETTLED, LATER = 70.0, 190.0  # s; the first full minute has passed, and two more
JOIN_SECONDS = 4.0
ANY_CLOCKS = tuple(7.5 * at for at in range(8))  # s that clocks are ahead: each mount has a full minute of its own

Figures = dict[str, float]


@cache
def earlier_memory(curve: ThroughputCurve) -> SourceMemory:
    """The base that a lone mount of this source leaves after some minutes."""
    tuner = SlowdownTuner()
    Contest(curve, [MountSpec(lambda: tuner)], EARLIER_SECONDS).run(EARLIER_SEED)
    return tuner.memory


def policies(who: str, curve: ThroughputCurve, seed: int, mounts: int) -> list[Callable[[], LimitPolicy]]:
    """Make a policy for each of so many mounts of a source. Mounts that saw it earlier do not quite agree on it."""
    if who in RIVALS:
        return [RIVALS[who]] * mounts
    if who.startswith(FIXED):
        return [partial(FixedLimit, int(who.removeprefix(FIXED)))] * mounts
    if who == FIRST_MOUNT:
        return [SlowdownTuner] * mounts
    random = np.random.default_rng([seed, mounts])
    return [partial(SlowdownTuner, _erring(earlier_memory(curve), random)) for _ in range(mounts)]


def _erring(memory: SourceMemory, random: np.random.Generator) -> SourceMemory:
    error = float(random.normal()) * BASE_ERROR / math.log(2)
    off = float(random.normal()) * KNEE_ERROR
    log2_ns = tuple(None if value is None else value + error for value in memory.log2_ns)
    return replace(memory, log2_ns=log2_ns, knees=tuple(knee + off for knee in memory.knees))


def alone(who: str, source: str, seed: int) -> Figures:
    """A lone mount, whose reader takes all it gets."""
    [policy] = policies(who, SOURCES[source], seed, 1)
    result = Contest(SOURCES[source], [MountSpec(policy)], LATER).run(seed)
    return {
        "seconds to 90 %": result.seconds_to(0.9),
        "regret": result.regret(0.0, 120.0),
        "share": result.share_of_best(SETTLED, LATER),
        "p99": result.demand_p99(SETTLED, LATER),
        "under way": result.mean_under_way(SETTLED, LATER),
    }


def company(
    who: str, source: str, seed: int, *, mounts: int = 8, clock_errors: Sequence[float] = (0.0,),
    weights: Sequence[float] = (), minutes: float = 2.0,
) -> Figures:  # fmt: skip
    """Mounts that come one after another; the figures are of some minutes after the last one has settled."""
    made = policies(who, SOURCES[source], seed, mounts)
    if weights:
        made = [_weighted(policy, weight) for policy, weight in zip(made, weights, strict=True)]
    specs = [
        MountSpec(policy, joins=JOIN_SECONDS * at, clock_error=clock_errors[at % len(clock_errors)])
        for at, policy in enumerate(made)
    ]
    begin = JOIN_SECONDS * mounts + 60.0
    end = begin + 60.0 * minutes
    result = Contest(SOURCES[source], specs, end).run(seed)
    figures = {
        "jain": result.jain(begin, end),
        "share": result.share_of_best(begin, end),
        "p99": result.demand_p99(begin, end),
    }
    rates = result.rates(begin, end)
    return {**figures, **{f"part {at}": float(rate / rates.sum()) for at, rate in enumerate(rates)}}


def any_clocks(who: str, source: str, seed: int) -> Figures:
    """`company` of mounts none of which sees the minute begin with another."""
    return company(who, source, seed, clock_errors=ANY_CLOCKS)


def _weighted(policy: Callable[[], LimitPolicy], weight: float) -> Callable[[], LimitPolicy]:
    def make() -> LimitPolicy:
        made = policy()
        if isinstance(made, SlowdownTuner):
            made.weight = weight
        return made

    return make
