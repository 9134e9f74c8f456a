"""The search under way for the plan that unexplained opens follow, and what it found.

First an order is found, by its ledger; to whom it is dealt is then read off the opens. A certain plan is handed to
`Beliefs`. Whatever takes long is handed out as jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, same_order, same_stream, successor
from nopfsfs.plan.following.assumed import PlanHints
from nopfsfs.plan.following.beliefs import Beliefs
from nopfsfs.plan.following.continuation import Continuation, idle
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.following.missed_epochs import MissedEpochs
from nopfsfs.plan.following.order_tables import OrderTables
from nopfsfs.plan.following.recorded import beginnings
from nopfsfs.plan.following.search_budget import Budget
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import by_seed, slow_search
from nopfsfs.plan.search.candidates import SAID, Candidate, OrderHeads, Seeds, candidate_of
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import ENDED, Cohorts
from nopfsfs.plan.search.dealt_order import as_dealt
from nopfsfs.plan.search.matching import PLAUSIBLE, SUSPECTS_MOST, Search, prepare
from nopfsfs.plan.search.suspects import LOCK, SURE, OpensView, Suspect, certain
from nopfsfs.plan.search.thorough_searches import ThoroughSearches
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.plan.tracking.track import Track

# Orders that were found after their epoch, near which others are searched for.
_LATE = 4
# Epochs that may have gone by until an order is found of readers who read on.
_EPOCHS_LATE = 3
# Data sets that are searched for one cohort's opens: those that hold most of them.
_AMONG = 4
# Seeds of the last job's plans that are tried in all epochs; the plans themselves are compared with so many opens of a
# cohort, and whenever these have doubled.
_SEEDS_RECORDED, _RECORDED_OPENS = 2, 64
# Steps (`PREPARED_S`) in which what searches compare with first is computed before anything is opened.
_PREPARED_STEPS = 64


class PlanSearch:
    """The searches of one mount. Not thread-safe: everything but `BackgroundJob.run` belongs to one thread."""

    def __init__(
        self, datasets: Sequence[DataSet], cohorts: Cohorts, beliefs: Beliefs, hints: PlanHints, heads: OrderHeads,
        clock: Callable[[], float], recorded: Sequence[Hypothesis],
    ) -> None:  # fmt: skip
        """`heads`: where beginnings of orders are kept; `recorded`: the plans of the last job, likeliest first."""
        self._datasets, self._cohorts, self._beliefs, self._sampler = datasets, cohorts, beliefs, hints.sampler
        seeds = (h.spec.seed for h in recorded if registry.sampler(h.spec.sampler).seeds is not None)
        self._seeds = Seeds(hints.seed, tuple(dict.fromkeys(seeds))[:_SEEDS_RECORDED])
        self._worlds = tuple(dict.fromkeys((*hints.worlds, *((h.world, h.ranks) for h in recorded))))
        self._recorded = beginnings(recorded)
        largest = max(size for size, _ in self._worlds)
        self._tables = OrderTables(datasets, heads, largest, {candidate_of(plan) for plan in recorded[:1]})
        self.continuation = Continuation(self._tables, beliefs)
        self._budget = Budget(clock)
        self._thorough = ThoroughSearches(cohorts)
        self._missed = MissedEpochs(self._tables, cohorts, self._budget, self._proven)
        among = range(len(datasets))[:_AMONG]
        self._prepared = prepare(datasets, among, self._seeds, self._sampler, self._worlds, heads)
        self._steps_left = _PREPARED_STEPS
        self._quick_turn = False  # the last search was one for what was said
        self.hurries = False  # opens have come with which searches begin: jobs are to be asked for at once
        self._late: list[Spec] = []  # places that were found after the epoch to which they belong

    def spread(self, spacing: int) -> None:
        """Compare orders that much further from now on: only one open in so many shows."""
        self._tables.spread(spacing)
        for cohort in list(self._cohorts.cohorts):
            cohort.restart()

    def expect(self, plan: Hypothesis) -> None:
        """Compute now, for a small data set, the tables of all epochs in which a job that reads this plan may begin.
        The first opens of the job may come before a background job has made the tables."""
        for candidate in beginnings([plan]):
            self._tables.table(candidate)

    # -- opens --

    def unexplained(self, row: int, reader: int) -> None:
        """Note an open that no locked plan explains."""
        now = self._beliefs.opens
        cohort = self._cohorts.join(reader, now)
        if cohort.add(row, reader, now):
            self.hurries = self.hurries or cohort.young
            self._look(cohort)

    def _look(self, cohort: Cohort) -> None:
        """Compare a cohort's opens with the plans at hand."""
        view = cohort.view()
        for track in self._tracks(cohort):
            if track.locked and self.continuation.goes_on(track, cohort, view):
                return
        self._judge(cohort, view)

    def _tracks(self, cohort: Cohort) -> list[Track]:
        """The tracks of the data sets that a cohort reads."""
        return [track for index in cohort.datasets()[:_AMONG] for track in self._beliefs.of(index)]

    def _judge(self, cohort: Cohort, view: OpensView) -> None:
        """Confirm a plan that is assumed, or adopt one that was found, if the opens prove it."""
        suspects, believed, recorded = self._suspected(cohort, view)
        suspects += self._later(suspects, cohort, view)
        best = certain(suspects, LOCK)
        tried = best in recorded or id(best) in believed
        # while searches rest nothing nearer can be found
        may_follow = best is not None and self._budget.left and cohort.still_at(best.part)
        if best is not None and may_follow and not tried and not best.regular and best.part != SURE:
            return
        hypothesis = self._dealt(best, cohort, believed.values()) if best is not None else None
        if best is None or hypothesis is None:
            return
        self.continuation.note_others(best, suspects)
        cohort.prove(best.worth, hypothesis)
        assumed = believed.get(id(best))
        if assumed is not None and same_stream(hypothesis, assumed.hypothesis):
            self._beliefs.confirm(assumed, cohort)
        else:
            self._adopt(hypothesis, cohort, assumed)
        if any(track.locked for track in self._beliefs.of(hypothesis.dataset)):
            self._thorough.rest_ended(hypothesis.dataset, self._beliefs.opens)

    def _dealt(self, best: Suspect, cohort: Cohort, believed: Iterable[Track]) -> Hypothesis | None:
        """The part of a certain order that a cohort reads. What was said of a world's ranks yields to what was read
        off. Else a few opens more would bring back ranks that are known to read elsewhere."""
        plans = [one.hypothesis for one in self._tracks(cohort) if one.locked]
        same = (one for one in plans if same_order(one, best.candidate.hypothesis(one.world, one.ranks)))
        read = {one.world: one.ranks for one in same}
        given = [(one.hypothesis.world, one.hypothesis.ranks) for one in believed if one.given]
        return as_dealt(best, (*read.items(), *(one for one in (*given, *self._worlds) if one[0] not in read)))

    def _suspected(self, cohort: Cohort, view: OpensView) -> tuple[list[Suspect], dict[int, Track], list[Suspect]]:
        """The orders that a cohort's opens may follow, weighed by the opens of now. With them the tracks of those
        orders that are assumed, by id of the order, and the orders of the last job's record."""
        believed: dict[int, Track] = {}
        suspects: list[Suspect] = []
        for track in self._tracks(cohort):
            if not track.locked:
                found = self._tables.suspects(self._assumed(track))
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
        """The plan of a track that is not certain; unless a user said it, also in the other file orders: some begin
        alike."""
        here = track.hypothesis
        family = registry.sampler(here.spec.sampler)
        if track.given or family.by_class:
            return [here]
        orders = self._datasets[here.dataset].orders
        usual = (at for at, order in enumerate(orders) if set(family.files) & set(order.names))
        return [here, *(replace(here, order=at) for at in usual if at != here.order)]

    def undecided(self, most: int) -> list[tuple[Cohort, list[Suspect]]]:
        """The cohorts that have opened most without a plan, each with the orders that they may follow, weighed by the
        opens of now. Those whose readers have ended come last."""
        ended, there = self._cohorts.ended, (one for one in self._cohorts.cohorts if one.count)
        cohorts = sorted(there, key=lambda one: (ended(one), -one.count))[:most]
        return [(cohort, self._suspected(cohort, cohort.view())[0]) for cohort in cohorts]

    @property
    def rests_s(self) -> float:
        """Seconds for which searches rest, because they have taken their share of a core."""
        return self._budget.rests_s

    def _of_record(self, cohort: Cohort, others: Sequence[Suspect]) -> list[Suspect]:
        """The plans of the last job on this source, as far as a cohort reads these data sets and the tables are
        there."""
        if cohort.count > _RECORDED_OPENS and cohort.count & (cohort.count - 1):
            return []
        among, known = cohort.datasets()[:_AMONG], {one.candidate for one in others}
        plans = ((self._tables.kept(one), one, cost) for one, (_, cost) in self._recorded.items() if one not in known)
        return [Suspect(one, table, cost) for table, one, cost in plans if table is not None and one.dataset in among]

    def _later(self, suspects: Sequence[Suspect], cohort: Cohort, view: OpensView) -> list[Suspect]:
        """The epochs that follow those that were read lately, and are no longer."""
        known = {one.candidate for one in suspects}
        found: list[Suspect] = []
        for one in suspects:
            for _ in range(_EPOCHS_LATE if one.ledger.best - one.cost >= LOCK > one.worth else 0):
                candidate = candidate_of(successor(one.candidate.hypothesis()))
                table = None if candidate in known else self._tables.table(candidate)
                if table is None:
                    break
                known.add(candidate)
                one = Suspect(candidate, table, one.cost + 1)
                one.weigh(view)
                found.append(one)
        cohort.suspect([one for one in found if one.worth >= PLAUSIBLE], SUSPECTS_MOST)
        return found

    # -- jobs --

    def jobs(self) -> Iterator[BackgroundJob]:
        """The next computation for another thread, if any."""
        self.hurries = False
        self._tables.no_job_runs()
        yield from self._missed.jobs()
        yield from self._search_job()
        yield from self._tables.job((*self._expected(), *self._recorded))

    def prepare_jobs(self) -> Iterator[BackgroundJob]:
        """The next of those that make searches quick, before anything is opened."""
        if self._steps_left:
            self._steps_left -= 1
            yield BackgroundJob(partial(next, self._prepared, None), lambda _: None)

    def _expected(self) -> list[Candidate]:
        """The orders that may come next."""
        return [
            candidate_of(hypothesis)
            for track in self._beliefs.tracks() if track.agreement.state is not PlanState.MISMATCH
            for hypothesis in (track.hypothesis, *track.alternatives(), *self.continuation.instead(track.hypothesis))
        ]  # fmt: skip

    def _search_job(self) -> Iterator[BackgroundJob]:
        quick = self._quick()
        # Both kinds take turns: where each epoch has new readers, a search for what was said is always due.
        may_wait = self._quick_turn and self._budget.left and quick is not None and self._thorough.has_others(quick[0])
        self._quick_turn = quick is not None and not may_wait
        if quick is not None and not may_wait:
            yield self._searching(*quick)
        if not self._budget.left:
            return
        due = self._thorough.due() if quick is None else None  # everything comes after what was said
        if due is not None:
            self._thorough.begin(due, self._search(due))
        running = self._thorough.next()
        if running is not None:
            yield self._searching(*running)

    def _quick(self) -> tuple[Cohort, Search] | None:
        """The search for what was said that goes on now, that of the newest cohort first."""
        for cohort in reversed(self._cohorts.cohorts):
            with_all = self._begins_with_all(cohort)
            if with_all and (cohort.quick is None or cohort.quick.past_likely or cohort.grown):
                cohort.leave_said()  # the search of all begins with what was said
                continue
            beside = cohort.full is not None and self._budget.left
            if cohort.quick is None and cohort.quick_due(beside=beside):
                cohort.try_said(self._search(cohort, first_only=True))
            if cohort.quick is not None:
                return cohort, cohort.quick
        return None

    def _begins_with_all(self, cohort: Cohort) -> bool:
        """True: everything is tried for a cohort as soon as nothing else is."""
        return cohort.count >= cohort.full_from and self._thorough.may_begin(cohort) and self._budget.left

    def _search(self, cohort: Cohort, *, first_only: bool = False) -> Search:
        among = cohort.datasets()[:_AMONG]
        heads = self._tables.heads
        return Search(self._datasets, among, self._seeds, self._sampler, self._worlds, heads, first_only=first_only)

    def _searching(self, cohort: Cohort, search: Search) -> BackgroundJob:
        """Go on with a search, over the opens of now."""
        view, among, era = cohort.view(), cohort.datasets()[:_AMONG], cohort.era

        def run() -> tuple[list[Suspect], float]:
            begun = time.thread_time()
            found = search.run(view, among)
            return found, time.thread_time() - begun

        def deliver(result: tuple[list[Suspect], float]) -> None:
            found, seconds = result
            self._budget.spend(seconds)
            sure = max((one for one in found if one.worth >= LOCK), key=lambda one: one.worth, default=None)
            if cohort.era != era or cohort not in self._cohorts.cohorts:
                return
            cohort.suspect(found, SUSPECTS_MOST)
            tried = search.done or (search.past_likely and not cohort.despaired)
            if tried:
                cohort.likely_tried()
            if search.past_streams and self._thorough.first is cohort:
                cohort.ask_for_long()
            if search.done:
                cohort.tried(search)
            if search.done or any(one.worth >= LOCK for one in cohort.suspects):
                self._judge(cohort, cohort.view())
            if sure is not None and sure.worth < LOCK and cohort.era == era:  # readers have gone on to another epoch
                self._lead(sure.candidate.hypothesis(), cohort)
            if tried and cohort.despaired and cohort.era == era:
                self._beliefs.give_up_search(cohort)

        return BackgroundJob(run, deliver)

    def apart_job(self) -> BackgroundJob | None:
        """A computation that takes up to minutes, for a cohort that nothing else explains."""
        for cohort in reversed(self._cohorts.cohorts):
            if not cohort.long_due():
                continue
            believed = (track.hypothesis.spec for track in self._beliefs.tracks() if track.agreement.was_locked)
            known = [*dict.fromkeys((*self._late, *believed))]
            among = cohort.datasets()[:_AMONG]
            work = slow_search.task(self._datasets, among, cohort, self._seeds, self._sampler, known)
            if work is None:
                continue
            era = cohort.era

            def wanted(cohort: Cohort = cohort, among: Sequence[int] = among) -> bool:
                followed = any(track.locked for index in among for track in self._beliefs.of(index))
                return not followed or (cohort in self._cohorts.cohorts and cohort.long_enough)

            def deliver(found: tuple[Hypothesis, int] | None, cohort: Cohort = cohort, era: int = era) -> None:
                if found is None:
                    return
                if cohort.era == era and cohort in self._cohorts.cohorts:
                    self._found_apart(*found, cohort)
                else:
                    self._found_late(found[0].spec, self._cohorts.cohorts)

            return BackgroundJob(partial(slow_search.find, work), deliver, wanted=wanted)
        return None

    def _found_apart(self, hypothesis: Hypothesis, of: int, cohort: Cohort) -> None:
        """Take a plan that some of the opens led to: it must explain all of a reader's."""
        candidate = candidate_of(hypothesis)
        view = cohort.view()
        suspect = Suspect(candidate, self._tables.compute(candidate), math.log2(max(of, 2)))
        suspect.weigh(view)
        cohort.suspect([suspect], SUSPECTS_MOST)
        cohort.settle()
        self._judge(cohort, view)

    def _found_late(self, spec: Spec, cohorts: Iterable[Cohort]) -> None:
        """Note an order that was found after its epoch, and search near it in the stream for these cohorts."""
        self._late = [spec, *self._late][:_LATE]
        for cohort in cohorts:
            cohort.ask_for_long(anyhow=True)

    def _adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None) -> None:
        """Have a certain plan followed. A track of the same data set that is not locked gives way."""
        for one in self._tracks(cohort):
            hypothesis = by_seed.renamed(hypothesis, one.hypothesis)
        newer = [one for one in self._cohorts.cohorts if one.began > cohort.last]
        if newer or any(one.locked and one.agreement.last_hit > cohort.last + ENDED for one in self._tracks(cohort)):
            self._cohorts.drop(cohort)
            self._found_late(hypothesis.spec, newer if hypothesis.spec.number("offset") > 0 else ())
            self._missed.look_for(newer, hypothesis)
            return
        if self._cohorts.ended(cohort):  # the last of its readers were still there when the next ones came
            self._missed.look_for([one for one in self._cohorts.cohorts if one.began > cohort.began], hypothesis)
        for one in self._tracks(cohort):
            here = one.hypothesis
            if one.locked and here != hypothesis and same_order(here, hypothesis):
                if here.world == hypothesis.world:
                    hypothesis = replace(hypothesis, ranks=tuple(sorted({*here.ranks, *hypothesis.ranks})))
                elif not idle(one, cohort):
                    continue  # another job with the same seed
                self._beliefs.adopt(hypothesis, cohort, one)
                return
        if track is None:
            unsure = [one for one in self._beliefs.of(hypothesis.dataset) if not one.locked]
            same = [one for one in unsure if one.hypothesis == hypothesis]
            track = next(iter((*same, *(one for one in unsure if not one.given))), None)
        self._beliefs.adopt(hypothesis, cohort, track)

    def _lead(self, hypothesis: Hypothesis, cohort: Cohort) -> None:
        """Look whether a cohort reads one of the next epochs of a plan that was found when it had gone on."""
        view = cohort.view()
        for _ in range(_EPOCHS_LATE):
            hypothesis = successor(hypothesis)
            table = self._tables.table(candidate_of(hypothesis))
            if table is None:
                return
            suspect = Suspect(candidate_of(hypothesis), table, SAID + math.log2(_EPOCHS_LATE), part=SURE)
            suspect.weigh(view)
            if suspect.worth >= LOCK:
                self._proven(suspect, cohort)
                return

    def _proven(self, suspect: Suspect, cohort: Cohort) -> None:
        """Take an order that a cohort's opens prove."""
        cohort.suspect([suspect], SUSPECTS_MOST)
        self._judge(cohort, cohort.view())
