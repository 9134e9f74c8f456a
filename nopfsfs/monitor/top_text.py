"""The texts of `nopfs top`, for a screen of 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nopfsfs.monitor.stats_lines import TIERS, StatsLine
from nopfsfs.monitor.watched_mount import Moment
from nopfsfs.text.units import format_duration, format_size

NONE = "-"
TIER_NAMES = ("page", "ram", "disk", "peer", "src")
# (heading, width with the space before it): together 80.
COLUMNS = (
    ("mount", 22), ("opens/s", 9), ("ready", 7), ("waiting", 9), ("p99", 8), ("MB/s", 8), ("limit", 7), ("slow", 5),
    ("lead", 5),
)  # fmt: skip
# By the name of an order, the number by which mounts stand, largest first.
SORTS: dict[str, Callable[[Moment], float]] = {
    "mount": lambda one: 0.0,
    "opens": lambda one: one.line.opens if one.line else -1.0,
    "waiting": lambda one: one.waiting if one.line else -1.0,
    "source": lambda one: one.line.source_bytes if one.line else -1.0,
    "memory": lambda one: float(one.line.ram_bytes + one.line.page_cache_bytes) if one.line else -1.0,
}


def in_order(moments: Sequence[Moment], name: str) -> list[Moment]:
    """The mounts in an order of SORTS; equal ones by their paths."""
    return sorted(moments, key=lambda one: (-SORTS[name](one), one.mountpoint))


def shortened(path: str, width: int) -> str:
    """A path in so many characters: its end says more than its begin."""
    return path if len(path) <= width else f"…{path[1 - width :]}"


def number(value: float) -> str:
    """A number in at most five characters, but for very large ones."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def size(count: int) -> str:
    """Bytes, as `nopfs stats` writes them."""
    return format_size(count).replace("iB", "").replace(" ", "")


def _lead(seconds: float | None) -> str:
    """A duration in four characters."""
    if seconds is None:
        return NONE
    for unit, name in ((3600.0, "h"), (60.0, "m")):
        if seconds >= 2 * unit:
            return f"{min(seconds / unit, 999):.0f}{name}"
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def _wait(line: StatsLine) -> str:
    return NONE if line.wait_p99_s is None else format_duration(line.wait_p99_s)


def ready(line: StatsLine) -> float | None:
    """The share of the files that were here before their reader."""
    known = [share for share in line.shares if share is not None]
    return sum(known[:-1]) if known else None


def cells(one: Moment) -> list[str]:
    """The row of a mount."""
    name = shortened(one.mountpoint, COLUMNS[0][1] - 1)
    line = one.line
    if line is None:
        return [name, *[NONE] * (len(COLUMNS) - 1)]
    share = ready(line)
    return [
        name, f"{'~' if line.estimated else ''}{number(line.opens)}", NONE if share is None else f"{100 * share:.0f}%",
        f"{one.waiting:.2f}" if one.waiting < 99.5 else number(one.waiting), _wait(line),
        number(line.source_bytes / 1e6), NONE if line.limit is None else number(line.limit),
        NONE if line.slowdown is None else f"{min(line.slowdown, 999):.1f}", _lead(line.lead_s),
    ]  # fmt: skip


def plan_text(one: Moment) -> str:
    """The plan of a mount, and how far its epoch is."""
    words = [one.plan or NONE, one.sampler, "" if one.epoch is None else f"epoch {one.epoch}"]
    if one.share is not None:
        full = round(20 * one.share)
        words.append(f"{'━' * full}{'╌' * (20 - full)} {100 * one.share:.0f} %")
    return "  ".join(word for word in words if word)


def figures_text(one: Moment) -> str:
    """The figures of a mount that stand in no column."""
    line = one.line
    if line is None:
        return "the first figures come in a second" if not one.trouble else ""
    errors = f"  errors {one.errors:,}" if one.errors else ""
    return (
        f"src/s {number(line.source_files)}  RAM {size(line.ram_bytes)}  pages {size(line.page_cache_bytes)}"
        f"  CPU {100 * line.cpu:.0f}%{errors}"
    )


def served_parts(line: StatsLine | None, width: int) -> list[tuple[str, str, int]]:
    """(tier, "page 90%", cells of a bar of `width`) of each tier that served files in the last second."""
    found = [
        (tier, f"{name} {100 * share:.0f}%", share)
        for tier, name, share in zip(TIERS, TIER_NAMES, line.shares, strict=True)
        if share is not None and share > 0
    ] if line is not None else []  # fmt: skip
    ends = [0]
    total = 0.0
    for _, _, share in found:
        total += share
        ends.append(min(width, round(width * total)))
    return [(tier, text, end - begin) for (tier, text, _), begin, end in zip(found, ends, ends[1:], strict=False)]


def curve_title(name: str, values: Sequence[float]) -> str:
    """The heading of a curve: its name, its last value, and its most."""
    shown = {"opens": "opens/s", "waiting": "readers waiting", "source_bytes": "source MB/s", "limit": "limit"}[name]
    scale = 1e6 if name == "source_bytes" else 1.0
    last, most = (values[-1] / scale, max(values) / scale) if values else (0.0, 0.0)
    wanted = (lambda value: f"{value:.2f}") if name == "waiting" else number
    return f"{shown} {wanted(last)}, most {wanted(most)}"
