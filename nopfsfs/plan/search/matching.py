"""The comparison of opens with candidates: which are tried, in which sequence, and which are worth a closer look?

Candidates are tried by stages, a few at a time, against the opens of now. A candidate that agrees gets a ledger
(`evidence.py`), which later opens add to.

Pure: `Search` is told the opens with each call and keeps its place among the candidates. A candidate costs the
beginning of its order, of small data sets the whole of it, and one glance. The glance asks: do readers take like steps,
or short ones?
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt
from nopfsfs.plan.samplers.torch_global import Global
from nopfsfs.plan.search import candidates
from nopfsfs.plan.search.by_seed import FAMILY, JOINT_LEAST, BySeed, further, joint, likely, named, thorough
from nopfsfs.plan.search.candidates import WHOLE, Candidate, FileList, OrderHeads, Seeds, Stage
from nopfsfs.plan.search.deal import World, listed
from nopfsfs.plan.search.place_in_stream import PlaceInStream
from nopfsfs.plan.search.prepared_opens import PreparedOpens
from nopfsfs.plan.search.suspects import LOCK, SURE, OpensView, Suspect, Table
from nopfsfs.plan.search.torch_seeds import SeedSearch
from nopfsfs.plan.search.torch_stream_search import Words

# Places of orders that are computed in one call, and what a candidate costs beside: together some 50 ms. Some samplers
# compute all of an order for its beginning: there the clock decides.
_PLACES = 2_000_000
_EACH = 12_000
_SECONDS = 0.05
# The first calls end after this share of that: readers open more meanwhile, and what is likeliest is looked at again.
_EARLY_CALLS, _EARLY = 8, 0.2
# Bits of evidence, less the cost, from which on a candidate is suspected.
PLAUSIBLE = 4.0
SUSPECTS_MOST = 8
_SEEDS_MOST = 8
# Bits by which a seed is hardly found by chance: only then are the epochs after it worth trying.
_CLEAR = 20.0
_LATER = 12
# Candidates that take as long as a step of a search by seed.
_SHORT_EACH = 100
# Of data sets with more files than this, a sampler that computes all of an order for its beginning waits for others.
_LARGE = 200_000
# Stages that every search begins with; they are prepared in steps of so many seconds.
_FIRST_STAGES = 3
PREPARED_S = 0.01
# World sizes for which beginnings are long enough, where nobody has said one.
_WORLD = 64
# Searches for further seeds in one enumeration of the files.
_FURTHER = 2


Step = Callable[[PreparedOpens], tuple[list[Suspect], int]]  # what it found, and how many places it computed


@dataclass(frozen=True)
class _Tries:
    """All that a search tries after the usual stage: in stages, by seed, and in the stream of torch's generator."""

    targets: Sequence[FileList]  # all enumerations of files
    large: Sequence[FileList]  # those of more than _LARGE files
    first: Stage  # after the usual one: the other families whose ranks share an order
    second: Stage  # then those whose ranks have orders of their own
    spread: Sequence[Stage]  # common seeds, before `beginnings`, where tripwires alone show
    soonest: Sequence[Stage]  # what is unusual of the seeds that were said, beside a search by seed
    stages: Sequence[Stage]  # the rest, last
    beginnings: Sequence[BySeed]  # all seeds in an epoch's beginning, in the likeliest enumeration
    middles: Sequence[BySeed]  # likely seeds in an epoch's middle, in the likeliest enumeration
    joint: Sequence[BySeed]  # all seeds in the middle of a large epoch, if all readers follow the same order
    quick: Sequence[BySeed]  # all seeds in the middle of an epoch of few files, the likeliest enumeration first
    elsewhere: Sequence[BySeed]  # as `beginnings`, `middles` and `quick`, in other enumerations
    said: Sequence[int]  # the seed that was said, for torch's global generator
    others: Sequence[int]  # further likely seeds, for the same


class Search:
    """A search under way. `seeds`, `sampler`, `worlds`: what was said."""

    def __init__(
        self, datasets: Sequence[DataSet], among: Sequence[int], seeds: Seeds, sampler: str, worlds: Sequence[World],
        heads: OrderHeads, *, first_only: bool = False,
    ) -> None:  # fmt: skip
        """`among`: the data sets that are looked at; `first_only`: what is likeliest, and no more."""
        self._datasets, self._heads = datasets, heads
        self._among = frozenset(among)
        self._seeds, self._worlds = seeds, tuple(worlds)
        self._opens: PreparedOpens | None = None  # those of now
        self._largest = max(_WORLD, max(size for size, _ in worlds))
        targets = list(candidates.targets(datasets, among))
        names = [family.name for family in registry.families(sampler)]
        by_seed = FAMILY in names
        streams = Global.name in names and heads.spacing == 1 and not first_only
        self._parts = self._parts_done = 0
        self._likely = likely(targets, seeds, heads.spacing) if by_seed else []
        self._likely_with = 0  # first opens of readers with which these were tried last
        self._late: list[BySeed] = []  # there were too few opens when it was their turn
        self._joint_begun = False
        self._calls = 0
        self._first_only = first_only
        self._left = self._steps(targets, sampler, by_seed=by_seed, streams=streams)
        self.done = False
        self.past_likely = False  # what was said was tried; where no seed was, any seed is as likely as what is left
        self.past_beginnings = False  # and all seeds where an epoch begins, unless that takes long
        self.past_streams = False  # what is further on in torch's generator may be looked at now

    def within(self, part: int | None) -> bool:
        """True: the search is still at that part, in which others that are as likely may follow."""
        return not self.done and part == self._parts_done

    @property
    def share(self) -> float:
        """The share that was tried of all that there is to try, about."""
        return self._parts_done / max(self._parts, 1)

    def _steps(self, targets: Sequence[FileList], sampler: str, *, by_seed: bool, streams: bool) -> Iterator[Step]:
        seeds, spacing, first_only = self._seeds, self._heads.spacing, self._first_only
        wide = targets if by_seed and not first_only else []
        more = further(wide, seeds, spacing)
        quick, soon, long = thorough(wide, spacing)
        of_all = joint(wide, seeds, spacing)
        usual, first, second, *stages = candidates.stages(seeds, sampler)
        stages = [] if first_only else stages
        # where tripwires alone show, a search by seed reads long beginnings: some 10 s for all of them
        spread = [] if spacing == 1 or first_only else [candidates.usual_of_common(seeds, sampler)]
        large = [] if first_only else [target for target in targets if target.n > _LARGE]
        self._parts = len(more + of_all + quick + long)
        self._parts += 2 * len(large) + len(targets) * len([usual, first, second, *spread, *stages])
        # What is unusual of the seeds that were said comes in turn with all seeds in the middle of a large epoch.
        # Where tripwires alone show, longer beginnings are compared: there it waits.
        known = seeds.given is not None and spacing == 1
        soonest = [stage for stage in stages if known and set(stage.seeds) <= set(seeds.first)]
        said = [seeds.given] if seeds.given is not None and streams else []
        # the likeliest enumeration comes first; whoever enumerates files otherwise seldom has a seed of their own
        tries = _Tries(
            targets, large, first, second, spread, soonest, [stage for stage in stages if stage not in soonest],
            beginnings=more[:1], middles=more[1:_FURTHER], joint=of_all, quick=quick,
            elsewhere=[*more[_FURTHER:], *quick[1:]], said=said,
            others=[seed for seed in seeds.first if seed not in said] if streams else [],
        )  # fmt: skip
        yield from self._of(usual, targets)
        large_middles = self._by_seed(soon, parts=0)
        yield from self._with_seed(tries, large_middles) if seeds.given is not None else self._without_seed(tries)
        yield from large_middles
        further_off = self._by_seed(long)
        yield from chain(_beside(self._of_all(tries.stages, targets), further_off, _SHORT_EACH), further_off)

    def _with_seed(self, tries: _Tries, large_middles: Iterator[Step]) -> Iterator[Step]:
        """The order of what is tried where a seed was said. `large_middles`: all seeds in the middle of large epochs,
        some of which are tried here."""
        yield from self._of(tries.first, tries.targets, costly=False)
        yield from self._of(tries.second, tries.targets, costly=False)
        self._passed_likely()
        yield from self._of_all(tries.spread, tries.targets)
        short = [way for way in tries.middles if way.target.n <= WHOLE]  # a tenth of the time of what follows
        yield from self._by_seed([*short, *tries.beginnings])
        self.past_beginnings = True
        yield from self._in_streams(tries.said, tries.targets, Words.LIKELY)
        self.past_streams = not self._first_only
        yield from self._by_seed(tries.joint)
        middles = self._by_seed([*(way for way in tries.middles if way not in short), *tries.quick[:1]])
        yield from self._with_costly(tries, middles)
        rest = self._in_streams(tries.said, tries.targets, Words.REST)
        others = self._in_streams(tries.others, tries.targets, Words.ALL)
        yield from _beside(chain(rest, self._by_seed(tries.elsewhere), others), large_middles, 1)
        yield from _beside(self._of_all(tries.soonest, tries.targets), large_middles, _SHORT_EACH)

    def _without_seed(self, tries: _Tries) -> Iterator[Step]:
        """The order of what is tried where none was said."""
        self._passed_likely()
        yield from self._of_all(tries.spread, tries.targets)
        yield from self._by_seed(tries.beginnings)
        self.past_beginnings = True
        yield from self._by_seed([] if tries.large else tries.middles)
        yield from self._of(tries.first, tries.targets, costly=False)
        yield from self._of(tries.second, tries.targets, costly=False)
        yield from self._in_streams(tries.others, tries.targets, Words.ALL)
        self.past_streams = not self._first_only
        yield from self._by_seed(tries.joint)
        middles = self._by_seed(tries.middles if tries.large else tries.quick[:1])
        yield from self._with_costly(tries, middles)
        yield from self._by_seed(tries.elsewhere)

    def _with_costly(self, tries: _Tries, middles: Iterator[Step]) -> Iterator[Step]:
        """Both what is left of likely seeds in the middle of an epoch and samplers whose beginnings take long. First
        comes the one that has not been tried so far. A try with only one order of all readers counts."""
        costly = chain(*(self._of(stage, tries.large, costly=True) for stage in (tries.first, tries.second)))
        yield from chain(costly, middles) if self._joint_begun else chain(middles, costly)

    def _passed_likely(self) -> None:
        self.past_likely = True
        self.past_beginnings = self._heads.spacing > 1  # where tripwires alone show, they take long

    def _of_all(self, stages: Iterable[Stage], targets: Sequence[FileList]) -> Iterator[Step]:
        for stage in stages:
            yield from self._of(stage, targets)

    def _of(self, stage: Stage, targets: Sequence[FileList], *, costly: bool | None = None) -> Iterator[Step]:
        """`costly`: only samplers whose beginnings take long where there are many files, or only all others."""
        for target in targets:
            worlds = self._worlds
            if self._opens is not None and any(family.dealt is Dealt.OWN for family in stage.families):
                worlds = tuple(dict.fromkeys((*worlds, *listed(self._opens.readers(target), target.n))))
            for candidate, cost in stage.candidates(target, worlds, self._seeds):
                if target.dataset not in self._among:
                    break
                takes_long = target.n > _LARGE and registry.sampler(candidate.spec.sampler).costly
                if costly is not None and takes_long != costly:
                    continue
                yield partial(self._try, candidate, cost, target)
            self._parts_done += 1

    def _by_seed(self, ways: Iterable[BySeed], parts: int = 1) -> Iterator[Step]:
        """`parts` of the search that each is."""
        for way in ways:
            running: list[SeedSearch | None] = []
            numbers: deque[int] = deque()

            def step(
                opens: PreparedOpens, way: BySeed = way, running: list[SeedSearch | None] = running,
                numbers: deque[int] = numbers,
            ) -> tuple[list[Suspect], int]:  # fmt: skip
                if not running:
                    running.append(way.begin(opens.view, partial(opens.samples, way.target)))
                    if way.joint and running[0] is None:
                        self._late.append(way)
                    self._joint_begun |= way.joint and running[0] is not None
                found = running[0].step() if running[0] is not None else []
                # readers may be some epochs on by now
                later = _LATER if way.target.n <= WHOLE else 2
                numbers.extend(
                    dict.fromkeys(
                        s + epochs
                        for s, bits in found[:_SEEDS_MOST]
                        for epochs in range(later if bits >= _CLEAR else 1)
                    )
                )
                suspects: list[Suspect] = []
                while numbers and way.target.n <= WHOLE:  # of more files each takes long
                    suspects += self._try_seed(numbers.popleft(), way.target, opens)[0]
                return suspects, _PLACES // 2

            while way.target.dataset in self._among and not (running and (running[0] is None or running[0].done)):
                yield step
                while numbers:
                    yield partial(self._try_seed, numbers.popleft(), way.target)
            self._parts_done += parts

    def _in_streams(self, seeds: Iterable[int], targets: Sequence[FileList], which: Words) -> Iterator[Step]:
        """A loader that shuffles takes its seed from the global generator, of which a model has drawn before."""
        usual = set(registry.sampler(Global.name).files)
        for seed in seeds:
            among = [one for one in targets if usual & set(one.names) and one.dataset in self._among]
            running: list[PlaceInStream] = []

            def step(
                opens: PreparedOpens, seed: int = seed, among: list[FileList] = among,
                running: list[PlaceInStream] = running,
            ) -> Any:  # fmt: skip
                if not running:
                    running.append(PlaceInStream(seed, among, opens, which))
                return running[0].step(opens, self._heads, self._largest), _PLACES + 1

            yield step
            while running and not running[0].done:
                yield step

    def _try_seed(self, s: int, target: FileList, opens: PreparedOpens) -> tuple[list[Suspect], int]:
        candidate, cost = named(s, target, self._seeds)
        order = self._heads.whole(candidate, target.n)
        suspect = Suspect(candidate, Table(opens.files(target)[order]), cost, part=SURE)  # no other seed is near
        suspect.weigh(opens.view)
        return [suspect] if suspect.worth >= PLAUSIBLE else [], len(order)

    def run(self, view: OpensView, among: Sequence[int] | None = None) -> list[Suspect]:
        """Goes on with the next candidates; those that look like what was opened. `among`: further opens show that only
        these data sets may be read."""
        begun = time.thread_time()
        share = _EARLY if self._calls < _EARLY_CALLS else 1.0
        self._calls += 1
        opens, found, places = PreparedOpens(view, self._datasets), [], 0
        self._opens = opens
        self._among = self._among if among is None else frozenset(among)
        firsts = sum(map(len, view.firsts))
        # also while others are tried: there were too few before
        enough = firsts if view.has_all_firsts else firsts // 2
        if firsts > self._likely_with <= enough:
            self._likely_with = firsts
            self._left = chain(self._by_seed(self._likely, parts=0), self._left)
        if self._late and len(view.rows) >= JOINT_LEAST:
            late, self._late = self._late, []
            self._left = chain(self._by_seed(late, parts=0), self._left)
        for step in self._left:
            suspects, computed = step(opens)
            for suspect in suspects:
                suspect.part = self._parts_done if suspect.part is None else suspect.part
            found += suspects
            places += computed
            if any(one.part == SURE and one.worth >= LOCK for one in suspects):
                return found  # readers wait for nothing else
            if places > share * _PLACES or time.thread_time() - begun >= share * _SECONDS:
                return found
        self.done = True
        return found

    def _try(
        self, candidate: Candidate, cost: float, target: FileList, opens: PreparedOpens
    ) -> tuple[list[Suspect], int]:
        n, files, which = target.n, opens.files(target), opens.which(target)
        if candidate.subset is not None:
            part = self._heads.part(candidate.subset, n)
            n, files, which = len(part), files[part], np.append(which[part], np.int16(-1))
        if n < 2:
            return [], _EACH
        head = self._heads.first(candidate, n, self._largest)
        length = len(head) if n <= WHOLE else n
        computed = _EACH + len(head)
        if not opens.glance.worthwhile(_places(which[head], len(opens.view.rows)), length):
            return [], computed
        if n > WHOLE:
            head = self._heads.full(candidate, n, self._largest)
        suspect = Suspect(candidate, Table(np.where(head >= 0, files[head], -1), length), cost)
        suspect.weigh(opens.view)
        return [suspect] if suspect.worth >= PLAUSIBLE else [], computed + len(head)


def prepare(
    datasets: Sequence[DataSet], among: Sequence[int], seeds: Seeds, sampler: str, worlds: Sequence[World],
    heads: OrderHeads,
) -> Iterator[None]:  # fmt: skip
    """Computes what searches compare with first, some of it at each step, while there is nothing to be compared.

    What several ranks read is left out: one such order takes as long as several steps, and readers would wait for it.
    """
    largest = max(_WORLD, max(size for size, _ in worlds))
    begun = time.thread_time()
    for stage in islice(candidates.stages(seeds, sampler), _FIRST_STAGES):
        for target in candidates.targets(datasets, among):
            for candidate, _ in stage.candidates(target, worlds, seeds):
                if candidate.world is None or len(candidate.world[1]) == 1:
                    heads.first(candidate, target.n, largest)
                if time.thread_time() - begun >= PREPARED_S:  # whoever opens something waits for no more
                    yield
                    begun = time.thread_time()


def _beside(steps: Iterator[Step], others: Iterator[Step], each: int) -> Iterator[Step]:
    """All of `steps`, and after each `each` of them one of `others`."""
    for number, step in enumerate(steps, 1):
        yield step
        yield from islice(others, 1 if number % each == 0 else 0)


def _places(which: NDArray[np.int16], count: int) -> NDArray[np.int64]:
    """The first place of each open, int64[count], -1: none; from which open is at each place."""
    places = np.full(count, -1, np.int64)
    at = np.flatnonzero(which >= 0)[::-1]
    places[which[at]] = at
    return places
