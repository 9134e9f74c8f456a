"""Bounds that people set on a mount's reads of its source, and who has set the one in force; its weight there. Pure.

A command (`nopfs tune`) counts before an option of the mount. The rules of the site bound both, but for root's mounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from nopfsfs.config import MAX_CONCURRENCY, MountConfig
from nopfsfs.policy.site_rules import WEIGHT_LEAST, WEIGHT_MOST, SiteLimits, is_weight
from nopfsfs.protocol.columns import Metric
from nopfsfs.text.units import MAX_RATE

AUTO = UNBOUNDED = -1  # in the metrics LIMIT_ASKED and BANDWIDTH_ASKED
NO_WEIGHT = 0  # in the metric WEIGHT_ASKED
WEIGHT_UNIT = 1000  # of the same, for a weight of 1


class CapOrigin(str, Enum):
    """Origin of a bound."""

    OPTION = "option"
    COMMAND = "command"
    SITE = "site"


class SourceCaps:
    """Bounds of one mount. `own`: the supervisor's metrics, where what a command asked for outlives the supervisor.
    `bound`: the mount keeps to the site's rules whatever is asked for."""

    def __init__(self, config: MountConfig, own: memoryview, *, bound: bool) -> None:
        self._config, self._own, self._bound = config, own, bound
        self.site = SiteLimits()

    @property
    def fixed(self) -> int | None:
        """The number of requests under way that a user stated; None where the tuner decides."""
        asked = self._own[Metric.LIMIT_ASKED]
        if asked == AUTO:
            return None
        fixed = asked or self._config.source_concurrency
        return (min(fixed, self.site.concurrency) if self._bound else fixed) or None

    @property
    def weight(self) -> float:
        """The claim of this mount beside others at the source."""
        asked = self._own[Metric.WEIGHT_ASKED] / WEIGHT_UNIT
        if not asked:
            return self.site.weight
        return min(asked, self.site.weight) if self._bound else asked

    @property
    def bandwidth(self) -> int:
        """Bytes a second that this node reads from the source; 0: no bound."""
        return self._bandwidth()[0]

    @property
    def bandwidth_by(self) -> CapOrigin | None:
        """The origin of `bandwidth`; None: it is not bounded."""
        return self._bandwidth()[1]

    def _bandwidth(self) -> tuple[int, CapOrigin | None]:
        asked = self._own[Metric.BANDWIDTH_ASKED]
        own = 0 if asked == UNBOUNDED else asked or self._config.bandwidth_here
        by = None if not own else CapOrigin.COMMAND if asked else CapOrigin.OPTION
        if self.site.bandwidth is None or (own and not self._bound):
            return own, by
        site = max(1, self.site.bandwidth // max(1, self._config.job_nodes))
        return (own, by) if own and own <= site else (site, CapOrigin.SITE)


class TuneRequest(NamedTuple):
    """A request `tune` (docs/control-socket.md): values for the metrics LIMIT_ASKED, BANDWIDTH_ASKED and WEIGHT_ASKED;
    None: nothing is asked for. `hold`: the present limit is to stay."""

    limit: int | None
    hold: bool
    bandwidth: int | None
    weight: int | None

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> TuneRequest:
        """Return what the keys of a request say. Raises ValueError."""
        hold = request.get("hold", False)
        if not isinstance(hold, bool):
            raise ValueError("hold: true or false is expected")
        limit = _limit(request.get("concurrency"))
        if hold and limit == AUTO:
            raise ValueError("hold: the limit cannot be held and be tuned")
        return cls(limit, hold, _bandwidth(request.get("bandwidth")), _weight(request.get("weight")))


def _limit(said: Any) -> int | None:
    if said is None or said == "auto":
        return None if said is None else AUTO
    if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= MAX_CONCURRENCY:
        return said
    raise ValueError(f"concurrency: a whole number from 1 to {MAX_CONCURRENCY} or auto is expected")


def _bandwidth(said: Any) -> int | None:
    if said is None or said == "none":
        return None if said is None else UNBOUNDED
    if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= MAX_RATE:
        return said
    raise ValueError("bandwidth: whole bytes a second or none are expected")


def _weight(said: Any) -> int | None:
    if said is None or said == "none":
        return None if said is None else NO_WEIGHT
    if is_weight(said):
        return round(said * WEIGHT_UNIT)
    raise ValueError(f"weight: a number from {WEIGHT_LEAST:g} to {WEIGHT_MOST:g} or none is expected")
