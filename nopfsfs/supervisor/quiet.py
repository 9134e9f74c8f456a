"""Commands that want the mount left alone for a while, as one that unmounts it does."""

from __future__ import annotations

from typing import Any

from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor.control_socket import Caller


class Quiet:
    """The callers for whom the mount is kept quiet, until the last of them has hung up. So a command that was
    interrupted leaves a mount that works on as before. `metrics`: the supervisor's block, where the stager looks."""

    def __init__(self, metrics: memoryview) -> None:
        self._metrics = metrics
        self._callers: set[Caller] = set()
        self._metrics[Metric.QUIET] = 0  # of a supervisor that died: its callers know

    def keep(self, caller: Caller) -> dict[str, Any]:
        """Keep the mount quiet until the caller hangs up. Return an empty record."""
        if caller not in self._callers:
            self._callers.add(caller)
            caller.at_end.append(lambda: self._gone(caller))
        self._metrics[Metric.QUIET] = 1
        return {}

    def _gone(self, caller: Caller) -> None:
        self._callers.discard(caller)
        self._metrics[Metric.QUIET] = int(bool(self._callers))
