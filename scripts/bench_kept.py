"""Epochs of a PyTorch loop on a mount that finds on disk what an earlier mount has kept there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import demo
import lab
from bench_entry import Entry, median_entry
from bench_epochs import first, later
from demo_result import EPOCHS
from slow_source import SlowSource

REPEATS = 5
FILES = 2000
LIMIT_S = 120.0  # until everything is kept
# With memory for all files; and with memory for a tenth of them, so that all epochs read the copies.
ROOMS: dict[str, tuple[str, ...]] = {"memory": (), "disk": ("--ram", "40M", "--page-cache", "10M")}


def entries() -> Iterator[Entry]:
    """kept/{memory,disk}/{first_over_later,first_over_new,source_opens}: of a second mount the seconds of the first
    epoch over those of a later one, and over those of the first epoch of the mount that had nothing; its opens of the
    source."""
    files = {"bytes": FILES}
    with demo.prepared(files, REPEATS) as work:
        demo.until_old(work, files)
        with demo.slow_source(demo.images(FILES), work.place / "source") as source:
            for name, options in ROOMS.items():
                yield from room_entries(work, source, name, options)


def room_entries(work: demo.Demo, source: SlowSource, name: str, options: tuple[str, ...]) -> Iterator[Entry]:
    disk = work.place / f"disk-{name}"
    disk.mkdir()
    words = ("--disk", f"{disk}:4G", "--disk-keep", "yes", *options)
    new = fill(work, source, disk, words)
    runs, opens = [], []
    for _ in range(REPEATS):
        source.reset()
        with work.mount(source.path, work.place / "mount", *words) as mount:
            runs.append(lab.train(mount.path / "train", "bytes", EPOCHS))
        opens.append(float(sum(count * n for count, n in demo.opens_per_file(source.counters(), FILES).items())))
    yield median_entry(f"kept/{name}/first_over_later", "x", [first(run) / later(run) for run in runs])
    yield median_entry(f"kept/{name}/first_over_new", "x", [first(run) / new for run in runs])
    yield median_entry(f"kept/{name}/source_opens", "", opens)


def fill(work: demo.Demo, source: SlowSource, disk: Path, words: tuple[str, ...]) -> float:
    """Have everything kept; return the seconds of the first epoch."""
    with work.mount(source.path, work.place / "mount", *words) as mount:
        seconds = first(lab.train(mount.path / "train", "bytes", 1))
        deadline = time.monotonic() + LIMIT_S
        while len([path for path in disk.glob("nopfs-cache-*/v1/sources/*/??/*-*") if not path.suffix]) < FILES:
            if time.monotonic() > deadline:
                raise lab.LabError(f"not all is kept after {LIMIT_S:.0f} s")
            lab.train(mount.path / "train", "bytes", 1)
    return seconds
