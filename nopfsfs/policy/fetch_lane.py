"""A lane: one place from which files come, and how long that takes now. Pure.

Durations are kept as logarithms of their ratio to what was expected of the lane, by size class. So stragglers and sizes
do not upset the mean. An old duration counts less with each later one, and with the time: after 10 s a third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nopfsfs.protocol.source_metrics import size_class

DECAY_S = 10.0  # after which a duration or a byte counts 1/e
MOST, LEAST = 12.0, 3.0  # requests: those before count as at most, and at least, so many
FAR, FAR_TIMES = math.log(4.0), 3  # so many in a row that are this far off: what was before is of another time
FIRST_DEVIATION = 0.7  # of the logarithms, before any was seen: a factor of two
P95 = 1.645  # standard deviations above the mean, of logarithms that are normally distributed
PATIENCE = 2.0  # times the longest expected duration without any end, after which the silence counts
SILENT_MOST, SILENT_S = 3, 0.1  # requests without an answer, for so many s since the first of them: the lane is down
WINDOW_S = 10  # s over which shares are held
SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Expected times of a lane before it is seen. `latency`: seconds of each request beside its bytes; `alone`: bytes a
    second of one request alone; `together`: of many together."""

    latency: float
    alone: float
    together: float

    def seconds(self, size: int) -> float:
        """Seconds of one request of so many bytes."""
        return max(SHORTEST_S, self.latency + size / self.alone)


class RecentCount:
    """A count of the last `WINDOW_S` seconds, by whole seconds."""

    def __init__(self) -> None:
        self._counts = [0] * WINDOW_S
        self._second = 0
        self.total = 0

    def add(self, now: float) -> None:
        """Count one more."""
        self.at(now)
        self._counts[self._second % WINDOW_S] += 1
        self.total += 1

    def at(self, now: float) -> int:
        """The count now."""
        second = int(now)
        if second == self._second:
            return self.total
        for passed in range(min(WINDOW_S, second - self._second)):
            place = (second - passed) % WINDOW_S
            self.total -= self._counts[place]
            self._counts[place] = 0
        self._second = max(self._second, second)
        return self.total


class _Durations:
    """Mean and variance of logarithms of ratios; `ratio`: of which the mean is the logarithm."""

    __slots__ = ("at", "far", "mean", "ratio", "variance", "weight")

    def __init__(self, mean: float, now: float) -> None:
        self.mean, self.variance, self.weight, self.at = mean, FIRST_DEVIATION**2, LEAST, now
        self.ratio = math.exp(mean)
        self.far = 0  # how many in a row were much longer; negative: much shorter

    def see(self, log_ratio: float, now: float) -> None:
        before = max(LEAST, min(MOST - 1, self.weight * math.exp((self.at - now) / DECAY_S)))
        self.at, self.weight = now, before + 1
        off = log_ratio - self.mean
        self.far = 0 if abs(off) < FAR else max(self.far, 0) + 1 if off > 0 else min(self.far, 0) - 1
        if abs(self.far) >= FAR_TIMES:
            before, self.weight = LEAST, LEAST + 1
        self.mean += off / self.weight
        self.ratio = math.exp(self.mean)
        self.variance = before / self.weight * (self.variance + off * off / self.weight)


class _BySize:
    """Durations by size class; of a class that was not seen yet, those seen last."""

    __slots__ = ("_classes", "_last")

    def __init__(self) -> None:
        self._classes: dict[int, _Durations] = {}
        self._last = _Durations(0.0, 0.0)

    def of(self, number: int) -> _Durations:
        return self._classes.get(number, self._last)

    def see(self, number: int, log_ratio: float, now: float) -> None:
        found = self._classes.get(number)
        if found is None:
            found = self._classes[number] = _Durations(self._last.mean, now)
        found.see(log_ratio, now)
        self._last = found

    def forget(self, number: int) -> None:
        found = self._classes.get(number)
        if found is not None:
            found.weight = LEAST


class FetchLane:
    """Times of one lane. The caller says what begins and ends on it; `now`: seconds of a clock that only runs forward.

    A request is a whole file. `asks`: requests of the last seconds.
    """

    def __init__(self, times: LaneTimes) -> None:
        self._times = times
        # Prefetches wait for each other and for demands: so how long demands take is also kept apart.
        self._all, self._demands = _BySize(), _BySize()
        self._requests = self._bytes = 0  # under way
        self._ended_at = 0.0  # the last end, or the first begin after nothing was under way
        self._longest = 0.0  # expected duration of what is under way, at most
        self._moved, self._busy, self._seen_at = 0.0, 0.0, 0.0  # bytes, s; decayed
        self._decayed_at = 0.0
        self._silent, self._silent_since = 0, 0.0
        self.down = False  # requests got no answer for some time, and none has come since
        self.asks = RecentCount()

    # ---- what is seen -------------------------------------------------------------------------------------

    def begin(self, size: int, now: float) -> None:
        """Note that a request of `size` bytes is under way."""
        self._pass(now)
        if not self._requests:
            self._ended_at, self._longest = now, 0.0
        self._longest = max(self._longest, self.seconds(size))
        self._requests += 1
        self._bytes += size
        self.asks.add(now)

    def end(self, size: int, now: float, *, took: float | None = None, demand: bool = False) -> None:
        """Note that a request is not under way any more. `took`: its seconds, if it brought its bytes and they count
        for the lane; `demand`: a reader has waited for all of them."""
        self._pass(now)
        self._requests -= 1
        self._bytes -= size
        self._ended_at = now
        if took is not None:
            self._moved += size
            self.see(size, took, now, demand=demand)

    def see(self, size: int, took: float, now: float, *, demand: bool = False) -> None:
        """Take in that a request took so many seconds; `demand`: a reader has waited for all of them."""
        log_ratio = math.log(max(took, SHORTEST_S) / self._times.seconds(size))
        self._all.see(size_class(size), log_ratio, now)
        if demand:
            self._demands.see(size_class(size), log_ratio, now)

    def answered(self) -> None:
        """Note that the lane has answered a request, whatever it said."""
        self._silent, self.down = 0, False

    def unanswered(self, now: float, *, again: bool = False, since: float | None = None) -> None:
        """Note that a request is without an answer for longer than any usually is. `again`: it was so before; `since`:
        when it began, if that is long ago. Requests of the same moment may all wait for one pause: the lane is down
        when none of them is answered soon."""
        if not self._silent:
            self._silent_since = now
        if since is not None:
            self._silent_since = min(self._silent_since, since)
        self._silent += not again
        self.down = self.down or (self._silent >= SILENT_MOST and now - self._silent_since >= SILENT_S)

    def forget(self, size: int) -> None:
        """Let the next durations of such requests count for much: those before were of another time."""
        self._all.forget(size_class(size))

    # ---- what is expected ---------------------------------------------------------------------------------

    def seconds(self, size: int) -> float:
        """The seconds of a request of so many bytes, as requests are now."""
        return self._times.seconds(size) * self._all.of(size_class(size)).ratio

    def p95(self, size: int, *, demands: bool = False) -> float:
        """Seconds that only one request of twenty exceeds, or of twenty demands."""
        found = (self._demands if demands else self._all).of(size_class(size))
        return self._times.seconds(size) * math.exp(found.mean + P95 * math.sqrt(found.variance))

    def eta(self, size: int, now: float) -> float:
        """Seconds until a request that begins now has ended. The larger of two: its own time; and the time of all bytes
        under way, its own included, at the lane's rate. The sum would count twice what is under way, by which a
        request's time has grown already. Where nothing has ended for long, at least as long again."""
        self._pass(now)
        eta = max(self.seconds(size), (self._bytes + size) / self._rate)
        silence = now - self._ended_at if self._requests else 0.0
        return max(eta, silence) if silence > PATIENCE * self._longest else eta

    @property
    def _rate(self) -> float:
        """Bytes a second of all requests together: as seen, unless fewer came than it can bring."""
        return max(self._times.together, self._moved / self._busy if self._busy > 0 else 0.0)

    def _pass(self, now: float) -> None:
        """Count the time since the last look as busy, if anything was under way."""
        passed = max(0.0, now - self._seen_at)
        self._seen_at = now
        if self._requests:
            self._busy += passed
        if now - self._decayed_at > DECAY_S / 100:
            kept = math.exp((self._decayed_at - now) / DECAY_S)
            self._decayed_at = now
            self._moved *= kept
            self._busy *= kept
