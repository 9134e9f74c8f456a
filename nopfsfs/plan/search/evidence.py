"""The evidence that opens follow an order: a ledger, in bits.

An order gives each file a place. A reader that follows the order takes steps that come again and again, whatever the
world size, the workers and the place where it began. In any other order the reader's places are random. The ledger
tells each place as a step from the reader's last place, with a probability that was fixed before the open came. The
product of these probabilities, over those of a random order, is a test martingale. In a wrong order the martingale ever
exceeds 2**b with a probability below 2**-b. That holds however often it is looked at, and however the readers are
interleaved. Source: Ville's inequality; Shafer and Vovk, Game-Theoretic Foundations for Probability and Finance, 2019,
chapter 2. The probabilities of steps are those of a Pitman-Yor process: steps seen before, or a new one of a size seen
before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

# The share of opens that need not fit: strays.
_STRAY = 0.02
# Bits below its best at which a reader follows the order no longer: some four strays with nothing between that fits.
LOST = 30.0
# Where it is not known who opens, so many last places are taken for those of readers.
_CHAINS = 64
# Steps that are looked for from each of them.
_COMMON = 4
_FORWARD = 0.9

# Opens by which a reader that follows an order would show it.
_TELLING = 4


class Ledger:
    """The evidence that opens follow one order of `n` places. Takes some 4 microseconds an open."""

    __slots__ = (
        "_chains", "_i", "_lasts", "_n", "_own", "_random", "_sizes", "_sorted", "_steps", "_told", "_total",
        "followed",
    )  # fmt: skip

    def __init__(self, n: int, total: int = 0) -> None:
        """`total`: files of which those in the order are some."""
        self._n = n
        self._total = max(n, total)
        self._steps: Counter[int] = Counter()  # how often each step was taken
        # by reader: the places it opened, in order, since it most likely began to follow the order
        self.followed: dict[int, list[int]] = {}
        self._sizes: Counter[tuple[bool, int]] = Counter()  # steps by direction and bits of their size
        self._told = 0
        self._i = 0  # files opened before
        self._random = 0.0
        self._lasts: dict[int, int] = {}
        self._own: dict[int, tuple[float, float, int]] = {}  # by reader: log2 of its odds, their best, and its opens
        self._chains: deque[int] = deque()  # last places of readers that are not known, the oldest first
        self._sorted: list[int] = []

    @property
    def bits(self) -> float:
        """log2 of the odds that the opens follow the order. A priori, each reader follows it with probability 1/2. A
        reader that has followed it, and does no longer, counts as one that does not."""
        return sum(_either(odds) if best - odds < LOST else -1.0 for odds, best, _ in self._own.values())

    @property
    def best(self) -> float:
        """The bits with the readers that followed once, and do no longer."""
        return sum(_either(best) for _, best, _ in self._own.values())

    @property
    def random_bits(self) -> float:
        """-log2 of the probability of the same opens in a random order: by that orders of different lengths differ."""
        return self._random

    def reader_bits(self, reader: int) -> float:
        """log2 of the odds that this reader does; 0 when it did, and does no longer."""
        odds, best, _ = self._own.get(reader, (0.0, 0.0, 0))
        return odds if best - odds < LOST else 0.0

    def opens(self, reader: int) -> int:
        """The number of this reader's opens that were added."""
        return self._own[reader][2] if reader in self._own else 0

    def add_all(self, opens: Iterable[tuple[int, int]]) -> None:
        """`add` of many."""
        for place, reader in opens:
            self.add(place, reader)

    def add(self, place: int, reader: int) -> None:
        """A file's first open, at `place` of the order (-1: it is not in the order), by `reader` (0: not known)."""
        odds, best, count = self._own.get(reader, (-math.inf, 0.0, 0))
        # the reader may have begun to follow the order at each of its opens
        start = 1.0 / ((count + 1) * (count + 2))
        if odds < math.log2(start):
            self.followed.pop(reader, None)  # more likely it begins here
        odds = math.log2(2.0**odds + start) if odds < 60 else odds
        if place < 0:
            odds += math.log2(_STRAY)
            self._random += math.log2(self._total)
        else:
            random = math.log2(max(self._n - self._i, 1))
            odds += math.log2(self._chance(place, reader)) + random
            self._random += random
            self._i += 1
            self.followed.setdefault(reader, []).append(place)
        self._own[reader] = odds, max(best, odds), count + 1

    def _chance(self, place: int, reader: int) -> float:
        """The probability that this place comes next; notes the step."""
        last = self._lasts.get(reader) if reader else self._before(place)
        among = 1 if reader else len(self._chains) + 1
        anywhere = 0.5 / self._n + 0.5 * code(place + 1)
        if last is None:
            chance = anywhere / among
        else:
            chance = (1 - _STRAY) * self._step(place - last) / among
            if not reader and anywhere / among > chance:  # the first open of a further reader
                chance, last = anywhere / among, None
            chance += _STRAY / self._n
        if reader:
            self._lasts[reader] = place
        else:
            self._chain(last, place)
        if last is not None:
            self._note(place - last)
        return chance

    def _step(self, d: int) -> float:
        """The probability of a step."""
        size = abs(d).bit_length()
        total = self._told + 1
        length = 1 << (size - 1)
        new = (self._sizes[d > 0, size] / length + (_FORWARD if d > 0 else 1 - _FORWARD) * code(abs(d))) / total
        return (max(self._steps[d] - 0.5, 0.0) + (1 + len(self._steps) / 2) * new) / total

    def _note(self, d: int) -> None:
        self._steps[d] += 1
        self._sizes[d > 0, abs(d).bit_length()] += 1
        self._told += 1

    def _before(self, place: int) -> int | None:
        """From which of the last places a reader that is not known has come: by a usual step, or from the next below,
        or above."""
        for step, _ in self._steps.most_common(_COMMON) if self._chains else ():
            at = bisect_left(self._sorted, place - step)
            if at < len(self._sorted) and self._sorted[at] == place - step:
                return place - step
        at = bisect_left(self._sorted, place)
        if at:
            return self._sorted[at - 1]
        return self._sorted[0] if self._sorted else None

    def _chain(self, last: int | None, place: int) -> None:
        if last is None and len(self._chains) >= _CHAINS:
            last = self._chains[0]
        if last is not None:
            self._chains.remove(last)
            self._sorted.pop(bisect_left(self._sorted, last))
        self._chains.append(place)
        insort(self._sorted, place)

    @property
    def steps(self) -> Counter[int]:
        """The steps of those who follow the order."""
        found: Counter[int] = Counter()
        for reader, places in self.followed.items():
            if self.follows(reader):
                found.update(after - before for before, after in pairwise(places))
        return found

    def follows(self, reader: int, least: float = 0.0) -> bool:
        """True: this reader's own odds are more than so many bits."""
        return self.reader_bits(reader) > least


def elsewhere(opens: Sequence[tuple[int, int]], n: int) -> tuple[list[int], list[int]]:
    """The indices of the opens that are not of this epoch. First those that readers made before they began to follow
    the order, then all opens of readers that do not follow it. `opens`: (place of an order of `n`, -1 for none;
    reader). The opens of readers that are not known (0), and of readers with few opens, are of this epoch."""
    ledger = Ledger(n)
    last = {place: at for at, (place, _) in enumerate(opens) if place >= 0}
    whose: dict[int, list[int]] = {}
    for at, (place, reader) in enumerate(opens):
        if not reader:
            continue
        if place < 0 or last[place] == at:  # a file that was opened before as well was so in another epoch
            ledger.add(place, reader)
        whose.setdefault(reader, []).append(at)
    before: list[int] = []
    others: list[int] = []
    for reader, mine in whose.items():
        if ledger.follows(reader):
            places = set(ledger.followed[reader])
            began = next(nth for nth, at in enumerate(mine) if last.get(opens[at][0]) == at and opens[at][0] in places)
            before += mine[:began]
        elif ledger.opens(reader) >= _TELLING:
            others += mine
    return before, others


def code(x: int) -> float:
    """A probability of each x >= 1 that sums to 1, and falls little faster than 1 / x."""
    return 1 / math.log2(x + 1) - 1 / math.log2(x + 2)


def _either(odds: float) -> float:
    """log2 of the mean of 1 and 2**odds."""
    return odds - 1 if odds > 60 else math.log2(1 + 2.0**odds) - 1
