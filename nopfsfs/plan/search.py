"""Identification: which candidate do the first opens after a start or a break follow?

Owns the candidates, their likeness to opens, and when that is certain. Pure and stateless: a `Search` is a
snapshot that can run in another thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import registry
from nopfsfs.plan.epochs import DataSet, EpochOrder, Hypothesis, build
from nopfsfs.plan.evidence import Fit, fit
from nopfsfs.plan.spec import Spec

World = tuple[int, tuple[int, ...]]  # world size, the ranks that read through this mount

# A lock is an error with at most this probability over all candidates and all looks at one sequence of opens.
FALSE_LOCK = 1e-9
_LOOKS = 32
# Share of the opens of a data set that its plan must explain: less than all, as strays happen.
_EXPLAINED = 0.75
# Two sets of ranks within one order must differ by this factor of likelihood (100), or this many opens be
# seen.
_MARGIN = math.log(100)
_ENOUGH = 48
# Opens looked at, and how many are too few.
MAX_OPENS = 256
MIN_OPENS = 4
# Places of an order that are computed to compare with: this many, and this many for each rank. Loaders
# displace opens by some thousand places.
_HEAD = 16_384
_HEAD_PER_RANK = 256


@dataclass(frozen=True)
class Candidate:
    """An order to compare with, before it is dealt out to ranks."""

    dataset: int
    order: int
    spec: Spec
    epoch: int


@dataclass(frozen=True)
class Match:
    """The best world for one candidate, and whether it is certain enough."""

    hypothesis: Hypothesis
    fit: Fit
    log_chance: float  # with the choice among worlds and ranks allowed for
    clear: bool  # no other world comes near
    score: float  # the fit's, less what the choice among worlds and ranks costs
    places: bytes  # where the opens stand in the stream: equal for candidates that cannot be told apart


def candidates(datasets: Sequence[DataSet], among: Sequence[int], seed: int, sampler: str) -> Iterator[Candidate]:
    """All that could be read from the data sets `among`, likeliest first."""
    for index in among:
        for order in range(len(datasets[index].orders)):
            for family in registry.families(sampler):
                for spec in family.variants(seed):
                    for epoch in range(family.epochs(spec)):
                        yield Candidate(index, order, spec, epoch)


def head_rows(candidate: Candidate, datasets: Sequence[DataSet], largest_world: int) -> NDArray[np.int64]:
    """The rows at the beginning of a candidate's order, int64[<= n]."""
    files = datasets[candidate.dataset].orders[candidate.order][1]
    count = min(len(files), _HEAD + _HEAD_PER_RANK * largest_world)
    family = registry.sampler(candidate.spec.sampler)
    return files[family.shared(candidate.spec, len(files), candidate.epoch, count)]


def positions(opens: NDArray[np.int64], head: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the opens (rows, int64[m], distinct) stands in `head`, -1 for nowhere; int64[m]."""
    by_row = np.argsort(opens)
    index = np.minimum(np.searchsorted(opens[by_row], head), len(opens) - 1)
    found = np.flatnonzero(opens[by_row[index]] == head)[::-1]  # backwards: the first place of a row stays
    result = np.full(len(opens), -1, dtype=np.int64)
    result[by_row[index[found]]] = found
    return result


def local(places: NDArray[np.int64], world: int, ranks: tuple[int, ...]) -> NDArray[np.int64]:
    """Places in an order that is dealt out, as merged positions of `ranks`; -1 for other ranks' places."""
    if world == 1:
        return places
    lane = np.full(world, -1, dtype=np.int64)
    lane[list(ranks)] = np.arange(len(ranks))
    lanes = lane[places % world]
    return np.where((places >= 0) & (lanes >= 0), places // world * len(ranks) + lanes, -1)


def _choices(places: NDArray[np.int64], worlds: Sequence[World]) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """(world, ranks, log of the number of choices it was taken from): those given, a rank that nearly all
    opens belong to, the ranks seen when there are others."""
    for size, ranks in worlds:
        yield size, ranks, 0.0
    for size in dict.fromkeys(size for size, _ in worlds):
        seen, counts = np.unique(places[places >= 0] % size, return_counts=True)
        for rank in seen[counts >= _EXPLAINED * len(places)].tolist():
            yield size, (rank,), math.log(size)
        if len(seen) < size:
            yield size, tuple(seen.tolist()), size * math.log(2)


def match(
    candidate: Candidate,
    opens: NDArray[np.int64],
    head: NDArray[np.int64],
    n: int,
    worlds: Sequence[World],
) -> Match | None:
    """The world that makes a candidate fit the opens best. None when no open is near its beginning."""
    places = positions(opens, head)
    if not (places >= 0).any():
        return None
    if not registry.sampler(candidate.spec.sampler).strided:
        worlds = ((1, (0,)),)
    tried: list[tuple[float, float, Fit, World, bytes]] = []
    for size, ranks, cost in _choices(places, worlds):
        if ranks and (size, ranks) not in [world for *_, world, _ in tried]:
            here = local(places, size, ranks)
            result = fit(here, n)
            tried.append((result.score - cost, cost, result, (size, ranks), here.tobytes()))
    best = max(tried, key=lambda entry: entry[0])
    others = [entry[0] for entry in tried if entry[4] != best[4]]
    clear = best[0] - max(others, default=-math.inf) >= _MARGIN
    # some of the expected ranks, alone: the others may merely have started later
    partial = any(size == best[3][0] and set(ranks) > set(best[3][1]) for size, ranks in worlds)
    clear = len(opens) >= _ENOUGH or (clear and not partial)
    score, cost, result, (size, ranks), at = best
    hypothesis = Hypothesis(candidate.dataset, candidate.order, candidate.spec, candidate.epoch, size, ranks)
    return Match(hypothesis, result, result.log_chance + cost, clear, score, at)


def certain(found: Match | None, of: int) -> bool:
    """Whether a match, the best of `of` candidates, cannot be chance."""
    if found is None or not found.clear or found.fit.explained < _EXPLAINED:
        return False
    return found.log_chance < math.log(FALSE_LOCK) - math.log(of * _LOOKS)


def _plain(hypothesis: Hypothesis) -> Hypothesis:
    """Dealing out files in order to one rank is reading in order: said in the simpler words."""
    if hypothesis.world == 1 and hypothesis.spec.number("sequential"):
        return replace(hypothesis, spec=Spec("sequential"))
    return hypothesis


@dataclass(frozen=True, eq=False)
class Search:
    """A snapshot of opens and of all that they could be. `opens`: for each data set to look at, the distinct
    rows opened in it, in order, int64[m]."""

    datasets: Sequence[DataSet]
    seed: int
    sampler: str
    worlds: Sequence[World]
    opens: dict[int, NDArray[np.int64]]

    def run(self) -> EpochOrder | None:
        """The tables of the best candidate if it is certain, or None. Takes 1 to 2 ms a candidate.

        All are compared: different samplers may share an order at first, and deal it out differently.
        """
        among = [index for index, rows in self.opens.items() if len(rows) >= MIN_OPENS]
        tried = list(candidates(self.datasets, among, self.seed, self.sampler))
        found = [one for candidate in tried if (one := self._match(candidate)) is not None]
        best = max(found, key=lambda one: one.score, default=None)
        if best is None or not certain(best, len(tried)):
            return None
        index = best.hypothesis.dataset
        rivals = [other.score for other in found if other.hypothesis.dataset == index and other.places != best.places]
        if len(self.opens[index]) < _ENOUGH and best.score - max(rivals, default=-math.inf) < _MARGIN:
            return None
        return build(_plain(best.hypothesis), self.datasets)

    def _match(self, candidate: Candidate) -> Match | None:
        n = len(self.datasets[candidate.dataset].orders[candidate.order][1])
        rows = self.opens[candidate.dataset][:n]
        head = head_rows(candidate, self.datasets, max(size for size, _ in self.worlds))
        return match(candidate, rows, head, n, self.worlds)
