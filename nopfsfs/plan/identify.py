"""Which plan do unexplained opens follow?

Owns the cohorts, the search under way, and the beginnings of orders that may come next. What it finds it tells the
follower, which goes over to it. What takes long is handed out as jobs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import deep, evidence, search
from nopfsfs.plan.candidates import Depth, Heads, Seeds, Stage, World, candidate_of, stages
from nopfsfs.plan.consumers import Consumers
from nopfsfs.plan.epochs import DataSet, EpochOrder, Hypothesis, files_of
from nopfsfs.plan.report import Job
from nopfsfs.plan.search import Finding, Search, View
from nopfsfs.plan.spec import Spec
from nopfsfs.plan.track import State, Track
from nopfsfs.plan.trail import Cohort, Ownership, Trail

# Data sets up to this size are computed at once when needed (some 50 ms); larger ones as a job.
INLINE = 200_000
# log of the chance that a break is taken for the beginning of an epoch that may well follow. Less strict
# than a lock: the reader is known, and is not where it was.
_BREAK_CHANCE = -14.0
_EXPLAINED = 0.75
# log of how much more likely another epoch must be than the one that was expected.
_MARGIN = math.log(1000)
# A track is idle when its own readers had fewer hits than this share of the opens that it does not explain.
_IDLE = 0.25
# Opens from which on the searches that take long are begun.
_DEEP_FROM = 16
_LATE = 4
# Data sets that are searched for one cohort's opens: those that hold most of them.
_AMONG = 4
# Beginnings of orders that are kept, to look at opens again; 64 KiB and more each.
_KEPT = 64


class Beginning:
    """Where an order begins: the rows of its first places."""

    def __init__(self, hypothesis: Hypothesis, datasets: Sequence[DataSet], largest: int, spacing: int = 1) -> None:
        files = files_of(hypothesis, datasets)
        self.n = len(files)
        candidate = candidate_of(hypothesis)
        self.rows = files[np.maximum(Heads(spacing=spacing).full(candidate, self.n, largest), 0)]
        self.dealt = candidate.world is not None


class Believer(Protocol):
    """What the follower does with what is found."""

    def confirm(self, track: Track, cohort: Cohort) -> None:
        """The plan of a track is certain."""

    def adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None, order: EpochOrder | None) -> None:
        """Another plan is certain; it takes the place of `track`'s, or, None, is that of a further reader."""

    def despair(self, cohort: Cohort) -> None:
        """Nothing known explains a cohort's opens."""

    def replace(self, track: Track, hypothesis: Hypothesis) -> None:
        """The epoch that a track reads is another than was thought."""


class Identifier:
    """See the module. Not thread-safe: everything but `Job.run` belongs to one thread."""

    def __init__(
        self,
        datasets: Sequence[DataSet],
        ownership: Ownership,
        consumers: Consumers,
        believer: Believer,
        seed: int | None,
        sampler: str,
        worlds: Sequence[World],
        guess_worlds: bool,
        heads: Heads,
    ) -> None:
        self._datasets, self._consumers, self._believer = datasets, consumers, believer
        self._seeds, self._sampler, self._worlds = Seeds(seed), sampler, worlds
        self._guess = guess_worlds
        self._largest = max(size for size, _ in worlds)
        self._spacing = 1
        self.trail = Trail(ownership)
        self._heads = heads
        self._search: tuple[Search, Cohort, int] | None = None
        self._late: list[Spec] = []  # places that were found after the epoch to which they belong
        self._beginnings: OrderedDict[Hypothesis, Beginning] = OrderedDict()
        # how many candidates an assumed plan competes with
        self._of = 16.0 * len(self._datasets) * sum(map(_size, stages(self._seeds, sampler, Depth.USUAL)))

    def spread(self, spacing: int) -> None:
        """Only one open in so many is told from now on: orders are to be compared that much further."""
        self._spacing = self._heads.spacing = spacing
        self._beginnings.clear()
        for cohort in list(self.trail.cohorts):
            cohort.restart([])

    # -- opens --

    def unexplained(self, row: int, reader: int, now: int) -> None:
        """An open that no confirmed plan explains; `now`: the mount's count of opens."""
        cohort = self.trail.join(reader, now)
        if cohort.add(row, reader, now):
            self._look(cohort)
        if cohort.too_many and not cohort.hopeless:
            cohort.hopeless = True
            self._believer.despair(cohort)

    def _look(self, cohort: Cohort) -> None:
        """Compares a cohort's opens with the plans at hand."""
        for index in cohort.datasets()[:_AMONG]:
            for track in self._consumers.of(index):
                if track.state is State.LOCKED:
                    if self._changed(track, cohort):
                        return
                elif self._confirmed(track, cohort):
                    return

    def _confirmed(self, track: Track, cohort: Cohort) -> bool:
        """Whether the opens prove the plan that is assumed, or the same with other ranks."""
        here = track.hypothesis
        beginning = self.beginning(here)
        if beginning is None:
            return False
        for view in cohort.views(here.dataset):
            if len(view.rows) < search.MIN_OPENS:
                continue
            places = search.positions(view.rows[: beginning.n], beginning.rows)
            worlds = dict.fromkeys(((here.world, here.ranks), *self._worlds))
            found = search.match(candidate_of(here), places, beginning.n, tuple(worlds), spacing=self._spacing)
            if found is None or not search.certain(found, self._of) or not search.orderly(found, view):
                continue
            if _same_stream(found.hypothesis, here):
                self._believer.confirm(track, cohort)
            else:
                self._believer.adopt(found.hypothesis, cohort, track, None)
            return True
        return False

    def _changed(self, track: Track, cohort: Cohort) -> bool:
        """Whether the opens are the beginning of an epoch that may follow, or of further ranks."""
        for view in cohort.views(track.hypothesis.dataset):
            if not len(view.rows):
                continue
            likely = [h for h in track.alternatives() if h != track.hypothesis or self._far_on(track, view)]
            best = self._begins(likely, view.rows)
            if best is not None:
                idle = track.hits_since(cohort.began) < _IDLE * len(cohort.opens) + 1
                self._believer.adopt(best, cohort, track if idle else None, None)
                return True
            joined = self._joined(track, view.rows)
            if joined is not None:
                self._believer.adopt(joined, cohort, track, None)
                return True
        return False

    def _joined(self, track: Track, opens: NDArray[np.int64]) -> Hypothesis | None:
        """The same epoch with more ranks, when the opens look like other ranks' beginning of it."""
        here = track.hypothesis
        beginning = self.beginning(here) if here.world > 1 else None
        if beginning is None or beginning.dealt:
            return None
        places = search.positions(opens, beginning.rows)
        seen = tuple(np.unique(places[places >= 0] % here.world).tolist())
        if not seen or set(seen) <= set(here.ranks):
            return None
        local = search.local(places, here.world, seen)
        found = evidence.fit(*evidence.closed_up(local, beginning.n, self._spacing))
        chance = found.log_chance + here.world * math.log(2)
        if chance >= _BREAK_CHANCE or found.explained < _EXPLAINED:
            return None
        return replace(here, ranks=tuple(sorted({*here.ranks, *seen})))

    def _far_on(self, track: Track, view: View) -> bool:
        """Whether the reader is no longer near the beginning, where opens would fit the same epoch again anyway."""
        return track.behind(view.rows.tolist()) >= _EXPLAINED

    def _begins(self, hypotheses: Sequence[Hypothesis], opens: NDArray[np.int64]) -> Hypothesis | None:
        """The epoch that the opens look most like the beginning of; None when they look like none."""
        found = [(self._likeness(hypothesis, opens), hypothesis) for hypothesis in hypotheses]
        likeness, best = max(found, key=lambda one: one[0], default=(-math.inf, None))
        return best if likeness > -math.inf else None

    def _likeness(self, hypothesis: Hypothesis, opens: NDArray[np.int64]) -> float:
        """How alike opens and the beginning of an epoch are, the greater the more; -inf when that may be chance."""
        beginning = self.beginning(hypothesis)
        if beginning is None:
            return -math.inf
        places = search.positions(opens[: beginning.n], beginning.rows)
        if not beginning.dealt:
            places = search.local(places, hypothesis.world, hypothesis.ranks)
        places, n = evidence.closed_up(places, beginning.n, self._spacing)
        found = evidence.fit(places, n)
        if found.log_chance >= _BREAK_CHANCE or found.explained < _EXPLAINED:
            return -math.inf
        return evidence.likeness(found.score, len(places), n)

    def verify(self, track: Track) -> None:
        """The first opens of an epoch that followed as expected: is another that may follow much more like them?

        Epochs of a small shuffle buffer are alike, so that none is ever contradicted.
        """
        opens = np.array(track.first_rows(), dtype=np.int64)
        here = self._likeness(track.hypothesis, opens)
        others = [h for h in track.alternatives_of_this() if h != track.hypothesis]
        best = self._begins(others, opens)
        if best is not None and self._likeness(best, opens) > here + _MARGIN:
            self._believer.replace(track, best)

    def beginning(self, hypothesis: Hypothesis) -> Beginning | None:
        """Computed now for a small data set; for a large one None until the job that computes it is done."""
        found = self._beginnings.get(hypothesis)
        if found is not None:
            self._beginnings.move_to_end(hypothesis)
            return found
        rows = self._datasets[hypothesis.dataset].orders[hypothesis.order].rows
        if len(rows) > INLINE or hypothesis.spec.number("offset") > INLINE:
            return None
        found = Beginning(hypothesis, self._datasets, self._largest, self._spacing)
        self._keep(hypothesis, found)
        return found

    def _keep(self, hypothesis: Hypothesis, beginning: Beginning) -> None:
        self._beginnings[hypothesis] = beginning
        while len(self._beginnings) > _KEPT:
            self._beginnings.popitem(last=False)

    # -- jobs --

    def jobs(self) -> Iterator[Job]:
        """The next computation for another thread, if any."""
        yield from self._search_job()
        yield from self._beginning_job()

    def _beginning_job(self) -> Iterator[Job]:
        """Computes what may come next before it comes."""
        for track in self._consumers.tracks():
            if track.state is State.MISMATCH:
                continue
            for hypothesis in (track.hypothesis, *track.alternatives()):
                if hypothesis not in self._beginnings:
                    yield self._compute(hypothesis)
                    return

    def apart_job(self) -> Job | None:
        """A computation that takes up to minutes, for a cohort that nothing else explains."""
        for cohort in self.trail.cohorts:
            if not cohort.stuck:
                continue
            cohort.stuck = False
            believed = (track.hypothesis.spec for track in self._consumers.tracks() if track.was_locked)
            known = [*dict.fromkeys((*self._late, *believed))]
            among = cohort.datasets()[:_AMONG]
            work = deep.task(self._datasets, among, cohort, self._seeds, self._sampler, known)
            if work is None:
                continue
            era = cohort.era

            def deliver(found: tuple[Hypothesis, int] | None, cohort: Cohort = cohort, era: int = era) -> None:
                if found is None:
                    return
                if cohort.era == era and cohort in self.trail.cohorts:
                    self._found_apart(*found, cohort)
                else:
                    self._found_late(found[0].spec)

            return Job(partial(deep.find, work), deliver, apart=True)
        return None

    def _found_apart(self, hypothesis: Hypothesis, of: int, cohort: Cohort) -> None:
        """What was found by some of the opens must explain all of a reader's."""
        beginning = Beginning(hypothesis, self._datasets, self._largest, self._spacing)
        for view in cohort.views(hypothesis.dataset):
            places = search.positions(view.rows[: beginning.n], beginning.rows)
            found = search.match(candidate_of(hypothesis), places, beginning.n, self._worlds, spacing=self._spacing)
            if found is not None and search.certain(found, of) and search.orderly(found, view):
                self._adopt(hypothesis, cohort, None)
                return

    def _found_late(self, spec: Spec) -> None:
        """The epoch is over whose place was found: that of this one is not far from there."""
        self._late = [spec, *self._late][:_LATE]
        for cohort in self.trail.cohorts:
            cohort.stuck = len(cohort) >= _DEEP_FROM

    def _compute(self, hypothesis: Hypothesis) -> Job:
        datasets, largest, spacing = self._datasets, self._largest, self._spacing
        return Job(
            lambda: Beginning(hypothesis, datasets, largest, spacing), lambda found: self._keep(hypothesis, found)
        )  # fmt: skip

    def _search_job(self) -> Iterator[Job]:
        if self._search is not None:
            found, cohort, era = self._search
            if found.done or cohort.era != era or cohort not in self.trail.cohorts:
                self._search = None
        for cohort in self.trail.cohorts:
            depth = None if cohort.hopeless else cohort.due()
            if depth is not None:
                views = [view for index in cohort.datasets()[:_AMONG] for view in cohort.views(index)]
                started = Search(
                    self._datasets, self._seeds, self._sampler, self._worlds, views, self._heads, self._guess, depth
                )  # fmt: skip
                if not started.done:
                    self._search = (started, cohort, cohort.era)
                break
        if self._search is not None:
            yield self._stage(*self._search)

    def _stage(self, running: Search, cohort: Cohort, era: int) -> Job:
        def deliver(found: Finding | None) -> None:
            if cohort.era != era or cohort not in self.trail.cohorts:
                return
            if found is not None:
                self._search = None
                self._found(found, cohort)
            elif running.done:
                most = max(running.views, key=lambda view: len(view.rows))
                cohort.stuck = cohort.stuck or (len(most.rows) >= _DEEP_FROM and cohort.looked_deep(len(most.rows)))
                cohort.searched(len(most.rows), len(self._datasets[most.dataset].orders[0].rows))
                if cohort.hopeless:
                    self._believer.despair(cohort)

        return Job(running.run, deliver)

    def _found(self, found: Finding, cohort: Cohort) -> None:
        self._adopt(found.order.hypothesis, cohort, found.order)

    def _adopt(self, hypothesis: Hypothesis, cohort: Cohort, order: EpochOrder | None) -> None:
        """A search is certain. A track of the same data set that nobody believes gives way."""
        tracks = self._consumers.of(hypothesis.dataset)
        for track in tracks:
            if track.hypothesis == hypothesis and track.state is not State.LOCKED:
                self._believer.adopt(hypothesis, cohort, track, order)
                return
        unsure = [track for track in tracks if track.state is not State.LOCKED and not track.given]
        self._believer.adopt(hypothesis, cohort, unsure[0] if unsure else None, order)


def _same_stream(a: Hypothesis, b: Hypothesis) -> bool:
    """All ranks read here: then the world size does not change the merged stream, but for its last places."""
    return a == b or (replace(a, world=b.world, ranks=b.ranks) == b and _whole(a) and _whole(b))


def _whole(hypothesis: Hypothesis) -> bool:
    return hypothesis.ranks == tuple(range(hypothesis.world))


def _size(stage: Stage) -> int:
    """Specs and epochs of a stage."""
    return sum(
        family.epochs(spec) for family in stage.families for seed in stage.seeds for spec in family.variants(seed)
    )
