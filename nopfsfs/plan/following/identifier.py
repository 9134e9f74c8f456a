"""Which plan do unexplained opens follow?

Owns the cohorts, what each of them is suspected to follow, and the tables of orders that may come next. First an order
is found, by its ledger; to whom it is dealt is then read off the opens. What is certain it tells the follower, which
goes over to it. What takes long is handed out as jobs.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, files_of, same_order
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.following.foresight import successor
from nopfsfs.plan.following.reader_binding import ReaderBinding
from nopfsfs.plan.following.recorded import beginnings
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, Dealt, Spec
from nopfsfs.plan.search import by_seed, deal, repeats, slow_search
from nopfsfs.plan.search.candidates import SAID, Candidate, OrderHeads, Seeds, candidate_of
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.matching import PLAUSIBLE, SUSPECTS_MOST, Search, prepare
from nopfsfs.plan.search.suspects import FOLLOWING, LOCK, MARGIN, SURE, OpensView, Proof, Suspect, Table, certain
from nopfsfs.plan.search.unexplained_opens import Cohort, Cohorts, RowOwners
from nopfsfs.plan.tracking.track import PlanState, Track

# Data sets up to this size are computed at once when needed (some 50 ms); larger ones as a job.
INLINE = 200_000
# A track is idle when its own readers had fewer hits than this share of the opens that it does not explain.
_IDLE = 0.25
# Opens from which on the searches that take long are begun.
_DEEP_FROM = 16
_LATE = 4
# Epochs that may have gone by until an order is found; and until that of readers is found who have ended meanwhile.
_EPOCHS_LATE, _EPOCHS_MISSED = 3, 64
# Opens of others after which a cohort's readers have ended.
_ENDED = 64
# Other names of an order that are kept, and of all.
_OTHERS, _OTHERS_KEPT = 6, 24
# Data sets that are searched for one cohort's opens: those that hold most of them.
_AMONG = 4
# Tables of orders that are kept, to look at opens again.
_KEPT_BYTES = 64 << 20
# Seeds of the last job's plans that are tried in all epochs; the plans themselves are compared with so many opens of a
# cohort, and whenever these have doubled.
_SEEDS_RECORDED, _RECORDED_OPENS = 2, 64
# Files up to which all of the epoch that was read last is kept for one that goes on with it: 12 bytes each.
_RESUMED_MOST = 2_000_000
# Bits by which another epoch must be more likely than the one that was expected.
_VERIFIED = 10.0
# The share of a reader's opens that lie behind those who follow the same order, by which it is elsewhere.
_ELSEWHERE = 0.75
# Steps (`PREPARED_S`) in which what searches compare with first is computed before anything is opened.
_PREPARED_STEPS = 128
# Searches may take so many seconds of a core at once, and this share of a core in the long run.
_BUDGET_S, _BUDGET_SHARE = 20.0, 0.03


class Believer(Protocol):
    """What the follower does with what is found."""

    def confirm(self, track: Track, cohort: Cohort) -> None:
        """The plan of a track is certain."""

    def adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None) -> None:
        """Another plan is certain; it takes the place of `track`'s, or, None, is that of a further reader."""

    def give_up_search(self, cohort: Cohort) -> None:
        """Nothing known explains a cohort's opens so far."""

    def replace(self, track: Track, hypothesis: Hypothesis) -> None:
        """The epoch that a track reads is another than was thought."""


class Budget:
    """Seconds of a core that searches may take. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._left = _BUDGET_S

    def spend(self, seconds: float) -> None:
        """So much was taken."""
        self._left -= seconds

    @property
    def rests_s(self) -> float:
        """Seconds until there is some."""
        return 0.0 if self.left else -self._left / _BUDGET_SHARE

    @property
    def left(self) -> bool:
        """Whether there is any."""
        now = self._clock()
        self._left = min(_BUDGET_S, self._left + _BUDGET_SHARE * (now - self._last))
        self._last = now
        return self._left > 0


class PlanSearch:
    """See the module. Not thread-safe: everything but `BackgroundJob.run` belongs to one thread."""

    def __init__(
        self,
        datasets: Sequence[DataSet],
        ownership: RowOwners,
        consumers: ReaderBinding,
        believer: Believer,
        seed: int | None,
        sampler: str,
        worlds: Sequence[World],
        heads: OrderHeads,
        clock: Callable[[], float] = time.monotonic,
        recorded: Sequence[Hypothesis] = (),
    ) -> None:
        self._datasets, self._consumers, self._believer = datasets, consumers, believer
        seeds = (h.spec.seed for h in recorded if registry.sampler(h.spec.sampler).seeds is not None)
        self._seeds = Seeds(seed, tuple(dict.fromkeys(seeds))[:_SEEDS_RECORDED])
        self._sampler, self._worlds = sampler, tuple(worlds)
        self._recorded = beginnings(recorded)
        self._resumed = {candidate_of(plan) for plan in recorded[:1]}  # may be gone on with in the middle
        self.trail = Cohorts(ownership)
        self._largest = max(size for size, _ in worlds)
        self._heads = heads
        self._budget = Budget(clock)
        self._prepared = prepare(datasets, range(len(datasets))[:_AMONG], self._seeds, sampler, self._worlds, heads)
        self._steps_left = _PREPARED_STEPS
        self._others: list[tuple[Candidate, Candidate]] = []  # what was believed, and the same order by another name
        self._late: list[Spec] = []  # places that were found after the epoch to which they belong
        self._tables: OrderedDict[Candidate, Table] = OrderedDict()
        self._bytes = 0

    def spread(self, spacing: int) -> None:
        """Only one open in so many is told from now on: orders are to be compared that much further."""
        self._heads.spacing = spacing
        self._tables.clear()
        self._bytes = 0
        for cohort in list(self.trail.cohorts):
            cohort.restart()

    # -- opens --

    def unexplained(self, row: int, reader: int, now: int) -> None:
        """An open that no confirmed plan explains; `now`: the mount's count of opens."""
        cohort = self.trail.join(reader, now)
        if cohort.add(row, reader, now):
            self._look(cohort)

    def _look(self, cohort: Cohort) -> None:
        """Compares a cohort's opens with the plans at hand."""
        view = cohort.view()
        for track in self._tracks(cohort):
            if track.state is PlanState.LOCKED and self._goes_on(track, cohort, view):
                return
        self._judge(cohort, view)

    def _tracks(self, cohort: Cohort) -> list[Track]:
        """Those of the data sets that a cohort reads."""
        return [track for index in cohort.datasets()[:_AMONG] for track in self._consumers.of(index)]

    def _judge(self, cohort: Cohort, view: OpensView) -> None:
        """Whether the opens prove a plan that is assumed, or one that was found."""
        suspects, believed, recorded = self._suspected(cohort, view)
        suspects += self._later(suspects, cohort, view)
        best = certain(suspects, LOCK)
        tried = best in recorded or id(best) in believed
        # while searches rest nothing nearer can be found
        may_follow = best is not None and self._budget.left and cohort.still_at(best.part)
        if best is not None and may_follow and not tried and not best.regular and best.part != SURE:
            return
        said = [(one.hypothesis.world, one.hypothesis.ranks) for one in believed.values() if one.given]
        hypothesis = self._as_dealt(best, (*said, *self._worlds)) if best is not None else None
        if best is None or hypothesis is None:
            return
        self._note_others(best, suspects)
        cohort.proof = Proof(cohort.count, best.worth, hypothesis)
        assumed = believed.get(id(best))
        if assumed is not None and _same_stream(hypothesis, assumed.hypothesis):
            self._believer.confirm(assumed, cohort)
        else:
            self._adopt(hypothesis, cohort, assumed)

    def _suspected(self, cohort: Cohort, view: OpensView) -> tuple[list[Suspect], dict[int, Track], list[Suspect]]:
        """What a cohort's opens may follow, weighed by those of now; by id of those that are assumed, their tracks;
        those of the last job's record."""
        believed: dict[int, Track] = {}
        suspects: list[Suspect] = []
        for track in self._tracks(cohort):
            if track.state is not PlanState.LOCKED:
                found = self._suspects(self._assumed(track))
                for suspect in found:
                    suspect.said = track.given or track.hypothesis.spec.sampler != "sequential"
                suspects += found
                believed.update((id(one), track) for one in suspects[len(believed) :])
        suspects += cohort.suspects
        recorded = self._of_record(cohort, suspects)
        suspects += recorded
        for suspect in suspects:
            suspect.weigh(view)
        return suspects, believed, recorded

    def _assumed(self, track: Track) -> list[Hypothesis]:
        """What a track that is not certain assumes; and the same in the other file orders, unless a user said it: some
        begin alike."""
        here = track.hypothesis
        family = registry.sampler(here.spec.sampler)
        if track.given or family.by_class:
            return [here]
        orders = self._datasets[here.dataset].orders
        usual = (at for at, order in enumerate(orders) if set(family.files) & set(order.names))
        return [here, *(replace(here, order=at) for at in usual if at != here.order)]

    def undecided(self, most: int) -> list[tuple[Cohort, list[Suspect]]]:
        """What those may follow who have opened most without a plan, weighed by the opens of now."""
        cohorts = sorted((one for one in self.trail.cohorts if one.count), key=lambda one: -one.count)[:most]
        return [(cohort, self._suspected(cohort, cohort.view())[0]) for cohort in cohorts]

    @property
    def rests_s(self) -> float:
        """Seconds for which searches rest, because they have taken their share of a core."""
        return self._budget.rests_s

    def _note_others(self, best: Suspect, suspects: Sequence[Suspect]) -> None:
        """The same order by other names goes on otherwise: these are compared when this one does not go on as said."""
        same = [one for one in suspects if one is not best and one.worth >= LOCK - MARGIN and not best.contradicts(one)]
        self._others = [(best.candidate, one.candidate) for one in same][:_OTHERS] + self._others
        del self._others[_OTHERS_KEPT:]

    def _instead(self, here: Hypothesis) -> list[Hypothesis]:
        """What follows where the order that was read was another sampler's."""
        found = []
        for believed, other in self._others:
            epochs = here.epoch - believed.epoch
            same = believed.hypothesis(here.world, here.ranks)
            if epochs < 0 or not same_order(same, replace(here, epoch=believed.epoch)):
                continue
            batch = here.spec.number("batch") or 1
            spec = registry.sampler(other.spec.sampler).dealt_out(other.spec, batch) if here.world > 1 else other.spec
            hypothesis = replace(other, spec=spec or other.spec).hypothesis(here.world, here.ranks)
            for _ in range(min(epochs, 1) + 1):
                hypothesis = successor(hypothesis)
                found.append(hypothesis)
        return found

    def _of_record(self, cohort: Cohort, others: Sequence[Suspect]) -> list[Suspect]:
        """What the last job on this source read, as far as a cohort reads these data sets and the tables are there."""
        if cohort.count > _RECORDED_OPENS and cohort.count & (cohort.count - 1):
            return []
        among, known = cohort.datasets()[:_AMONG], {one.candidate for one in others}
        return [
            Suspect(candidate, self._tables[candidate], cost)
            for candidate, (_, cost) in self._recorded.items()
            if candidate.dataset in among and candidate in self._tables and candidate not in known
        ]  # fmt: skip

    def _later(self, suspects: Sequence[Suspect], cohort: Cohort, view: OpensView) -> list[Suspect]:
        """What follows those that were read lately, and are no longer."""
        known = {one.candidate for one in suspects}
        found: list[Suspect] = []
        for one in suspects:
            for _ in range(_EPOCHS_LATE if one.ledger.best - one.cost >= LOCK > one.worth else 0):
                candidate = candidate_of(successor(one.candidate.hypothesis()))
                table = None if candidate in known else self._table(candidate)
                if table is None:
                    break
                known.add(candidate)
                one = Suspect(candidate, table, one.cost + 1)
                one.weigh(view)
                found.append(one)
        cohort.suspect([one for one in found if one.worth >= PLAUSIBLE], SUSPECTS_MOST)
        return found

    def _goes_on(self, track: Track, cohort: Cohort, view: OpensView) -> bool:
        """Whether the opens are an epoch that may follow, or further ranks of this one, or lie elsewhere in it."""
        here = track.hypothesis
        suspects = self._suspects(list(dict.fromkeys((*track.alternatives(), here, *self._instead(here)))))
        for suspect in suspects:
            suspect.weigh(view)
        best = certain(suspects, FOLLOWING)
        if best is None:
            return False
        cohort.proof = Proof(cohort.count, best.worth, best.candidate.hypothesis(here.world, here.ranks))
        idle = _idle(track, cohort)
        mine = next((one for one in suspects if one.candidate == candidate_of(here)), best)
        if not best.repeats(mine) or _begins_anew(track, best):
            found = self._as_dealt(best, ((here.world, here.ranks),))
            found = found or best.candidate.hypothesis(here.world, here.ranks)
            self._believer.adopt(found, cohort, track if idle else None)
            return True
        more = self._further(track, best, view)
        if more is not None:
            self._believer.adopt(more, cohort, track)
            return True
        if track.behind(view.rows.tolist()) >= _ELSEWHERE:
            self._believer.adopt(here, cohort, track if idle else None)
            return True
        return False

    def _further(self, track: Track, found: Suspect, view: OpensView) -> Hypothesis | None:
        """The epoch of a track with the ranks that the opens show beside its own; None: there are none."""
        here = track.hypothesis
        theirs = self._as_dealt(found, ((here.world, here.ranks),))
        if (
            theirs is not None
            and replace(theirs, ranks=here.ranks) == here
            and not set(theirs.ranks) <= set(here.ranks)
        ):
            return replace(here, ranks=tuple(sorted({*here.ranks, *theirs.ranks})))
        both = self._read_again(track, view)
        return None if both is None or _same_stream(both, here) else both

    def redeal(self, track: Track) -> Hypothesis | None:
        """The same epoch as its readers show it to be dealt out, where that is otherwise than was thought."""
        found = self._read_again(track)
        here = track.hypothesis
        if found is not None and replace(found, ranks=here.ranks) == here:
            # one that is merely slow has made a step or two
            slow = [rank for rank, steps in zip(here.ranks, track.begun_lanes(), strict=True) if steps > 1]
            found = replace(found, ranks=tuple(sorted({*found.ranks, *slow})))
        elif found is not None and same_order(found, here) and found.world > here.world and found.spec == here.spec:
            table = self._table(candidate_of(here))  # of as many ranks, not all have been seen lately
            if table is not None:
                places = table.places(np.array(track.rows_opened(), np.int64))
                steps = np.bincount(places[places >= 0] % found.world, minlength=found.world)
                found = replace(found, ranks=tuple(sorted({*found.ranks, *np.flatnonzero(steps > 1).tolist()})))
        return None if found is None or _same_stream(found, here) else found

    def _read_again(self, track: Track, view: OpensView | None = None) -> Hypothesis | None:
        """To whom this epoch is dealt, by what a track's readers opened of it lately, and by further opens."""
        here = track.hypothesis
        suspects = self._suspects([here])
        if not suspects:
            return None
        lately = track.lately()
        rows, readers = np.array(lately, np.int64).reshape(-1, 2).T
        if view is not None:
            rows, readers = np.concatenate([rows, view.rows]), np.concatenate([readers, view.readers])
        _, first = np.unique(rows, return_index=True)
        first.sort()
        suspects[0].weigh(OpensView(rows[first], readers[first], len(rows)))
        trust = deal.HELD if here.world > 1 else deal.SAID  # a world of one may be the lack of another
        return self._as_dealt(suspects[0], ((here.world, here.ranks),), trust)

    def _as_dealt(self, suspect: Suspect, said: Sequence[World], trust: float = deal.SAID) -> Hypothesis | None:
        """What is read here of an order that is known; None: not known yet. `said`, `trust`: as of `deal.read`."""
        candidate, ledger = suspect.candidate, suspect.ledger
        family = registry.sampler(candidate.spec.sampler)
        if candidate.world is not None:
            return candidate.hypothesis()
        followed = {reader: places for reader, places in ledger.followed.items() if ledger.follows(reader)}
        found = deal.read(followed, suspect.table.n, said, trust)
        shuffled = candidate.spec.sampler == by_seed.FAMILY and not candidate.spec.number("sequential")
        if found is not None and found.batch == 1 and shuffled:
            # steps that no world tells may be those of a sampler that repeats samples before it deals them out
            repeated = repeats.deal_of(followed, suspect.table.n, found.world)
            if repeated is not None:
                number = candidate.spec.seed + candidate.epoch
                return replace(candidate, spec=Spec(repeats.FAMILY), epoch=number).hypothesis(*repeated)
        if found is None:
            return candidate.hypothesis() if family.dealt is Dealt.ALL else None
        if family.dealt is Dealt.BATCHES and found.whole and found.world == 1:
            found = deal.Deal(2, (0, 1))  # in one process the order would be another
        undealt = replace(candidate, spec=candidate.spec.with_option(STRIDED, 0))
        if found.whole and family.dealt is Dealt.ALL:
            return undealt.hypothesis()
        spec = family.dealt_out(candidate.spec, found.batch)
        if spec is None:
            return undealt.hypothesis()
        return replace(candidate, spec=spec).hypothesis(found.world, found.ranks)

    def verify(self, track: Track) -> None:
        """The first opens of an epoch that followed as expected: is another that may follow much more like them?

        Epochs of a small shuffle buffer are alike, so that none is ever contradicted.
        """
        rows = np.array(track.first_rows(), dtype=np.int64)
        view = OpensView(rows, np.zeros_like(rows), len(rows))
        here = track.hypothesis
        others = [other for other in track.alternatives_of_this() if other != here]
        suspects = self._suspects([here, *others])
        for suspect in suspects:
            suspect.weigh(view)
        if len(suspects) < 2 or suspects[0].candidate != candidate_of(here):
            return
        best = max(suspects[1:], key=lambda one: one.likelihood)
        if best.worth > _VERIFIED and best.likelihood > suspects[0].likelihood + _VERIFIED:
            self._believer.replace(track, best.candidate.hypothesis(here.world, here.ranks))

    # -- tables --

    def _suspects(self, hypotheses: Sequence[Hypothesis]) -> list[Suspect]:
        """Of those whose tables are at hand, likeliest first."""
        found = []
        for nth, hypothesis in enumerate(hypotheses):
            candidate = candidate_of(hypothesis)
            table = self._table(candidate)
            if table is not None:
                found.append(Suspect(candidate, table, SAID + 2 * math.log2(nth + 1)))
        return found

    def _table(self, candidate: Candidate) -> Table | None:
        """Computed now for a small data set; for a large one None until the job that computes it is done."""
        found = self._tables.get(candidate)
        if found is not None:
            self._tables.move_to_end(candidate)
            return found
        files = self._datasets[candidate.dataset].orders[candidate.order].rows
        if len(files) > INLINE or candidate.spec.number("offset") > INLINE:
            return None
        found = self._compute(candidate)
        self._keep(candidate, found)
        return found

    def _compute(self, candidate: Candidate) -> Table:
        """All of a small order; the beginning of a large one, unless it may be read from its middle on."""
        files = files_of(candidate.hypothesis(), self._datasets)
        n = len(files)
        heads = OrderHeads(0, self._heads.spacing)
        whole = n <= (_RESUMED_MOST if candidate in self._resumed else INLINE)
        order = heads.whole(candidate, n) if whole else heads.full(candidate, n, self._largest)
        rows = np.where(order >= 0, files[order], -1)
        return Table(rows, len(rows) if whole else n)

    def _keep(self, candidate: Candidate, table: Table) -> None:
        self._tables[candidate] = table
        self._bytes += table.nbytes
        while self._bytes > _KEPT_BYTES:
            _, gone = self._tables.popitem(last=False)
            self._bytes -= gone.nbytes

    # -- jobs --

    def jobs(self) -> Iterator[BackgroundJob]:
        """The next computation for another thread, if any."""
        yield from self._search_job()
        yield from self._table_job()

    def prepare_jobs(self) -> Iterator[BackgroundJob]:
        """The next of those that make searches quick, before anything is opened."""
        if self._steps_left:
            self._steps_left -= 1
            yield BackgroundJob(partial(next, self._prepared, None), lambda _: None)

    def _table_job(self) -> Iterator[BackgroundJob]:
        """Computes what may come next before it comes, as far as there is room."""
        wanted = [
            candidate_of(hypothesis)
            for track in self._consumers.tracks() if track.state is not PlanState.MISMATCH
            for hypothesis in (track.hypothesis, *track.alternatives(), *self._instead(track.hypothesis))
        ]  # fmt: skip
        for candidate in (*wanted, *self._recorded):
            if candidate not in self._tables and 2 * self._bytes < _KEPT_BYTES:
                yield BackgroundJob(partial(self._compute, candidate), partial(self._keep, candidate))
                return

    def _search_job(self) -> Iterator[BackgroundJob]:
        for cohort in reversed(self.trail.cohorts):
            with_all = self._begins_with_all(cohort)
            if with_all and (cohort.quick is None or cohort.quick.past_likely or cohort.grown):
                cohort.quick, cohort.settled = None, True  # the search of all begins with what was said
                continue
            beside = cohort.full is not None and self._budget.left
            if cohort.quick is None and cohort.quick_due(beside=beside):
                cohort.quick = self._search(cohort, first_only=True)
            if cohort.quick is not None:
                yield self._searching(cohort, cohort.quick)
        if not self._budget.left:
            return
        # one search of everything at a time, which goes on when its readers have ended: others may follow them
        running = next((cohort for cohort in self.trail.cohorts if cohort.full is not None), None)
        if running is None:
            running = next((cohort for cohort in reversed(self.trail.cohorts) if cohort.full_due()), None)
            if running is None:
                return
            running.full = self._search(running)
        if running.full is not None:
            yield self._searching(running, running.full)

    def _begins_with_all(self, cohort: Cohort) -> bool:
        """Whether everything is tried for a cohort as soon as nothing else is."""
        free = all(one.full is None for one in self.trail.cohorts)
        return free and cohort.count >= cohort.full_from and self._budget.left

    def _search(self, cohort: Cohort, *, first_only: bool = False) -> Search:
        among = cohort.datasets()[:_AMONG]
        return Search(
            self._datasets, among, self._seeds, self._sampler, self._worlds, self._heads, first_only=first_only
        )  # fmt: skip

    def _searching(self, cohort: Cohort, search: Search) -> BackgroundJob:
        """Goes on with a search, over the opens of now."""
        view, among, era = cohort.view(), cohort.datasets()[:_AMONG], cohort.era

        def run() -> tuple[list[Suspect], float]:
            begun = time.thread_time()
            found = search.run(view, among)
            return found, time.thread_time() - begun

        def deliver(result: tuple[list[Suspect], float]) -> None:
            found, seconds = result
            self._budget.spend(seconds)
            sure = max((one for one in found if one.worth >= LOCK), key=lambda one: one.worth, default=None)
            if cohort.era != era or cohort not in self.trail.cohorts:
                return
            cohort.suspect(found, SUSPECTS_MOST)
            tried = search.done or (search.past_likely and not cohort.despaired)
            cohort.despaired = cohort.despaired or (tried and cohort.thorough)
            if search.done:
                self._searched(cohort, search)
            if cohort.count >= _DEEP_FROM and search.past_streams and cohort.looked_deep():
                cohort.stuck = True
            if search.done or any(one.worth >= LOCK for one in cohort.suspects):
                self._judge(cohort, cohort.view())
            if sure is not None and sure.worth < LOCK and cohort.era == era:  # readers have gone on to another epoch
                self._lead(sure.candidate.hypothesis(), cohort, _EPOCHS_LATE)
            if tried and cohort.despaired and cohort.era == era:
                self._believer.give_up_search(cohort)

        return BackgroundJob(run, deliver)

    def _searched(self, cohort: Cohort, search: Search) -> None:
        """A search has tried all that it could."""
        if search is cohort.quick:
            cohort.quick, cohort.settled = None, True
        elif search is cohort.full:
            cohort.full = None

    def apart_job(self) -> BackgroundJob | None:
        """A computation that takes up to minutes, for a cohort that nothing else explains."""
        for cohort in self.trail.cohorts:
            if not cohort.stuck:
                continue
            cohort.stuck = False
            believed = (track.hypothesis.spec for track in self._consumers.tracks() if track.was_locked)
            known = [*dict.fromkeys((*self._late, *believed))]
            among = cohort.datasets()[:_AMONG]
            work = slow_search.task(self._datasets, among, cohort, self._seeds, self._sampler, known)
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

            return BackgroundJob(partial(slow_search.find, work), deliver, apart=True)
        return None

    def _found_apart(self, hypothesis: Hypothesis, of: int, cohort: Cohort) -> None:
        """What was found by some of the opens must explain all of a reader's."""
        candidate = candidate_of(hypothesis)
        view = cohort.view()
        suspect = Suspect(candidate, self._compute(candidate), math.log2(max(of, 2)))
        suspect.weigh(view)
        cohort.suspect([suspect], SUSPECTS_MOST)
        cohort.settled = True
        self._judge(cohort, view)

    def _found_late(self, spec: Spec) -> None:
        """The epoch is over whose place was found: that of this one is not far from there."""
        self._late = [spec, *self._late][:_LATE]
        for cohort in self.trail.cohorts:
            cohort.stuck = cohort.count >= _DEEP_FROM

    def _adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None) -> None:
        """A plan is certain. A track of the same data set that nobody believes gives way."""
        for one in self._tracks(cohort):
            hypothesis = by_seed.renamed(hypothesis, one.hypothesis)
        newer = [one for one in self.trail.cohorts if one.began > cohort.last]
        if newer or any(one.last_hit > cohort.last + _ENDED for one in self._tracks(cohort)):
            self._late = [hypothesis.spec, *self._late][:_LATE]
            self.trail.drop(cohort)
            if newer:
                self._lead(hypothesis, newer[-1], _EPOCHS_MISSED)
            return
        for one in self._tracks(cohort):
            here = one.hypothesis
            if one.state is PlanState.LOCKED and here != hypothesis and same_order(here, hypothesis):
                if here.world == hypothesis.world:
                    hypothesis = replace(hypothesis, ranks=tuple(sorted({*here.ranks, *hypothesis.ranks})))
                elif not _idle(one, cohort):
                    continue  # another job with the same seed
                self._believer.adopt(hypothesis, cohort, one)
                return
        if track is None:
            unsure = [one for one in self._consumers.of(hypothesis.dataset) if one.state is not PlanState.LOCKED]
            same = [one for one in unsure if one.hypothesis == hypothesis]
            track = next(iter((*same, *(one for one in unsure if not one.given))), None)
        self._believer.adopt(hypothesis, cohort, track)

    def _lead(self, hypothesis: Hypothesis, cohort: Cohort, most: int) -> None:
        """A plan was found when its readers had ended, and others had come, or they themselves had gone on: one of so
        many epochs that follow may be read now."""
        view = cohort.view()
        for _ in range(most):
            hypothesis = successor(hypothesis)
            table = self._table(candidate_of(hypothesis))
            if table is None:
                return
            suspect = Suspect(candidate_of(hypothesis), table, SAID + math.log2(most))
            suspect.weigh(view)
            if suspect.worth >= LOCK:
                cohort.suspect([suspect], SUSPECTS_MOST)
                self._judge(cohort, view)
                return


def _begins_anew(track: Track, found: Suspect) -> bool:
    """Whether opens in another epoch of the same order lie where an epoch begins, and the track is not there."""
    first = min((min(places) for places in found.ledger.followed.values()), default=0)
    return found.candidate != candidate_of(track.hypothesis) and first <= track.k * track.hypothesis.world


def _idle(track: Track, cohort: Cohort) -> bool:
    """Whether a track's own readers do nothing while others do what it does not explain."""
    return track.hits_since(cohort.began) < _IDLE * len(cohort.opens) + 1


def _same_stream(a: Hypothesis, b: Hypothesis) -> bool:
    """All ranks read here: then the world size does not change the merged stream, but for its last places."""
    return a == b or (replace(a, world=b.world, ranks=b.ranks) == b and _whole(a) and _whole(b))


def _whole(hypothesis: Hypothesis) -> bool:
    return hypothesis.ranks == tuple(range(hypothesis.world))
