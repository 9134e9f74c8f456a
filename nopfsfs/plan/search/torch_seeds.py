"""Search for the seeds of torch's randperm, of some ten thousand, that readers may follow.

DistributedSampler and those like it shuffle by a generator seeded with seed + epoch: one number to be found. Owns three
searches for it. At an epoch's beginning the first words of each generator tell. In its middle a generator runs until
its order is clearly wrong: no reader follows it, or, in the third search, not all readers do. What the searches find is
likely, not certain. Knows nothing of who reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search import torch_places
from nopfsfs.plan.search.step_bits import ABSENT, OUTSIDE, interesting, reader_bits, together

# The usual seeds, and epochs after them.
SEEDS = range(10_300 + 128)
# Places of an epoch's beginning where first opens are looked for: enough for 64 ranks. 16 times as many do for 1,024.
REACH = 624
# Words that could be drawn in one step: at most some 50 ms.
_STEP_WORDS = 1 << 23
# As many words as all else takes: for a word of a beginning, and each open; for an order, and each sample in it.
_BEGINNING_WORD, _BEGINNING_OPEN, _MIDDLE_ORDER, _MIDDLE_SAMPLE = 8, 3, 5000, 150
# Words drawn at a time: they and what is made of them stay in a core's cache.
_BLOCK = 1 << 16
# Orders of which no two fit into a block are followed by parts: half of the order, or at most so many steps, at a time.
_PART_MOST = 1 << 17
# So many seeds a search may find by chance.
_FALSE_FINDS = 4
# The last opens of a reader seldom lie this share of an epoch apart; and one in so many is a stray.
_APART, _STRAY = 1 / 32, 6
# The opens of a run lie at most this share of an epoch apart, or so many places.
_RUN_APART, _RUN_APART_LEAST = 1 / 64, 1 << 11


class Opened:
    """The samples that some readers opened first, in order.

    `samples`: int64[m], distinct. `column`: int64[readers, opens], where a reader's opens are in that, or m
    where it made fewer than others.
    """

    def __init__(self, readers: Sequence[NDArray[np.int64]], n: int) -> None:
        """`readers`: the samples that each opened, once each, int64[k]. Raises ValueError when one is out of range, or
        a reader opened nothing."""
        if not readers or not all(len(each) for each in readers):
            raise ValueError("a reader that opened nothing")
        self.n = n
        self.samples, column = np.unique(np.concatenate(readers), return_inverse=True)
        if not 0 <= self.samples[0] <= self.samples[-1] < n < torch_generator.MAX_N:
            raise ValueError(f"samples that are not in 0..{n - 1}")
        self.column = np.full((len(readers), max(map(len, readers))), len(self.samples))
        ends = np.cumsum([len(each) for each in readers]).tolist()
        for row, each, end in zip(self.column, readers, ends, strict=True):
            row[: len(each)] = column[end - len(each) : end]


class SeedSearch:
    """A search over seeds. `step` does a part, of at most some 50 ms, and returns what it found."""

    def __init__(self, opened: Opened, look: _Look, seeds: Iterable[int]) -> None:
        self._opened, self._look = opened, look
        self._seeds = list(dict.fromkeys(seeds))
        self._next = 0
        # a wrong seed shows b bits with a probability below 2^-b
        self._needed = math.log2(max(1.0, len(self._seeds) / _FALSE_FINDS))

    @property
    def done(self) -> bool:
        """True: all seeds were looked at."""
        return self._next >= len(self._seeds)

    def step(self) -> list[tuple[int, float]]:
        """Looks at the next seeds: those that the readers may follow, each with the bits that it tells better than
        chance, most first."""
        seeds = self._seeds[self._next : self._next + self._look.at_once]
        self._next += len(seeds)
        if not seeds:
            return []
        bits = self._bits(self._look.places(seeds))
        found = [(seeds[i], float(bits[i])) for i in np.flatnonzero(bits >= self._needed).tolist()]
        return sorted(found, key=lambda one: -one[1])

    def _bits(self, table: NDArray[np.int32]) -> NDArray[np.float64]:
        n, reach = self._opened.n, self._look.reach
        if reach == n:
            bits = np.full(table.shape[1], -np.inf)
            likely = (table[:-1] != ABSENT).any(axis=0)
            if likely.any():
                places = table[:, likely][self._opened.column]
                bits[likely] = together(np.stack([reader_bits(each, n, reach) for each in places]))
            return bits
        places = table[self._opened.column]
        look_at = interesting(places, n, reach)
        bits = np.full(look_at.shape, -np.inf)
        reader, order = np.nonzero(look_at)
        bits[reader, order] = reader_bits(places[reader, :, order].T, n, reach)
        return together(bits)


def beginnings(
    readers: Sequence[NDArray[np.int64]], n: int, seeds: Iterable[int] = SEEDS, reach: int = REACH
) -> SeedSearch:
    """Seeds that explain readers that began where an epoch began, by the first 6 to 16 samples of each, int64[k]. It is
    enough that one of them opened several of the first `reach` places. All usual seeds take 0.1 to 0.25 s. Raises
    ValueError as `Opened`."""
    opened = Opened(readers, n)
    return SeedSearch(opened, _Beginnings(opened, reach), seeds)


def middles(readers: Sequence[NDArray[np.int64]], n: int, seeds: Iterable[int] = SEEDS) -> SeedSearch:
    """Seeds that explain readers anywhere in an epoch, by samples that each opened one after the other, int64[k].
    Needed are 8 samples, 6 if none is a stray, 16 of several threads. One reader is enough. All usual seeds take 0.4 s
    at n = 4,000, 3 s at 60,000, a minute at 1.28 million. Raises ValueError as `Opened`."""
    opened = Opened(readers, n)
    return SeedSearch(opened, _Middles(opened) if 2 * n <= _BLOCK else _LargeMiddles(opened), seeds)


def joint_middles(runs: Sequence[NDArray[np.int64]], n: int, seeds: Iterable[int] = SEEDS) -> SeedSearch:
    """Seeds that explain readers that all follow the same order, wherever each of them is in it. Some 100 samples that
    they opened lately in all tell. The samples come in runs of up to 8 that one reader opened one after the other,
    int64[2 <= k <= 8]. All usual seeds take about 1 s at n = 60,000, some seconds at 1.28 million. Raises ValueError
    as `Opened`."""
    opened = Opened(runs, n)
    return SeedSearch(opened, _JointMiddles(opened, runs), seeds)


class _Look(Protocol):
    """The places of samples in the orders of seeds."""

    reach: int  # below which places are looked at
    at_once: int  # seeds

    def places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        """The places of the samples, int32[m + 1, seeds], or OUTSIDE. The last row is ABSENT, and so is all of an order
        that is surely another."""


class _Words:
    """The first words of some generators at once, as what the steps of permutations add to their places."""

    def __init__(self, rows: int, n: int, count: int) -> None:
        # of few words RandomState takes as long to check what it is asked for
        self._bits = np.random.MT19937(0)
        self._generator = np.random.RandomState(self._bits)
        self._left = np.arange(n, n - count, -1, dtype=np.uint32)
        self._drawn = np.empty((rows, count), dtype=np.uint32)

    def of(self, seeds: Sequence[int]) -> NDArray[np.uint32]:
        """word % (n - i) of step i, uint32[seeds, count], until the next call."""
        drawn = self._drawn[: len(seeds)]
        for row, seed in zip(drawn, seeds, strict=True):
            # seeding anew takes 1 us, making a generator 70
            self._generator.seed(seed & 0xFFFFFFFF)
            row[:] = self._bits.random_raw(len(row))
        drawn %= self._left
        return drawn


class _Beginnings:
    """The first places of orders. Exact: place i is final after step i."""

    def __init__(self, opened: Opened, reach: int) -> None:
        self._samples = opened.samples
        self.reach = min(reach, opened.n)
        cost = _BEGINNING_WORD * self.reach + _BEGINNING_OPEN * opened.column.size
        self.at_once = max(1, _STEP_WORDS // cost)
        self._rows = max(1, _BLOCK // self.reach)
        self._words = _Words(self._rows, opened.n, self.reach)
        self._number = np.zeros(opened.n, dtype=np.int16 if len(opened.samples) < 1 << 15 else np.int32)
        self._number[opened.samples] = np.arange(1, len(opened.samples) + 1)

    def places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        parts = range(0, len(seeds), self._rows)
        return np.concatenate([self._places(seeds[i : i + self._rows]) for i in parts], axis=1)

    def _places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        target = self._words.of(seeds)
        target += np.arange(self.reach, dtype=np.uint32)
        places = np.full((len(self._samples) + 1, len(seeds)), OUTSIDE, dtype=np.int32)
        places[-1] = ABSENT
        number = self._number.take(target).reshape(-1)
        # the first step that aims at a sample's own place takes it: written last
        hits = np.flatnonzero(number)[::-1]
        order, step = np.divmod(hits, self.reach)
        places[number[hits] - 1, order] = step
        small = int(np.searchsorted(self._samples, self.reach))
        if small:
            self._displaced(places[:small], target)
        return places

    def _displaced(self, places: NDArray[np.int32], target: NDArray[np.uint32]) -> None:
        """The samples that no step took before the step of their own place, which took them elsewhere."""
        again = _again(target, len(self._number))
        sample, order = np.nonzero(places == OUTSIDE)
        at = self._samples[sample]
        while len(sample):
            step = again[order, at]
            places[sample, order] = step
            at = target[order, at].astype(np.int64)
            goes = (step < 0) & (at < self.reach)
            sample, order, at = sample[goes], order[goes], at[goes]


class _Middles:
    """Any places of small orders, some laid end to end at a time."""

    def __init__(self, opened: Opened) -> None:
        self._samples = opened.samples
        self.reach = n = opened.n
        self.at_once = max(1, _STEP_WORDS // (n + _MIDDLE_ORDER + _MIDDLE_SAMPLE * len(opened.samples)))
        self._rows = max(1, _BLOCK // n)
        self._marks = np.zeros(self._rows * n, dtype=np.bool_)
        self._words = _Words(self._rows, n, n)
        self._line = np.arange(self._rows * n).reshape(self._rows, -1)
        self._target = np.empty_like(self._line)

    def places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        result = np.full((len(self._samples) + 1, len(seeds)), ABSENT, dtype=np.int32)
        for i in range(0, len(seeds), self._rows):
            result[:-1, i : i + self._rows] = self._places(seeds[i : i + self._rows])
        return result

    def _places(self, seeds: Sequence[int]) -> NDArray[np.int64]:
        line = self._line[: len(seeds)]
        target = np.add(self._words.of(seeds), line, out=self._target[: len(seeds)])
        begin = line[:, :1]
        at = (self._samples + begin).reshape(-1)
        place = torch_places.follow(target.reshape(-1), at, self._marks).reshape(len(seeds), -1)
        return np.transpose(place - begin)


class _LargeMiddles:
    """Any places of large orders, only up to where it is clear that no reader is further on.

    The samples that a reader opened last lie together. So but for strays none of them lies well before a place at which
    the reader is, or to which it has still to come. In a wrong order half of these samples lie in the first half. So
    such an order is known from half of it.
    """

    def __init__(self, opened: Opened) -> None:
        self.reach = n = opened.n
        self.at_once = max(1, _STEP_WORDS // (n + _MIDDLE_ORDER + _MIDDLE_SAMPLE * len(opened.samples)))
        self._follow = _Follow(opened, min(_PART_MOST, -(-n // 2)))
        self._column = opened.column
        self._made = (opened.column < len(opened.samples)).sum(axis=1)

    def places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        return self._follow.places(seeds, self._further_on)

    def _further_on(self, place: NDArray[np.int64], end: int) -> bool:
        before = np.append((place >= 0) & (place < end - self.reach * _APART), False)
        gone = before[self._column].sum(axis=1)
        return bool((gone * _STRAY <= self._made).any())


class _JointMiddles:
    """Any places of large orders that all readers follow; a wrong one only up to where that is clear.

    But for strays, either all opens of a run lie ahead of the places that were looked at, or none. In a wrong order
    each open lies there by chance. A hundred opens tell the two apart after a small part of an order. The first such
    part of several orders is looked at together, where they fit into a block: that takes a third of the time. It shows
    the samples beyond the part: the others may have been moved away.
    """

    def __init__(self, opened: Opened, runs: Sequence[NDArray[np.int64]]) -> None:
        self.reach = n = opened.n
        apart = max(_RUN_APART_LEAST, int(n * _RUN_APART))
        self._part = part = max(3 * _RUN_APART_LEAST, 2 * apart)
        self.at_once = max(1, _STEP_WORDS // (2 * part + _MIDDLE_ORDER + _MIDDLE_SAMPLE * len(opened.samples)))
        self._follow = _Follow(opened, part)
        self._runs = _OpenRuns(opened, apart)
        beyond = [run for run in (run[run >= part] for run in runs) if len(run)] if 2 * part <= _BLOCK else []
        self._first = (_Beginnings(far := Opened(beyond, n), part), _OpenRuns(far, apart)) if beyond else None

    def places(self, seeds: Sequence[int]) -> NDArray[np.int32]:
        result = np.full((self._runs.samples + 1, len(seeds)), ABSENT, dtype=np.int32)
        left = np.arange(len(seeds))
        if self._first is not None:
            beginnings, runs = self._first
            left = np.flatnonzero(runs.likely(beginnings.places(seeds), self._part))
        result[:, left] = self._follow.places([seeds[at] for at in left.tolist()], self._likely)
        result[:, (result == OUTSIDE).any(axis=0)] = ABSENT
        return result

    def _likely(self, place: NDArray[np.int64], end: int) -> bool:
        return bool(self._runs.likely(np.append(place, OUTSIDE)[:, None], end)[0])


class _OpenRuns:
    """Runs of opens of readers that all follow the same order. The opens of a run lie at most `apart` places apart."""

    def __init__(self, opened: Opened, apart: int) -> None:
        self.samples = len(opened.samples)
        self._n, self._apart, self._column = opened.n, apart, opened.column
        self._made = (opened.column < self.samples).sum(axis=1)[:, None]
        self._odds: dict[int, NDArray[np.float64]] = {}  # by how many places were looked at

    def likely(self, place: NDArray[np.signedinteger[Any]], end: int) -> NDArray[np.bool_]:
        """True: so many of each run lie before `end`, and that is hardly less likely in the order of the readers than
        by chance. One stray decides nothing. `place`, [samples + 1, orders], is negative where no place below `end` is
        known, and in its last row. bool[orders]."""
        if end not in self._odds:
            early = max(0.0, (end - self._apart) / self._n)
            self._odds[end] = _run_odds(self._column.shape[1], early, end / self._n)
        seen = place >= 0
        before = (seen & (place < end - self._apart))[self._column].sum(axis=1)
        odds = self._odds[end][self._made, before, seen[self._column].sum(axis=1)]
        likely: NDArray[np.bool_] = odds.sum(axis=0) >= -math.log(_STRAY)
        return likely


def _run_odds(longest: int, early: float, looked_at: float) -> NDArray[np.float64]:
    """The likelihood of a run of k opens in the order of its reader, over that by chance. It depends on how many opens
    lie in the share `early` of the order, and how many in the share `looked_at`. Logarithms, float64[longest + 1,
    longest + 1, longest + 1] by k and these two numbers.

    A run that is all ahead has only strays in `early`; a run that was passed has all but strays in `looked_at`. A run
    that is being passed has opens between the two, but none in `early`: that ends more than a run's length before
    `looked_at` does.
    """
    opens, before, seen = np.indices(3 * (longest + 1,), dtype=np.float64)
    ahead = (opens - before) * math.log((1 - early / _STRAY) / (1 - early)) - before * math.log(_STRAY)
    passed = seen * math.log((1 - (1 - looked_at) / _STRAY) / looked_at) - (opens - seen) * math.log(_STRAY)
    with np.errstate(divide="ignore"):
        odds: NDArray[np.float64] = np.logaddexp(np.log(1 - looked_at) + ahead, math.log(looked_at) + passed)
    return odds


class _Follow:
    """The samples of readers through the orders of seeds, one order after the other, by parts."""

    def __init__(self, opened: Opened, part: int) -> None:
        """`part`: steps that are made at a time."""
        self._samples, self._n, self._part = opened.samples, opened.n, part
        self._marks = np.zeros(opened.n, dtype=np.bool_)
        self._generator = np.random.RandomState(0)
        self._buffer = np.empty(part, dtype=np.int64)

    def places(self, seeds: Sequence[int], further_on: Callable[[NDArray[np.int64], int], bool]) -> NDArray[np.int32]:
        """The places as of `_Look.places`. `further_on`: tells whether to look further on than at the first so many
        places, from the places of the samples, int64[m], or OUTSIDE."""
        result = np.full((len(self._samples) + 1, len(seeds)), ABSENT, dtype=np.int32)
        for i, seed in enumerate(seeds):
            result[:-1, i] = self._places(seed, further_on)
        return result

    def _places(self, seed: int, further_on: Callable[[NDArray[np.int64], int], bool]) -> NDArray[np.int64]:
        n, at = self._n, self._samples.copy()
        place = np.full(len(at), OUTSIDE)
        self._generator.seed(seed & 0xFFFFFFFF)
        for begin in range(0, n, self._part):
            target = torch_generator.targets(self._generator, n - begin, min(self._part, n - begin), self._buffer)
            torch_places.advance(target, begin, at, place, self._marks)
            if not further_on(place, begin + len(target)):
                break
        return place


def _again(target: NDArray[np.uint32], n: int) -> NDArray[np.int32]:
    """The next step that aims where a step aims, or -1: int32[orders, steps] of uint32[orders, steps]."""
    orders, steps = target.shape
    bits = steps.bit_length()
    # (target, step) in one word, if need be of 64 bits; sorting 32-bit ones is faster
    key = target.astype(np.uint32 if n.bit_length() + bits <= 32 else np.uint64)
    key <<= bits
    key |= np.arange(steps, dtype=key.dtype)
    key.sort(axis=1)
    same = key[:, 1:] >> bits == key[:, :-1] >> bits
    order, first = np.nonzero(same)
    key &= (1 << bits) - 1
    result = np.full((orders, steps), -1, dtype=np.int32)
    result[order, key[order, first]] = key[order, first + 1]
    return result
