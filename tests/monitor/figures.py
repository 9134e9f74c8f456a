"""Answers of `metrics` for tests: those of a mount that has everything, and has done something."""

from __future__ import annotations

from typing import Any

from nopfsfs.protocol.durations import BUCKETS
from nopfsfs.protocol.source_metrics import SIZE_NAMES


def figures(**further: Any) -> dict[str, Any]:
    """An answer in which each figure is there."""
    served = {tier: {"files": 10 * n, "bytes": 1000 * n} for n, tier in enumerate(TIERS, 1)}
    fetches = {
        origin: {"files": n, "bytes": 100 * n, "seconds": 0.5 * n, "buckets": [n] * BUCKETS, "errors": n}
        for n, origin in enumerate(("source", "disk", "peer"), 1)
    }
    tiers: dict[str, dict[str, int]] = {
        name: {"budget": 4000, "used": 2000, "files": 20} for name in ("page_cache", "ram", "disk")
    }
    tiers["ram"] |= {"evictions": 3, "usable": 1}
    tiers["page_cache"] |= {"evictions": 4}
    tiers["disk"] |= {"usable": 1}
    return {
        "time": 1000.0,
        "state": "running",
        "counts": "exact",
        "info": {
            "mountpoint": "/mnt/fast", "source": "/pfs/data", "version": "0.1.0", "sampler": "random", "rank": "0",
        },
        "plan": {"state": "locked", "epoch": 3, "position": 50, "length": 100},
        "lead_seconds": 2.5,
        "opens": 150,
        "opens_predicted": 140,
        "served": served,
        "reader_waits": {"seconds": 1.5, "buckets": [2] * BUCKETS},
        "read_errors": 1,
        "direct_reads": 2,
        "fetches": fetches,
        "rerouted": {"slow": 3, "down": 2, "hedged": 1},
        "fetches_in_flight": 5,
        "source": {
            "opens": 60, "bytes": 6000, "second_reads": 1, "changed": 1, "stuck": 1, "compared_opens": 2,
            "compared_bytes": 200, "requests": dict.fromkeys(SIZE_NAMES, 9),
        },
        "tuner": {
            "limit": 24, "slowdown": 1.5, "under_way": 20, "bandwidth": 1000000, "aim": 64.0,
            "base_seconds": {"4K": 0.005, "64K": None},
            "decisions": {"more": 30, "less": 5},
        },
        "policy": {"files": 1, "refused": 1},
        "tiers": tiers,
        "cached_ratio": 0.5,
        "pushes": {"done": 30, "spared": 2, "failed": 1},
        "pushed_bytes": 3000,
        "page_cache": {"resident_ratio": 0.99, "evicted": 1},
        "processes": {
            role: {"cpu_seconds": 1.0, "resident_bytes": 1 << 20, "restarts": 0}
            for role in ("supervisor", "server", "stager")
        },
        "off": 0,
        "peers": {"connected": 3, "done": 9, "refused": 1, "late": 1, "corrupt": 0, "lent_bytes": 900},
        **further,
    }  # fmt: skip


TIERS = ("page_cache", "ram", "disk", "peer", "source")
