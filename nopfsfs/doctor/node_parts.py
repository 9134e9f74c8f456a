"""Facts of the node: versions, kernel, clock, memory, mounts. Nothing of the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nopfsfs import __version__
from nopfsfs.control.process_list import read_pids
from nopfsfs.control.stale_mounts import state_dir_of
from nopfsfs.fuse.mount_table import CONNECTIONS, read_mounts
from nopfsfs.fuse.mounting import may_mount
from nopfsfs.system import abilities, clock_state, life_lock, node_memory
from nopfsfs.system.bounded_run import run_bounded

LIBRARIES = ("trio", "pyfuse3", "numpy", "msgspec", "xxhash", "mpi4py", "prometheus-client", "matplotlib", "torch")
# Abilities that only a mount can try, and the first Linux that has each.
FUSE_SINCE = {"FUSE passthrough": (6, 9), "FUSE resend": (6, 9)}
TEXT_MOST = 1 << 14  # bytes of a file of /proc or /sys
_CGROUP_FILES = (
    "memory.max", "memory.high", "memory.current", "memory.swap.max", "memory.events", "pids.max", "pids.current",
    "cpu.max", "cpu.stat", "memory.pressure",
)  # fmt: skip
_PROGRAM_S = 3.0


def versions() -> dict[str, Any]:
    """Versions of nopfsfs, Python and the libraries that are installed."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return {
        "nopfsfs": __version__, "python": sys.version, "libraries": found, "libc": " ".join(platform.libc_ver()),
        "fusermount3": _said(["fusermount3", "-V"]),
    }  # fmt: skip


def _said(command: list[str]) -> str | None:
    with suppress(OSError):
        done = run_bounded(command, _PROGRAM_S)
        return None if done is None else (done.out or done.err).strip()[:200]
    return None


def kernel() -> dict[str, Any]:
    """The kernel, and what it lacks: calls, with what is worse without each; what FUSE cannot do, by the version."""
    release = os.uname().release
    known = kernel_version(release)
    return {
        "release": release, "version": os.uname().version, "machine": os.uname().machine,
        "without": abilities.missing(),
        "missing": [name for name, since in FUSE_SINCE.items() if known is not None and known < since],
        "dev_fuse": os.path.exists("/dev/fuse"), "may_mount": may_mount(), "fusectl": os.path.isdir(CONNECTIONS)
        and bool(os.path.ismount(CONNECTIONS)), "fuse_conf": text("/etc/fuse.conf"), "os": text("/etc/os-release"),
    }  # fmt: skip


def kernel_version(release: str) -> tuple[int, int] | None:
    """(major, minor) of a release such as 6.9.3-generic; None for another text."""
    head = release.split("-")[0].split(".")
    return (int(head[0]), int(head[1])) if len(head) > 1 and head[0].isdecimal() and head[1].isdecimal() else None


def clock() -> dict[str, Any]:
    """The clocks, and whether the wall clock is kept synchronous."""
    return {
        "time": time.time(), "local": time.strftime("%Y-%m-%d %H:%M:%S %z"), "monotonic": time.monotonic(),
        "disciplined": clock_state.disciplined(), "source": text(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
    }  # fmt: skip


def node() -> dict[str, Any]:
    """Memory, load and limits, as this process has them."""
    memory = node_memory.measure()
    return {
        "processors": os.cpu_count(), "allowed_processors": len(os.sched_getaffinity(0)), "load": os.getloadavg(),
        "memory": asdict(memory), "meminfo": text("/proc/meminfo"), "limits": text("/proc/self/limits"),
        "pressure": {name: text(f"/proc/pressure/{name}") for name in ("cpu", "io", "memory")},
        "user": os.geteuid(),
    }  # fmt: skip


def cgroup_of(pid: int | str) -> dict[str, Any]:
    """The cgroup of a process: limits and counters from its own group up to the root. `pid`: also "self"."""
    membership = text(f"/proc/{pid}/cgroup") or ""
    own = next((line.partition("::")[2] for line in membership.splitlines() if line.startswith("0::")), "")
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").exists():
        root = root / "unified"
    parts = [part for part in own.split("/") if part and part != ".."]
    groups = []
    for depth in range(len(parts), -1, -1):
        group = root.joinpath(*parts[:depth])
        files = {name: found for name in _CGROUP_FILES if (found := text(str(group / name))) is not None}
        if files:
            groups.append({"group": "/" + "/".join(parts[:depth]), "files": files})
    return {"membership": membership, "groups": groups}


def own_nopfs_mounts(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The nopfs mounts of the node that this user may examine, with the processes of each. Touches no mount."""
    found = []
    for mount in read_mounts():
        if not mount.is_nopfs or os.geteuid() not in (0, mount.owner):
            continue
        state_dir = state_dir_of(mount, env)
        processes = read_pids(state_dir, owner=mount.owner)
        found.append(
            {
                "mountpoint": mount.mountpoint, "source": mount.source, "minor": mount.minor, "owner": mount.owner,
                "living": [process.role for process in processes if process.alive()],
                "listed": [process.role for process in processes],
                "held": life_lock.is_held(state_dir, mount.owner),
            }
        )  # fmt: skip
    return found


def text(path: str) -> str | None:
    """The beginning of a small file of the system; None where it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(TEXT_MOST).decode("utf-8", "backslashreplace").strip()
    return None
