"""A run of mounts at a shared source, and what came of it: shares, throughput over the best, waits of demand reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from nopfsfs.sim.tuning.shared_source import Floats, SharedSource, SourceChange, ThroughputCurve, draw_works
from nopfsfs.sim.tuning.simulated_mount import MountSpec, SimulatedHistory, SimulatedMount

BIN = 0.5  # s of the histories
REACHED_SECONDS = 2.0  # over which the throughput counts


@dataclass(frozen=True)
class Contest:
    """Mounts at a source, and what happens: all but the seed. `changes` are in the order of their times."""

    curve: ThroughputCurve
    mounts: Sequence[MountSpec]
    seconds: float
    changes: Sequence[SourceChange] = ()
    noise: float = 1.0

    def run(self, seed: int) -> ContestResult:
        source = SharedSource(self.curve, seed, noise=self.noise)
        mounts = [SimulatedMount(source, spec) for spec in self.mounts]
        for change in self.changes:
            source.call_at(change.at, partial(source.change_to, change))
        bins = math.ceil(self.seconds / BIN)
        ended, under_way = np.zeros((bins + 1, len(mounts))), np.zeros((bins + 1, len(mounts)))
        for at in range(1, bins + 1):
            source.run_until(at * BIN)
            ended[at] = [mount.prefetches.ended for mount in mounts]
            under_way[at] = [mount.under_way for mount in mounts]
        return ContestResult(self, ended, under_way, [mount.history for mount in mounts])


@dataclass(frozen=True)
class ContestResult:
    """`ended` f64[bins + 1, mounts]: prefetches until the end of each bin; `under_way` f64[bins + 1, mounts]: requests,
    demands among them."""

    contest: Contest
    ended: Floats
    under_way: Floats
    histories: Sequence[SimulatedHistory]

    def rates(self, begin: float, end: float) -> Floats:
        """Prefetches a second of each mount, f64[mounts]."""
        first, last = round(begin / BIN), round(end / BIN)
        return np.asarray((self.ended[last] - self.ended[first]) / ((last - first) * BIN))

    def share_of_best(self, begin: float, end: float) -> float:
        """Prefetches of all mounts over the most requests that the source could have ended, as it was."""
        return float(self.rates(begin, end).sum() * (end - begin) / self._possible(begin, end))

    def regret(self, begin: float, end: float) -> float:
        return 1.0 - self.share_of_best(begin, end)

    def jain(self, begin: float, end: float) -> float:
        """Jain's index of the mounts' shares."""
        return jain_index(self.rates(begin, end))

    def seconds_to(self, share: float) -> float:
        """The end of the first two seconds with a throughput of this share of the best; infinite if there is none."""
        step = round(REACHED_SECONDS / BIN)
        total = self.ended.sum(axis=1)
        rates = (total[step:] - total[:-step]) / REACHED_SECONDS
        reached = np.flatnonzero(rates >= share * self.contest.curve.best)
        return float(reached[0] * BIN) + REACHED_SECONDS if len(reached) else math.inf

    def mean_under_way(self, begin: float, end: float) -> float:
        """Requests under way of all mounts."""
        return float(self.under_way[round(begin / BIN) : round(end / BIN)].sum(axis=1).mean())

    def demand_p99(self, begin: float, end: float) -> float:
        """The 99th percentile of demand reads that began in this time, over that at an idle source."""
        waits = [s for history in self.histories for at, s in history.demands if begin <= at < end]
        if not waits:
            return math.nan
        return float(np.quantile(waits, 0.99) / (self._idle_p99 * self.contest.curve.seconds))

    @cached_property
    def _idle_p99(self) -> float:
        works = draw_works(np.random.default_rng(0), 200_000, self.contest.noise)
        return float(np.quantile(works, 0.99))

    def _possible(self, begin: float, end: float) -> float:
        """Requests that the best concurrency would have brought."""
        contest = self.contest
        states = [SourceChange(0.0), *contest.changes]
        total = 0.0
        for state, until in zip(states, [*(change.at for change in contest.changes), math.inf], strict=True):
            length = max(0.0, min(end, until) - max(begin, state.at))
            if length and not state.stalled:
                total += length * state.changed(contest.curve).best / state.slower
        return total


def jain_index(rates: NDArray[np.float64]) -> float:
    """Jain's index of what mounts get, float64[mounts]: 1 where all get as much, 1 / mounts where one gets all."""
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))
