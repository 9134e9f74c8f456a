"""Reports of runs for tests: what `nopfs-umount --report` writes, made up."""

from __future__ import annotations

from typing import Any

from nopfsfs.supervisor.observing.history import COLUMNS

BEGIN = 1_800_000_000.0


def epoch(number: int | None, begin: float, seconds: float, **further: Any) -> dict[str, Any]:
    """The record of an epoch of 1,000 files, which nobody waited for; `begin`: seconds since the run began."""
    return {
        "epoch": number, "dataset": ".", "sampler": None if number is None else "distributed", "seed": 7,
        "begin": BEGIN + begin, "seconds": seconds, "ended": True, "counts": "exact", "files": 1000,
        "bytes": 100_000_000, "predicted": 990,
        "served": {"page_cache": 0.9, "ram": 0.1, "disk": 0.0, "peer": 0.0, "source": 0.0}, "stall_seconds": 0.0,
        "waits": 0, "wait_p50_seconds": None, "wait_p99_seconds": None, "wait_most_seconds": None, "source_reads": 0,
        "source_bytes": 0, "second_reads": 0, "read_errors": 0, "source_errors": 0, "limit": None, "slowdown": None,
        **further,
    }  # fmt: skip


def waited(number: int | None, begin: float, seconds: float, stall: float, **served: float) -> dict[str, Any]:
    """The record of an epoch whose readers waited for `stall` seconds; `served`: by the tiers that are named."""
    tiers = {"page_cache": 0.0, "ram": 0.0, "disk": 0.0, "peer": 0.0, "source": 0.0} | served
    return epoch(
        number, begin, seconds, stall_seconds=stall, served=tiers, waits=100, wait_p50_seconds=0.01,
        wait_p99_seconds=0.2, wait_most_seconds=0.27, source_reads=1000, source_bytes=100_000_000,
    )  # fmt: skip


def history(step: int, rows: int, **columns: float | list[float | None]) -> dict[str, Any]:
    """A history of a run without a cap, 0 in all columns but those that are given."""
    table: list[list[float | None]] = []
    for at in range(rows):
        given = {name: value[at] if isinstance(value, list) else value for name, value in columns.items()}
        table.append([given.get(name, None if name == "source_cap" else 0.0) for name in COLUMNS])
    return {"step": step, "begin": BEGIN, "most": rows, "columns": list(COLUMNS), "rows": table}


def report(*epochs: dict[str, Any], **further: Any) -> dict[str, Any]:
    """A report of these epochs, with a history of its first ten minutes."""
    seconds = int(max((one["begin"] + one["seconds"] - BEGIN for one in epochs), default=0.0))
    rows = history(
        1, min(600, seconds), opens=40.0, source=10.0, wait_share=0.5, wait_p50=0.01, wait_p99=0.1, limit=16.0,
        slowdown=1.5, lead=2.0, source_bytes=4e6, source_expected=5e6, slots_waited=0.9, fetches_in_flight=8.0,
        ram_bytes=1e9,
    )  # fmt: skip
    return {
        "state": "ended", "source": "/pfs/data", "mountpoint": "/mnt/fast", "seconds": float(seconds),
        "plan": {"state": "locked", "sampler": "distributed", "seed": 7, "world": 4, "ranks": [0, 1]},
        "budget": {"total": 1 << 30, "page_cache": 1 << 29, "ram": 1 << 29, "disk": 0}, "epochs": list(epochs),
        "history": [rows], "final": True, **further,
    }  # fmt: skip
