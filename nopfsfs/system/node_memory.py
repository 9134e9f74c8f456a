"""Memory that the node, or the cgroup of this process, has to give. Reads /proc and /sys; bytes."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_M_ARENA_MAX = -8  # malloc.h
_V1_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number


@dataclass(frozen=True, slots=True)
class Memory:
    """`total` and `available` bytes: the smaller of the machine's and the cgroup's."""

    total: int
    available: int


class Promised(NamedTuple):
    """Bytes that others will take, so that they are not available: on the node, and in this process's cgroup. `held`:
    bytes that others in this cgroup hold."""

    node: int
    cgroup: int
    held: int = 0


NOTHING_PROMISED = Promised(0, 0)


def measure(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), promised: Promised = NOTHING_PROMISED
) -> Memory:
    """Measure the memory of this process's node and cgroup now. Limits that cannot be read do not count."""
    fields = _meminfo(proc)
    total = int(fields["MemTotal"].split()[0]) * 1024
    available = max(0, int(fields["MemAvailable"].split()[0]) * 1024 - promised.node)
    for limit, used, reclaimable in _cgroup_limits(proc, cgroups):
        total = min(total, limit)
        available = min(available, max(0, limit - used + reclaimable - promised.cgroup))
    return Memory(total, available)


def of_node() -> int | None:
    """The memory of the machine, however much of it this process may use; None where that cannot be read."""
    with suppress(OSError, ValueError, KeyError):
        fields = _meminfo(Path("/proc"))
        return int(fields["MemTotal"].split()[0]) * 1024
    return None


def share_heap() -> None:
    """Let all threads of this process, from now on, allocate from one heap (mallopt(3)), where the C library has it.
    Else each thread may use a heap of its own, and each heap keeps what its largest moment took. So a process of many
    threads grows for hours."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Give memory that this process has freed and still keeps back to the system: malloc_trim(3), where the C library
    has it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _meminfo(proc: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())


def _cgroup_limits(proc: Path, cgroups: Path) -> list[tuple[int, int, int]]:
    """Limits of the memory cgroups from this process's own up to the root, as (limit, used, reclaimable)."""
    found: list[tuple[int, int, int]] = []
    for line in _lines(proc / "self" / "cgroup"):
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, base = ("memory.max", "memory.current", "inactive_file"), cgroups
            if not (cgroups / "cgroup.controllers").exists():
                base = cgroups / "unified"
        elif "memory" in controllers.split(","):
            names, base = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
                cgroups / "memory",
            )
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts), -1, -1):
            limits = _limits(base.joinpath(*parts[:depth]), *names)
            if limits is not None:
                found.append(limits)
    return found


def _limits(group: Path, limit_name: str, used_name: str, reclaimable_name: str) -> tuple[int, int, int] | None:
    limit, used = _number(group / limit_name), _number(group / used_name)
    if limit is None or used is None or limit >= _V1_UNLIMITED:
        return None
    stat = dict(line.split() for line in _lines(group / "memory.stat") if len(line.split()) == 2)
    return limit, used, int(stat.get(reclaimable_name, 0))


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
