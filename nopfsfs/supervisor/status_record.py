"""The status record: what `nopfs status --json` prints and `nopfs-umount --report` writes. One place makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.protocol.columns import Metric

Counters = memoryview | npt.NDArray[np.int64]  # by Metric
_TIERS = {
    "ram": (Metric.RAM_FILES, Metric.RAM_BYTES),
    "disk": (Metric.DISK_FILES, Metric.DISK_BYTES),
    "peer": (Metric.PEER_FILES, Metric.PEER_BYTES),
    "source": (Metric.SOURCE_FILES, Metric.SOURCE_BYTES),
}


def served(metrics: Counters, *, estimated: bool = False) -> dict[str, dict[str, int]]:
    """Files and bytes by where reads were served from. An open whose bytes the server was never asked for was served by
    the page cache. A READ at offset 0 counts a file for the tier that answered it."""
    result = {
        name: {"files": int(metrics[files]), "bytes": int(metrics[size])} for name, (files, size) in _TIERS.items()
    }
    asked = {key: sum(tier[key] for tier in result.values()) for key in ("files", "bytes")}
    cached = {
        "files": max(0, int(metrics[Metric.OPENS]) - asked["files"]),
        "bytes": max(0, int(metrics[Metric.OPENED_BYTES]) - asked["bytes"]),
    }
    if estimated:
        cached["estimated"] = True
    return {"page_cache": cached, **result}


def stager_figures(metrics: Counters) -> dict[str, int]:
    """Counts of the stager since the mount began."""
    names = (
        Metric.SOURCE_OPENS, Metric.SOURCE_READ_BYTES, Metric.STAGED_FILES, Metric.STAGED_BYTES, Metric.PUSHES_DONE,
        Metric.PUSHED_BYTES, Metric.DROPS_DONE, Metric.EVICTIONS, Metric.SOURCE_ERRORS, Metric.CHANGED_FILES,
        Metric.CORRUPT_COPIES, Metric.DISK_ERRORS, Metric.DISK_WRITES, Metric.NO_ROOM, Metric.PUSHES_SPARED,
        Metric.SOURCE_FETCHES, Metric.DISK_FETCHES, Metric.PEER_FETCHES, Metric.PEER_FETCHED_BYTES, Metric.PEER_REFUSED,
        Metric.PEER_LATE, Metric.PEER_CORRUPT, Metric.LENT_FILES, Metric.LENT_BYTES, Metric.STUCK_READS,
        Metric.SPARE_WORKERS, Metric.STUCK_EVER, Metric.DISK_LATE, Metric.LEFT_ALONE, Metric.DISKS_BYPASSED,
        Metric.REROUTED_SLOW, Metric.REROUTED_DOWN, Metric.FETCHES_HEDGED,
    )  # fmt: skip
    found = {name.name.lower(): int(metrics[name]) for name in names}
    return {**found, "kept_files": max(0, int(metrics[Metric.KEPT_FILES]) - 1)}


def record(
    *, state: str, source: str, mountpoint: str, plan: dict[str, Any], predicted: int, k: int, server: Counters,
    stager: Counters, budget: dict[str, int], used: dict[str, int], processes: list[dict[str, Any]], lost: int,
    page_cache: dict[str, Any], modes: dict[str, Any], rates: dict[str, Any], seconds: float, estimated: bool = False,
    recheck: dict[str, Any], tuning: dict[str, Any], peers: dict[str, Any] | None = None,
    off: list[dict[str, Any]] | None = None, epochs: list[dict[str, Any]] | None = None,
    kernel: list[dict[str, str]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The record. Bytes, seconds. `k`: how many positions ahead an open counts as predicted; `page_cache`: what the
    kernel was found to keep; `modes`: the ways of working. `rates`: of what was fetched; `recheck`: of
    `supervisor/recheck_requests.py`; `tuning`: of `supervisor/source_tuning.py`; `peers`: where there are any. `off`:
    what is switched off after a failure and tried again: `what`, `since` (seconds since 1970), `why`. `epochs`: of
    `observing/epoch_records.py`; `kernel`: calls that are missing (`system/abilities.py`): `what`, `effect`."""
    return {
        "state": state,
        "source": source,
        "mountpoint": mountpoint,
        "seconds": round(seconds, 3),
        "plan": plan,
        "opens": {
            "total": int(server[Metric.OPENS]),
            "predicted": min(predicted, int(server[Metric.OPENS])),  # either may be an estimate
            "k": k,
            "unobserved": lost,
            "estimated": estimated,
        },
        "served": served(server, estimated=estimated),
        "budget": budget,
        "used": used,
        "page_cache": page_cache,
        "wait_seconds": int(server[Metric.WAIT_NS]) / 1e9,
        "waits": int(server[Metric.WAITS]),
        "read_errors": int(server[Metric.READ_ERRORS]),
        "direct_reads": int(server[Metric.DIRECT_READS]),
        "stager": stager_figures(stager),
        "processes": processes,
        "off": off or [],
        "modes": modes,
        "kernel": kernel or [],
        "rates": rates,
        "recheck": recheck,
        "tuning": tuning,
        "epochs": epochs or [],
        **({} if peers is None else {"peers": peers}),
    }
