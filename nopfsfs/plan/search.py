"""Identification: which candidate do the first opens after a start or a break follow?

Owns how opens are compared with a candidate, and when that is certain. What is tried is in `candidates`. Pure: a
`Search` is a snapshot that can run in another thread, one stage at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import candidates, registry
from nopfsfs.plan.candidates import Candidate, Depth, Heads, Seeds, Target, World
from nopfsfs.plan.epochs import DataSet, EpochOrder, Hypothesis, build
from nopfsfs.plan.evidence import Fit, at_best, closed_up, disorder, fit, likeness
from nopfsfs.plan.spec import Dealt, Spec

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
# A candidate is looked at more closely when so many times more of the opens lie at its beginning than would by chance,
# but at least and at most these shares of them: eager workers leave a small beginning, and strays are opened.
_GLANCE_TIMES = 2.5
_GLANCE_LEAST, _GLANCE_MOST = 0.125, 0.6
_VIEWS_MOST = 8
# World sizes that are tried when nobody has said one: a single rank's opens then stand R places apart.
_WORLDS = np.array(
    [*range(2, 65), 72, 80, 96, 100, 112, 120, 128, 144, 160, 192, 240, 256, 320, 384, 448, 512, 768, 1024]
)
_SAME_RANK = 0.95
# Of the steps of readers that follow an order so many may lead back: files opened twice, threads that overtake.
_DISORDER = 0.25
# log of how many times nearer the opens must be to a plan than to the files in order, if those explain them too.
_FINER = 1.0
# Opens that jump over fewer places than this are those of a plan that is right.
_NEXT = 64
# log of a chance above which a candidate is not even a rival.
_HOPELESS = -5.0


@dataclass(frozen=True, eq=False)
class View:
    """Opens that one plan may explain: the distinct rows that some readers opened in one data set, in order,
    int64[m <= MAX_OPENS], and who opened each (0: not known), int64[m]. `pooled`: those of all readers that came
    together."""

    dataset: int
    rows: NDArray[np.int64]
    readers: NDArray[np.int64]
    pooled: bool = True


@dataclass(frozen=True)
class Match:
    """The best world for one candidate, and whether it is certain enough."""

    hypothesis: Hypothesis
    fit: Fit
    log_chance: float  # with the choice among worlds and ranks allowed for
    clear: bool  # no other world comes near
    score: float  # the fit's, less what the choice among worlds and ranks costs
    likeness: float  # minus how far the opens are displaced: the same for data sets of any size
    places: bytes  # where the opens stand in the stream: equal for candidates that cannot be told apart


@dataclass(frozen=True, eq=False)
class Finding:
    """What a search is certain of: the tables of a plan, and which of the views showed it."""

    order: EpochOrder
    view: View


def needed(opens: int, share: float) -> float:
    """How many of the opens must lie in a beginning that is `share` of the order, for a closer look."""
    return max(2.0, opens * max(_GLANCE_LEAST, min(_GLANCE_MOST, _GLANCE_TIMES * share)))


def positions(opens: NDArray[np.integer[Any]], head: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Where each of the opens (rows or samples, int64[m], distinct but for -1) stands in `head`, -1 for nowhere;
    int64[m]."""
    by_row = np.argsort(opens)
    index = np.minimum(np.searchsorted(opens[by_row], head), len(opens) - 1)
    found = np.flatnonzero(opens[by_row[index]] == head)[::-1]  # backwards: the first place of a row stays
    result = np.full(len(opens), -1, dtype=np.int64)
    result[by_row[index[found]]] = found
    result[opens < 0] = -1
    return result


def local(places: NDArray[np.int64], world: int, ranks: tuple[int, ...]) -> NDArray[np.int64]:
    """Places in an order that is dealt out, as merged positions of `ranks`; -1 for other ranks' places."""
    if world == 1:
        return places
    lane = np.full(world, -1, dtype=np.int64)
    lane[list(ranks)] = np.arange(len(ranks))
    lanes = lane[places % world]
    return np.where((places >= 0) & (lanes >= 0), places // world * len(ranks) + lanes, -1)


def _choices(
    places: NDArray[np.int64], worlds: Sequence[World], guess: bool
) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """(world, ranks, log of the number of choices it was taken from): those given, a rank that nearly all
    opens belong to, the ranks seen when there are others; with `guess`, any world in which one rank read."""
    for size, ranks in worlds:
        yield size, ranks, 0.0
    for size in dict.fromkeys(size for size, _ in worlds):
        seen, counts = np.unique(places[places >= 0] % size, return_counts=True)
        for rank in seen[counts >= _EXPLAINED * len(places)].tolist():
            yield size, (rank,), math.log(size)
        if len(seen) < size:
            yield size, tuple(seen.tolist()), size * math.log(2)
    known = places[places >= 0]
    if not guess or len(known) < MIN_OPENS:
        return
    for first in known[:2].tolist():  # one of them belongs to the rank, or it is not one's
        alike = ((known[:, None] - first) % _WORLDS == 0).mean(axis=0) >= _SAME_RANK
        for size in _WORLDS[alike].tolist():
            yield size, (first % size,), math.log(size * len(_WORLDS))


def match(
    candidate: Candidate,
    places: NDArray[np.int64],
    n: int,
    worlds: Sequence[World],
    guess: bool = False,
    spacing: int = 1,
) -> Match | None:
    """The world that makes a candidate fit the opens best. `places` int64[m]: where they stand in the order before it
    is dealt out (as dealt out, if the candidate says to whom); -1: nowhere. None when none is near its beginning."""
    if not (places >= 0).any():
        return None
    if candidate.world is not None:
        size, ranks = candidate.world
        guess = False
        # dearer than the same rank of an order that is dealt out in strides, which may be the same order
        tries: list[tuple[int, tuple[int, ...], float]] = [(size, ranks, math.log(2 * size))]
    elif registry.sampler(candidate.spec.sampler).dealt is not Dealt.STRIDED:
        tries = [(1, (0,), 0.0)]
        worlds = ((1, (0,)),)
    else:
        tries = list(_choices(places, worlds, guess))
    tried: list[tuple[float, float, Fit, World, bytes]] = []
    for size, ranks, cost in tries:
        if ranks and (size, ranks) not in [world for *_, world, _ in tried]:
            here = places if candidate.world is not None else local(places, size, ranks)
            among = max(1, n * len(ranks) // size) if candidate.world is not None else n
            closed = closed_up(here, among, spacing)
            if at_best(*closed) + cost > _HOPELESS:
                continue
            result = fit(*closed)
            tried.append((result.score - cost, cost, result, (size, ranks), here.tobytes()))
    if not tried:
        return None
    best = max(tried, key=lambda entry: entry[0])
    others = [entry[0] for entry in tried if entry[4] != best[4]]
    clear = best[0] - max(others, default=-math.inf) >= _MARGIN
    # some of the expected ranks, alone: the others may merely have started later
    partial = any(size == best[3][0] and set(ranks) > set(best[3][1]) for size, ranks in worlds)
    clear = len(places) >= _ENOUGH or (clear and not partial)
    score, cost, result, (size, ranks), at = best
    among = n if candidate.world is None else max(1, n * len(ranks) // size)
    alike = round(likeness(score, len(places), closed_up(places, among, spacing)[1]), 6)
    return Match(candidate.hypothesis(size, ranks), result, result.log_chance + cost, clear, score, alike, at)


def certain(found: Match | None, of: float) -> bool:
    """Whether a match, the best of `of` candidates, cannot be chance."""
    if found is None or not found.clear or found.fit.explained < _EXPLAINED:
        return False
    return found.log_chance < math.log(FALSE_LOCK) - math.log(max(of, 1) * _LOOKS)


def orderly(found: Match, view: View) -> bool:
    """Whether each reader goes forward in the order, as one does that follows it. Not to be asked of readers that open
    what comes next anyway."""
    if found.fit.jumped <= _NEXT:
        return True
    if len(view.rows) < _ENOUGH:
        return False
    places = np.frombuffer(found.places, dtype=np.int64)
    return disorder(places, view.readers[: len(places)]) <= _DISORDER


def _plain(hypothesis: Hypothesis) -> Hypothesis:
    """Dealing out files in order to one rank is reading in order: said in the simpler words."""
    if hypothesis.world == 1 and hypothesis.spec.number("sequential"):
        return replace(hypothesis, spec=Spec("sequential"))
    return hypothesis


class _Opened:
    """What was opened, as samples of one enumeration of a data set: for each view int64[m], -1 for none."""

    def __init__(self, target: Target, datasets: Sequence[DataSet], views: Sequence[View]) -> None:
        files = datasets[target.dataset].orders[target.order].rows
        self.target = target
        here = [view for view in views if view.dataset == target.dataset][:_VIEWS_MOST]
        self.views = [(view, positions(view.rows, files)) for view in here]
        self._seen_by = np.zeros(target.n, dtype=np.uint8)  # a bit for each view
        for bit, (_, samples) in enumerate(self.views):
            self._seen_by[samples[samples >= 0]] |= 1 << bit

    def near(self, beginning: NDArray[np.integer[Any]]) -> list[int]:
        """How many of the opens of each view lie there."""
        seen = self._seen_by[beginning]
        seen = seen[seen != 0]
        return [int(np.count_nonzero(seen & (1 << bit))) for bit in range(len(self.views))]


class Search:
    """A snapshot of opens and of all that they could be. Each `run` does the next stage, until `done`."""

    def __init__(
        self,
        datasets: Sequence[DataSet],
        seeds: Seeds,
        sampler: str,
        worlds: Sequence[World],
        views: Sequence[View],
        heads: Heads,
        guess_worlds: bool = False,
        depth: Depth = Depth.ALL,
    ) -> None:
        self.views = [view for view in views if len(view.rows) >= MIN_OPENS]
        self._datasets, self._worlds, self._guess = datasets, worlds, guess_worlds
        self._heads = heads
        self._largest = max(size for size, _ in worlds)
        self._targets: list[_Opened] | None = None
        self._stages = list(candidates.stages(seeds, sampler, depth))
        self._tried = 0
        self._found: list[tuple[Match, View]] = []

    @property
    def done(self) -> bool:
        """Nothing is left to try."""
        return not self._stages or not self.views

    def run(self) -> Finding | None:
        """Tries one stage; the best of all tried if that is certain. Some 0.2 ms a candidate for a million files.

        All of a stage are compared: different samplers may share an order at first, and deal it out differently.
        """
        if self.done:
            return None
        if self._targets is None:
            among = dict.fromkeys(view.dataset for view in self.views)
            self._targets = [
                _Opened(target, self._datasets, self.views) for target in candidates.targets(self._datasets, among)
            ]
        stage = self._stages.pop(0)
        for opened in self._targets:
            for candidate in stage.candidates(opened.target, self._worlds):
                self._tried += 1
                self._try(candidate, opened)
        # a plan that explains more opens first; of equal ones that of the smaller data set, which was tried first
        self._found.sort(key=lambda one: (-len(one[1].rows), -one[0].likeness, one[0].hypothesis.epoch))
        in_order = [one for one in self._found[64:] if one[0].hypothesis.spec.sampler == "sequential"]
        self._found = [*self._found[:64], *in_order]
        return self._best()

    def _try(self, candidate: Candidate, opened: _Opened) -> None:
        n = opened.target.n
        part = None
        if candidate.subset is not None:
            part = self._heads.part(candidate.subset, n)
            n = len(part)
        glance = self._heads.first(candidate, n, self._largest)
        beginning = glance if len(glance) < n else glance[: max(n // 4, 1)]
        near = opened.near(beginning if part is None else part[beginning])
        for (view, samples), count in zip(opened.views, near, strict=True):
            if count < needed(len(samples), len(beginning) / max(n, 1)):
                continue
            inside = samples if part is None else positions(samples, part)
            head = self._heads.full(candidate, n, self._largest)
            found = match(candidate, positions(inside[:n], head), n, self._worlds, self._guess, self._heads.spacing)
            if found is not None and found.log_chance < _HOPELESS:
                self._found.append((found, view))

    def _best(self) -> Finding | None:
        for best, view in self._found:
            if not self._certain(best, view) or self._nearly_in_order(best, view):
                continue
            if self._dealt_unclearly(best, view):
                continue
            rivals = [other.likeness for other, seen in self._found if seen is view and other.places != best.places]
            if len(view.rows) < _ENOUGH and best.likeness - max(rivals, default=-math.inf) < _MARGIN:
                continue
            return Finding(build(_plain(best.hypothesis), self._datasets), view)
        return None

    def _certain(self, found: Match, view: View) -> bool:
        return certain(found, self._tried * len(self.views)) and orderly(found, view)

    def _dealt_unclearly(self, found: Match, view: View) -> bool:
        """Whether the same order was found by other words, too, of which it is not clear to which ranks it is dealt.
        Files that are read as they are listed are the same for all ranks."""
        if found.hypothesis.spec.sampler == "sequential":
            return False
        return any(seen is view and other.places == found.places and not other.clear for other, seen in self._found)

    def _nearly_in_order(self, found: Match, view: View) -> bool:
        """Whether the files may be read as they are listed, and the plan says no more than that: so do all shuffles of
        a small buffer, whatever their seed. That of some of all that were tried comes nearer by chance alone."""
        in_order = [
            other
            for other, seen in self._found
            if seen is view and other.hypothesis.spec.sampler == "sequential" and other.fit.explained >= _EXPLAINED
        ]
        if not in_order or found in in_order:
            return False
        nearer = found.likeness - max(other.likeness for other in in_order)
        return nearer < max(len(view.rows) * _FINER, math.log(self._tried))
