"""The rivals of the tuner (`policy/tuner.py`), as policies of the same interface; none is for a mount.

Each is as faithful as the metrics allow: they have the sum and the mean of the durations in a time, not single ones.
"""

from __future__ import annotations

import math

from nopfsfs.policy.limit_policy import TICK_SECONDS, LimitDecision, Reason, SourceSample


class FixedLimit:
    """A number that somebody chose. `wait`: the seconds between calls, as of a LimitDecision."""

    def __init__(self, limit: int, wait: float = TICK_SECONDS) -> None:
        self._decision = LimitDecision(limit, Reason.HOLD, wait)

    def step(self, sample: SourceSample) -> LimitDecision:
        return self._decision


class Windowed:
    """A limit that changes once a window. `mean_seconds` is the arithmetic mean of the durations, by Little's law."""

    def __init__(self, limit: float, window: float, least: float, most: float) -> None:
        self.limit, self._window, self._least, self._most = limit, window, least, most
        self._begun: SourceSample | None = None

    def step(self, sample: SourceSample) -> LimitDecision:
        begun = self._begun
        before = self.limit
        if begun is None:
            self._begun = sample
        elif sample.now - begun.now >= self._window - 1e-6:
            count = sum(sample.ended) - sum(begun.ended)
            under_way = (sample.under_way_seconds - begun.under_way_seconds) / (sample.now - begun.now)
            if self.change(sample, count, under_way, sample.now - begun.now):
                self._begun = sample
                self.limit = min(self._most, max(self._least, self.limit))
        change = self.limit - before
        reason = Reason.MORE if change > 0 else Reason.LESS if change < 0 else Reason.HOLD
        return LimitDecision(int(self.limit), reason, min(TICK_SECONDS, self._window))

    def change(self, sample: SourceSample, count: int, under_way: float, elapsed: float) -> bool:
        """Set `limit`, by the requests that ended in the window and those under way on average; False: wait longer."""
        raise NotImplementedError


class PrismaLimit(Windowed):
    """PRISMA (Cluster 2021): threads and slots of a buffer, by how full the buffer is, each 100 ms; never down.

    A file under way counts as filled. Of a reader that waits the buffer has nothing else; one that does not wait finds
    it full. The fill varies little, so its deviation is below the threshold throughout.
    """

    SLOTS, THREADS_MOST, FULL = 10, 60, 80.0

    def __init__(self) -> None:
        super().__init__(1.0, 0.1, 1.0, self.THREADS_MOST)
        self._slots, self._done = self.SLOTS, False

    def change(self, sample: SourceSample, count: int, under_way: float, elapsed: float) -> bool:
        fill = 100.0 if sample.lead else min(100.0, 100.0 * under_way / self._slots)
        if self._done or fill >= self.FULL:
            self._done = True
        else:
            self.limit += 1
        return True


class AimdLimit(Windowed):
    """Add one each tick; 0.7 times as many if requests take more than twice the least time of any tick."""

    LESS, TOLERANCE, REQUESTS = 0.7, 2.0, 8

    def __init__(self) -> None:
        super().__init__(4.0, TICK_SECONDS, 2.0, 256.0)
        self._least_seconds = math.inf

    def change(self, sample: SourceSample, count: int, under_way: float, elapsed: float) -> bool:
        if count < self.REQUESTS:
            return False
        seconds = under_way * elapsed / count
        self._least_seconds = min(self._least_seconds, seconds)
        if seconds > self.TOLERANCE * self._least_seconds:
            self.limit *= self.LESS
        elif under_way >= self.limit / 2:
            self.limit += 1
        return True


class Gradient2Limit(Windowed):
    """Netflix's concurrency-limits, Gradient2Limit with its defaults, in windows of a second: the mean duration over a
    long average of it says how the limit changes."""

    FIRST, LEAST, MOST, QUEUE, SMOOTHING, LONG, WARMUP, REQUESTS = 20.0, 20.0, 200.0, 4.0, 0.2, 600, 10, 10

    def __init__(self) -> None:
        super().__init__(self.FIRST, 1.0, self.LEAST, self.MOST)
        self._average, self._sum, self._count = 0.0, 0.0, 0

    def change(self, sample: SourceSample, count: int, under_way: float, elapsed: float) -> bool:
        if count < self.REQUESTS:
            return False
        seconds = under_way * elapsed / count
        if self._count < self.WARMUP:  # the mean of the first few, then an exponential average
            self._count, self._sum = self._count + 1, self._sum + seconds
            self._average = self._sum / self._count
        else:
            self._average += (seconds - self._average) * 2.0 / (self.LONG + 1)
        if self._average > 2 * seconds:
            self._average *= 0.9
        if under_way < self.limit / 2:
            return True
        gradient = max(0.5, min(1.0, self._average / seconds))
        self.limit += (self.limit * gradient + self.QUEUE - self.limit) * self.SMOOTHING
        return True


class ProbingLimit(Windowed):
    """MongoDB 7's throughput probing: a tenth more, then a tenth less; kept if it brings throughput, or costs none."""

    FIRST, STEP, SMOOTHING, WINDOW = 16.0, 0.1, 0.2, 0.25

    def __init__(self) -> None:
        super().__init__(self.FIRST, self.WINDOW, 4.0, 256.0)
        self._stable, self._rate = self.FIRST, 0.0
        self._probes = 0  # 1: up, -1: down, 0: none

    def change(self, sample: SourceSample, count: int, under_way: float, elapsed: float) -> bool:
        rate = count / elapsed
        good = rate > self._rate if self._probes > 0 else rate >= self._rate
        if self._probes and good:  # the concurrency of the probe becomes the stable one, by a part of the way
            self._stable += (self.limit - self._stable) / 2
            self._rate += (rate - self._rate) * self.SMOOTHING
            self._probe(0)
        elif self._probes:
            self._probe(-1 if self._probes > 0 else 0)
        else:
            self._rate += (rate - self._rate) * (self.SMOOTHING if self._rate else 1.0)
            self._probe(1)
        return True

    def _probe(self, direction: int) -> None:
        self._probes = direction
        self.limit = self._stable * (1 + direction * self.STEP)
