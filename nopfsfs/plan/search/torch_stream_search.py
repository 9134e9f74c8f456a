"""Search in the stream of torch's global generator for the place where an epoch's order was drawn, after an unknown
number of draws.

Owns a resumable search over the words of the stream. Each word may be the seed of a sampler or the beginning of a
permutation. Knows only what readers opened first. Takes 0.1 s for a million words and some 10 MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch import SEED_WORDS, SEEDS, stream
from nopfsfs.plan.samplers.torch_global import Global, beginning_at

# Words that `step` looks at: about 30 ms.
CHUNK = 1 << 18
# Words whose generators are begun at a time: 128 KiB, which stays in a core's cache.
_BLOCK = 1 << 15
# Entries of permutations that one step may have to compute: small data sets have many words that give a first sample.
_ENTRIES = 1 << 20
# A find by chance has at most this probability, over all words and targets that were looked at until then.
FALSE_FIND = 1e-6
# Steps of a permutation that are computed for each word that gives the first sample: what the first refill
# of a generator makes from its initial state without meeting words of its own.
_HEAD = 227
# Places of a permutation in which all that a reader opened is looked for.
_REACH = 1 << 16
# Loaders with more workers than this are not known; the choice among batch sizes and workers counts as chance.
_MOST_WORKERS = 256
# Mersenne Twister 19937.
_INIT = np.uint32(1812433253)
_MIDDLE = 397
_UPPER, _LOWER, _MATRIX = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)


@dataclass(frozen=True, eq=False)
class SearchedFiles:
    """The samples that one reader (worker process) opened first in one epoch, in order and each once, int64[m]. The
    samples are taken as those of a data set of n in one of its file orders. At least 2; 6 or more are better, 64 are
    plenty."""

    n: int
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class StreamPlace:
    """A place of the stream that explains a target.

    `word`: the first of the two words of the sampler's seed, or (direct) of the permutation, counted from the
    beginning of the stream.
    `log_chance`: logarithm of the probability that any word looked at agrees so far by chance.
    """

    word: int
    direct: bool
    target: int  # index into the targets
    log_chance: float


class Words(IntEnum):
    """The words that are looked at. A sampler's seed draws a pair of words, of which the second is the seed. Models
    that have an even number of weights draw pairs, too. Then the words of seeds are those of odd numbers, counted from
    0."""

    REST = 0  # those that LIKELY leaves out
    LIKELY = 1  # as seeds every second word; as permutations all
    ALL = 2


class GlobalSearch:
    """A search over the words `start` .. `limit` - 1 of a generator's stream.

    Owns its place in the stream. `step` does a part; the finds come in the order of the stream, the sure ones only.
    """

    def __init__(
        self, seed_or_state: int | str, targets: Sequence[SearchedFiles], limit: int = 50_000_000, start: int = 0,
        which: Words = Words.ALL,
    ) -> None:  # fmt: skip
        """`seed_or_state`: what manual_seed was given, or a state as `torch_generator.torch_state` writes it.

        Costs 4 ms for a million words before `start`. Raises ValueError: a seed or state that torch would not take, n
        or samples that are out of range.
        """
        self._spec = _spec(seed_or_state)
        self._targets = tuple(targets)
        for target in self._targets:
            _check(target)
        self._limit = limit
        self._which = which
        self._start = self._next = start
        self._state = stream(self._spec, start)
        self._ahead = torch_generator.words(self._state, _HEAD)
        self._behind = stream(self._spec, start)  # the generator before the words that a step looks at
        entries = sum(2 * min(target.n, _HEAD) / target.n for target in self._targets)
        self._chunk = CHUNK if entries * CHUNK <= _ENTRIES else int(_ENTRIES / entries)

    @property
    def position(self) -> int:
        """The next word to be looked at."""
        return self._next

    @property
    def done(self) -> bool:
        """True: all words were looked at."""
        return self._next >= self._limit or not self._targets

    def step(self) -> tuple[StreamPlace, ...]:
        """Looks at the next words, at most `CHUNK`; the finds among them, surest first."""
        count = 0 if self.done else min(self._chunk, self._limit - self._next)
        if not count:
            return ()
        words = np.concatenate((self._ahead, torch_generator.words(self._state, count)))
        self._ahead = words[count:].copy()
        every = slice(0, count, 1)
        seeds = every if self._which is Words.ALL else slice((self._next + self._which) % 2, count, 2)
        seeded = _first_outputs(words[seeds])
        found: list[StreamPlace] = []
        for n in dict.fromkeys(target.n for target in self._targets):
            found += self._of_size(n, words, seeds, seeded % np.uint32(n), direct=False)
            if self._which is not Words.REST:
                found += self._of_size(n, words, every, words[every] % np.uint32(n), direct=True)
        torch_generator.skipped(self._behind, count)
        self._next += count
        return tuple(sorted(found, key=lambda one: one.log_chance))

    def spec(self, found: StreamPlace) -> Spec:
        """The sampler `global` whose epoch 0 is where that was found. For `accelerate` in several processes, the
        option `offset` is `found.word`."""
        spec = self._spec.with_option("direct", int(found.direct))
        return beginning_at(spec, self._targets[found.target].n, 0, found.word)

    def _of_size(
        self, n: int, words: NDArray[np.uint32], which: slice, first: NDArray[np.uint32], *, direct: bool
    ) -> Iterator[StreamPlace]:
        """The finds among the targets with n samples; `first`: the first sample that each of those words would give."""
        targets = [(i, target) for i, target in enumerate(self._targets) if target.n == n]
        begins = np.array([target.samples[0] for _, target in targets], dtype=np.uint32)
        places = which.start + which.step * np.flatnonzero(np.isin(first, begins))
        width = min(n, _HEAD)
        per_block = max(1, _BLOCK // width)
        for begin in range(0, len(places), per_block):
            block = places[begin : begin + per_block]
            drawn = words[block[:, None] + np.arange(width)] if direct else outputs(words[block], width)
            heads = torch_generator.randperm_heads(drawn, n)
            for index, target in targets:
                for row in np.flatnonzero(_plausible(heads, target)).tolist():
                    one = self._judge(index, int(block[row]), heads[row], words, direct=direct)
                    if one is not None:
                        yield one

    def _judge(
        self, index: int, place: int, head: NDArray[np.int64], words: NDArray[np.uint32], *, direct: bool
    ) -> StreamPlace | None:
        """All samples of a target against the permutation that begins at, or is seeded with, words[place]; `head`: how
        that begins."""
        target = self._targets[index]
        at = self._next + place
        if len(head) < target.n:
            reach = min(target.n, _REACH)
            if direct:
                head = torch_generator.randperm(self._at(place), target.n, reach)
            else:
                head = torch_generator.randperm(torch_generator.generator(int(words[place])), target.n, reach)
        agreed, workers = agreement(head, target.samples)
        # by chance each sample is one of those that are left; where the loader was chosen, so was that
        chance = -sum(math.log(target.n - i) for i in range(agreed))
        chance += math.log(_MOST_WORKERS) if workers else 0.0
        chance += math.log(2 * len(self._targets) * (at + 1 - self._start))
        word = at if direct else at - SEED_WORDS + 1
        if chance > math.log(FALSE_FIND) or word < 0:
            return None
        return StreamPlace(word, direct, index, chance)

    def _at(self, place: int) -> np.random.RandomState:
        """The generator before word `place` of those that this step looks at."""
        state = np.random.RandomState(0)
        state.set_state(self._behind.get_state())
        return torch_generator.skipped(state, place)


def _spec(seed_or_state: int | str) -> Spec:
    if isinstance(seed_or_state, str):
        torch_generator.generator_from_state(seed_or_state)
        return Spec(Global.name, 0, (("state", seed_or_state),))
    if not SEEDS[0] <= seed_or_state <= SEEDS[1]:
        raise ValueError(f"seed: {seed_or_state} is not a seed of torch")
    return Spec(Global.name, seed_or_state)


def _check(target: SearchedFiles) -> None:
    samples = target.samples
    if not 0 < target.n < torch_generator.MAX_N or not len(samples):
        raise ValueError(f"a target of {len(samples)} out of {target.n} samples")
    if samples.min() < 0 or samples.max() >= target.n:
        raise ValueError(f"samples that are not in 0..{target.n - 1}")


def _plausible(heads: NDArray[np.int64], target: SearchedFiles) -> NDArray[np.bool_]:
    """The beginnings of permutations, int64[m, k], that may be the target's: bool[m].

    The first sample must be there. The second is in the next place. Or, when a batch holds but one, the second is in a
    place further on. That place gives the number of workers, and so the place of the third.
    """
    samples = target.samples
    here: NDArray[np.bool_] = heads[:, 0] == samples[0]
    if len(samples) == 1 or heads.shape[1] == 1:
        return here
    in_row = heads[:, 1] == samples[1]
    rows = np.flatnonzero(here & ~in_row)
    alone = heads[rows] == samples[1]
    rows, workers = rows[alone.any(axis=1)], alone.argmax(axis=1)[alone.any(axis=1)]
    if len(samples) > 2:
        inside = np.flatnonzero(2 * workers < heads.shape[1])
        rows = rows[inside][heads[rows[inside], 2 * workers[inside]] == samples[2]]
    plausible: NDArray[np.bool_] = here & in_row
    plausible[rows] = True
    return plausible


def agreement(head: NDArray[np.int64], samples: NDArray[np.int64]) -> tuple[int, int]:
    """(agreed, workers): how many of a reader's samples, from the first on and without a gap, stand where worker 0 of a
    loader reads them; the loader's workers W, where they show: else 0. Worker 0 reads batch 0, batch W, batch 2 W, ...
    of the order."""
    m = min(len(samples), len(head))
    lead = _leading(head[:m] == samples[:m])
    if lead in (0, m):
        return lead, 0
    places = np.flatnonzero(head == samples[lead])
    workers, rest = divmod(int(places[0]), lead) if len(places) else (0, 0)
    if not 2 <= workers <= _MOST_WORKERS or rest:
        return lead, 0
    place = np.arange(len(samples))
    place = place // lead * (workers * lead) + place % lead
    place = place[place < len(head)]
    return _leading(head[place] == samples[: len(place)]), workers


def _leading(equal: NDArray[np.bool_]) -> int:
    return len(equal) if equal.all() else int(equal.argmin())


def _first_outputs(seeds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The first word of the generator that each seed begins, uint32[m]."""
    result = np.empty_like(seeds)
    for begin in range(0, len(seeds), _BLOCK):
        result[begin : begin + _BLOCK] = outputs(seeds[begin : begin + _BLOCK], 1)[:, 0]
    return result


def outputs(seeds: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
    """The first words of the generators that the seeds begin, uint32[m, count], count <= 227.

    They need only 0..count and 397..396+count of the 624 words of the initial state.
    """
    low = np.empty((count + 1, len(seeds)), dtype=np.uint32)
    high = np.empty((count, len(seeds)), dtype=np.uint32)
    x, shifted = seeds.copy(), np.empty_like(seeds)
    for i in range(_MIDDLE + count):
        if i:
            np.right_shift(x, np.uint32(30), out=shifted)
            np.bitwise_xor(x, shifted, out=x)
            np.multiply(x, _INIT, out=x)
            np.add(x, np.uint32(i), out=x)
        if i <= count:
            low[i] = x
        if i >= _MIDDLE:
            high[i - _MIDDLE] = x
    mixed = (low[:-1] & _UPPER) | (low[1:] & _LOWER)
    y = high ^ (mixed >> np.uint32(1)) ^ np.where(mixed & np.uint32(1), _MATRIX, np.uint32(0))
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    y ^= y >> np.uint32(18)
    return np.ascontiguousarray(y.T)
