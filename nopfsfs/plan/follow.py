"""The plan of a whole mount: what is believed to be read, confirmed or refuted by what is opened.

Owns the tracks (one for each data set in use), the opens that no track explains, and the stream that is
handed out. Never computes for long in `observe`: that is handed out as jobs, to be run in another thread. The
rules are described in docs/plan.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import evidence, registry, search
from nopfsfs.plan.epochs import DataSet, EpochOrder, Hypothesis, build
from nopfsfs.plan.report import Job, PlanStatus
from nopfsfs.plan.search import Candidate, Search, World
from nopfsfs.plan.spec import Spec
from nopfsfs.plan.track import State, Track
from nopfsfs.plan.trail import Trail

# Data sets up to this size are computed at once when needed (some 50 ms); larger ones as a job.
_INLINE = 200_000
# Lengths of the list of contradicting opens at which it is looked at: an epoch began anew.
_BREAK_LOOKS = frozenset((3, 4, 5, 6, 8, 10, 12, 16, 20, 24))
# log of the chance that a break is taken for the beginning of an epoch that may well follow. Less strict
# than a lock: the reader is known, and is not where it was.
_BREAK_CHANCE = -14.0
_EXPLAINED = 0.75
# Opens in a row of another data set after which that is the one to stage.
_PRIMARY_RUN = 8
# Beginnings of orders that are kept, to look at opens again; 128 KiB and more each.
_HEADS_KEPT = 8


class Follower:
    """See the module. Not thread-safe: everything but `Job.run` belongs to one thread."""

    def __init__(
        self,
        datasets: Sequence[DataSet],
        seed: int | None,
        sampler: str = registry.AUTO,
        worlds: Sequence[World] = ((1, (0,)),),
        inflight: int | None = None,
    ) -> None:
        """`datasets` and `worlds` (world size, ranks that read here): likeliest first. `seed` None: only
        watches. `inflight`: workers x prefetch x batch + batch, where known. Raises ValueError: unknown
        sampler, ranks that do not fit their world, no world."""
        self._families = registry.families(sampler)
        for size, ranks in worlds:
            if size < 1 or not ranks or not all(0 <= rank < size for rank in ranks):
                raise ValueError(f"ranks {list(ranks)} do not fit a world of {size}")
        self._datasets = [one for one in datasets if any(len(rows) for _, rows in one.orders)]
        self._worlds = tuple((size, tuple(ranks)) for size, ranks in worlds)
        self._largest = max(size for size, _ in self._worlds)
        self._seed = seed
        self._sampler = sampler
        self._inflight = inflight
        self.opens = 0
        self.predicted = 0
        self.generation = 0
        self._trail = Trail(self._datasets)
        self._serving: list[Track | None] = [None] * len(self._datasets)
        self._primary: Track | None = None
        self._run = 0  # opens in a row of another track than the primary
        self._shift = 0  # stream position of this mount less that of the primary track
        self._reported = 0
        self._seen: tuple[Track | None, int] = (None, 0)
        self._job: Job | None = None
        self._moving: dict[int, Hypothesis] = {}  # by id of the track: where it goes once that is computed
        self._heads: dict[Candidate, NDArray[np.int64]] = {}
        if seed is not None and self._datasets:
            self._count = sum(1 for _ in search.candidates(self._datasets, range(len(self._datasets)), seed, sampler))
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
        self.opens += len(rows)
        if self._primary is None:
            return np.frombuffer(out, dtype=np.uint8)
        owner, serving, locked, mismatch = self._trail.owner, self._serving, State.LOCKED, State.MISMATCH
        known = len(owner)
        whose = readers.tolist() if readers is not None else [0] * len(rows)
        for i, row in enumerate(rows.tolist()):
            who = owner[row] if 0 <= row < known else -1
            if who < 0:
                continue
            track = serving[who] or self._assume(who)
            hit = track.feed(row, whose[i])
            if track is not self._primary:
                self._elsewhere(track)
            elif self._run:
                self._run = 0
            if hit and track.state is not mismatch:
                out[i] = 1
            if track.state is not locked:
                self._unconfirmed(track, row)
            elif not hit and len(track.missed) in _BREAK_LOOKS:
                self._broken(track)
        self.predicted += out.count(1)
        self._settle()
        return np.frombuffer(out, dtype=np.uint8)

    def _elsewhere(self, track: Track) -> None:
        self._run += 1
        if self._run >= _PRIMARY_RUN:
            self._primary = track
            self._run = 0

    def _unconfirmed(self, track: Track, row: int) -> None:
        """An open in a data set whose plan is assumed, or was given up."""
        if track.revived:
            self._lock(track)
            return
        look = self._trail.add(row)
        if track.state is State.WATCHING:
            if look:
                self._confirm(track)
            if self._trail.hopeless:
                self._give_up()

    def _confirm(self, track: Track) -> None:
        """Whether the opens so far prove the assumed plan, or the same with other ranks."""
        here = track.hypothesis
        opens = self._trail.opens(here.dataset)
        if len(opens) < search.MIN_OPENS:
            return
        n = len(self._files(here))
        candidate = _candidate(here)
        found = search.match(candidate, opens[:n], self._head(candidate), n, self._worlds)
        if found is None or not search.certain(found, self._count):
            return
        if self._same_stream(found.hypothesis, here):
            self._lock(track)
        else:
            self._move(track, found.hypothesis)

    def _same_stream(self, a: Hypothesis, b: Hypothesis) -> bool:
        return a == b or (a.spec == b.spec and a.epoch == b.epoch and _whole(a) and _whole(b))

    def _broken(self, track: Track) -> None:
        """A locked plan is contradicted: an epoch may have begun anew."""
        if id(track) in self._moving:
            return
        opens = np.array(list(dict.fromkeys(track.missed)), dtype=np.int64)[-search.MAX_OPENS :]
        for hypothesis in track.alternatives():
            if hypothesis == track.hypothesis and track.behind(opens.tolist()) < _EXPLAINED:
                continue  # they fit because the reader is still near the beginning
            if self._begins(hypothesis, opens):
                self._move(track, hypothesis)
                return
        joined = self._joined(track, opens)
        if joined is not None:
            self._move(track, joined)
        elif track.lost:
            missed = list(track.missed)
            track.give_up(State.WATCHING)
            self._trail.restart()
            for row in missed:
                self._trail.add(row)

    def _joined(self, track: Track, opens: NDArray[np.int64]) -> Hypothesis | None:
        """The same epoch with more ranks, when the opens look like other ranks' beginning of it."""
        here = track.hypothesis
        if here.world == 1:
            return None
        places = search.positions(opens, self._head(_candidate(here)))
        seen = tuple(np.unique(places[places >= 0] % here.world).tolist())
        if not seen or set(seen) <= set(here.ranks):
            return None
        found = evidence.fit(search.local(places, here.world, seen), len(self._files(here)))
        chance = found.log_chance + here.world * math.log(2)
        if chance >= _BREAK_CHANCE or found.explained < _EXPLAINED:
            return None
        return replace(here, ranks=tuple(sorted({*here.ranks, *seen})))

    def _begins(self, hypothesis: Hypothesis, opens: NDArray[np.int64]) -> bool:
        """Whether the opens look like the beginning of that epoch."""
        files = self._files(hypothesis)
        places = search.positions(opens[: len(files)], self._head(_candidate(hypothesis)))
        places = search.local(places, hypothesis.world, hypothesis.ranks)
        found = evidence.fit(places, len(files))
        return found.log_chance < _BREAK_CHANCE and found.explained >= _EXPLAINED

    # -- changes of belief --

    def _assume(self, index: int) -> Track:
        """A plan for a data set of which nothing is known yet, so that staging can begin."""
        if self._trail.hopeless:
            self._trail.restart()  # what was not understood elsewhere does not count here
        size, ranks = self._worlds[0]
        spec = self._families[0].variants(self._seed or 0)[0]
        believed = [track for track in self._tracks() if track.was_locked]
        if believed:
            # what is read besides the training files is validation: in order, dealt out where training is
            near = believed[0].hypothesis
            dealt = near.world > 1
            spec = Spec("distributed", options=(("sequential", 1),)) if dealt else Spec("sequential")
            size, ranks = (near.world, near.ranks) if dealt else (1, (0,))
        elif not registry.sampler(spec.sampler).strided:
            size, ranks = 1, (0,)
        order = build(Hypothesis(index, 0, spec, 0, size, ranks), self._datasets)
        track = Track(order, self._make, self._inflight)
        self._serving[index] = track
        return track

    def _make(self, hypothesis: Hypothesis) -> EpochOrder:
        for track in self._tracks():
            if track.hypothesis == hypothesis:
                return track.now
        return build(hypothesis, self._datasets)

    def _lock(self, track: Track) -> None:
        track.lock()
        self._trail.forget(track.hypothesis.dataset)

    def _move(self, track: Track, hypothesis: Hypothesis) -> None:
        """Follows another hypothesis in the same data set, as soon as its tables are there."""
        for order in (track.now, track.ahead):
            if order is not None and order.hypothesis == hypothesis:
                self._adopt(order, track)
                return
        if len(self._files(hypothesis)) <= _INLINE:
            self._adopt(build(hypothesis, self._datasets), track)
        else:
            self._moving[id(track)] = hypothesis

    def _adopt(self, order: EpochOrder, track: Track | None = None) -> None:
        """Goes over to a plan that is certain, and repeats the opens that showed it."""
        index = order.hypothesis.dataset
        track = track or self._track_of(index)
        missed: list[int] = []
        if track is None:
            track = Track(order, self._make, self._inflight)
        else:
            missed = list(track.missed)
            here = track.hypothesis
            if order.hypothesis != here and replace(order.hypothesis, ranks=here.ranks) == here:
                missed = [*track.opened(), *missed]  # other ranks join: those before keep their place
            self._moving.pop(id(track), None)
            track.relocate(order)
        track.state = State.WATCHING
        for row in (*missed, *self._trail.rows(index)):
            track.feed(row)
        self._lock(track)
        for owner in self._trail.within(index):
            served = self._serving[owner]
            if owner == index or served is None or served.state is not State.LOCKED:
                self._serving[owner] = track
        if self._primary not in self._tracks():
            self._primary = track

    def _give_up(self) -> None:
        """The search has found nothing: what is read now is not known."""
        for track in self._tracks():
            if track.state is State.WATCHING and self._trail.touches(track.hypothesis.dataset):
                track.give_up(State.MISMATCH)

    # -- work for another thread --

    def work(self) -> Job | None:
        """The next computation to run elsewhere (then `finish` it), or None. One at a time."""
        if self._primary is None or self._job is not None:
            return None
        self._job = self._moving_job() or self._search_job() or self._next_job()
        return self._job

    def finish(self, job: Job) -> None:
        """Takes over what a job has computed; a job that failed is forgotten."""
        if job is self._job:
            self._job = None
            job.deliver()
            self._settle()

    def settle(self) -> None:
        """Runs all work in this thread: for tests and tools."""
        while (job := self.work()) is not None:
            job.run()
            self.finish(job)

    def _moving_job(self) -> Job | None:
        for track in self._tracks():
            hypothesis = self._moving.get(id(track))
            if hypothesis is not None:
                return self._build_job(track, hypothesis, self._adopt)
        self._moving.clear()
        return None

    def _build_job(self, track: Track, hypothesis: Hypothesis, then: Callable[[EpochOrder, Track], None]) -> Job:
        datasets, generation = self._datasets, track.generation

        def deliver(order: EpochOrder) -> None:
            if track in self._tracks() and track.generation == generation:
                then(order, track)

        return Job(lambda: build(hypothesis, datasets), deliver)

    def _search_job(self) -> Job | None:
        opens = self._trail.due()
        if opens is None or self._seed is None:
            return None
        era = self._trail.era
        snapshot = Search(self._datasets, self._seed, self._sampler, self._worlds, opens)

        def deliver(order: EpochOrder | None) -> None:
            if self._trail.era != era:
                return
            if order is not None:
                self._adopt(order)
                return
            self._trail.searched(snapshot)
            if self._trail.hopeless:
                self._give_up()

        return Job(snapshot.run, deliver)

    def _next_job(self) -> Job | None:
        for track in self._tracks():
            if track.state is not State.LOCKED or track.ahead is not None:
                continue
            following = track.following()
            if following == track.hypothesis:
                track.expect(track.now)
            else:
                return self._build_job(track, following, self._expect)
        return None

    def _expect(self, order: EpochOrder, track: Track) -> None:
        if track.ahead is None and order.hypothesis == track.following():
            track.expect(order)

    # -- the stream --

    @property
    def position(self) -> int:
        """Stream position of the first access that is still to come; never decreases."""
        if self._primary is not None:
            self._reported = max(self._reported, self._primary.position + self._shift)
        return self._reported

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at the stream positions start .. start+count-1 of the data set that is read, local ranks
        interleaved, int64[<= count]. Ends where the next epoch does, or where it is not computed yet; empty
        when nothing is foreseen; -1 for positions of epochs gone by. Holds until `generation` changes."""
        track = self._primary
        if track is None or track.state is State.MISMATCH:
            return np.zeros(0, dtype=np.int64)
        return track.upcoming(start - self._shift, count)

    def consumed(self, start: int, count: int) -> NDArray[np.bool_]:
        """Which of those positions were opened already, or passed over; bool[count]."""
        track = self._primary
        if track is None or track.state is State.MISMATCH:
            return np.ones(count, dtype=bool)
        return track.consumed(start - self._shift, count)

    def status(self) -> PlanStatus:
        """What is believed of the data set that is read."""
        track = self._primary
        if track is None:
            return PlanStatus(State.NONE.value, seed=self._seed)
        here = track.hypothesis
        return PlanStatus(
            state=track.state.value,
            sampler=here.spec.sampler,
            seed=self._seed,
            epoch=here.epoch,
            position=min(track.position - track.base, track.now.length),
            length=track.now.length,
            dataset=self._datasets[here.dataset].name,
            k=track.k,
            world=here.world,
            ranks=here.ranks,
        )

    # -- small things --

    def _settle(self) -> None:
        """Starts a new generation when the stream that is handed out is another than before."""
        track = self._primary
        seen = (track, track.generation if track is not None else 0)
        if seen == self._seen or track is None:
            return
        if self._seen[0] is not None:
            self.generation += 1
        self._seen = seen
        self._shift = self._reported - track.position

    def _tracks(self) -> list[Track]:
        return list({id(track): track for track in self._serving if track is not None}.values())

    def _track_of(self, index: int) -> Track | None:
        for track in self._tracks():
            if track.hypothesis.dataset == index:
                return track
        return None

    def _files(self, hypothesis: Hypothesis) -> NDArray[np.int64]:
        return self._datasets[hypothesis.dataset].orders[hypothesis.order][1]

    def _head(self, candidate: Candidate) -> NDArray[np.int64]:
        """The beginning of a candidate's order; the last few are kept."""
        head = self._heads.get(candidate)
        if head is None:
            head = search.head_rows(candidate, self._datasets, self._largest)
            if len(self._heads) >= _HEADS_KEPT:
                del self._heads[next(iter(self._heads))]
            self._heads[candidate] = head
        return head


def _candidate(hypothesis: Hypothesis) -> Candidate:
    return Candidate(hypothesis.dataset, hypothesis.order, hypothesis.spec, hypothesis.epoch)


def _whole(hypothesis: Hypothesis) -> bool:
    """All ranks read here: then the world size does not change the merged stream, but for its last places."""
    return replace(hypothesis, ranks=tuple(range(hypothesis.world))) == hypothesis
