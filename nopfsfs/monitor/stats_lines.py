"""Lines of statistics, a line an interval, from two answers of `metrics`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nopfsfs.protocol.durations import BUCKETS, quantile_s
from nopfsfs.text.units import format_duration, format_size

TIERS = ("page_cache", "ram", "disk", "peer", "source")
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatsLine:
    """The figures of an interval. Rates are a second; `shares` of the files served, by tier; None: not known."""

    opens: float
    shares: tuple[float | None, ...]
    wait_p99_s: float | None
    source_files: float
    source_bytes: float
    limit: float | None
    slowdown: float | None
    lead_s: float | None
    ram_bytes: int
    page_cache_bytes: int
    cpu: float  # processors
    estimated: bool


# Name in CSV, heading, width, and how a line's value is written.
_COLUMNS = (
    ("opens_per_second", "opens", 7), *((f"{tier}_share", heading, 5) for tier, heading in zip(
        TIERS, ("page", "ram", "disk", "peer", "src"), strict=True)),
    ("wait_p99_seconds", "p99", 7), ("source_files_per_second", "src/s", 7), ("source_bytes_per_second", "MB/s", 6),
    ("limit", "limit", 5), ("slowdown", "slow", 4), ("lead_seconds", "lead", 6), ("ram_bytes", "RAM", 8),
    ("page_cache_bytes", "pages", 8), ("processors", "CPU", 4),
)  # fmt: skip


def stats_line(before: Figures, after: Figures) -> StatsLine:
    """Make the line of what happened between two answers. Raises KeyError, TypeError, ValueError for others."""
    seconds = max(1e-3, float(after["time"]) - float(before["time"]))

    def done(*path: str) -> float:
        first, last = before, after
        for key in path:
            first, last = first[key], last[key]
        return max(0.0, float(last) - float(first))  # type: ignore[arg-type]  # numbers are at the end of a path

    files = [done("served", tier, "files") for tier in TIERS]
    total = sum(files)
    waits = [
        max(0, int(b) - int(a))
        for a, b in zip(before["reader_waits"]["buckets"], after["reader_waits"]["buckets"], strict=True)
    ]
    if len(waits) != BUCKETS:
        raise ValueError("other buckets than here")
    return StatsLine(
        opens=done("opens") / seconds,
        shares=tuple(count / total if total else None for count in files),
        wait_p99_s=quantile_s(waits, 0.99),
        source_files=done("source", "opens") / seconds,
        source_bytes=done("source", "bytes") / seconds,
        limit=_known(after["tuner"]["limit"]),
        slowdown=_known(after["tuner"]["slowdown"]),
        lead_s=_known(after["lead_seconds"]),
        ram_bytes=int(after["tiers"]["ram"]["used"]),
        page_cache_bytes=int(after["tiers"]["page_cache"]["used"]),
        cpu=max(0.0, _cpu_s(after) - _cpu_s(before)) / seconds,
        estimated=after["counts"] == "estimated",
    )


def _known(found: Any) -> float | None:
    return None if found is None else float(found)


def _cpu_s(figures: Figures) -> float:
    return sum(float(process["cpu_seconds"]) for process in figures["processes"].values())


def heading() -> str:
    """The line above the figures."""
    return " ".join(f"{name:>{width}}" for _, name, width in _COLUMNS)


def text(line: StatsLine) -> str:
    """The line for people; `~` before opens that are an estimate."""
    shares = ["-" if share is None else f"{100 * share:.0f}%" for share in line.shares]
    cells = [
        f"{'~' if line.estimated else ''}{line.opens:.0f}", *shares,
        "-" if line.wait_p99_s is None else format_duration(line.wait_p99_s),
        f"{line.source_files:.0f}", f"{line.source_bytes / 1e6:.1f}",
        "-" if line.limit is None else f"{line.limit:.0f}",
        "-" if line.slowdown is None else f"{line.slowdown:.1f}",
        "-" if line.lead_s is None else format_duration(line.lead_s),
        format_size(line.ram_bytes).replace("iB", ""), format_size(line.page_cache_bytes).replace("iB", ""),
        f"{100 * line.cpu:.0f}%",
    ]  # fmt: skip
    return " ".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(cells, _COLUMNS, strict=True))


def csv_heading() -> str:
    """The first line of a CSV file."""
    return ",".join(["time", *(name for name, _, _ in _COLUMNS), "counts"])


def csv(line: StatsLine, time: float) -> str:
    """The line as comma-separated values, empty where a figure is not known. `time`: seconds since 1970."""
    values: Sequence[float | None] = (
        line.opens, *line.shares, line.wait_p99_s, line.source_files, line.source_bytes, line.limit, line.slowdown,
        line.lead_s, line.ram_bytes, line.page_cache_bytes, line.cpu,
    )  # fmt: skip
    cells = ["" if value is None else f"{value:.12g}" for value in values]
    return ",".join([f"{time:.3f}", *cells, "estimated" if line.estimated else "exact"])
