"""The plans that are followed: the one place where a plan is assumed, registered, adopted, confirmed and given up.

Owns the tracks, which of them is shown and whose streams are handed out, and what is left unread where no plan is
known. Does not search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nopfsfs.plan.epoch_order import INLINE, DataSet, EpochOrder, Hypothesis, build, same_order
from nopfsfs.plan.following.assumed import PlanHints, assumed
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.following.reader_binding import BOUND, FIRMLY, ReaderBinding
from nopfsfs.plan.following.recorded import LastPlan, begun_anew
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import Cohorts
from nopfsfs.plan.tracking.agreement import ACTIVE, PlanState
from nopfsfs.plan.tracking.track import OpenVerdict, Track
from nopfsfs.plan.tracking.unread import Unread
from nopfsfs.plan.visible_opens import VisibleOpens

# Opens in a row of another track after which that track is the primary one.
_PRIMARY_RUN = 8
# Unexplained opens from which on a plan that is only assumed must foresee some.
_TELLING = 32


class Beliefs:
    """All plans of a mount. Not thread-safe: everything but `BackgroundJob.run` belongs to one thread."""

    def __init__(
        self, datasets: Sequence[DataSet], cohorts: Cohorts, binding: ReaderBinding, hints: PlanHints,
        showing: VisibleOpens | None, last: Sequence[LastPlan],
    ) -> None:  # fmt: skip
        """`showing`: whose opens show, if not all do; `last`: the plans of the last job, likeliest first."""
        self._datasets, self._cohorts, self._binding, self._hints = datasets, cohorts, binding, hints
        self.showing = showing
        self._closes = showing is None
        self.opens = 0  # the mount's count
        self.primary: Track | None = None  # shown by the status
        self._run = 0  # opens in a row of another track than the primary
        self.unread: dict[int, Unread] = {}  # by data set
        self.mismatch: int | None = None  # the data set that is read in an order that is not known
        self._moving: dict[int, tuple[Hypothesis, Cohort | None]] = {}  # by id of the track: plans that wait for tables
        self._guess: Track | None = None  # assumed because the last job read it
        if not self._assume_last_job(last) and hints.suffice and datasets:
            self.primary = self._assume(0)

    def tracks(self) -> list[Track]:
        """All tracks, each once."""
        return self._binding.tracks()

    def of(self, index: int) -> list[Track]:
        """The tracks of one data set, not those of larger ones that hold it."""
        return self._binding.of(index)

    # -- opens --

    def track_for(self, index: int, row: int, reader: int) -> Track | None:
        """The track that an open of a row of data set `index` is shown to. A data set that is read beside others gets a
        plan; None: no plan is followed there."""
        tracks = self._binding.serving[index]
        if tracks:
            return self._binding.choose(tracks, row, reader, self.opens)
        believed = any(track.agreement.was_locked for track in self.tracks())
        return self._assume(index) if believed or self._hints.seed is not None else None

    def foreseen(self, track: Track, reader: int) -> bool:
        """Note that a track has foreseen an open. True: its reader has belonged to the track for a while."""
        firmness = self._binding.foreseen(track, reader)
        track.agreement.hit(self.opens, own=firmness >= BOUND)
        if track is self.primary:
            self._run = 0
        else:
            self._run += 1
            if self._run >= _PRIMARY_RUN or self.primary is None:
                self.primary, self._run = track, 0
        return firmness >= FIRMLY

    def read_on(self, row: int) -> None:
        """Note an open that no plan explains. Files that are opened again begin a new epoch, for which its readers are
        searched for anew."""
        for unread in self.unread.values():
            rows = unread.observe(row, self.opens)
            for cohort in list(self._cohorts.cohorts) if rows else ():
                if cohort.despaired and cohort.readers and not self._cohorts.ended(cohort):
                    self._cohorts.begin_epoch(cohort, rows)

    def revive(self, track: Track, reader: int) -> bool:
        """Lock a plan again that was given up, if the reader's opens fit it once more."""
        if not track.revived:
            return False
        self._lock(track, self._cohorts.of(reader))
        return True

    def doubt(self, track: Track) -> None:
        """Count an open against a plan that is not locked: one that is assumed from the last job's record is dropped
        after some."""
        if track is self._guess and not track.agreement.was_locked and track.agreement.contradicted():
            self._drop_guess()

    def contradicted(self, track: Track) -> None:
        """Count an open of an own reader against a locked plan, which is given up after too many."""
        if track.locked and track.agreement.contradicted() and id(track) not in self._moving:
            track.agreement.give_up(PlanState.WATCHING)

    # -- what is assumed or said --

    def _track(self, order: EpochOrder, inflight: int | None) -> Track:
        return Track(order, self._make, inflight, self.showing, closes=self._closes)

    def _make(self, hypothesis: Hypothesis) -> EpochOrder:
        for track in self.tracks():
            if track.hypothesis == hypothesis:
                return track.places.now
        return build(hypothesis, self._datasets)

    def _assume(self, index: int) -> Track:
        """Follow the likeliest plan of a data set of which nothing is known yet."""
        near = next((track.hypothesis for track in self.tracks() if track.agreement.was_locked), None)
        track = self._track(assumed(index, self._datasets, self._hints, near), self._hints.inflight)
        self._binding.enter(track)
        return track

    def _assume_last_job(self, last: Sequence[LastPlan]) -> bool:
        """Assume that the likeliest plan of the last job begins anew, unless something else was said."""
        likeliest = begun_anew(last, self._hints.seed, self._hints.worlds)
        if likeliest is None:
            return False
        try:
            order = build(likeliest.hypothesis, self._datasets)
        except ValueError:  # the framework would refuse it with the files, or the world, of now
            return False
        self.primary = self._guess = self._track(order, self._hints.inflight)
        self._guess.places.widen(likeliest.inflight or 0)
        self._binding.enter(self._guess)
        return True

    def _drop_guess(self) -> None:
        """Go on as if there were no record."""
        self._drop(lambda track: track is self._guess)
        self._guess = None

    def _drop(self, gone: Callable[[Track], bool]) -> None:
        """Forget tracks; one of the others becomes the primary where that is one of them."""
        for tracks in self._binding.serving:
            tracks[:] = [track for track in tracks if not gone(track)]
        if self.primary is not None and gone(self.primary):
            self.primary = next(iter(self.tracks()), None)

    def register(self, plans: Sequence[tuple[EpochOrder, int | None]], *, replace_said: bool) -> None:
        """Follow plans that a user has said (tables, K where known); as `Follower.register`."""
        said = {_files_said(order.hypothesis) for order, _ in plans} if replace_said else set()
        again = {order.hypothesis for order, _ in plans}
        for tracks in self._binding.serving:
            tracks[:] = [track for track in tracks if not _replaced(track, said, again)]
        for order, inflight in reversed(plans):
            if any(track.given and track.said == order.hypothesis for track in self.tracks()):
                continue
            track = self._track(order, inflight or self._hints.inflight)
            track.given, track.said = True, order.hypothesis
            self._binding.enter(track)
            if self.primary is None or not self.primary.agreement.was_locked:
                self.primary = track
        if self.primary not in self.tracks():
            self.primary = next(iter(self.tracks()), None)

    def forget(self) -> None:
        """Drop the plans that users have said; what is read is searched for again."""
        self._drop(lambda track: track.given)
        for cohort in self._cohorts.cohorts:
            cohort.restart(cohort.opens)

    # -- which opens show --

    def show_only(self, showing: VisibleOpens) -> None:
        """From now on only the opens of these rows show, and no closes."""
        self.showing, self._closes = showing, False
        for track in self.tracks():
            track.show_only(showing)
            track.agreement.show_only(self.opens, showing.spacing)

    def without_closes(self) -> None:
        """All opens show, but not when files have been read. Before any was opened."""
        self._closes = False
        for track in self.tracks():
            track.places.without_closes()

    def show_all(self) -> None:
        """From now on all opens show again."""
        self.showing = None
        for track in self.tracks():
            track.places.show_all()

    # -- what a search has found --

    def confirm(self, track: Track, cohort: Cohort) -> None:
        """Lock the plan of a track, which a cohort's opens prove."""
        self._lock(track, cohort)

    def _lock(self, track: Track, cohort: Cohort | None) -> None:
        track.agreement.lock(track.hypothesis, cohort.proof if cohort is not None else None)
        self.unread.pop(track.hypothesis.dataset, None)
        if cohort is not None:
            rows = [row for row, _, _ in cohort.in_epoch(track.places.now)]
            track.places.already(rows)
            track.places.begin(rows)
            there = cohort.of_dataset(track.hypothesis.dataset)
            opened = [one for one in there if track.places.opened(one[0])]
            self._binding.bind(track, self._cohorts.explained(cohort, opened))

    def adopt(self, hypothesis: Hypothesis, cohort: Cohort, track: Track | None) -> None:
        """Follow a certain plan in place of `track`'s; None: as the plan of a further reader. The plan is followed at
        once if its tables are there or quickly made, else once a job has made them."""
        order: EpochOrder | None = None
        if track is not None:
            known = (one for one in (track.places.now, track.places.ahead) if one is not None)
            order = next((one for one in known if one.hypothesis == hypothesis), None)
        if order is None and self._quickly_made(hypothesis):
            order = build(hypothesis, self._datasets)
        if order is not None:
            self._go_over(order, cohort, track)
        else:
            self._moving[id(track) if track is not None else 0] = (hypothesis, cohort)

    def _go_over(self, order: EpochOrder, cohort: Cohort, track: Track | None) -> None:
        """Follow a plan that is certain, and repeat the opens that showed it."""
        opens = cohort.in_epoch(order)
        before: list[int] = []
        lately = [row for row, _ in track.lately()] if track is not None and self.showing is not None else []
        if track is None or track not in self.tracks():
            track = self._track(order, self._hints.inflight)
        else:
            self._moving.pop(id(track), None)
            if same_order(order.hypothesis, track.hypothesis):
                before = track.places.rows_opened()  # dealt out otherwise, or to further ranks: what was opened was
            track.switch_epoch(order)
        track.agreement.watch()
        track.places.already(before)
        track.places.begin([*before, *(row for row, _, _ in opens)])
        explained = [one for one in opens if track.observe(one[0], one[1]) is not OpenVerdict.AGAINST]
        track.places.catch_up(lately)
        for one in explained:
            track.agreement.hit(one[2], own=True)
        track.agreement.lock(track.hypothesis, cohort.proof)
        self.unread.pop(order.hypothesis.dataset, None)
        self._binding.enter(track)
        self._binding.bind(track, self._cohorts.explained(cohort, explained))
        if self.primary not in self.tracks() or not self.primary.locked:
            self.primary = track

    def redeal(self, track: Track, hypothesis: Hypothesis) -> None:
        """Follow the same epoch as dealt out otherwise, to other ranks or in another world."""
        if id(track) in self._moving:
            return
        if self._quickly_made(hypothesis):
            self._redealt(build(hypothesis, self._datasets), track)
        else:
            self._moving[id(track)] = (hypothesis, None)

    def _redealt(self, order: EpochOrder, track: Track) -> None:
        rows, lately = track.places.rows_opened(), [row for row, _ in track.lately()]
        track.switch_epoch(order)
        track.resume([*rows, *lately])

    def replace(self, track: Track, hypothesis: Hypothesis) -> None:
        """Follow another epoch than was expected. At once for small data sets; of a large one opens will contradict."""
        if not self._quickly_made(hypothesis):
            return
        rows = track.places.rows_opened()
        track.switch_epoch(build(hypothesis, self._datasets))
        track.places.already(rows)

    def give_up_search(self, cohort: Cohort) -> None:
        """Take the opens of a cohort for those of an unknown order: what is left to read is all that is known."""
        touched = cohort.datasets()
        there = [track for index in touched for track in self.of(index)]
        watching = [track for track in there if track.agreement.state is PlanState.WATCHING]
        if any(_does_well(track, cohort) for track in watching):
            return
        for track in watching:
            if track is self._guess and not track.agreement.was_locked:
                self._drop_guess()
            else:
                track.agreement.give_up(PlanState.MISMATCH)
        if not touched or any(track.locked and self.opens - track.agreement.last_own < ACTIVE for track in there):
            return
        index = touched[0]
        if index not in self.unread:
            order = build(Hypothesis(index, len(self._datasets[index].orders) - 1, Spec("sequential")), self._datasets)
            unread = self.unread[index] = Unread(order)
            for row, _, _ in cohort.opens:
                unread.observe(row, self.opens)
        self.mismatch = index

    def _quickly_made(self, hypothesis: Hypothesis) -> bool:
        return len(self._datasets[hypothesis.dataset].orders[hypothesis.order].rows) <= INLINE

    # -- computations for another thread --

    def jobs(self) -> Iterator[BackgroundJob]:
        """The tables that tracks wait for: of plans to go over to, then of the epochs after these."""
        yield from self._moving_jobs()
        for track in self.tracks():
            if not track.locked or track.places.ahead is not None:
                continue
            following, generation = track.following(), track.generation
            if following == track.hypothesis:
                track.places.expect(track.places.now)
                continue

            def deliver(order: EpochOrder, track: Track = track, generation: int = generation) -> None:
                same = track.generation == generation and order.hypothesis == track.following()
                if same and track.places.ahead is None:
                    track.places.expect(order)

            yield self._build(following, deliver)

    def _moving_jobs(self) -> Iterator[BackgroundJob]:
        for key, (hypothesis, cohort) in list(self._moving.items()):
            track = next((track for track in self.tracks() if id(track) == key), None)
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

    # -- what is read now --

    def streams(self) -> list[Track] | list[Unread]:
        """The streams that are handed out: of all that read now, of the data set read last, or what is left unread."""
        spacing = self.showing.spacing if self.showing is not None else 1
        busy = [track for track in self.tracks() if track.locked and track.agreement.read_now(self.opens, spacing)]
        if busy:
            return busy
        unread = self.unread.get(self.mismatch) if self.mismatch is not None else None
        primary = self.primary
        if primary is not None and primary.agreement.state is not PlanState.MISMATCH:
            believed = unread is None or primary.given or self._read_since(primary)
            if believed and not self._in_vain(primary):
                return [primary]
        return [] if unread is None else [unread]

    def _read_since(self, track: Track) -> bool:
        """True: the track was read after what is left unread."""
        assert self.mismatch is not None
        return track.agreement.was_locked and track.agreement.last_own > self.unread[self.mismatch].last_open

    @property
    def unknown_lately(self) -> bool:
        """True: files were opened in an unknown order, no longer ago than all that is read takes for an epoch."""
        epoch = sum(track.places.now.length for track in self.tracks() if track.locked)
        return any(self.opens - one.last_open < epoch + one.length for one in self.unread.values())

    def _in_vain(self, track: Track) -> bool:
        """True: a plan that is only assumed foresees so little that what it says comes next need not be fetched."""
        if track.agreement.state is not PlanState.WATCHING or track.agreement.was_locked or track.given:
            return False
        return any(one.count >= _TELLING and not _does_well(track, one) for one in self._cohorts.cohorts)


def _does_well(track: Track, cohort: Cohort) -> bool:
    """True: a plan that is only assumed foresees enough of a cohort's opens."""
    return 4 * track.agreement.hits_since(cohort.began) >= min(cohort.count, 64)


def _files_said(hypothesis: Hypothesis) -> tuple[int, int, Spec | None]:
    return hypothesis.dataset, hypothesis.order, hypothesis.subset


def _replaced(track: Track, said: set[tuple[int, int, Spec | None]], again: set[Hypothesis]) -> bool:
    here = track.said
    return here is not None and _files_said(here) in said and here not in again
