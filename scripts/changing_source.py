"""The trials of `docs/tuner.md` in which a lone mount's source changes; each returns its figures by name."""

from __future__ import annotations

from collections.abc import Sequence

from nopfsfs.sim.tuning.contest import Contest, ContestResult
from nopfsfs.sim.tuning.shared_source import SourceChange
from nopfsfs.sim.tuning.simulated_mount import MountSpec
from nopfsfs.sim.tuning.trials import LATER, SETTLED, SOURCES, Figures, policies

STEP, STEP_END = 40.0, 80.0


def step(who: str, source: str, seed: int) -> Figures:
    """A third of the bandwidth, for 40 s."""
    changes = [SourceChange(STEP, bandwidth=1 / 3), SourceChange(STEP_END)]
    return {"regret": _lone(who, source, seed, 120.0, changes).regret(0.0, 120.0)}


def slower(who: str, source: str, seed: int) -> Figures:
    """All requests take three times as long, from some time after a full minute on."""
    at = SETTLED + 7.0 * (seed % 7)
    result = _lone(who, source, seed, at + 135.0, [SourceChange(at, slower=3.0)])
    return {"share later": result.share_of_best(at + 75.0, at + 135.0)}


def beside(who: str, source: str, seed: int) -> Figures:
    """200 reads of others are always under way, from 70 s on."""
    result = _lone(who, source, seed, LATER, [SourceChange(SETTLED, background=200)])
    return {"share": result.share_of_best(SETTLED + 60.0, LATER)}


def _lone(who: str, source: str, seed: int, seconds: float, changes: Sequence[SourceChange]) -> ContestResult:
    [policy] = policies(who, SOURCES[source], seed, 1)
    return Contest(SOURCES[source], [MountSpec(policy)], seconds, changes).run(seed)
