"""How long a read of a staged file takes while the stager works as hard as the source lets it, over an idle stager.

The files that are timed are in the arena, and not in the page cache: just before each is opened and read, its pages are
dropped through another descriptor of it. So the mount must answer a READ, and does so from the arena: the files that
it has counted as served from RAM (status: served.ram) must be those that were timed, and none be served from elsewhere,
or the run fails.

Each round has a mount of its own, that knows the order: some files that are read so that it is sure of its plan, those
that are timed, and then many more, which a slow source gives while the first are timed. They must not be there yet
when the last read was timed. When all are there, the mount is idle, and files that come next in the order are timed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_files
import lab
from bench_entry import Entry, median_entry
from bench_files import FileSet
from lab import Mount, Progress
from slow_source import SlowSource

ROUNDS = 5
FILE_BYTES = 117_000
LEAD = 200  # files that are read first: after 64 opens a plan is believed
TIMED = 1000  # in each phase
STAGED = 4000  # meanwhile
PHASES = ("busy", "idle", "idle again")
OPEN_LATENCY_S, READ_LATENCY_S = 0.005, 0.002
BANDWIDTH = 100e6  # bytes per second: little for the stager, so that the source is what limits it
ANSWERED_LEAST = 0.99  # of the timed reads; the kernel may refuse to drop pages that it holds at that moment
SETTLED_S = 1.0  # without a change of what the stager has done, it is idle
STEP_S = 0.1
PHASE_TIMEOUT_S = 120.0
SHARE = 0.99


@dataclass(frozen=True)
class Round:
    """Seconds of each read, by phase, and what the source gave in the busy one, bytes per second."""

    seconds: Mapping[str, Sequence[float]]
    source_rate: float


def entries() -> Iterator[Entry]:
    """latency/staged_p99_ratio_busy_to_idle, that of idle to idle, which tells the noise, the percentiles themselves,
    and what the source gave in the busy phases."""
    with source() as (path, place, paths), Progress(ROUNDS * len(PHASES)) as progress:
        plan = bench_files.write_plan(place, "all", paths)
        rounds = []
        for _ in range(ROUNDS):
            with lab.nopfs_mount(path, place / "mount", "--index-dir", place / "index", "--plan", plan) as mount:
                rounds.append(measure(mount, [mount.path / path for path in paths], progress))
    yield from latency_entries(rounds)


def latency_entries(rounds: Sequence[Round]) -> Iterator[Entry]:
    def percentiles(phase: str, share: float = SHARE) -> list[float]:
        return [percentile(one.seconds[phase], share) for one in rounds]

    def ratios(phase: str) -> list[float]:
        return [one / base for one, base in zip(percentiles(phase), percentiles("idle"), strict=True)]

    yield median_entry("latency/staged_p99_ratio_busy_to_idle", "x", ratios("busy"))
    yield median_entry("latency/staged_p99_ratio_idle_to_idle", "x", ratios("idle again"))
    for phase, share in itertools.product(("idle", "busy"), (0.5, SHARE)):
        own = [seconds * 1e6 for seconds in percentiles(phase, share)]
        yield median_entry(f"latency/{phase}/staged_p{share * 100:.0f}_us", "us", own)
    yield median_entry("latency/busy/source_rate", "B/s", [one.source_rate for one in rounds])


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many of all do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


@contextlib.contextmanager
def source() -> Iterator[tuple[Path, Path, list[str]]]:
    """A slow source, a place for mounts, and the files of the source in the order to read them."""
    files = FileSet("latency", LEAD + TIMED * len(PHASES) + STAGED, FILE_BYTES)
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(lab.tmpfs_directory(files.bytes))
        place = stack.enter_context(lab.place())
        paths = bench_files.write_files(root, files)
        slow = SlowSource(root, open_latency=OPEN_LATENCY_S, read_latency=READ_LATENCY_S, bandwidth=BANDWIDTH)
        yield stack.enter_context(slow).path, place, paths


def measure(mount: Mount, paths: Sequence[Path], progress: Progress) -> Round:
    """All phases on a mount that was just made."""
    for path in paths[:LEAD]:
        path.read_bytes()
    timed = {phase: paths[LEAD + at * TIMED : LEAD + (at + 1) * TIMED] for at, phase in enumerate(PHASES)}
    # Pushed, too: what is pushed later might come between the dropping of pages and the read.
    wait_for(mount, lambda figures: min(figures["staged_files"], figures["pushes_done"]) >= len(paths) - STAGED)
    first, began = stager(mount), time.monotonic()
    seconds = {"busy": timed_phase(mount, timed["busy"])}
    last, ended = stager(mount), time.monotonic()
    if last["staged_files"] >= len(paths):
        raise lab.LabError("the stager had done before the last read was timed")
    progress.step()
    wait_for(mount, lambda figures: figures["staged_files"] >= len(paths))
    wait_until_idle(mount)
    for phase in PHASES[1:]:
        progress.doing(f"latency: {phase}")
        seconds[phase] = timed_phase(mount, timed[phase])
        progress.step()
    return Round(seconds, (last["source_read_bytes"] - first["source_read_bytes"]) / (ended - began))


# ---- reads ------------------------------------------------------------------------------------------------


def timed_phase(mount: Mount, paths: Sequence[Path]) -> list[float]:
    """Seconds of each read. Raises LabError unless they were answered from the arena."""
    before = mount.status()["served"]
    times = [staged_read(path) for path in paths]
    answered = answered_files(before, mount.status()["served"])
    if answered.keys() != {"ram"} or not ANSWERED_LEAST * len(times) <= answered["ram"] <= len(times):
        raise lab.LabError(f"{len(times)} files were to be read from the arena, but were from {answered}")
    return times


def answered_files(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """Files whose READs were answered between two records of what was served, by tier; those with none are left out."""
    files = {tier: after[tier]["files"] - before[tier]["files"] for tier in after if tier != "page_cache"}
    return {tier: count for tier, count in files.items() if count}


def staged_read(path: Path) -> float:
    """Seconds to open, read and close a file whose pages were dropped."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    length = len(os.read(fd, FILE_BYTES + 1))
    os.close(fd)
    seconds = time.perf_counter() - began
    if length != FILE_BYTES:
        raise lab.LabError(f"{path}: {length} bytes")
    return seconds


# ---- the stager -------------------------------------------------------------------------------------------


def stager(mount: Mount) -> dict[str, int]:
    """What it has done so far."""
    figures: dict[str, int] = mount.status()["stager"]
    return figures


def wait_for(mount: Mount, reached: Callable[[dict[str, int]], bool]) -> None:
    """Return once the stager has come so far. Raises LabError."""
    deadline = time.monotonic() + PHASE_TIMEOUT_S
    while not reached(figures := stager(mount)):
        if time.monotonic() > deadline:
            raise lab.LabError(f"after {PHASE_TIMEOUT_S:.0f} s the stager has done no more than {figures}")
        time.sleep(STEP_S)


def wait_until_idle(mount: Mount) -> None:
    """Return once the stager has done nothing for a while. Raises LabError."""
    began = changed = time.monotonic()
    seen = stager(mount)
    while time.monotonic() < changed + SETTLED_S:
        time.sleep(STEP_S)
        if (now := stager(mount)) != seen:
            seen, changed = now, time.monotonic()
        if time.monotonic() > began + PHASE_TIMEOUT_S:
            raise lab.LabError(f"the stager is still at work after {PHASE_TIMEOUT_S:.0f} s")
