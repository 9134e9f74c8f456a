"""The figures of a mount now, as the command `metrics` of the control socket gives them (docs/control-socket.md)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from nopfsfs import __version__
from nopfsfs.policy.push_scheduler import Paged
from nopfsfs.protocol.columns import (
    DISK_FETCHES_TOOK,
    PEER_FETCHES_TOOK,
    READER_WAITS,
    SOURCE_FETCHES_TOOK,
    Metric,
    Tier,
)  # fmt: skip
from nopfsfs.protocol.durations import BUCKETS
from nopfsfs.protocol.source_metrics import SIZE_NAMES
from nopfsfs.supervisor.observing.observer import Observer
from nopfsfs.supervisor.observing.parts import MountParts
from nopfsfs.supervisor.status_record import served
from nopfsfs.system.proc import Usage
from nopfsfs.text.units import format_ranks

_REROUTED = {"slow": Metric.REROUTED_SLOW, "down": Metric.REROUTED_DOWN, "hedged": Metric.FETCHES_HEDGED}
REST = 100  # times as long as a count of the files in the tiers took, before the next: of many millions it takes 50 ms
_FETCHES = {
    "source": (Metric.STAGED_SOURCE_FILES, Metric.STAGED_SOURCE_BYTES, Metric.SOURCE_FETCH_NS, SOURCE_FETCHES_TOOK),
    "disk": (Metric.STAGED_DISK_FILES, Metric.STAGED_DISK_BYTES, Metric.DISK_FETCH_NS, DISK_FETCHES_TOOK),
    "peer": (Metric.STAGED_PEER_FILES, Metric.STAGED_PEER_BYTES, Metric.PEER_FETCH_NS, PEER_FETCHES_TOOK),
}
_ERRORS = {
    "source": (Metric.SOURCE_ERRORS,), "disk": (Metric.DISK_ERRORS, Metric.CORRUPT_COPIES),
    "peer": (Metric.PEER_REFUSED, Metric.PEER_LATE, Metric.PEER_CORRUPT),
}  # fmt: skip


class Figures:
    """Makes the figures. Sums never go back while the supervisor lives, also where they are estimates."""

    def __init__(self, parts: MountParts, observer: Observer) -> None:
        self._parts, self._observer = parts, observer
        self._config, self._memory, self._loop = parts.config, parts.memory, parts.loop
        self._signal, self._budget = parts.signal, parts.budget
        self._most: dict[str, int] = {}
        self._count_at, self._tiers, self._cached = 0.0, dict[str, int](), 0.0

    def now(self, state: str) -> dict[str, Any]:
        """The figures. Bytes, seconds; sums since the mount began. `state`: of the mount."""
        stager, signal = self._memory.stager_metrics, self._signal
        server = signal.estimate(self._memory.server_metrics.total())
        plan, _ = self._loop.plan_status(self._config)
        peers, processes = self._parts.peers(), self._observer.processes()
        return {
            "time": round(time.time(), 3),
            "state": state,
            "counts": "estimated" if signal.estimated else "exact",
            "info": {
                "mountpoint": self._config.mountpoint, "source": self._config.source, "version": __version__,
                "sampler": plan["sampler"] or "", "rank": format_ranks(plan.get("ranks", ())),
            },
            "plan": {"state": plan["state"], **{key: plan[key] for key in ("epoch", "position", "length")}},
            "lead_seconds": self._observer.lead_s,
            "opens": self._grown("opens", int(server[Metric.OPENS])),
            "opens_predicted": self._grown("predicted", min(signal.predicted, int(server[Metric.OPENS]))),
            "served": {
                tier: {unit: self._grown(f"{tier} {unit}", part[unit]) for unit in ("files", "bytes")}
                for tier, part in served(server).items()
            },
            "reader_waits": {
                "seconds": int(server[Metric.WAIT_NS]) / 1e9,
                "buckets": server[READER_WAITS : READER_WAITS + BUCKETS].tolist(),
            },
            "read_errors": int(server[Metric.READ_ERRORS]),
            "direct_reads": int(server[Metric.DIRECT_READS]),
            "fetches": {name: _fetches(stager, name) for name in _FETCHES},
            "rerouted": {name: stager[metric] for name, metric in _REROUTED.items()},
            "fetches_in_flight": self._loop.policy.fetches.under_way,
            "source": {
                "opens": stager[Metric.SOURCE_OPENS], "bytes": stager[Metric.SOURCE_READ_BYTES],
                "requests": dict(zip(SIZE_NAMES, stager[Metric.ENDED : Metric.ENDED_LOG2].tolist(), strict=True)),
                "second_reads": stager[Metric.SECOND_READS], "changed": stager[Metric.CHANGED_FILES],
                "compared_opens": stager[Metric.YOUNG_OPENS], "compared_bytes": stager[Metric.YOUNG_READ_BYTES],
                "stuck": stager[Metric.STUCK_READS],
            },
            "tuner": self._parts.tuning.counted(),
            "policy": self._parts.site.counted(),
            **self._kept(stager, stages=any(role == "stager" for role, _, _ in processes)),
            "processes": _by_role(processes),
            "off": len(self._parts.off()),
            **({} if peers is None else {"peers": _peers(peers, stager)}),
        }  # fmt: skip

    def _grown(self, name: str, count: int) -> int:
        """The count, or what it was before if that is more: an estimate may be corrected, and a READ comes a moment
        after its open."""
        self._most[name] = max(count, self._most.get(name, 0))
        return self._most[name]

    def _kept(self, stager: memoryview, *, stages: bool) -> dict[str, Any]:
        """Figures of the tiers, and of the page cache."""
        self._count_files()
        split, config = self._budget.split, self._config
        budget = {"page_cache": split.pages, "ram": split.arena, "disk": sum(disk.size or 0 for disk in config.disks)}
        used = self._budget.used(self._loop.policy.pages_used)
        evictions = {"page_cache": stager[Metric.DROPS_DONE], "ram": stager[Metric.EVICTIONS]}
        tiers: dict[str, dict[str, Any]] = {
            name: {"budget": budget[name], "used": used[name], "files": self._tiers[name]} for name in used
        }
        for name, count in evictions.items():
            tiers[name]["evictions"] = count
        usable = {"ram": stages}
        if config.disks:
            usable["disk"] = stager[Metric.DISKS_BYPASSED] < len(config.disks)
        else:
            del tiers["disk"]
        for name, works in usable.items():
            tiers[name]["usable"] = int(works)
        audit = self._loop.audit.status()
        failed, spared = stager[Metric.PUSHES_FAILED], stager[Metric.PUSHES_SPARED]
        done = max(0, stager[Metric.PUSHES_DONE] - failed)
        return {
            "tiers": tiers,
            "cached_ratio": self._cached,
            "pushes": {"done": done, "spared": spared, "failed": max(0, failed - spared)},
            "pushed_bytes": stager[Metric.PUSHED_BYTES],
            "page_cache": {"resident_ratio": audit["resident_share"], "evicted": audit["evicted"]},
        }

    def _count_files(self) -> None:
        """Count the files in each tier, and their share of all bytes, unless that was done a moment ago."""
        began = time.monotonic()
        if began < self._count_at:
            return
        columns, size = self._memory.columns, self._loop.policy.residency.charges
        parts = {
            "page_cache": columns.paged == Paged.WHOLE, "ram": columns.tier == Tier.RAM, "disk": columns.disk != 0,
        }  # fmt: skip
        self._tiers = {name: int(np.count_nonzero(part)) for name, part in parts.items()}
        kept = parts["page_cache"] | parts["ram"] | parts["disk"]
        self._cached = round(int(size[kept].sum()) / max(1, self._loop.policy.total), 6)
        ended = time.monotonic()
        self._count_at = ended + REST * (ended - began)


def _by_role(processes: list[tuple[str, Usage, int]]) -> dict[str, dict[str, float]]:
    """Resources by role: those of all servers together."""
    found: dict[str, dict[str, float]] = {}
    for role, used, restarts in processes:
        one = found.setdefault(role, {"cpu_seconds": 0.0, "resident_bytes": 0, "restarts": 0})
        one["cpu_seconds"] += round(used.cpu_seconds, 2)
        one["resident_bytes"] += used.resident_bytes
        one["restarts"] += restarts
    return found


def _fetches(stager: memoryview, name: str) -> dict[str, Any]:
    files, size, took_ns, took = _FETCHES[name]
    return {
        "files": stager[files], "bytes": stager[size], "seconds": stager[took_ns] / 1e9,
        "buckets": stager[took : took + BUCKETS].tolist(), "errors": sum(stager[error] for error in _ERRORS[name]),
    }  # fmt: skip


def _peers(status: dict[str, Any], stager: memoryview) -> dict[str, int]:
    """Fetches from other nodes by how they ended, and what was lent to them."""
    gone = {*(status.get("left") or ()), *(status.get("over") or ()), *(status.get("resting") or ())}
    connected = max(0, int(status.get("nodes", 1)) - 1 - len(gone)) if status.get("state") == "running" else 0
    return {
        "connected": connected, "done": stager[Metric.PEER_FETCHES], "refused": stager[Metric.PEER_REFUSED],
        "late": stager[Metric.PEER_LATE], "corrupt": stager[Metric.PEER_CORRUPT],
        "lent_bytes": stager[Metric.LENT_BYTES],
    }  # fmt: skip
