"""The parts of a supervisor that its figures and its status record are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nopfsfs.config import MountConfig
from nopfsfs.dataset.index import Index
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.measured_rates import MeasuredRates
from nopfsfs.supervisor.memory_budget import MemoryBudget
from nopfsfs.supervisor.mount_connection import MountConnection
from nopfsfs.supervisor.mount_memory import MountMemory
from nopfsfs.supervisor.processes.supervised import Child, SupervisedProcess
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.supervisor.recheck_requests import Rechecks
from nopfsfs.supervisor.site_policy import SitePolicy
from nopfsfs.supervisor.source_tuning import SourceTuning


@dataclass(frozen=True)
class MountParts:
    """Read only. `processes`: a list that grows as they are started. `peers`, `off`: those parts of the record."""

    config: MountConfig
    index: Index
    memory: MountMemory
    loop: EventLoop
    signal: ProgressSignal
    budget: MemoryBudget
    rates: MeasuredRates
    rechecks: Rechecks
    tuning: SourceTuning
    site: SitePolicy
    mount: MountConnection
    processes: Sequence[SupervisedProcess]
    peers: Callable[[], dict[str, Any] | None]
    off: Callable[[], list[dict[str, Any]]]

    def children(self) -> list[Child]:
        """The processes that live, but for the supervisor."""
        return [child for process in self.processes if (child := process.living) is not None]
