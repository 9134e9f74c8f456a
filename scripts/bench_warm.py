"""How fast cached files are read: through the mount, bindfs and a plain pyfuse3 pass-through, over tmpfs itself.

One reader, or two with half of the files each, as a compiled program and in Python, reads the same files in the same
random order again and again; two wait for each other before they begin anew. Each run on a mount follows one on tmpfs,
so that each ratio is of two runs a second apart. The mount is told the order beforehand, as it would have found out by
the second epoch of a job. After the first reads all pages are in the page cache of each mount; that none is asked for
again is an entry of its own. With the default signal it is read until OPEN is refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench_files
import lab
from bench_entry import Entry, median_entry
from bench_files import FileSet, Result
from lab import Mount, Progress

SETS = {
    "4KB": FileSet("4KB", 4000, 4096),
    "117KB": FileSet("117KB", 5000, 117_000),  # ImageNet's mean
    "16MB": FileSet("16MB", 24, 1 << 24),  # CosmoFlow's samples
}
ROUNDS = 7
RUN_S = 0.35  # of each run at least: shorter ones measure the start of processes
# Files of this size are copied as fast as memory is, and a mount has one memory or another: each is mounted alone, and
# anew for each round.
LARGE = 1 << 20
TURNS_BY = 20_000  # opens
COLD_MOST = 0.05  # of the bytes may be asked for again: the kernel takes pages back when it likes
TMPFS = "tmpfs"

Factory = Callable[[Path, Path], AbstractContextManager[Mount]]


def nopfs(*options: object) -> Factory:
    """A mount that knows the order, with these options."""

    def mount(source: Path, mountpoint: Path) -> AbstractContextManager[Mount]:
        own = ("--index-dir", mountpoint.with_name("index"), "--plan", mountpoint.with_name("all.toml"))
        return lab.nopfs_mount(source, mountpoint, *own, *options)

    return mount


def systems() -> dict[str, Factory]:
    """What is compared with tmpfs; without bindfs where it is not installed."""
    found: dict[str, Factory] = {
        "default": nopfs(),
        "tripwire": nopfs("--signal", "tripwire"),
        "open": nopfs("--signal", "open"),
        "pyfuse3": nopfs("--signal", "open", "--no-fast-path"),
    }
    if shutil.which("bindfs"):
        found["bindfs"] = lab.bindfs_mount
    return {**found, "plain": lab.plain_mount}


@dataclass
class System:
    """Something to read through, and what was read of it."""

    name: str
    mount: Mount
    listings: list[Path]  # one for each reader process
    repeats: dict[str, int] = field(default_factory=dict)  # by reader: so that a run takes long enough
    before: Mapping[str, Any] = field(default_factory=dict)  # the status before what is timed
    bytes: int = 0  # that were read since then

    def warm(self, reader: str, run_s: float = RUN_S) -> None:
        """Fill the caches, and see how often a run of so many seconds has to read the files."""
        bench_files.read(reader, self.listings)
        while self._watches():
            bench_files.read(reader, self.listings)
        self.repeats[reader] = repeats_for(bench_files.read(reader, self.listings).seconds, run_s)
        self.before = self.mount.status()

    def _watches(self) -> bool:
        """Whether the mount sees every open for a while only: it will go over to tripwires."""
        record = self.mount.status()
        return bool(record.get("modes", {}).get("signal_because")) and record["opens"]["total"] < TURNS_BY

    def run(self, reader: str) -> Result:
        """Read all files as often as that takes."""
        result = bench_files.read(reader, self.listings, self.repeats[reader])
        self.bytes += result.bytes
        return result

    def cold_share(self) -> float:
        """Which share of the bytes that were read the mount was asked for. Raises LabError when it was not warm."""
        share = asked_bytes(self.before, self.mount.status()) / self.bytes
        if share > COLD_MOST:
            raise lab.LabError(f"{self.name}: {share:.1%} of what was to come from the page cache did not")
        return share


def repeats_for(seconds: float, run_s: float) -> int:
    """How often to read what takes so many seconds, for a run of `run_s`."""
    return max(1, math.ceil(run_s / seconds))


def asked_bytes(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Bytes of READs that were answered between two status records."""
    tiers = after["served"].keys() - {"page_cache"}
    return int(sum(after["served"][tier]["bytes"] - before["served"][tier]["bytes"] for tier in tiers))


@contextlib.contextmanager
def mounted(files: FileSet, factories: Mapping[str, Factory], readers: int) -> Iterator[dict[str, System]]:
    """The files in tmpfs, first, and through each system, all mounted."""
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(lab.tmpfs_directory(files.bytes))
        place = stack.enter_context(lab.place())
        paths = bench_files.write_files(root, files)
        bench_files.write_plan(place, "all", paths, workers=readers)
        mounts = {TMPFS: Mount(root)}
        mounts |= {name: stack.enter_context(mount(root, place / name)) for name, mount in factories.items()}

        def listing(name: str, part: int) -> Path:
            return bench_files.write_listing(place / f"{name}-{part}", mounts[name].path, paths[part::readers])

        yield {name: System(name, mounts[name], [listing(name, part) for part in range(readers)]) for name in mounts}


def entries(prefix: str, files: FileSet, readers: int) -> Iterator[Entry]:
    """PREFIX/SIZE/{c,python}/{default,tripwire,open,pyfuse3,bindfs,plain}/ratio_to_tmpfs, and files per second; and
    which share of the bytes the mounts were asked for all the same, which is to be about 0."""
    factories = systems()
    alone = files.size >= LARGE
    groups = [{name: mount} for _ in range(ROUNDS) for name, mount in factories.items()] if alone else [factories]
    rounds = 1 if alone else ROUNDS
    steps = len(bench_files.READERS) * sum((1 + rounds) * len(group) for group in groups)
    rates: dict[tuple[str, str], list[float]] = {}
    limits: dict[tuple[str, str], list[float]] = {}
    cold: dict[str, list[float]] = {}
    with Progress(steps) as progress:
        for group in groups:
            with mounted(files, group, readers) as found:
                tmpfs = found.pop(TMPFS)
                warm_all(tmpfs, found, progress)
                for _ in range(rounds):
                    for reader in bench_files.READERS:
                        for name, system in found.items():
                            progress.doing(f"{prefix}/{files.name}: {reader} reader, {name}")
                            limits.setdefault((reader, name), []).append(tmpfs.run(reader).rate)
                            rates.setdefault((reader, name), []).append(system.run(reader).rate)
                            progress.step()
                for name, system in found.items():
                    if system.mount.has_status:
                        cold.setdefault(name, []).append(system.cold_share())
    yield from rate_entries(f"{prefix}/{files.name}", rates, limits)
    for name, shares in cold.items():
        yield median_entry(f"{prefix}/{files.name}/{name}/not_cached", "of bytes", shares)


def warm_all(tmpfs: System, found: Mapping[str, System], progress: Progress) -> None:
    for reader in bench_files.READERS:
        tmpfs.warm(reader)
        for system in found.values():
            system.warm(reader)
            progress.step()


def confined_entries(prefix: str, files: FileSet, readers: int) -> Iterator[Entry]:
    """The same with all processes on one processor: what things cost, without what it costs to wake another one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # handed down to all that is started
    try:
        yield from entries(prefix, files, readers)
    finally:
        os.sched_setaffinity(0, before)


def rate_entries(
    prefix: str, rates: Mapping[tuple[str, str], list[float]], limits: Mapping[tuple[str, str], list[float]]
) -> Iterator[Entry]:
    """By reader and system: rates, those of tmpfs beside them, and their ratios."""
    for reader in dict.fromkeys(reader for reader, _ in rates):
        limit = [rate for (of, _), beside in limits.items() if of == reader for rate in beside]
        yield median_entry(f"{prefix}/{reader}/{TMPFS}/rate", "files/s", limit)
    for (reader, name), own in rates.items():
        yield median_entry(f"{prefix}/{reader}/{name}/rate", "files/s", own)
    for (reader, name), own in rates.items():
        ratios = [rate / base for rate, base in zip(own, limits[reader, name], strict=True)]
        yield median_entry(f"{prefix}/{reader}/{name}/ratio_to_tmpfs", "x", ratios)
