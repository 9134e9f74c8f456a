"""A mount of a simulated source: prefetches up to the limit that a policy sets, and demand reads beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from nopfsfs.policy.limit_policy import LimitDecision, LimitPolicy, Reason, SourceSample
from nopfsfs.protocol.columns import SIZE_CLASSES
from nopfsfs.sim.tuning.shared_source import Lane, SharedSource

Number = TypeVar("Number", int, float)
SIZE_CLASS = 3  # of all simulated requests
LOG2_NS = math.log2(1e9)
PACED_CHECK = 0.02  # s between looks at a reader that is not always waiting
DAY = 86400.0  # the wall clock at the simulation's beginning: a full minute


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A mount: who sets its limit, when it comes and goes, and its reader.

    demands: demand reads a second, at random times.
    pace: requests a second that the reader consumes; infinite: it waits for each.
    room: requests that may be staged ahead of the reader.
    clock_error: seconds that the wall clock is ahead; the mount takes the clock for right.
    """

    policy: Callable[[], LimitPolicy]
    joins: float = 0.0
    leaves: float = math.inf
    demands: float = 10.0
    pace: float = math.inf
    room: float = math.inf
    clock_error: float = 0.0


@dataclass(slots=True)
class SimulatedHistory:
    """The life of a mount. `decisions`: (time, limit, reason); `demands`: its demand reads as (begin, seconds)."""

    decisions: list[tuple[float, int, Reason]] = field(default_factory=list)
    demands: list[tuple[float, float]] = field(default_factory=list)


class SimulatedMount:
    """A mount that reads; it begins and ends by itself. `prefetches` counts them."""

    def __init__(self, source: SharedSource, spec: MountSpec) -> None:
        self.spec, self.policy = spec, spec.policy()
        self.history = SimulatedHistory()
        self.prefetches, self._demands = Lane(self._prefetch_ended), Lane(self._demand_ended)
        self._source = source
        self._saturated = not math.isfinite(spec.pace)
        self._limit = 0
        self._under_way = self._demands_under_way = 0
        self._counted_at = self._under_way_seconds = self._waited_seconds = 0.0
        self._consumed, self._consumed_at = 0.0, spec.joins
        self._ended = False
        source.call_at(spec.joins, self._join)
        if math.isfinite(spec.leaves):
            source.call_at(spec.leaves, self._leave)

    @property
    def staged(self) -> float:
        """Requests that are staged and not yet consumed."""
        return self.prefetches.ended - self._consumed

    @property
    def under_way(self) -> int:
        return self._under_way + self._demands_under_way

    # ---- its life -----------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._counted_at = self._consumed_at = self._source.now
        self._step()
        if self.spec.demands:
            self._source.call_at(self._source.now + self._pause(), self._demand)
        if not self._saturated:
            self._look()

    def _leave(self) -> None:
        self._ended = True
        self._limit = 0
        self.prefetches.refill = False

    def _step(self) -> None:
        if self._ended:
            return
        self._count()
        decision = self.policy.step(self._sample())
        self._obey(decision)
        self._source.call_at(self._source.now + decision.wait, self._step)

    def _obey(self, decision: LimitDecision) -> None:
        self.history.decisions.append((self._source.now, decision.limit, decision.reason))
        self._limit = decision.limit
        if decision.mark:
            self.prefetches.marked = self._demands.marked = self._source.now
        self._fill()

    def _sample(self) -> SourceSample:
        lanes = (self.prefetches, self._demands)
        ended, young_ended = sum(lane.ended for lane in lanes), sum(lane.young_ended for lane in lanes)
        log2_ns = sum(lane.log2_seconds for lane in lanes) + LOG2_NS * ended
        young_log2_ns = sum(lane.young_log2_seconds for lane in lanes) + LOG2_NS * young_ended
        now = self._source.now
        lead = None if self._saturated else max(0.0, self.staged) / self.spec.pace
        return SourceSample(
            now, DAY + now + self.spec.clock_error, _by_class(ended, 0), _by_class(log2_ns, 0.0),
            _by_class(young_ended, 0), _by_class(young_log2_ns, 0.0), self._under_way_seconds, self._waited_seconds,
            self.under_way, lead=lead,
        )  # fmt: skip

    # ---- prefetches ---------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin as many prefetches as the limit allows and the reader has use for."""
        if self._ended:
            return
        self._count()
        allowed = max(1, self._limit - self._demands_under_way)
        while self._under_way < allowed and self._wants():
            self._under_way += 1
            self._source.begin(self.prefetches)
        self.prefetches.refill = self._saturated and self._under_way <= allowed

    def _prefetch_ended(self, seconds: float) -> None:
        self._count()
        self._under_way -= 1
        self._fill()

    def _wants(self) -> bool:
        return self._saturated or self.staged + self._under_way < self.spec.room

    def _count(self) -> None:
        """Bring the integrals up to date; called before anything that is integrated changes."""
        passed = self._source.now - self._counted_at
        if passed <= 0:
            return
        self._counted_at = self._source.now
        self._under_way_seconds += passed * self.under_way
        if self._wants() and self._under_way >= max(1, self._limit - self._demands_under_way):
            self._waited_seconds += passed

    # ---- readers ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Let a reader with a pace consume what is staged."""
        if self._ended:
            return
        now = self._source.now
        self._consumed += min((now - self._consumed_at) * self.spec.pace, self.staged)
        self._consumed_at = now
        self._fill()
        self._source.call_at(now + PACED_CHECK, self._look)

    def _pause(self) -> float:
        return float(self._source.random.exponential(1.0 / self.spec.demands))

    def _demand(self) -> None:
        """A reader waits for a file that is not staged."""
        if self._ended:
            return
        self._count()
        self._demands_under_way += 1
        self._source.begin(self._demands)
        self._fill()
        self._source.call_at(self._source.now + self._pause(), self._demand)

    def _demand_ended(self, seconds: float) -> None:
        self._count()
        self._demands_under_way -= 1
        self.history.demands.append((self._source.now - seconds, seconds))
        self._fill()


def _by_class(value: Number, nothing: Number) -> tuple[Number, ...]:
    return tuple(value if each == SIZE_CLASS else nothing for each in range(SIZE_CLASSES))
