"""The plan of a whole mount: opens in, the access stream and jobs out.

`Beliefs` has the plans, `PlanSearch` finds them; `Follower` shows them the opens, hands out the stream and answers the
questions of others. Never computes for long in `observe`: that is handed out as jobs, to be run in another thread. The
rules are described in docs/plan.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, EpochOrder, FileOrder
from nopfsfs.plan.following import explaining
from nopfsfs.plan.following.assumed import PlanHints
from nopfsfs.plan.following.beliefs import Beliefs
from nopfsfs.plan.following.follower_output import BackgroundJob, PlanStatus, describe
from nopfsfs.plan.following.future_epochs import FutureEpochs
from nopfsfs.plan.following.identifier import PlanSearch
from nopfsfs.plan.following.reader_binding import ReaderBinding
from nopfsfs.plan.following.recorded import RecordedPlan, last_plans, recorded
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.search.candidates import OrderHeads
from nopfsfs.plan.search.cohorts import Cohorts
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.search.suspects import LOCK
from nopfsfs.plan.tracking.access_stream import AccessStream
from nopfsfs.plan.tracking.agreement import ACTIVE, PlanState
from nopfsfs.plan.tracking.track import OpenVerdict, Track
from nopfsfs.plan.tracking.unread import Unread
from nopfsfs.plan.visible_opens import VisibleOpens

# Unexplained opens of readers that came together, fewer than which are strays.
_PUZZLING = 4


class Follower:
    """The plan of one mount. Not thread-safe: everything but `BackgroundJob.run` belongs to one thread."""

    def __init__(
        self,
        datasets: Sequence[DataSet],
        seed: int | None,
        sampler: str = registry.AUTO,
        worlds: Sequence[World] = ((1, (0,)),),
        inflight: int | None = None,
        heads: OrderHeads | None = None,
        showing: VisibleOpens | None = None,
        clock: Callable[[], float] = time.monotonic,
        record: Sequence[RecordedPlan] = (),
    ) -> None:
        """`datasets` and `worlds` (world size, ranks that read here): likeliest first. `seed` None: common ones are
        tried, and nothing is foreseen before one fits. `inflight`: workers x prefetch x batch + batch, where known.
        `heads`: where beginnings of orders are kept. `showing`: whose opens show, if not all do. `record`: what the
        last job on this source read, likeliest first. Raises ValueError: unknown sampler, ranks that do not fit their
        world, no world."""
        self._hints = PlanHints(seed, sampler, tuple((size, tuple(ranks)) for size, ranks in worlds), inflight)
        self._datasets = [one for one in datasets if any(len(order.rows) for order in one.orders)]
        # opens, and the predicted ones: an open that shows counts for as many opens as it stands for
        self.stood_for = self.predicted_for = 0.0
        last = last_plans(record, self._datasets, {family.name for family in self._hints.families})
        self._ownership = RowOwners(self._datasets)
        self._cohorts = Cohorts(self._ownership)
        self._binding = ReaderBinding(self._ownership, len(self._datasets))
        self._beliefs = Beliefs(self._datasets, self._cohorts, self._binding, self._hints, showing, last)
        self._search = PlanSearch(
            self._datasets, self._cohorts, self._beliefs, self._hints, heads or OrderHeads(), clock,
            [one.hypothesis for one in last],
        )  # fmt: skip
        if showing is not None:
            self._search.spread(showing.spacing)
        if last:
            self._search.expect(last[0].hypothesis)
        self._job: BackgroundJob | None = None
        self._apart: BackgroundJob | None = None
        self._stream = AccessStream()
        self._future = FutureEpochs()
        self._settle()

    # -- opens --

    def observe(
        self, rows: NDArray[np.integer[Any]], readers: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.uint8]:
        """Take opens (rows, integer[m]) in order, and who opened (process or thread ids, integer[m]); uint8[m]: 1
        where the open was predicted when it came.

        Never computes for long, but for the order of an epoch that begins sooner than `work` was called for
        it.
        """
        out = bytearray(len(rows))
        whose = readers.tolist() if readers is not None else [0] * len(rows)
        owner, serving, beliefs = self._ownership.of, self._binding.serving, self._beliefs
        known, each = len(owner), self._stands_for
        self.stood_for += each * len(rows)
        for i, row in enumerate(rows.tolist()):
            beliefs.opens += 1
            who = owner[row] if 0 <= row < known else -1
            if who < 0:
                continue
            tracks, reader = serving[who], whose[i]
            track = tracks[0] if len(tracks) == 1 else beliefs.track_for(who, row, reader)
            if track is None:
                self._unexplained(row, reader)
                continue
            verdict = track.observe(row, reader)
            if verdict is OpenVerdict.FORESEEN:
                own, state = beliefs.foreseen(track, reader), track.agreement.state
                if state is not PlanState.MISMATCH:
                    out[i] = 1
                    if each != 1.0:
                        self.stood_for += track.stands_for - each
                        self.predicted_for += track.stands_for - 1.0
                if state is PlanState.LOCKED:
                    self._look_at(track)
                    if own and self._cohorts:
                        self._cohorts.forgive(reader)
                    continue
            self._doubtful(track, row, reader, verdict)
        self.predicted_for += out.count(1)
        self._settle()
        return np.frombuffer(out, dtype=np.uint8)

    @property
    def opens(self) -> int:
        """The mount's count of opens."""
        return self._beliefs.opens

    @property
    def epoch_key(self) -> tuple[int, ...]:
        """Changes when the plan that `status` shows goes on to another epoch, or is another plan; (): there is none."""
        track = self._beliefs.primary
        return () if track is None else (id(track), *track.epoch_key)

    @property
    def epoch_opens(self) -> float:
        """Opens of the epoch that `status` shows, as far as they followed the plan; an estimate where few show."""
        track = self._beliefs.primary
        return track.places.opens() if track is not None else 0.0

    @property
    def _stands_for(self) -> float:
        """The number of opens that each open that shows stands for, on average over all files."""
        showing = self._beliefs.showing
        return showing.apart if showing is not None else 1.0

    def _look_at(self, track: Track) -> None:
        """Compare the epoch of a locked plan with others, and look to whom it is dealt, when it is time to."""
        if not track.verified and track.to_be_verified:
            self._search.continuation.verify(track)
        if track.to_be_redealt:
            found = self._search.continuation.redeal(track)
            if found is not None:
                self._beliefs.redeal(track, found)

    def _doubtful(self, track: Track, row: int, reader: int, verdict: OpenVerdict) -> None:
        """An open that a track did not foresee, or whose plan is not locked."""
        beliefs, against = self._beliefs, verdict is OpenVerdict.AGAINST
        if not track.locked:
            if beliefs.revive(track, reader):
                return
            self._unexplained(row, reader)
            if against:
                beliefs.doubt(track)
        elif against:
            own = self._binding.contradicted(track, reader)
            self._unexplained(row, reader)
            if own:
                beliefs.contradicted(track)

    def _unexplained(self, row: int, reader: int) -> None:
        self._beliefs.read_on(row)
        self._search.unexplained(row, reader)

    def _settle(self) -> None:
        self._stream.settle(self._beliefs.streams(), self.opens)

    # -- what others say --

    def register(self, plans: Sequence[tuple[EpochOrder, int | None]], *, replace_said: bool = True) -> None:
        """Follow plans that a user has said (tables, K where known) from now on; opens have to confirm them.

        These plans take the place of those that were said before of the same files, unless `replace_said` is False. A
        plan that is said again goes on as it is.
        """
        self._beliefs.register(plans, replace_said=replace_said)
        self._settle()

    def forget(self) -> None:
        """Drop the plans that users have said; what is read is searched for again."""
        self._beliefs.forget()
        self._settle()

    def show_only(self, showing: VisibleOpens) -> None:
        """Expect only the opens of these rows from now on, and no closes."""
        self._search.spread(showing.spacing)
        self._beliefs.show_only(showing)
        self._settle()

    def without_closes(self) -> None:
        """Expect all opens, but no closes. Called before the first open."""
        self._beliefs.without_closes()

    def show_all(self) -> None:
        """Expect all opens again from now on."""
        self._search.spread(1)
        self._beliefs.show_all()
        self._settle()

    def add_order(self, dataset: int, order: FileOrder) -> int:
        """Add an enumeration of a data set's files. Return its index, an old one if the enumeration is there already.
        Another enumeration of the data set must hold all of these files."""
        orders = self._datasets[dataset].orders
        for at, one in enumerate(orders):
            if one.rows is order.rows or np.array_equal(one.rows, order.rows):
                return at
        self._datasets[dataset] = replace(self._datasets[dataset], orders=(*orders, order))
        return len(orders)

    @property
    def datasets(self) -> Sequence[DataSet]:
        """The data sets that a hypothesis refers to."""
        return self._datasets

    # -- work for another thread --

    def work(self) -> BackgroundJob | None:
        """The next computation to run elsewhere (then `finish` it), or None. One at a time."""
        if self._job is None:
            self._job = next(self._jobs(), None)
            return self._job
        return None

    @property
    def hurries(self) -> bool:
        """True: opens have come with which searches begin; call `work` at once."""
        return self._search.hurries

    def _jobs(self) -> Iterator[BackgroundJob]:
        yield from self._beliefs.jobs()
        yield from self._search.jobs()
        if not self.opens:
            yield from self._search.prepare_jobs()

    def work_apart(self) -> BackgroundJob | None:
        """The next computation that takes up to minutes, as `work`; it may run beside the others."""
        if self._apart is None:
            self._apart = self._search.apart_job()
            return self._apart
        return None

    def work_far(self) -> BackgroundJob | None:
        """The next computation of use in later epochs, or None: there is always time for it. To be run, then
        delivered."""
        return self._future.job(self._beliefs.tracks(), self._datasets)

    def finish(self, job: BackgroundJob) -> None:
        """Take over what a job has computed; a job that failed is forgotten."""
        if job is self._apart:
            self._apart = None
        elif job is self._job:
            self._job = None
        else:
            return
        job.deliver()
        self._settle()

    def settle(self, *, apart: bool = False) -> None:
        """Run all work in this thread, that which takes minutes only if `apart`: for tests and tools."""
        while (job := self.work() or (self.work_apart() if apart else None)) is not None:
            job.run()
            self.finish(job)

    # -- the stream --

    @property
    def generation(self) -> int:
        """Changes when the stream foretold before no longer holds."""
        return self._stream.generation

    @property
    def position(self) -> int:
        """Stream position of the first access that is still to come; never decreases."""
        return self._stream.position

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at the stream positions start .. start+count-1 of what is read now, readers and local ranks
        interleaved, int64[<= count]. Ends where the next epoch does, or where it is not computed yet; empty
        when nothing is foreseen; -1 for positions gone by. Holds until `generation` changes."""
        return self._stream.upcoming(start, count)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first stream position still to come at which each of these rows is read, int64[m]; -1 where none is
        known. Holds as `upcoming` does, until the position has passed it. Where every epoch reads another part of the
        files, further epochs are looked at; of these the place within the epoch is a guess."""
        return self._future.next_uses(rows, self._stream.next_uses(rows), self.position, self._beliefs.streams())

    @property
    def knows_future(self) -> bool:
        """True: every epoch reads another part of the files, and more epochs are known than the next."""
        return self._future.known

    @property
    def horizon(self) -> int:
        """Positions in one epoch of all that is read now."""
        return sum(one.length if isinstance(one, Unread) else one.places.now.length for one in self._beliefs.streams())

    @property
    def steady(self) -> bool:
        """True: all that is read now follows plans that have held for a while. Also, nothing whose order is not known
        is read in turn with it."""
        streams = self._beliefs.streams()
        held = bool(streams) and all(isinstance(one, Track) and one.steady for one in streams)
        return held and not self._beliefs.unknown_lately

    @property
    def shortest_part(self) -> int:
        """Files that one rank reads in an epoch, the fewest of all ranks that read now; 0: no plan is followed."""
        tracks = [one for one in self._beliefs.streams() if isinstance(one, Track)]
        return min((track.places.now.length // track.places.lanes for track in tracks), default=0)

    @property
    def puzzled(self) -> bool:
        """True: somebody opens what no plan explains."""
        since = self.opens - ACTIVE
        return any(len(cohort) >= _PUZZLING and cohort.last > since for cohort in self._cohorts.cohorts)

    # -- what is followed --

    def status(self) -> PlanStatus:
        """The plan of the data set that is read."""
        track, mismatch, seed = self._beliefs.primary, self._beliefs.mismatch, self._hints.seed
        contradicted = track is not None and track.agreement.state is PlanState.MISMATCH
        unread_now = any(isinstance(one, Unread) for one in self._beliefs.streams())
        if track is not None and not (mismatch is not None and (contradicted or unread_now)):
            return describe(track, self._datasets, seed)
        if mismatch is None:
            return PlanStatus(PlanState.WATCHING.value if self._datasets else PlanState.NONE.value, seed=seed)
        state = PlanState.MISMATCH if contradicted or seed is not None else PlanState.UNKNOWN
        unread = self._beliefs.unread.get(mismatch)
        length = unread.length if unread is not None else 0
        return PlanStatus(state.value, None, seed, length=length, dataset=self._datasets[mismatch].name)

    def believed(self) -> list[Track]:
        """The plans that are followed: found, said or assumed, and not contradicted."""
        return [
            track for track in self._beliefs.tracks() if track.locked
            or (track.agreement.state is PlanState.WATCHING and not track.agreement.was_locked)
        ]  # fmt: skip

    def to_record(self) -> list[RecordedPlan]:
        """The plans that are followed and certain, those of the data set with most opens first. Of each data set the
        plan that was read last comes first. Readers of the others may have ended."""
        locked = [track for track in self._beliefs.tracks() if track.locked]
        opens: Counter[int] = Counter()
        for track in locked:
            opens[track.hypothesis.dataset] += track.agreement.hits
        locked.sort(key=lambda one: (-opens[one.hypothesis.dataset], -one.agreement.last_hit))
        found = [recorded(track, self._datasets) for track in locked]
        return [plan for plan in found if plan is not None]

    def plans(self, count: int) -> list[tuple[PlanStatus, NDArray[np.int64]]]:
        """All that is followed, what is read now first, each with the rows that come next in it, int64[<= count]."""
        return [
            (describe(track, self._datasets, self._hints.seed), track.upcoming(track.position, count))
            for track in self._by_use()
        ]

    def explain(self) -> explaining.Explanation:
        """The facts about the plans: what is known, what is missing, and how what was said was judged."""
        tracks, hints = self._by_use(), self._hints
        found = (
            explaining.group(cohort, suspects, self._datasets, unread=bool(self._beliefs.unread))
            for cohort, suspects in self._search.undecided(explaining.GROUPS_MOST)
        )
        return explaining.Explanation(
            state=self.status().state,
            opens=self.opens,
            needed=LOCK,
            plans=tuple(explaining.known(track, self._datasets, hints.seed, hints.worlds) for track in tracks),
            groups=tuple(one for one in found if one is not None),
            said=explaining.judge(tracks, hints.seed, hints.sampler, hints.worlds),
            rests_s=round(self._search.rests_s, 1),
            long_search=self._apart is not None,
        )

    def _by_use(self) -> list[Track]:
        """The tracks, what is read now first."""
        primary = self._beliefs.primary
        return sorted(self._beliefs.tracks(), key=lambda one: (one is not primary, -one.agreement.last_hit))
