"""What a mount takes of the machine: processor time for a cached file, and memory for each file of the data set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import bench_warm
import lab
from bench_entry import Entry, median_entry
from lab import Mount, Progress
from slow_source import cpu_seconds

ROUNDS = 5
CPU_RUN_S = 2.0  # of each run, so that the 10 ms in which the kernel counts do not matter
SIGNALS = {"cpu": (), "cpu/open": ("--signal", "open"), "cpu/tripwire": ("--signal", "tripwire")}
SMALL, LARGE = 2000, 52_000  # files
FILES_READ = 1000  # of either
FILES_IN_CLASS = 500
MB = 1e6


def processes(mount: Mount) -> dict[str, int]:
    """The processes of a mount: pid by role."""
    return {process["role"]: process["pid"] for process in mount.status()["processes"]}


# ---- processor time ---------------------------------------------------------------------------------------


def cpu_entries() -> Iterator[Entry]:
    """cpu/{open,tripwire}/per_hit_us, cpu/per_hit_us with the default signal, and the part of each process: user and
    system time of the mount's processes for a file of 117 KB in the page cache that one C reader opens, reads and
    closes. The reader's own time is not in it."""
    files = bench_warm.SETS["117KB"]
    factories = {name.replace("/", "-"): bench_warm.nopfs(*options) for name, options in SIGNALS.items()}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in SIGNALS}
    with bench_warm.mounted(files, factories, readers=1) as found, Progress(ROUNDS * len(SIGNALS)) as progress:
        mounted = {name: found[name.replace("/", "-")] for name in SIGNALS}
        for system in mounted.values():
            system.warm("c", CPU_RUN_S)
        for _ in range(ROUNDS):
            for name, system in mounted.items():
                progress.doing(name)
                spent[name].append(microseconds_for_file(system))
                progress.step()
        for system in mounted.values():
            system.cold_share()
    for name, runs in spent.items():
        yield median_entry(f"{name}/per_hit_us", "us", [sum(run.values()) for run in runs])
    for name, runs in spent.items():
        for role in runs[0]:
            yield median_entry(f"{name}/{role}/per_hit_us", "us", [run[role] for run in runs])


def microseconds_for_file(system: bench_warm.System) -> dict[str, float]:
    """Processor time for each file of a run, by role of the process."""
    pids = processes(system.mount)
    before = {role: cpu_seconds(pid) for role, pid in pids.items()}
    files = system.run("c").files
    return {role: (cpu_seconds(pid) - before[role]) / files * 1e6 for role, pid in pids.items()}


# ---- memory -----------------------------------------------------------------------------------------------


def rss_entries() -> Iterator[Entry]:
    """rss/per_file_bytes and rss/base_mb: a line through the memory of mounts of two data sets.

    The files are empty, so that what is measured is what the processes know about files, not bytes of files. The
    order of an epoch is planned, the whole tree is walked and some of the files are read, in that order. Memory that
    processes share counts once (Pss); what the kernel keeps of each file is not in it.
    """
    slopes, bases = [], []
    with lab.place() as place, Progress(2 * ROUNDS) as progress:
        trees = {count: empty_files(place / f"files-{count}", count) for count in (SMALL, LARGE)}
        for _ in range(ROUNDS):
            used = {}
            for count, tree in trees.items():
                progress.doing(f"rss: {count} files")
                used[count] = memory_of_mount(tree, place / "mount")
                progress.step()
            slope, base = line(used)
            slopes.append(slope)
            bases.append(base / MB)
    yield median_entry("rss/per_file_bytes", "bytes", slopes)
    yield median_entry("rss/base_mb", "MB", bases)


def empty_files(root: Path, count: int) -> Path:
    for number in range(count):
        if number % FILES_IN_CLASS == 0:
            label = root / f"train/n{number // FILES_IN_CLASS:08d}"
            label.mkdir(parents=True)
        os.close(os.open(f"{label}/{label.name}_{number}.JPEG", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    return root


def line(used: dict[int, float]) -> tuple[float, float]:
    """Bytes for each file, and bytes without files, of two {files: bytes}."""
    (few, least), (many, most) = sorted(used.items())
    slope = (most - least) / (many - few)
    return slope, least - few * slope


def memory_of_mount(tree: Path, mountpoint: Path) -> float:
    """Bytes that the processes of a mount of the tree hold after some use of it."""
    known = ("--sampler", "random", "--seed", "0", "--index-dir", mountpoint.with_name("index"))
    dry = ["plan", "--dry-run", tree, "--head", FILES_READ, *known]
    with lab.nopfs_mount(tree, mountpoint, *known) as mount:
        walked = sum(len(files) for _, _, files in os.walk(mount.path))
        order = lab.run([lab.COMMANDS / "nopfs", *dry]).splitlines()
        for path in order:
            (mount.path / path).read_bytes()
        if walked != sum(len(files) for _, _, files in os.walk(tree)) or len(order) < FILES_READ:
            raise lab.LabError(f"{mountpoint}: {walked} files, {len(order)} in the plan")
        return float(sum(resident_bytes(pid) for pid in processes(mount).values()))


def resident_bytes(pid: int) -> int:
    """Memory of a process, of what it shares its part."""
    with contextlib.suppress(OSError):
        for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if text.startswith("Pss:"):
                return int(text.split()[1]) * 1024
    raise lab.LabError(f"process {pid} does not say what memory it has")
