"""A source that many mounts read, in virtual time: requests share it equally, whoever they belong to.

With n requests under way together it ends `ThroughputCurve.at(n)` requests a second, so each advances at the same pace
(processor sharing). The pace changes with every request that comes or goes, but the order in which those that are under
way will end does not. So one heap by the work at which each ends is enough: a request costs a microsecond or so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SIGMA, STRAGGLERS, STRAGGLING = 0.6, 0.01, 8.0  # log-normal work; the part of requests that is so many times longer
WANDERING, WANDER_SECONDS, WANDER_STEP = 0.08, 2.0, 0.25  # deviation of ln speed, its memory, s between changes
STALLED = 1e9  # s that anything takes while the source stalls
_BLOCK = 8192
_TABLE = 8192  # requests under way up to which throughput is tabulated; more are as bad as that


@dataclass(frozen=True, slots=True)
class ThroughputCurve:
    """Requests a second against requests under way: `((n / seconds)^-bend + most^-bend)^(-1 / bend)`, and beyond
    `falls_from` less, half of it at `falls_from + halves_after`. `seconds`: of a request at the idle source."""

    seconds: float
    most: float
    bend: float
    falls_from: float = math.inf
    halves_after: float = math.inf

    def at(self, under_way: Floats | float) -> Floats:
        """Requests a second with so many under way, any shape."""
        n = np.maximum(np.asarray(under_way, np.float64), 1e-9)
        rising = ((n / self.seconds) ** -self.bend + self.most**-self.bend) ** (-1.0 / self.bend)
        return np.asarray(rising / (1.0 + np.maximum(0.0, n - self.falls_from) / self.halves_after))

    @property
    def best(self) -> float:
        """The most requests a second, at whatever concurrency up to the tabulated."""
        return float(self.at(np.arange(1.0, _TABLE)).max())

    def knee(self) -> int:
        """The least requests under way that bring 90 % of the best."""
        return int(np.argmax(self.at(np.arange(1.0, _TABLE)) >= 0.9 * self.best)) + 1


@dataclass(frozen=True, slots=True)
class SourceChange:
    """The state of the source from `at` seconds on. `bandwidth`: as a part of the usual; `slower`: how many times
    longer everything takes; `stalled`: nothing ends. `background`: how many reads of others, who take no part, are
    always under way."""

    at: float
    bandwidth: float = 1.0
    slower: float = 1.0
    stalled: bool = False
    background: int = 0

    def changed(self, curve: ThroughputCurve) -> ThroughputCurve:
        """The curve with this bandwidth."""
        return replace(curve, most=curve.most * self.bandwidth)


class Lane:
    """Requests of one kind and one owner that are counted together, those begun since `marked` also by themselves.
    While `refill`, the end of one begins the next."""

    __slots__ = ("ended", "log2_seconds", "marked", "refill", "when_ended", "young_ended", "young_log2_seconds")

    def __init__(self, when_ended: Callable[[float], None]) -> None:
        self.refill = False
        self.ended = self.young_ended = 0
        self.log2_seconds = self.young_log2_seconds = self.marked = 0.0
        self.when_ended = when_ended  # called with the duration, where no other request begins in its place

    def __lt__(self, other: Lane) -> bool:
        """Two requests that end together may do so in any order: the heap only needs some answer."""
        return False


class SharedSource:
    """The source, its clock and the calls that are due at some time. `noise`: of work and speed; 0 for none."""

    def __init__(self, curve: ThroughputCurve, seed: int, *, noise: float = 1.0) -> None:
        self.curve = curve
        self.now = 0.0
        self.random = np.random.default_rng(seed)
        self._noise = noise
        self._works = self._draw_works()
        self._heap: list[tuple[float, float, Lane]] = []  # the work at which a request ends, its begin, its lane
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbered = 0
        self._work = 0.0  # that a request under way since the beginning would have done, in seconds of the idle source
        self._state = SourceChange(0.0)
        self._speed = 1.0
        self._wander = 0.0
        self._background = Lane(self._background_ended)
        self._background_under_way = 0
        self._tabulate()
        if noise:
            self.call_at(0.0, self._change_speed)

    # ---- requests -----------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        """The time at which something happens next, if nothing else begins: an end or a call; infinite if nothing."""
        ends = self.now + (self._heap[0][0] - self._work) * self._pace if self._heap else math.inf
        return min(ends, self._calls[0][0]) if self._calls else ends

    def begin(self, lane: Lane) -> None:
        """Begin a request."""
        heappush(self._heap, (self._work + next(self._works), self.now, lane))
        self._set_pace()

    def run_until(self, end: float) -> None:
        """Let time pass: make the calls that are due, and let requests end."""
        while self._calls and self._calls[0][0] <= end:
            at, _, call = heappop(self._calls)
            self._advance(at)
            call()
        self._advance(end)

    def call_at(self, at: float, call: Callable[[], None]) -> None:
        """Call back at a time; at once, if it has passed."""
        self._numbered += 1
        heappush(self._calls, (max(at, self.now), self._numbered, call))

    def _advance(self, end: float) -> None:
        heap, works, log2 = self._heap, self._works, math.log2  # bound once: this loop takes most of the time
        now, work, pace = self.now, self._work, self._pace
        while heap:
            due, began, lane = heap[0]
            at = now + (due - work) * pace
            if at > end:
                break
            now, work = at, due
            lane.ended += 1
            logarithm = log2(at - began)
            lane.log2_seconds += logarithm
            if began >= lane.marked:
                lane.young_ended += 1
                lane.young_log2_seconds += logarithm
            if lane.refill:
                heapreplace(heap, (due + next(works), at, lane))
                continue
            heappop(heap)
            self.now, self._work = now, work
            self._set_pace()
            lane.when_ended(at - began)
            pace = self._pace
        if end > now:
            work += (end - now) / pace
        self.now, self._work = max(now, end), work

    # ---- speed --------------------------------------------------------------------------------------------

    def change_to(self, state: SourceChange) -> None:
        """Put the source into another state."""
        self._state = state
        self._tabulate()
        self._background.refill = self._background_under_way <= state.background
        while self._background_under_way < state.background:
            self._background_under_way += 1
            self.begin(self._background)

    def _background_ended(self, seconds: float) -> None:
        self._background_under_way -= 1
        self._background.refill = self._background_under_way <= self._state.background

    def _tabulate(self) -> None:
        """The time in which a request does a second of its work, for each number under way."""
        curve = self._state.changed(self.curve)
        n = np.arange(1.0, _TABLE + 1.0)
        pace = n / (curve.at(n) * curve.seconds) * self._state.slower
        self._paces = [1.0, *np.maximum(pace, 1e-9).tolist()]
        self._set_pace()

    def _set_pace(self) -> None:
        pace = self._paces[min(len(self._heap), _TABLE)] / self._speed
        self._pace = STALLED if self._state.stalled else pace

    def _change_speed(self) -> None:
        """Let the speed wander: an autoregressive process in its logarithm."""
        kept = math.exp(-WANDER_STEP / WANDER_SECONDS)
        drawn = float(self.random.normal()) * WANDERING * self._noise
        self._wander = kept * self._wander + math.sqrt(1.0 - kept * kept) * drawn
        self._speed = math.exp(self._wander)
        self._set_pace()
        self.call_at(self.now + WANDER_STEP, self._change_speed)

    def _draw_works(self) -> Iterator[float]:
        """Work of one request after another, in seconds of the idle source: `curve.seconds` on average."""
        while True:
            yield from (draw_works(self.random, _BLOCK, self._noise) * self.curve.seconds).tolist()


def draw_works(random: np.random.Generator, count: int, noise: float = 1.0) -> Floats:
    """Work of requests with mean 1, f64[count]: log-normal, with stragglers."""
    if not noise:
        return np.ones(count)
    sigma = SIGMA * noise
    works = np.exp(sigma * random.normal(size=count) - sigma * sigma / 2)
    works[random.random(count) < STRAGGLERS] *= STRAGGLING
    return np.asarray(works / (1.0 + STRAGGLERS * (STRAGGLING - 1.0)))
