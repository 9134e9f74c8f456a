"""Bounds that people set on a mount's reads of its source, and who has set the one in force. Pure.

A command (`nopfs tune`) counts before an option of the mount. The rules of the site bound both, but for root's mounts.
"""

from __future__ import annotations

from enum import Enum

from nopfsfs.config import MountConfig
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.protocol.columns import Metric

AUTO = UNBOUNDED = -1  # in the gauges LIMIT_ASKED and BANDWIDTH_ASKED


class CapOrigin(str, Enum):
    """Origin of a bound."""

    OPTION = "option"
    COMMAND = "command"
    SITE = "site"


class SourceCaps:
    """Bounds of one mount. `own`: the supervisor's gauges, where what a command asked for outlives the supervisor.
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
        site = max(1, self.site.bandwidth // max(1, self._config.nodes))
        return (own, by) if own and own <= site else (site, CapOrigin.SITE)
