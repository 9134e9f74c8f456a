"""The status record of a mount now, put together from the parts of its supervisor."""

from __future__ import annotations

import os
import time
from typing import Any

from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor.observing.observer import Observer
from nopfsfs.supervisor.observing.parts import MountParts
from nopfsfs.supervisor.status_record import record
from nopfsfs.system import abilities


class StatusReport:
    """Makes the records of one mount, which began when this was made."""

    def __init__(self, parts: MountParts, observer: Observer) -> None:
        self._parts, self._observer = parts, observer
        self._began = time.monotonic()
        self._kernel = [{"what": name, "effect": effect} for name, effect in abilities.missing().items()]

    def record(self, state: str) -> dict[str, Any]:
        """The status record; `state`: of the mount."""
        parts, loop = self._parts, self._parts.loop
        split, signal = loop.policy.split, parts.signal
        disks = [disk.size for disk in parts.config.disks if disk.size is not None]
        processes: list[dict[str, Any]] = [{"role": "supervisor", "pid": os.getpid(), "running": True}]
        processes += [{"role": c.role, "pid": c.pid, "running": c.running} for c in parts.children()]
        plan, k = loop.plan_status(parts.config)
        counted = parts.memory.server_metrics.total()
        opens = int(counted[Metric.OPENS] + counted[Metric.TRIPWIRES])
        return record(
            state=state, source=parts.config.source, mountpoint=parts.config.mountpoint, plan=plan, k=k,
            predicted=signal.predicted, estimated=signal.estimated, server=signal.estimate(counted),
            stager=parts.memory.stager_metrics,
            budget={"total": parts.budget.allowed, "page_cache": split.pages, "ram": split.arena, "disk": sum(disks)},
            used=parts.budget.used(loop.policy.pages_used), processes=processes if state != "ended" else [],
            lost=max(0, opens - loop.pending - loop.observed), page_cache=loop.audit.status(),
            modes=parts.mount.modes(signal), kernel=self._kernel, rates=parts.rates.status(),
            peers=parts.peers(), tuning=parts.tuning.status(),
            recheck=parts.rechecks.status(), off=parts.off(), seconds=time.monotonic() - self._began,
            epochs=self._observer.epochs.describe(ended=state == "ended"),
        )  # fmt: skip
