"""Data sets for the benchmarks, and the processes that read them. Nothing here knows what is compared."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lab

TOP, CLASSES = "train", 20
BATCH = 16  # of the loader that a plan of one reader speaks of
READ_TIMEOUT_S = 120.0
READERS: dict[str, list[str | Path]] = {
    "c": [lab.BUILD / "reader"],
    "python": [sys.executable, lab.SCRIPTS / "readers" / "reader.py"],
}


@dataclass(frozen=True)
class FileSet:
    """So many files of one size, named as its benchmarks are."""

    name: str
    files: int
    size: int

    @property
    def bytes(self) -> int:
        return self.files * self.size


@dataclass(frozen=True)
class Result:
    """What reader processes did that began together; `seconds` until the last had done."""

    files: int
    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Files per second, of all together."""
        return self.files / self.seconds


def write_files(root: Path, files: FileSet) -> list[str]:
    """Write the set below `root`/train; paths relative to the root, in the order to read them."""
    rng = random.Random(0)
    paths = [f"{TOP}/c{number % CLASSES:02d}/{number:05d}.bin" for number in range(files.files)]
    for label in range(CLASSES):
        (root / TOP / f"c{label:02d}").mkdir(parents=True, exist_ok=True)
    for path in paths:
        (root / path).write_bytes(rng.randbytes(files.size))
    rng.shuffle(paths)
    return paths


def write_listing(listing: Path, root: Path, paths: Sequence[str]) -> Path:
    """The list that a reader takes, of these paths below `root`."""
    listing.write_text("".join(f"{os.path.join(root, path)}\n" for path in paths))
    return listing


def write_plan(directory: Path, name: str, paths: Sequence[str], workers: int = 1) -> Path:
    """A plan file, NAME.toml, that tells a mount this order of the paths of `write_files`, the same in every epoch."""
    # Several readers wait for each other only at the end: any of them may be far ahead.
    batch = BATCH if workers == 1 else -(-len(paths) // workers)
    order = directory / f"{name}.order"
    order.write_text("".join(f"{path}\n" for path in paths))
    plan = directory / f"{name}.toml"
    loader = f"{{ workers = {workers}, batch = {batch} }}"
    plan.write_text(f'[[plan]]\nroot = "{TOP}"\norder = ["{order.name}"]\nloader = {loader}\n')
    return plan


def read(reader: str, listings: Sequence[Path], repeats: int = 1) -> Result:
    """Read the lists so many times, each in a process of its own, all at once. They wait for each other before they
    begin anew, as the ranks of a job do at the end of an epoch. Raises LabError."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(waiting_reader(reader, listing, repeats)) for listing in listings]
        return in_turn([together(one_round(processes)) for _ in range(repeats)])


@contextlib.contextmanager
def waiting_reader(reader: str, listing: Path, repeats: int) -> Iterator[subprocess.Popen[str]]:
    """A reader that has started and waits for a line to begin. It is killed when it does not end in time."""
    command = [*READERS[reader], listing, str(repeats), "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(READ_TIMEOUT_S, process.kill)
        limit.start()
        try:
            line_of(process)
            yield process
        finally:
            limit.cancel()
            process.kill()


def one_round(processes: Sequence[subprocess.Popen[str]]) -> list[Result]:
    """Let all read their lists once."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [Result(**json.loads(line_of(process))) for process in processes]


def line_of(process: subprocess.Popen[str]) -> str:
    """What a reader says next. Raises LabError when it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise lab.LabError(f"a reader ended with exit {process.wait()}, or was not done after {READ_TIMEOUT_S:.0f} s")
    return line


def together(results: Sequence[Result]) -> Result:
    """What several have done at once."""
    return Result(sum(r.files for r in results), sum(r.bytes for r in results), max(r.seconds for r in results))


def in_turn(results: Sequence[Result]) -> Result:
    """What was done one after the other."""
    return Result(sum(r.files for r in results), sum(r.bytes for r in results), sum(r.seconds for r in results))
