"""The tuner: how many requests a mount has under way at its source, where nobody said a number.

The tuner measures how much longer requests take than at an idle source.

Pure (`limit_policy`). On the full minute of the wall clock all mounts hold back together for some requests' time (a
drain), and see what idle is. On the half minute all mounts go to half, and see whether the source has a knee. In
between the limit rests where `limit * (slowdown - 1)^1.5 = weight * aim`. All mounts of a source see the same slowdown,
so all rest at the same limit, by their weights. docs/tuner.md explains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from nopfsfs.config import FIRST_CONCURRENCY
from nopfsfs.policy.limit_policy import TICK_SECONDS, LimitDecision, Reason, SourceSample
from nopfsfs.policy.source_base import BaseRise, Ended, SourceBase, SourceMemory

LEAST, CAP = 2, 256
UNPROVEN_MOST = 64  # without a base and without a clock to find one
LONGEST_TICK, TICK_REQUESTS, TICK_TIMES = 1.0, 8, 2.0  # s; requests that end in a tick; requests' times in a tick
GROWS, GROWS_UNPROVEN, UNPROVEN_FROM = 1.25, 1.7, 32.0  # what doubling must bring to be done again; the limit
STARTED, STEP_BACK = 1.6, 1.6  # the slowdown that ends the doubling; the last doubling was too much by so much
ROOM, ROOM_TICKS = 1.15, 8  # a slowdown that leaves room; after so many ticks of it the limit grows ever faster
TOO_HIGH = 0.85  # a slowdown that only a base that is too high can show
# Where requests take more than so many times as long as at the quietest time known, limit and slowdown over that time
# multiply to so much at most. A source with a knee at 80 requests or fewer needs no more. Others get less than they can
# take until the rise of the base is forgotten.
FAR, FAR_MOST = 6.0, 480.0
SLOWEST = 16.0  # what is slower counts as this: after a stall a tick has nothing but its requests
AIM, AIM_POLITE = 64.0, 0.1  # with an urgent reader; the part of it that remains with none
LEAD_MOST, LEAD_LEAST = 20.0, 2.0  # s staged ahead with which nothing, or everything, is urgent
EXPONENT = 1.5
MOST_LESS = 0.5  # of the limit in a tick
UNUSED = 0.95
PATIENCE, PATIENCE_TIMES, PATIENCE_AGAIN = 2.0, 8.0, 1.0  # s, requests' times without any end; s until the next halving
# Where all would gain by more, the aim grows: `slowdown^-knee` is the part of itself that a little more brings all.
GAIN, GAIN_EXPONENT, GAIN_MOST = 0.105, 1.5, 5.0
# Where all would gain next to nothing, it shrinks.
NO_GAIN, NO_GAIN_EXPONENT, NO_GAIN_LEAST = 0.03, 0.25, 0.6
# Readings vary much, and more with few requests: a knee up to here counts as none, a sharper one as so many times that.
KNEE_NONE, KNEE_SHARPER = 2.4, 3.0
KNEE_LEAST_SLOWDOWN, KNEE_LEAST_LIMIT = 1.3, 8.0  # with less there is too little to halve
SOONEST, EARLY = 0.002, 0.002  # s until the next call; s that a call may come early
DRAIN_PAUSE = 25.0  # s between drains, also if the wall clock is set


class Phase(Enum):
    STARTING = 0
    STEADY = 1
    SETTLING = 2
    WATCHING = 3


@dataclass(frozen=True, slots=True)
class Drain:
    """A way to hold back: the limit's divisor, the least seconds of watching, the requests that it needs."""

    divisor: float
    watch: float
    requests: int


# A full drain lasts longer than clocks may differ, so that at some time all mounts hold back.
FULL, HALF = Drain(16.0, .75, 1), Drain(2.0, 0.3, 30)
SETTLE, WATCH = 2.0, 6.0  # requests' times of a drain's two parts
SETTLE_LEAST, LONGEST, FEWEST = 0.1, 1.5, 10  # s, s, requests


class SlowdownTuner:
    """A `LimitPolicy`. `cap`, `weight` and `ranks` (mounts of the same job at this source) may change at any time."""

    def __init__(
        self, memory: SourceMemory | None = None, *, first: int = FIRST_CONCURRENCY, cap: int = CAP,
        weight: float = 1.0, ranks: int = 1,
    ) -> None:  # fmt: skip
        self.cap, self.weight, self.ranks = cap, weight, ranks
        self.base = SourceBase(memory)
        self.slowdown = 1.0
        self._rise = BaseRise()
        self.aim = AIM
        self._limit = self._started_at = float(first)  # the latter: where the doubling ended
        self._phase = self._before_drain = Phase.STARTING
        self._drain, self._until, self._drained_at = FULL, 0.0, -math.inf
        self._begun: SourceSample | None = None  # the sample since which this tick, or this watching, counts
        self._middle: SourceSample | None = None  # the first sample of the second half of a watching
        self._middle_at = 0.0
        self._heard, self._heard_count = 0.0, (0, 0)
        self._half_minute = 0
        self._rate = 0.0
        self._seconds = 0.0  # of a request, in the last tick
        self._roomy = 0  # ticks with room
        self._limited = False  # in the last tick a prefetch waited for a slot most of the time

    @property
    def limit(self) -> int:
        """The requests that may be under way, but for a drain."""
        return max(LEAST, min(int(self._limit), self.cap))

    @property
    def memory(self) -> SourceMemory:
        """The base with which the next mount of this source, and others of its job, may begin."""
        return self.base.memory

    def agree(self, memory: SourceMemory) -> None:
        """Go by the base that the mounts of a job have found together. Raises ValueError as `SourceBase.adopt`."""
        grew = self.base.agree(memory)
        self._rise.moved(grew)
        self.slowdown = max(0.5, self.slowdown / grew)

    def step(self, sample: SourceSample) -> LimitDecision:
        if self._begun is None or sum(sample.ended) < sum(self._begun.ended):  # first, or the counts began anew
            self._restart(sample)
            self._half_minute = _half_minute(sample)
            self._phase = self._phase if self._phase in (Phase.STARTING, Phase.STEADY) else self._before_drain
            return self._decide(sample, Reason.HOLD)
        if self._phase in (Phase.SETTLING, Phase.WATCHING):
            return self._drain_step(sample)
        if self._drain_is_due(sample):
            return self._begin_drain(sample)
        if self._hangs(sample):
            self._limit = max(float(LEAST), self._limit / 2)
            return self._decide(sample, Reason.HANG)
        elapsed, ended = self._since(sample)
        if ended.total < TICK_REQUESTS or elapsed < self._tick_seconds():
            return self._decide(sample, Reason.HOLD)
        return self._decide(sample, self._tick(sample, elapsed, ended))

    # ---- ticks --------------------------------------------------------------------------------------------

    def _tick(self, sample: SourceSample, elapsed: float, ended: Ended) -> Reason:
        begun = self._begun
        assert begun is not None
        self._restart(sample)
        slowdown = min(SLOWEST, self.base.slowdown(ended, self.slowdown))
        self._seconds = ended.seconds
        limited = self._limited = sample.waited_seconds - begun.waited_seconds > elapsed / 2
        before = self._limit
        if self._phase is Phase.STARTING:
            self._start(slowdown, limited, ended.total / elapsed)
        else:
            under_way = (sample.under_way_seconds - begun.under_way_seconds) / elapsed
            self._adjust(slowdown, limited, under_way, sample.lead)
        return self._clamp(before, sample.disciplined)

    def _start(self, slowdown: float, limited: bool, rate: float) -> None:
        """Double the limit while that brings throughput: only now, when nothing else is known."""
        self.slowdown = slowdown
        grew = rate > self._rate * (GROWS if self.base.proven or self._limit <= UNPROVEN_FROM else GROWS_UNPROVEN)
        self._rate = rate
        if not limited:
            return
        if slowdown < STARTED and grew:
            self._limit *= 2
            return
        self._phase = Phase.STEADY
        if not grew:
            self._limit /= STEP_BACK
        self._started_at = max(self._limit, float(LEAST))

    def _adjust(self, slowdown: float, limited: bool, under_way: float, lead: float | None) -> None:
        """Come nearer to `limit * (slowdown - 1)^EXPONENT = weight * aim`."""
        if slowdown < TOO_HIGH:
            self._rise.moved(self.base.lower())
        self.slowdown = (self.slowdown + slowdown) / 2
        self._roomy = self._roomy + 1 if limited and self.slowdown < ROOM else 0
        more = self.weight if limited else 0.0
        if self._roomy > ROOM_TICKS:
            more *= min(2.0 ** ((self._roomy - ROOM_TICKS) / 3), max(1.0, self._limit / 8))
        self.aim = self._find_aim(lead)
        less = self._limit * min(MOST_LESS, max(0.0, self.slowdown - 1.0) ** EXPONENT / self.aim)
        self._limit += more - less
        if not limited and under_way < self._limit / 2:
            self._limit *= UNUSED

    def _find_aim(self, lead: float | None) -> float:
        urgency = 1.0 if lead is None else min(1.0, max(0.0, (LEAD_MOST - lead) / (LEAD_MOST - LEAD_LEAST)))
        aim = AIM * (AIM_POLITE + (1.0 - AIM_POLITE) * urgency) / math.sqrt(self.ranks)
        return aim * math.pow(self._find_gain(), self.base.knee_certainty)

    def _find_gain(self) -> float:
        """The part of the usual aim, by what a little more concurrency of all mounts would bring."""
        slowdown, knee = max(1.0, self.slowdown), self.base.knee
        none = math.pow(slowdown, -knee) / NO_GAIN
        if none < 1.0:
            return max(NO_GAIN_LEAST, math.pow(none, NO_GAIN_EXPONENT))
        gain = math.pow(slowdown, -1.0 - KNEE_SHARPER * max(0.0, knee - KNEE_NONE))
        return min(GAIN_MOST, max(1.0, math.pow(gain / GAIN, GAIN_EXPONENT)))

    def _clamp(self, before: float, disciplined: bool) -> Reason:
        """Keep the limit within its bounds; return the reason of its change since it was `before`."""
        cap = float(max(LEAST, self.cap))
        far = self._rise.times * self.slowdown
        if far > FAR:
            cap = min(cap, self.weight * FAR_MOST / far)
        if not self.base.proven:
            if not disciplined:
                cap = min(cap, UNPROVEN_MOST)
            elif self._phase is Phase.STEADY:
                cap = min(cap, self._started_at)  # until the first drain
        wanted, self._limit = self._limit, max(float(LEAST), min(self._limit, cap))
        if wanted > cap:
            return Reason.CAP
        change = self._limit - before
        return Reason.MORE if change > 0 else Reason.LESS if change < 0 else Reason.HOLD

    def _hangs(self, sample: SourceSample) -> bool:
        """True when nothing has ended for long, or all that ended failed; then again each `PATIENCE_AGAIN`."""
        count = sum(sample.ended)
        ended, errors = self._heard_count
        if count != ended or not (sample.under_way or sample.errors != errors):
            self._heard, self._heard_count = sample.now, (count, sample.errors)
        patience = max(PATIENCE, PATIENCE_TIMES * self._seconds)
        if sample.now - self._heard < patience:
            return False
        self._heard = sample.now - patience + PATIENCE_AGAIN
        return True

    def _tick_seconds(self) -> float:
        seconds = TICK_SECONDS
        while seconds < min(LONGEST_TICK, TICK_TIMES * self._seconds):
            seconds *= 2
        return seconds - EARLY

    # ---- drains -------------------------------------------------------------------------------------------

    def _drain_is_due(self, sample: SourceSample) -> bool:
        at = _half_minute(sample)
        passed, self._half_minute = at != self._half_minute, at
        if not passed or not sample.disciplined or not sample.under_way:
            return False
        self._drain = HALF if at % 2 else FULL
        if self._drain is FULL:
            return sample.now - self._drained_at > DRAIN_PAUSE
        steady = self._phase is Phase.STEADY and self._limited and self._limit >= KNEE_LEAST_LIMIT
        return steady and self.slowdown > KNEE_LEAST_SLOWDOWN and self.base.certain

    def _begin_drain(self, sample: SourceSample) -> LimitDecision:
        self._before_drain, self._phase = self._phase, Phase.SETTLING
        self._drained_at = sample.now
        self._set_end(sample, max(SETTLE_LEAST, SETTLE * self._seconds))
        return self._decide(sample, Reason.DRAIN)

    def _drain_step(self, sample: SourceSample) -> LimitDecision:
        if sample.now < self._until:
            if self._middle is None and sample.now >= self._middle_at:
                self._middle = sample
            return self._decide(sample, Reason.DRAIN)
        if self._phase is Phase.SETTLING:
            self._phase = Phase.WATCHING
            self._restart(sample)
            self._set_end(sample, max(self._drain.watch, WATCH * self._seconds))
            return self._decide(sample, Reason.DRAIN, mark=True)
        begun = self._begun
        assert begun is not None
        ended = _young(sample, begun)
        if ended.total < FEWEST and sample.now < self._until + LONGEST:
            return self._decide(sample, Reason.DRAIN)
        if ended.total:
            middle = self._middle or begun
            self._learn(_young(middle, begun), _young(sample, middle))
        self._restart(sample)
        self._phase = self._before_drain
        return self._decide(sample, Reason.DRAIN)

    @property
    def _drained_part(self) -> float:
        """The part of the limit that remains in a full drain."""
        return min(0.4, max(LEAST / self._limit, 1.0 / FULL.divisor))

    def _set_end(self, sample: SourceSample, seconds: float) -> None:
        """Let a part of the drain end on a full tick of the clock, when it ends for most mounts."""
        end = sample.clock + min(LONGEST, seconds)
        self._until = sample.now + math.ceil(end / TICK_SECONDS - 0.01) * TICK_SECONDS - sample.clock - EARLY
        self._middle, self._middle_at = None, (sample.now + self._until) / 2

    def _learn(self, first: Ended, second: Ended) -> None:
        """Learn from the requests of both halves of a watching."""
        ended = first + second
        if self._drain is FULL:
            proven = self.base.proven
            grew = self.base.drained(first, second)
            if proven:  # else what it rose from was a guess
                self._rise.drained(grew, room=self.slowdown < ROOM)
            self.slowdown = max(0.5, self.slowdown / grew)
        elif ended.total >= self._drain.requests:
            self.base.halved(self.slowdown, self.base.slowdown(ended, self.slowdown), self._drained_part)

    # ---- both ---------------------------------------------------------------------------------------------

    def _restart(self, sample: SourceSample) -> None:
        self._begun = sample
        self._heard, self._heard_count = sample.now, (sum(sample.ended), sample.errors)

    def _since(self, sample: SourceSample) -> tuple[float, Ended]:
        """The seconds, and the requests that ended, since the tick or the watching began."""
        begun = self._begun
        assert begun is not None
        return sample.now - begun.now, _ended(sample.ended, begun.ended, sample.log2_ns, begun.log2_ns)

    def _decide(self, sample: SourceSample, reason: Reason, *, mark: bool = False) -> LimitDecision:
        """Ask for a call on the next full tick of the wall clock: so all mounts see a minute begin together."""
        limit = self.limit
        if self._phase in (Phase.SETTLING, Phase.WATCHING):
            limit = max(LEAST, int(limit / self._drain.divisor))
        next_tick = TICK_SECONDS - sample.clock % TICK_SECONDS
        return LimitDecision(limit, reason, max(SOONEST, next_tick), mark)


def _young(sample: SourceSample, before: SourceSample) -> Ended:
    return _ended(sample.young_ended, before.young_ended, sample.young_log2_ns, before.young_log2_ns)


def _ended(
    count: tuple[int, ...], count_before: tuple[int, ...], log2_ns: tuple[float, ...], log2_ns_before: tuple[float, ...]
) -> Ended:
    return Ended(
        [now - then for now, then in zip(count, count_before, strict=True)],
        [now - then for now, then in zip(log2_ns, log2_ns_before, strict=True)],
    )


def _half_minute(sample: SourceSample) -> int:
    return math.floor(sample.clock / 30.0)
