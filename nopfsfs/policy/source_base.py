"""The base: how long requests take at a source while it is idle, by size class, and how sharp the source's knee is.

Pure. All times are base-2 logarithms of nanoseconds, as the stager counts them. Neither stragglers nor a few large
files upset a mean of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from nopfsfs.protocol.columns import SIZE_CLASSES

EVIDENCE_MOST = 120.0  # requests; what was found earlier counts for no more, so that a base follows its source
# Another source, or another state of it: so many standard errors of a drain's mean, if the logarithm of a duration
# varies by 1 (its usual 0.6 makes this 5), and so many times longer or shorter. Idle is up to 1.6 times longer with
# other mounts than alone, as each has requests under way in a drain.
ANOTHER, ANOTHER_TIMES = 3.0, 2.2
HALVES_LEAST, QUIETER = 7, 1.5  # requests; standard errors of log2 durations, whose deviation is about 1
LOWER = math.log2(0.97)
KNEE_READINGS, KNEE_ENOUGH = 9, 6  # the last half drains, whose median is the knee; so many prove it
FLATTEST, SHARPEST = 0.5, 6.0
LEAP, CREPT = 1.3, 1.15  # times; a base that grows by so much in one drain; by so much in those after it
KEPT, KEPT_WITH_ROOM = 0.85, 0.3  # of a rise, after another drain
CREPT_KEPT = 0.95  # the exponent of what crept up, after another drain: noise and old steps are forgotten


@dataclass(frozen=True, slots=True)
class SourceMemory:
    """A base as a mount hands it to the next, and to others of its node or job. `log2_ns`: base-2 logarithms of ns by
    size class (None: never seen); `evidence`: the requests that prove each; `knees`: the last readings of the knee."""

    log2_ns: tuple[float | None, ...]
    evidence: tuple[float, ...]
    knees: tuple[float, ...] = ()


@dataclass(slots=True)
class Ended:
    """Requests that ended in some time: `count` and sum of `log2_ns`, each by size class."""

    count: Sequence[int]
    log2_ns: Sequence[float]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.count)

    def __add__(self, other: Ended) -> Ended:
        return Ended(
            [a + b for a, b in zip(self.count, other.count, strict=True)],
            [a + b for a, b in zip(self.log2_ns, other.log2_ns, strict=True)],
        )

    @property
    def seconds(self) -> float:
        """The geometric mean of their durations. Raises ZeroDivisionError where none ended."""
        return float(2.0 ** (sum(self.log2_ns) / self.total) * 1e-9)


def together(memories: Sequence[SourceMemory]) -> SourceMemory:
    """Put together what the mounts of a job have found. Each size class gets the median, weighted by the evidence.
    Readings of the knee are spread evenly over all of the mounts' readings. `memories`: at least one."""
    log2: list[float | None] = []
    evidence: list[float] = []
    for values, weights in zip(
        zip(*(one.log2_ns for one in memories), strict=True), zip(*(one.evidence for one in memories), strict=True),
        strict=True,
    ):  # fmt: skip
        pairs = zip(values, weights, strict=True)
        known = sorted((value, weight) for value, weight in pairs if value is not None and weight)
        total = sum(weight for _, weight in known)
        reached = accumulate(weight for _, weight in known)
        log2.append(next((value for (value, _), at in zip(known, reached, strict=True) if 2 * at >= total), None))
        evidence.append(min(EVIDENCE_MOST, total))
    knees = sorted(knee for one in memories for knee in one.knees)
    count = min(KNEE_READINGS, len(knees))
    return SourceMemory(
        tuple(log2), tuple(evidence), tuple(knees[(2 * at + 1) * len(knees) // (2 * count)] for at in range(count))
    )


class SourceBase:
    """The idle durations of a source's requests, as far as they are known. `proven`: a drain has shown them."""

    def __init__(self, memory: SourceMemory | None = None) -> None:
        self._log2: list[float | None] = [None] * SIZE_CLASSES
        self._evidence = [0.0] * SIZE_CLASSES
        self._own = [0.0] * SIZE_CLASSES  # of it, what drains have shown here
        self._knees: tuple[float, ...] = ()
        if memory is not None:
            self.adopt(memory)

    @property
    def proven(self) -> bool:
        return any(self._evidence)

    @property
    def knee(self) -> float:
        """The exponent p of `took ~ (1 + (n / knee point)^p)^(1/p)`: 1 has no knee. Sharp until there are readings."""
        return median(self._knees) if self._knees else SHARPEST

    @property
    def certain(self) -> bool:
        """True when the base is known well enough to measure a knee against it."""
        return max(self._evidence) >= EVIDENCE_MOST / 2

    @property
    def knee_certainty(self) -> float:
        """The certainty of base and knee, 0 to 1."""
        return min(1.0, max(self._evidence) / EVIDENCE_MOST) * min(1.0, len(self._knees) / KNEE_ENOUGH)

    @property
    def memory(self) -> SourceMemory:
        return SourceMemory(tuple(self._log2), tuple(self._evidence), self._knees)

    @property
    def found_here(self) -> SourceMemory:
        """The base with the evidence of this mount's drains alone: what others have said is not to be said again."""
        return SourceMemory(tuple(self._log2), tuple(self._own), self._knees)

    def adopt(self, memory: SourceMemory) -> None:
        """Take over what another mount has found. Raises ValueError for another number of classes, and for nan."""
        known = [value for value in memory.log2_ns if value is not None]
        if len(memory.log2_ns) != SIZE_CLASSES or len(memory.evidence) != SIZE_CLASSES:
            raise ValueError(f"a source's memory has {SIZE_CLASSES} size classes")
        if not all(map(math.isfinite, [*known, *memory.evidence, *memory.knees])):
            raise ValueError("a source's memory has finite numbers")
        self._log2 = list(memory.log2_ns)
        self._evidence = [min(EVIDENCE_MOST, max(0.0, each)) for each in memory.evidence]
        self._knees = tuple(min(SHARPEST, max(FLATTEST, each)) for each in memory.knees[-KNEE_READINGS:])

    def agree(self, memory: SourceMemory) -> float:
        """Go by what the mounts of a job have found together, where it is proven. Return the factor by which the base
        grew: the mean of the classes that this base knew, by the evidence in `memory`. Raises ValueError as `adopt`."""
        other, moved, weight = SourceBase(memory), 0.0, 0.0
        for at in range(SIZE_CLASSES):
            new, before = other._log2[at], self._log2[at]
            if new is None or not other._evidence[at]:
                continue
            if before is not None:
                moved += other._evidence[at] * (new - before)
                weight += other._evidence[at]
            self._log2[at], self._evidence[at] = new, max(self._evidence[at], other._evidence[at])
        self._knees = other._knees or self._knees
        return float(2.0 ** (moved / weight)) if weight else 1.0

    def slowdown(self, ended: Ended, before: float) -> float:
        """Return how much longer these requests took than at the idle source, 1 or so where it is idle.

        A size class that is seen for the first time gets the base that agrees with the others. If all are new, each
        gets the base that agrees with `before`, the slowdown until now.
        """
        known = [at for at in range(SIZE_CLASSES) if ended.count[at] and self._log2[at] is not None]
        found = math.log2(before)
        if known:
            found = self._excess(ended, known)
        for at in range(SIZE_CLASSES):
            if ended.count[at] and self._log2[at] is None:
                self._log2[at] = ended.log2_ns[at] / ended.count[at] - found
        return float(2.0**found)

    def excess(self, ended: Ended) -> float | None:
        """The mean log2 of duration over base, of the size classes that have one; None without such requests."""
        known = [at for at in range(SIZE_CLASSES) if ended.count[at] and self._log2[at] is not None]
        return self._excess(ended, known) if known else None

    def quieter(self, one: Ended, other: Ended) -> Ended | None:
        """The one of two halves of a drain with shorter requests; None if one has too few to say so.

        Where clocks differ, the other mounts are not yet quiet, or no longer.
        """
        excesses = self.excess(one), self.excess(other)
        if excesses[0] is None or excesses[1] is None or min(one.total, other.total) < HALVES_LEAST:
            return None
        return one if excesses[0] < excesses[1] else other

    def differ(self, one: Ended, other: Ended) -> bool:
        """True when the requests of one took longer than those of the other by more than chance allows."""
        noise = math.sqrt(1.0 / one.total + 1.0 / other.total)
        return abs((self.excess(one) or 0.0) - (self.excess(other) or 0.0)) > QUIETER * noise

    def _excess(self, ended: Ended, classes: Sequence[int]) -> float:
        """The mean log2 of duration over base in these size classes."""
        over = sum(ended.log2_ns[at] - ended.count[at] * (self._log2[at] or 0.0) for at in classes)
        return over / sum(ended.count[at] for at in classes)

    def lower(self) -> float:
        """Lower the base a little: requests under load are shorter than it, so it was too high. Return the factor."""
        self._log2 = [None if value is None else value + LOWER for value in self._log2]
        return float(2.0**LOWER)

    def drained(self, first: Ended, second: Ended) -> float:
        """Learn from the requests of both halves of a drain; return the factor by which the base grew."""
        ended = first + second
        quieter = self.quieter(first, second)
        if quieter is not None and self.differ(first, second):
            ended = quieter
        known = [at for at in range(SIZE_CLASSES) if ended.count[at] and self._log2[at] is not None]
        if not known:
            self.slowdown(ended, 1.0)
            self._prove(ended)
            return 1.0
        excess = self._excess(ended, known)
        sure = excess if quieter is None else self.excess(quieter) or 0.0
        least = max(math.log(ANOTHER_TIMES), ANOTHER / math.sqrt(ended.total))
        if self.proven and abs(sure) * math.log(2) <= least:
            return float(2.0 ** self._prove(ended))
        # The whole source is another, or nothing but a guess was known: all classes move alike, then each by itself.
        self._log2 = [None if value is None else value + excess for value in self._log2]
        self._evidence = [0.0] * SIZE_CLASSES
        self._own = [0.0] * SIZE_CLASSES
        self._prove(ended)
        return float(2.0**excess)

    def _prove(self, ended: Ended) -> float:
        """Move each class to its mean by the weight of its requests; return the mean move, in log2."""
        moved = 0.0
        for at in range(SIZE_CLASSES):
            count, base = ended.count[at], self._log2[at]
            if not count:
                continue
            mean = ended.log2_ns[at] / count
            step = 0.0 if base is None else (mean - base) * count / (count + self._evidence[at])
            self._log2[at] = mean if base is None else base + step
            self._evidence[at] = min(EVIDENCE_MOST, self._evidence[at] + count)
            self._own[at] = min(EVIDENCE_MOST, self._own[at] + count)
            moved += step * count
        return moved / ended.total

    def halved(self, slowdown: float, half: float, drained: float) -> None:
        """Learn the knee from the slowdown with all mounts at full concurrency, and at half of it. `drained`: the part
        of the concurrency with which the base was found."""
        self._knees = (*self._knees, knee_of(slowdown, half, drained))[-KNEE_READINGS:]


class BaseRise:
    """By how much a base has risen over the least that is known. `times`: 1 and more.

    Either the source is slower now, or strangers read from it, or clocks are wrong. A mount whose clock is wrong holds
    back alone, and takes the load of the other mounts for idle. Several such mounts drive each other up: each reads
    more after its drain, so that the next one finds the source slower still. So a rise is forgotten little by little,
    and only while the base does not go on to rise.
    """

    def __init__(self) -> None:
        self.times = 1.0
        self._crept = 1.0  # by how much the base has risen again, since the last leap or the least after it

    def moved(self, grew: float) -> None:
        """The base grew by this factor, which is below 1 where the base fell."""
        self.times = max(1.0, self.times * grew)
        self._crept = max(1.0, self._crept * grew)

    def drained(self, grew: float, room: bool) -> None:
        """The base grew by this factor in a drain. `room`: before it requests took hardly longer than the base."""
        self.moved(grew)
        if grew >= LEAP:
            self._crept = 1.0
            return
        if self._crept < CREPT:
            self.times = max(1.0, self.times * (KEPT_WITH_ROOM if room else KEPT))
        self._crept = math.pow(self._crept, CREPT_KEPT)


def knee_of(slowdown: float, half: float, drained: float = 0.0) -> float:
    """The p of `took ~ (1 + (n / knee point)^p)^(1/p)` from durations, over that at `drained` n, at n and at n / 2.

    `drained` is below a half. Eliminating the knee point and the idle duration leaves an equation for p, whose left
    side grows faster.
    """
    low, high = FLATTEST, SHARPEST
    if half <= 1.0:
        return high
    for _ in range(12):
        p = (low + high) / 2
        if slowdown**p - half**p < (1.0 - 0.5**p) / (0.5**p - drained**p) * (half**p - 1.0):
            high = p
        else:
            low = p
    return low
