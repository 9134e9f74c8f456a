"""The figures of `nopfs calibrate` as text for people. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from nopfsfs.calibrate.result import Measured, MeasuredSource, MeasuredStorage
from nopfsfs.calibrate.source_meter import AT_ONCE
from nopfsfs.performance.fit import REACHES, Level
from nopfsfs.text.units import format_size


def table(found: Measured, source: str) -> str:
    """A short table of the figures."""
    lines = [*_source_lines(found.source, source), *_storage_lines("ram", found.ram)]
    for disk in found.disks:
        lines += _storage_lines("disk", disk)
        if disk.in_memory:
            lines.append(f"           {disk.name} is no disk: its files lie in memory")
    return "\n".join(lines)


def _source_lines(found: MeasuredSource, path: str) -> list[str]:
    seen = f"{found.seen:,} files" if found.whole else f"{found.seen:,} files found"
    skipped = f", {found.skipped:,} skipped" if found.skipped else ""
    sizes = f"{format_size(found.smallest)} to {format_size(found.largest)}, median {format_size(round(found.median))}"
    lines = [
        f"source     {os.fsencode(path).decode(errors='backslashreplace')}",
        f"files      {seen}, {found.read:,} read{skipped}; {sizes}",
        f"latency    {_latency(found)}",
        f"{'at once':<18}{'files/s':>9}{'bytes/s':>14}",
        *(_level_line("", level) for level in found.levels),
        *(_level_line(", large files", level) for level in [found.large] if level),
        *(_level_line(", first byte", level) for level in [found.first_bytes] if level),
    ]
    most = found.levels[-1].at_once
    enough = f"{found.at_once} reach {REACHES:.0%} of the most files/s"
    if found.at_once == most:
        enough += "; more may reach more" if most == AT_ONCE[-1] else "; there are too few files for more"
    lines.append(f"at_once    {enough}")
    rate = _rate(found.bandwidth.rate)
    lines.append(f"rate       {f'at least {rate}: the bytes were not the limit' if found.bandwidth.least else rate}")
    return lines


def _level_line(kind: str, level: Level) -> str:
    return f"  {f'{level.at_once}{kind}':<16}{_count(level.files):>9}{_rate(level.bytes):>14}"


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


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
