"""The interface of policies that decide how many requests a mount may have under way at its source.

Pure: a policy gets the metrics of the stager and the time in a `SourceSample`, and returns a `LimitDecision`. A mount
(`supervisor/source_tuning.py`) calls `step` of one, the simulator (`sim/tuning/`) of many. A policy starts nothing,
waits for nothing and keeps no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

TICK_SECONDS = 0.125  # the longest time between two calls of `step`


class Reason(str, Enum):
    """The reason of a decision, in the words of the metric `tuner_decisions_total`."""

    MORE = "more"
    LESS = "less"
    DRAIN = "drain"  # the mount holds back, to see what the source is with less
    HANG = "hang"  # nothing ends, or most requests fail
    CAP = "cap"  # the policy would take more than it may
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class SourceSample:
    """The metrics of a mount's requests at its source. All counts and integrals are sums since the mount began.

    now: seconds of a clock that only runs forward.
    clock: seconds of the wall clock, the same on all nodes.
    ended: requests that ended well, by size class, `columns.SIZE_CLASSES` of them.
    log2_ns: by size class, the sum of the base-2 logarithms of their durations in nanoseconds.
    under_way_seconds: the integral of the requests under way, demands included.
    waited_seconds: the time in which some prefetch waited for a slot.
    under_way: requests under way now.
    young_ended, young_log2_ns: the same two sums, of requests that also began since the last `LimitDecision.mark`.
    errors: requests that failed.
    lead: seconds of reading that are staged ahead of the reader; None without a plan.
    disciplined: the wall clock is synchronised, with an error below 100 ms.
    """

    now: float
    clock: float
    ended: tuple[int, ...]
    log2_ns: tuple[float, ...]
    young_ended: tuple[int, ...]
    young_log2_ns: tuple[float, ...]
    under_way_seconds: float
    waited_seconds: float
    under_way: int
    errors: int = 0
    lead: float | None = None
    disciplined: bool = True


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """The requests that may be under way from now on, the reason, and the seconds after which to call `step` again.

    mark: from now on only requests that begin from now on are young. A drain needs to know which are. Requests that
    began before the drain took as long as with others. Most of what ends during a drain are stragglers from before it.
    Demands are never held back: prefetches get `limit` less the demands under way, at least 1.
    """

    limit: int
    reason: Reason
    wait: float = TICK_SECONDS
    mark: bool = False


class LimitPolicy(Protocol):
    """A policy that is called about once a tick. A call may come later than it asked for, never before."""

    def step(self, sample: SourceSample) -> LimitDecision: ...
