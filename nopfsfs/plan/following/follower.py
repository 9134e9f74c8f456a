"""The plan of a whole mount: what is believed to be read, confirmed or refuted by what is opened.

Owns what is believed of each data set in use, and the stream that is handed out. Never computes for long in
`observe`: that is handed out as jobs, to be run in another thread. The rules are described in docs/plan.md.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, EpochOrder, FileOrder, Hypothesis, build, same_order
from nopfsfs.plan.following import explaining
from nopfsfs.plan.following.follower_output import BackgroundJob, PlanStatus, describe
from nopfsfs.plan.following.future_epochs import FutureEpochs
from nopfsfs.plan.following.identifier import INLINE, PlanSearch
from nopfsfs.plan.following.reader_binding import ReaderBinding
from nopfsfs.plan.following.recorded import LastPlan, RecordedPlan, begun_anew, last_plans, recorded
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, Spec
from nopfsfs.plan.search.candidates import OrderHeads
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.evidence import elsewhere
from nopfsfs.plan.search.suspects import LOCK
from nopfsfs.plan.search.unexplained_opens import Cohort, Open, RowOwners
from nopfsfs.plan.tracking.access_stream import AccessStream
from nopfsfs.plan.tracking.track import OpenVerdict, PlanState, Track
from nopfsfs.plan.tracking.unread import Unread
from nopfsfs.plan.visible_opens import VisibleOpens

# Opens in a row of another track after which that is the one that status shows.
_PRIMARY_RUN = 8
# Samples in a batch of one process, where nobody has said it: the default of transformers.
_USUAL_BATCH = 8
# Readers that had a hit among so many last opens are foreseen together.
_ACTIVE = 512
# Unexplained opens of readers that came together, fewer than which are strays.
_PUZZLING = 4
# Unexplained opens from which on a plan that is only assumed must foresee some.
_TELLING = 32
# Opens that are repeated for a plan once it is certain: more than loaders hold.
_BEGUN_WITH = 4096


class Follower:
    """See the module. Not thread-safe: everything but `BackgroundJob.run` belongs to one thread."""

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
        self._families = registry.families(sampler)
        for size, ranks in worlds:
            if size < 1 or not ranks or not all(0 <= rank < size for rank in ranks):
                raise ValueError(f"ranks {list(ranks)} do not fit a world of {size}")
        self._datasets = [one for one in datasets if any(len(order.rows) for order in one.orders)]
        self._worlds = tuple((size, tuple(ranks)) for size, ranks in worlds)
        self._seed, self._sampler = seed, sampler
        self._inflight = inflight
        self._showing = showing
        self._closes = showing is None
        self.opens = 0
        self.predicted = 0
        self.stood_for = self.predicted_for = 0.0  # the same, each open taken for as many as it is told of
        last = last_plans(record, self._datasets, {family.name for family in self._families})
        lately = [one.hypothesis for one in last]
        ownership = RowOwners(self._datasets)
        self._ownership = ownership
        self._consumers = ReaderBinding(ownership, len(self._datasets))
        self._identifier = PlanSearch(
            self._datasets, ownership, self._consumers, self, seed, sampler,
            tuple(dict.fromkeys((*self._worlds, *((h.world, h.ranks) for h in lately)))),
            heads or OrderHeads(), clock, lately,
        )  # fmt: skip
        if showing is not None:
            self._identifier.spread(showing.spacing)
        self._unread: dict[int, Unread] = {}
        self._primary: Track | None = None
        self._mismatch: int | None = None  # the data set that is read in an order that is not known
        self._run = 0  # opens in a row of another track than the primary
        self._job: BackgroundJob | None = None
        self._apart: BackgroundJob | None = None
        self._moving: dict[int, tuple[Hypothesis, Cohort | None]] = {}  # by id of the track
        self._outlook = AccessStream()
        self._far = FutureEpochs()
        self._guess: Track | None = None  # assumed because the last job read it
        known = seed is not None or (sampler != registry.AUTO and self._families[0].seeds is None)
        if not self._assume_last_job(last) and known and self._datasets:
            self._primary = self._assume(0)
        self._settle()

    # -- opens --

    def observe(
        self, rows: NDArray[np.integer[Any]], readers: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.uint8]:
        """Takes opens (rows, integer[m]) in order, and who opened (process or thread ids, integer[m]); uint8[m]: 1
        where the open was predicted when it came.

        Never computes for long, but for the order of an epoch that begins sooner than `work` was called for
        it.
        """
        out = bytearray(len(rows))
        whose = readers.tolist() if readers is not None else [0] * len(rows)
        owner = self._ownership.of
        known, serving = len(owner), self._consumers.serving
        each = self._tells_of
        self.stood_for += each * len(rows)
        for i, row in enumerate(rows.tolist()):
            self.opens += 1
            who = owner[row] if 0 <= row < known else -1
            if who < 0:
                continue
            tracks, reader = serving[who], whose[i]
            if len(tracks) == 1:
                track = tracks[0]
            elif tracks:
                track = self._consumers.choose(tracks, row, reader)
            else:
                assumed = self._assume_more(who)
                if assumed is None:
                    self._unknown(row, reader)
                    continue
                track = assumed
            seen = track.observe(row, reader)
            if seen is OpenVerdict.FORESEEN:
                track.hit(self.opens)
                own = self._consumers.foreseen(track, reader)
                if track.state is not PlanState.MISMATCH:
                    out[i] = 1
                    if each != 1.0:
                        self.stood_for += track.stands_for - each
                        self.predicted_for += track.stands_for - 1.0
                if track is self._primary:
                    self._run = 0
                else:
                    self._elsewhere(track)
                if track.state is PlanState.LOCKED:
                    if not track.verified and track.to_be_verified:
                        self._identifier.verify(track)
                    if track.to_be_redealt:
                        self._redeal(track)
                    if own and self._identifier.trail:
                        self._forgive(track, reader)
                    continue
            if track.state is not PlanState.LOCKED:
                self._unconfirmed(track, row, reader, seen)
            elif seen is OpenVerdict.AGAINST:
                self._contradicted(track, row, reader)
        self.predicted += out.count(1)
        self.predicted_for += out.count(1)
        self._settle()
        return np.frombuffer(out, dtype=np.uint8)

    @property
    def _tells_of(self) -> float:
        """Of how many opens one that is told is told, on average over all files."""
        return self._showing.apart if self._showing is not None else 1.0

    def _elsewhere(self, track: Track) -> None:
        self._run += 1
        if self._run >= _PRIMARY_RUN or self._primary is None:
            self._primary = track
            self._run = 0

    def _forgive(self, track: Track, reader: int) -> None:
        cohort = self._identifier.trail.of(reader)
        if cohort is not None:
            cohort.forgive()
            if not cohort.opens:
                self._identifier.trail.drop(cohort)

    def _unknown(self, row: int, reader: int) -> None:
        for unread in self._unread.values():
            self._read_on(unread, row)
        self._identifier.unexplained(row, reader, self.opens)

    def _read_on(self, unread: Unread, row: int) -> None:
        """Without a plan, a new epoch shows in that files are opened again: then the search begins anew."""
        rows = unread.observe(row)
        if rows:
            for cohort in self._identifier.trail.cohorts:
                if cohort.despaired:
                    lately = list(itertools.islice(reversed(cohort.opens), 4 * len(rows)))[::-1]
                    cohort.restart([one for one in lately if one[0] in rows])

    def _unconfirmed(self, track: Track, row: int, reader: int, seen: OpenVerdict) -> None:
        """An open in a data set whose plan is assumed, or was given up."""
        if track.revived:
            cohort = self._identifier.trail.of(reader)
            self._lock(track, cohort)
            return
        self._unknown(row, reader)
        if track is self._guess and seen is OpenVerdict.AGAINST and not track.was_locked:
            self._doubt(track)

    def _contradicted(self, track: Track, row: int, reader: int) -> None:
        """An open that a confirmed plan speaks against, by one of its readers or by another."""
        own = self._consumers.contradicted(track, reader)
        self._unknown(row, reader)
        if own and track.state is PlanState.LOCKED:
            track.against += 1
            if track.lost and id(track) not in self._moving:
                track.give_up(PlanState.WATCHING)

    # -- changes of belief --

    def _assume_more(self, index: int) -> Track | None:
        """A plan for a data set that is read besides others."""
        believed = any(track.was_locked for track in self._consumers.tracks())
        return self._assume(index) if believed or self._seed is not None else None

    def _assume(self, index: int) -> Track:
        """A plan for a data set of which nothing is known yet, so that staging can begin."""
        size, ranks = self._worlds[0]
        family = self._families[0]
        spec = next(iter(family.variants(self._seed or 0)), Spec(family.name, self._seed or 0))
        believed = [track for track in self._consumers.tracks() if track.was_locked]
        if believed:
            # what is read besides the training files is validation: in order, dealt out where training is
            near = believed[0].hypothesis
            dealt = near.world > 1
            spec = Spec("distributed", options=(("sequential", 1),)) if dealt else Spec("sequential")
            size, ranks = (near.world, near.ranks) if dealt else (1, (0,))
        elif registry.sampler(spec.sampler).dealt is Dealt.ALL:
            size, ranks = 1, (0,)
        elif registry.sampler(spec.sampler).dealt is Dealt.BATCHES:
            spec = spec.with_option("batch", _USUAL_BATCH)
        orders = self._datasets[index].orders
        names = registry.sampler(spec.sampler).files
        if believed:
            same = self._datasets[near.dataset].orders[near.order].names
            names = (*(name for name in same if name in names), *names)
        order = next((at for name in names for at, one in enumerate(orders) if name in one.names), 0)
        hypothesis = Hypothesis(index, order, spec, 0, size, ranks)
        try:
            tables = build(hypothesis, self._datasets)
        except ValueError:  # the sampler needs options that nobody has said
            tables = build(replace(hypothesis, spec=Spec("sequential"), world=1, ranks=(0,)), self._datasets)
        track = Track(tables, self._make, self._inflight, self._showing, closes=self._closes)
        self._consumers.enter(track)
        return track

    def _assume_last_job(self, last: Sequence[LastPlan]) -> bool:
        """Assumes that the likeliest plan of the last job begins anew, unless something else was said."""
        likeliest = begun_anew(last, self._seed, self._worlds)
        if likeliest is None:
            return False
        try:
            order = build(likeliest.hypothesis, self._datasets)
        except ValueError:  # the framework would refuse it with the files, or the world, of now
            return False
        self._primary = self._guess = Track(order, self._make, self._inflight, self._showing, closes=self._closes)
        self._guess.widen(likeliest.inflight or 0)
        self._consumers.enter(self._guess)
        return True

    def _doubt(self, guess: Track) -> None:
        """An open speaks against what is assumed because the last job read it."""
        guess.against += 1
        if guess.lost:
            self._drop_guess()

    def _drop_guess(self) -> None:
        """Goes on as if there were no record."""
        for tracks in self._consumers.serving:
            tracks[:] = [track for track in tracks if track is not self._guess]
        if self._primary is self._guess:
            self._primary = next(iter(self._consumers.tracks()), None)
        self._guess = None

    def to_record(self) -> list[RecordedPlan]:
        """What is followed now and certain, what was read most first."""
        tracks = [track for track in self._consumers.tracks() if track.state is PlanState.LOCKED]
        found = [recorded(track, self._datasets) for track in sorted(tracks, key=lambda track: -track.hits)]
        return [plan for plan in found if plan is not None]

    def register(self, plans: Sequence[tuple[EpochOrder, int | None]], *, replace_said: bool = True) -> None:
        """Plans that a user has said (tables, K where known): followed from now on, believed once opens confirm them.

        They take the place of those that were said before of the same files (unless `replace_said` is False); what is
        said again goes on as it is.
        """
        said = {_files_said(order.hypothesis) for order, _ in plans} if replace_said else set()
        again = {order.hypothesis for order, _ in plans}
        for tracks in self._consumers.serving:
            tracks[:] = [track for track in tracks if not _replaced(track, said, again)]
        for order, inflight in reversed(plans):
            if any(track.given and track.said == order.hypothesis for track in self._consumers.tracks()):
                continue
            track = Track(order, self._make, inflight or self._inflight, self._showing, closes=self._closes)
            track.given, track.said = True, order.hypothesis
            self._consumers.enter(track)
            if self._primary is None or not self._primary.was_locked:
                self._primary = track
        if self._primary not in self._consumers.tracks():
            self._primary = next(iter(self._consumers.tracks()), None)
        self._settle()

    def show_only(self, showing: VisibleOpens) -> None:
        """From now on only the opens of these rows are told, and no closes."""
        self._showing = showing
        self._closes = False
        self._identifier.spread(showing.spacing)
        for track in self._consumers.tracks():
            track.show_only(showing)
        self._settle()

    def without_closes(self) -> None:
        """All opens are told, but not when files have been read. Before anything is."""
        self._closes = False
        for track in self._consumers.tracks():
            track.without_closes()

    def show_all(self) -> None:
        """From now on all opens are told again."""
        self._showing = None
        self._identifier.spread(1)
        for track in self._consumers.tracks():
            track.show_all()
        self._settle()

    @property
    def puzzled(self) -> bool:
        """Whether somebody opens what no plan explains."""
        since = self.opens - _ACTIVE
        return any(len(cohort) >= _PUZZLING and cohort.last > since for cohort in self._identifier.trail.cohorts)

    def believed(self) -> list[Track]:
        """What is followed: found, said or assumed, and not contradicted."""
        return [
            track for track in self._consumers.tracks()
            if track.state is PlanState.LOCKED or (track.state is PlanState.WATCHING and not track.was_locked)
        ]  # fmt: skip

    @property
    def steady(self) -> bool:
        """All that is read now follows plans that have held for a while."""
        streams = self._streams()
        return bool(streams) and all(isinstance(one, Track) and one.steady for one in streams)

    @property
    def shortest_part(self) -> int:
        """Files that one rank reads in an epoch, the fewest of all ranks that read now; 0: no plan is followed."""
        tracks = [one for one in self._streams() if isinstance(one, Track)]
        return min((track.now.length // track.lanes for track in tracks), default=0)

    def add_order(self, dataset: int, order: FileOrder) -> int:
        """A further enumeration of a data set's files, all of which one of its others must hold; its index, an old one
        if it is there already."""
        orders = self._datasets[dataset].orders
        for at, one in enumerate(orders):
            if one.rows is order.rows or np.array_equal(one.rows, order.rows):
                return at
        self._datasets[dataset] = replace(self._datasets[dataset], orders=(*orders, order))
        return len(orders)

    @property
    def datasets(self) -> Sequence[DataSet]:
        """Those that a hypothesis refers to."""
        return self._datasets

    def forget(self) -> None:
        """Drops the plans that users have said; what is read is searched for again."""
        for tracks in self._consumers.serving:
            tracks[:] = [track for track in tracks if not track.given]
        if self._primary is not None and self._primary.given:
            self._primary = next(iter(self._consumers.tracks()), None)
        for cohort in self._identifier.trail.cohorts:
            cohort.restart(cohort.opens)
        self._settle()

    def _make(self, hypothesis: Hypothesis) -> EpochOrder:
        for track in self._consumers.tracks():
            if track.hypothesis == hypothesis:
                return track.now
        return build(hypothesis, self._datasets)

    def confirm(self, track: Track, cohort: Cohort) -> None:
        """As of `Believer`."""
        self._lock(track, cohort)

    def _lock(self, track: Track, cohort: Cohort | None) -> None:
        track.lock(cohort.proof if cohort is not None else None)
        self._unread.pop(track.hypothesis.dataset, None)
        if cohort is not None:
            within, owner = self._ownership.within(track.hypothesis.dataset), self._ownership.of
            track.begin([row for row, _, _ in self._in_this_epoch(track.now, cohort)])
            self._explained(track, cohort, [o for o in cohort.opens if owner[o[0]] in within and track.opened(o[0])])

    def _explained(self, track: Track, cohort: Cohort, opens: list[Open]) -> None:
        """A plan explains these opens of a cohort: readers of most of whose opens that is true belong to it, and what
        others have opened stays to be explained."""
        all_of = Counter(reader for _, reader, _ in cohort.opens)
        some_of = Counter(reader for _, reader, _ in opens)
        own = {reader for reader, count in some_of.items() if 2 * count > all_of[reader]}
        self._consumers.bind(track, own - {0})
        gone = set(opens)
        left = [one for one in cohort.opens if one not in gone and one[1] not in own]
        cohort.restart(left)
        if not left and cohort in self._identifier.trail.cohorts:
            self._identifier.trail.drop(cohort)

    def _in_this_epoch(self, order: EpochOrder, cohort: Cohort) -> list[Open]:
        """The last opens of a cohort in the data set of an order. Those that readers who follow it made before, in
        another epoch, are forgotten: by them the epoch would seem to have been read everywhere. So it would by those of
        readers who do not follow it: they stay to be explained."""
        within, owner = self._ownership.within(order.hypothesis.dataset), self._ownership.of
        opens = [one for one in cohort.opens if owner[one[0]] in within][-_BEGUN_WITH:]
        if order.again is not None:
            return opens
        before, others = elsewhere([(order.find(row), who) for row, who, _ in opens], order.length)
        gone = {opens[at] for at in before}
        if gone:
            cohort.opens = deque((one for one in cohort.opens if one not in gone), maxlen=cohort.opens.maxlen)
        left_out = gone | {opens[at] for at in others}
        return [one for one in opens if one not in left_out]

    def adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None) -> None:
        """As of `Believer`: at once if its tables are there or quickly made, else once a job has made them."""
        order: EpochOrder | None = None
        if track is not None:
            order = next(
                (one for one in (track.now, track.ahead) if one is not None and one.hypothesis == hypothesis), None
            )
        if order is None and len(self._files(hypothesis)) <= INLINE:
            order = build(hypothesis, self._datasets)
        if order is not None:
            self._go_over(order, cohort, track)
        else:
            self._moving[id(track) if track is not None else 0] = (hypothesis, cohort)

    def _go_over(self, order: EpochOrder, cohort: Cohort, track: Track | None) -> None:
        """Follows a plan that is certain, and repeats the opens that showed it."""
        opens = self._in_this_epoch(order, cohort)
        before: list[int] = []
        lately = [row for row, _ in track.lately()] if track is not None and self._showing is not None else []
        if track is None or track not in self._consumers.tracks():
            track = Track(order, self._make, self._inflight, self._showing, closes=self._closes)
        else:
            self._moving.pop(id(track), None)
            if same_order(order.hypothesis, track.hypothesis):
                before = track.rows_opened()  # dealt out otherwise, or to further ranks: what was opened was
            track.switch_epoch(order)
        track.state = PlanState.WATCHING
        track.already(before)
        track.begin([*before, *(row for row, _, _ in opens)])
        explained = [one for one in opens if track.observe(one[0], one[1]) is not OpenVerdict.AGAINST]
        track.catch_up(lately)
        for one in explained:
            track.hit(one[2])
        track.lock(cohort.proof)
        self._unread.pop(order.hypothesis.dataset, None)
        self._consumers.enter(track)
        self._explained(track, cohort, explained)
        if self._primary not in self._consumers.tracks() or self._primary.state is not PlanState.LOCKED:
            self._primary = track

    def _redeal(self, track: Track) -> None:
        """Its readers may be of other ranks, or of another world, than was thought."""
        found = self._identifier.redeal(track)
        if found is None or id(track) in self._moving:
            return
        if len(self._files(found)) <= INLINE:
            self._redealt(build(found, self._datasets), track)
        else:
            self._moving[id(track)] = (found, None)

    def _redealt(self, order: EpochOrder, track: Track) -> None:
        rows, lately = track.rows_opened(), [row for row, _ in track.lately()]
        track.switch_epoch(order)
        track.already([*rows, *lately])
        track.begin([*rows, *lately])

    def replace(self, track: Track, hypothesis: Hypothesis) -> None:
        """As of `Believer`: at once for small data sets; large ones are found out when opens contradict."""
        if len(self._files(hypothesis)) > INLINE:
            return
        rows = track.rows_opened()
        track.switch_epoch(build(hypothesis, self._datasets))
        track.already(rows)

    def give_up_search(self, cohort: Cohort) -> None:
        """As of `Believer`: what these readers do is not known; what they have not read yet is all that is."""
        touched = cohort.datasets()
        watching = [one for index in touched for one in self._consumers.of(index) if one.state is PlanState.WATCHING]
        if any(_does_well(one, cohort) for one in watching):
            return
        for track in watching:
            if track is self._guess and not track.was_locked:
                self._drop_guess()
            else:
                track.give_up(PlanState.MISMATCH)
        busy = [track for index in touched for track in self._consumers.of(index) if track.state is PlanState.LOCKED]
        if not touched or any(self.opens - track.last_hit < _ACTIVE for track in busy):
            return
        index = touched[0]
        if index not in self._unread:
            order = build(Hypothesis(index, len(self._datasets[index].orders) - 1, Spec("sequential")), self._datasets)
            unread = self._unread[index] = Unread(order)
            for row, _, _ in cohort.opens:
                unread.observe(row)
        self._mismatch = index

    # -- work for another thread --

    def work(self) -> BackgroundJob | None:
        """The next computation to run elsewhere (then `finish` it), or None. One at a time."""
        if self._job is None:
            self._job = next(self._jobs(), None)
            return self._job
        return None

    def _jobs(self) -> Iterator[BackgroundJob]:
        yield from self._moving_job()
        yield from self._next_job()
        yield from self._identifier.jobs()
        if not self.opens:
            yield from self._identifier.prepare_jobs()

    def work_apart(self) -> BackgroundJob | None:
        """The same of what takes up to minutes, and may run beside the others."""
        if self._apart is None:
            self._apart = self._identifier.apart_job()
            return self._apart
        return None

    def work_far(self) -> BackgroundJob | None:
        """The same of what is of use in later epochs: there is always time for it. To be run, then delivered."""
        return self._far.job(self._consumers.tracks(), self._datasets)

    def finish(self, job: BackgroundJob) -> None:
        """Takes over what a job has computed; a job that failed is forgotten."""
        if job is self._apart:
            self._apart = None
            job.deliver()
            self._settle()
        if job is self._job:
            self._job = None
            job.deliver()
            self._settle()

    def settle(self, *, apart: bool = False) -> None:
        """Runs all work in this thread, that which takes minutes only if `apart`: for tests and tools."""
        while (job := self.work() or (self.work_apart() if apart else None)) is not None:
            job.run()
            self.finish(job)

    def _moving_job(self) -> Iterator[BackgroundJob]:
        for key, (hypothesis, cohort) in list(self._moving.items()):
            track = next((track for track in self._consumers.tracks() if id(track) == key), None)
            if key and track is None:
                del self._moving[key]
                continue

            def deliver(
                order: EpochOrder, key: int = key, cohort: Cohort | None = cohort, track: Track | None = track
            ) -> None:
                if self._moving.pop(key, None) is None:
                    return
                if cohort is not None:
                    self._go_over(order, cohort, track)
                elif track is not None:
                    self._redealt(order, track)

            yield self._build(hypothesis, deliver)

    def _build(self, hypothesis: Hypothesis, then: Callable[[EpochOrder], None]) -> BackgroundJob:
        datasets = self._datasets
        return BackgroundJob(lambda: build(hypothesis, datasets), then)

    def _next_job(self) -> Iterator[BackgroundJob]:
        for track in self._consumers.tracks():
            if track.state is not PlanState.LOCKED or track.ahead is not None:
                continue
            following, generation = track.following(), track.generation
            if following == track.hypothesis:
                track.expect(track.now)
                continue

            def deliver(order: EpochOrder, track: Track = track, generation: int = generation) -> None:
                if track.generation == generation and track.ahead is None and order.hypothesis == track.following():
                    track.expect(order)

            yield self._build(following, deliver)

    # -- the stream --

    @property
    def generation(self) -> int:
        """Changes when the stream foretold before no longer holds."""
        return self._outlook.generation

    @property
    def position(self) -> int:
        """Stream position of the first access that is still to come; never decreases."""
        return self._outlook.position

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at the stream positions start .. start+count-1 of what is read now, readers and local ranks
        interleaved, int64[<= count]. Ends where the next epoch does, or where it is not computed yet; empty
        when nothing is foreseen; -1 for positions gone by. Holds until `generation` changes."""
        return self._outlook.upcoming(start, count)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first stream position still to come at which each of these rows is read, int64[m]; -1 where none is
        known. Holds as `upcoming` does, until the position has passed it. Where every epoch reads another part of the
        files, further epochs are looked at; of these the place within the epoch is a guess."""
        return self._far.next_uses(rows, self._outlook.next_uses(rows), self.position, self._streams())

    @property
    def knows_future(self) -> bool:
        """Whether what is read is another part of the files in every epoch, and more epochs are known than the next."""
        return self._far.known

    @property
    def horizon(self) -> int:
        """Positions in one epoch of all that is read now."""
        return sum(one.length if isinstance(one, Unread) else one.now.length for one in self._streams())

    def _streams(self) -> list[Track] | list[Unread]:
        """Whose streams are handed out: of all that read now, of the data set read last, or what is left unread."""
        since = self.opens - _ACTIVE
        locked = [track for track in self._consumers.tracks() if track.state is PlanState.LOCKED]
        busy = [track for track in locked if track.hits_since(max(since, 0)) >= _PRIMARY_RUN]
        if busy:
            return busy
        unread = self._unread.get(self._mismatch) if self._mismatch is not None else None
        primary = self._primary
        believed = unread is None or (primary is not None and (primary.was_locked or primary.given))
        if primary is not None and primary.state is not PlanState.MISMATCH and believed and not self._in_vain(primary):
            return [primary]
        return [] if unread is None else [unread]

    def _in_vain(self, track: Track) -> bool:
        """Whether a plan that is only assumed foresees so little that what it says comes next need not be fetched."""
        return track.state is PlanState.WATCHING and not (track.was_locked or track.given) and any(
            cohort.count >= _TELLING and not _does_well(track, cohort) for cohort in self._identifier.trail.cohorts
        )  # fmt: skip

    def _settle(self) -> None:
        self._outlook.settle(self._streams(), self.opens)

    # -- what is believed --

    def status(self) -> PlanStatus:
        """What is believed of the data set that is read."""
        track = self._primary
        if track is not None and (track.state is not PlanState.MISMATCH or self._mismatch is None):
            return describe(track, self._datasets, self._seed)
        if self._mismatch is None:
            return PlanStatus(PlanState.WATCHING.value if self._datasets else PlanState.NONE.value, seed=self._seed)
        known = track is not None or self._seed is not None
        state = PlanState.MISMATCH if known else PlanState.UNKNOWN
        length = self._unread[self._mismatch].length if self._mismatch in self._unread else 0
        return PlanStatus(state.value, None, self._seed, length=length, dataset=self._datasets[self._mismatch].name)

    def plans(self, count: int) -> list[tuple[PlanStatus, NDArray[np.int64]]]:
        """All that is believed, what is read now first, each with the rows that come next in it, int64[<= count]."""
        return [
            (describe(track, self._datasets, self._seed), track.upcoming(track.position, count))
            for track in self._by_use()
        ]

    def explain(self) -> explaining.Explanation:
        """What is known of the plans, what is missing, and how what was said was judged."""
        tracks, searches = self._by_use(), self._identifier
        found = (
            explaining.group(cohort, suspects, self._datasets, unread=bool(self._unread))
            for cohort, suspects in searches.undecided(explaining.GROUPS_MOST)
        )
        return explaining.Explanation(
            state=self.status().state,
            opens=self.opens,
            needed=LOCK,
            plans=tuple(explaining.known(track, self._datasets, self._seed, self._worlds) for track in tracks),
            groups=tuple(one for one in found if one is not None),
            said=explaining.judge(tracks, self._seed, self._sampler, self._worlds),
            rests_s=round(searches.rests_s, 1),
            long_search=self._apart is not None,
        )

    def _by_use(self) -> list[Track]:
        """The tracks, what is read now first."""
        return sorted(self._consumers.tracks(), key=lambda track: (track is not self._primary, -track.last_hit))

    def _files(self, hypothesis: Hypothesis) -> NDArray[np.integer[Any]]:
        return self._datasets[hypothesis.dataset].orders[hypothesis.order].rows


def _does_well(track: Track, cohort: Cohort) -> bool:
    """Whether a plan that is only assumed foresees enough of a cohort's opens."""
    return 4 * track.hits_since(cohort.began) >= min(cohort.count, 64)


def _files_said(hypothesis: Hypothesis) -> tuple[int, int, Spec | None]:
    return hypothesis.dataset, hypothesis.order, hypothesis.subset


def _replaced(track: Track, said: set[tuple[int, int, Spec | None]], again: set[Hypothesis]) -> bool:
    here = track.said
    return here is not None and _files_said(here) in said and here not in again
