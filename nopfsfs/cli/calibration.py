"""What `nopfs calibrate` found, as text for people. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from nopfsfs.calibrate.result import Measured, MeasuredSource, MeasuredStorage
from nopfsfs.policy.rates import REACHES
from nopfsfs.units import format_size


def table(found: Measured, source: str) -> str:
    """A short table of what was measured."""
    lines = [*_source_lines(found.source, source), *_storage_lines("ram", found.ram)]
    for disk in found.disks:
        lines += _storage_lines("disk", disk)
        if disk.in_memory:
            lines.append(f"           {disk.name} is no disk: its files lie in memory")
    return "\n".join(lines)


def _source_lines(found: MeasuredSource, path: str) -> list[str]:
    seen = f"{found.seen:,} files" if found.whole else f"{found.seen:,} files found"
    skipped = f", {found.skipped:,} skipped" if found.skipped else ""
    sizes = f"{format_size(found.smallest)} to {format_size(found.largest)}, median {_size(found.median)}"
    lines = [
        f"source     {os.fsencode(path).decode(errors='backslashreplace')}",
        f"files      {seen}, {found.read:,} read{skipped}; {sizes}",
        f"latency    {_latency(found)}",
        f"{'at once':<11}{'files/s':>10}{'bytes/s':>14}",
    ]
    lines += [f"  {level.at_once:<9}{_count(level.files):>10}{_rate(level.bytes):>14}" for level in found.levels]
    for name, level in ("headers", found.first_bytes), ("large", found.large):
        if level is not None:
            shown = f"{name} {level.at_once}"
            lines.append(f"  {shown:<11}{_count(level.files):>8}{_rate(level.bytes):>14}")
    most = found.levels[-1].at_once
    enough = f"{found.at_once} reach {REACHES:.0%} of the most files/s"
    if found.at_once == most:
        enough += "; more may reach more" if len(found.levels) == 7 else "; there are too few files for more"
    lines.append(f"at_once    {enough}")
    rate = _rate(found.bandwidth.rate)
    lines.append(f"rate       {f'at least {rate}: not the bytes were the limit' if found.bandwidth.least else rate}")
    return lines


def _latency(found: MeasuredSource) -> str:
    latency = found.latency
    text = f"{_ms(latency.seconds)} a file"
    text += f" (± {_ms(latency.error)})" if latency.fitted else ", until its first byte"
    if latency.stream < math.inf:
        text += f", beside its bytes at {_rate(latency.stream)}"
    return text


def _storage_lines(kind: str, found: MeasuredStorage) -> list[str]:
    name = "" if kind == "ram" else f"{found.name}, "
    return [
        f"{kind:<11}{name}{format_size(found.capacity)}, in pieces of {format_size(found.piece)}",
        f"  read     {_rates(found.read)}",
        f"  write    {_rates(found.write)}",
    ]


def _rates(points: Sequence[tuple[int, float]]) -> str:
    return ", ".join(f"{threads}: {_rate(rate)}" for threads, rate in points)


def _rate(rate: float) -> str:
    return f"{format_size(round(rate))}/s"


def _size(size: float) -> str:
    return format_size(round(size))


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
