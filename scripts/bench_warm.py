"""How fast cached files are read: through the mount, bindfs and a plain pyfuse3 pass-through, over tmpfs
itself.

One reader, as a compiled program and in Python, reads the same files in the same random order. The systems
take turns, so that each ratio is of two runs a second apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import lab
from bench_entry import Entry, median_entry
from lab import Mount, Progress

FILES = 2000
FILE_BYTES = 117_000  # ImageNet's mean, to compare with the figures of the design notes
CLASSES = 20
ROUNDS = 7
READERS: dict[str, list[str | Path]] = {
    "c": [lab.BUILD / "reader"],
    "python": [sys.executable, lab.SCRIPTS / "readers" / "reader.py"],
}

Factory = Callable[[Path, Path], AbstractContextManager[Mount]]


def nopfs(source: Path, mountpoint: Path) -> AbstractContextManager[Mount]:
    return lab.nopfs_mount(source, mountpoint, "--index-dir", mountpoint.with_name("index"))


def systems() -> dict[str, Factory]:
    """What is compared with tmpfs; without bindfs where it is not installed."""
    found: dict[str, Factory] = {"mount": nopfs, "plain": lab.plain_mount}
    if shutil.which("bindfs"):
        found["bindfs"] = lab.bindfs_mount
    return found


def write_files(root: Path) -> list[str]:
    """Paths relative to the root, in the order to read them."""
    rng = random.Random(0)
    paths = [f"train/c{number % CLASSES:02d}/{number:05d}.bin" for number in range(FILES)]
    for label in range(CLASSES):
        (root / "train" / f"c{label:02d}").mkdir(parents=True)
    for path in paths:
        (root / path).write_bytes(rng.randbytes(FILE_BYTES))
    rng.shuffle(paths)
    return paths


def files_per_second(reader: str, listing: Path) -> float:
    result = json.loads(lab.run([*READERS[reader], listing]))
    if (result["files"], result["bytes"]) != (FILES, FILES * FILE_BYTES):
        raise lab.LabError(f"{listing.name}: read {result['bytes']} bytes of {result['files']} files")
    return float(result["files"] / result["seconds"])


@contextlib.contextmanager
def listings() -> Iterator[dict[str, Path]]:
    """A list of the files for each system, all mounted, "tmpfs" first."""
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(lab.tmpfs_directory(FILES * FILE_BYTES))
        lab.BUILD.mkdir(exist_ok=True)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=lab.BUILD)))
        paths = write_files(root)
        roots = {"tmpfs": root}
        for name, mount in systems().items():
            roots[name] = stack.enter_context(mount(root, place / name)).path
        for name, where in roots.items():
            (place / f"{name}.txt").write_text("".join(f"{os.path.join(where, path)}\n" for path in paths))
        yield {name: place / f"{name}.txt" for name in roots}


def entries() -> Iterator[Entry]:
    """warm/117KB/{c,python}/{mount,bindfs,plain}/ratio_to_tmpfs, and each system's files per second."""
    rates: dict[tuple[str, str], list[float]] = {}
    with listings() as lists, Progress((ROUNDS + 1) * len(READERS) * len(lists)) as progress:
        for turn in range(ROUNDS + 1):
            for reader in READERS:
                for name, listing in lists.items():
                    progress.doing(f"warm: {reader} reader, {name}")
                    rate = files_per_second(reader, listing)
                    if turn > 0:  # the first warms the caches
                        rates.setdefault((reader, name), []).append(rate)
                    progress.step()
    for (reader, name), own in rates.items():
        yield median_entry(f"warm/117KB/{reader}/{name}/rate", "files/s", own)
    for (reader, name), own in rates.items():
        if name != "tmpfs":
            ratios = [rate / base for rate, base in zip(own, rates[reader, "tmpfs"], strict=True)]
            yield median_entry(f"warm/117KB/{reader}/{name}/ratio_to_tmpfs", "x", ratios)
