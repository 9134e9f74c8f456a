"""Drawn cells on real mounts: a job of reader processes at half a millisecond an open, and what the mount foresaw.

The mount says how many opens it had and how many it foresaw, not which. The opens that were missed before the bar are
taken from a few looks right after it: the supervisor is some opens behind, so that up to ten may be missed unseen.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import lab
import numpy as np
import plan_play

from identifying import bars, cells
from identifying.bars import Case
from identifying.cells import Cell
from identifying.job import START_S
from nopfsfs.control.client import Record
from nopfsfs.control.find_mount import locate

JOB = Path(__file__).with_name("job.py")
FILES = 4000
FILE_BYTES = 200
# Processes that are begun during a job: two cores are to begin them in time.
_PROCESSES = 100
# Opens of an epoch. Where fewer come after the bar, ten of them may be missed unseen.
_EPOCH = 200
# Looks take the supervisor a millisecond each: there are none long before the bar.
_LOOK_S = 0.005
_LOOKS_FROM_S, _LOOKS_S = 0.2, 0.1  # before the bar, and after it
_QUIET_S = 0.3  # until the last open has been looked at
_LIMIT_S = 60.0
# Readers are at most so much of an epoch apart.
_APART = 1 / 4


@dataclass(frozen=True)
class OnMount:
    """What a mount made of a cell: `opens` and `missed` after the bar; `believed` in the end; `late`: seconds that the
    job took longer than it was to."""

    cell: Cell
    opens: int
    missed: int
    believed: str
    late: float

    @property
    def share(self) -> float:
        return 1 - self.missed / self.opens

    @property
    def short(self) -> bool:
        return self.share < bars.SHARE

    def __str__(self) -> str:
        short = "short" if self.short else "good"
        return f"{self.cell.name}: {short}: {self.missed:,} of {self.opens:,} missed; in the end {self.believed}"


def drawn(count: int, seed: int) -> list[Cell]:
    """Single cells whose readers a small machine can run, with enough to judge."""
    able = [one for one in cells.groups(FILES) if len(one.ranks) * one.each >= _EPOCH]
    rng = random.Random(f"mounts {seed}")
    found: list[Cell] = []
    while len(found) < count:
        cell = replace(rng.choice(able), said=rng.choice(cells.SAID))
        if cell not in found and _processes(cell) <= _PROCESSES:
            found.append(cell)
    return found


def _processes(cell: Cell) -> int:
    """Readers of its job, about."""
    if cell.workers == 0:
        return len(cell.ranks)
    epochs = (bars.seconds(cell) / bars.OPEN_S + bars.AFTER_BAR) / (len(cell.ranks) * cell.each)
    return math.ceil(epochs) * len(cell.ranks) * cell.workers


def case_of(cell: Cell, patience: float = 1.0) -> Case:
    """All cells that are drawn are judged. `patience`: as of `bars.seconds`."""
    return bars.case(cell, beyond=True, patience=patience)


def options(cell: Cell) -> list[str]:
    """Of nopfs-mount. Opens are counted, not estimated; no cell knows of another."""
    said = [] if cell.seed_said is None else ["--seed", str(cell.seed_said)]
    return [*said, "--signal", "open", "--no-remember"]


def fill(root: Path) -> None:
    """The tree of files that cells read."""
    index = plan_play.index(FILES)
    everything = next(one for one in plan_play.tree(FILES) if one.name == ".")
    for row in everything.orders[0].rows.tolist():
        path = root / os.fsdecode(index.path(row))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row.to_bytes(4, "little") * (FILE_BYTES // 4))


def measure(cell: Cell, root: Path, work: Path, status: Callable[[], Record], patience: float = 1.0) -> OnMount:
    """Runs the cell's job on a mount that has not been read before. `work`: a directory for what the job is told;
    `patience`: as of `bars.seconds`. Raises RuntimeError where the job fails."""
    case = case_of(cell, patience)
    bar, end = int(np.flatnonzero(case.judged)[0]), len(case.opens)
    before = _count(status())[0]
    said = work / "job.json"
    said.write_text(json.dumps(_job(cell, case, root)))
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-I", "-S", JOB, said]) as job:
        try:
            missed, looked = bar, 0.0  # no more can be missed before it
            time.sleep(max(0.0, START_S + bar * bars.OPEN_S - _LOOKS_FROM_S))
            while job.poll() is None and not looked >= _LOOKS_S:
                time.sleep(_LOOK_S)
                total, predicted = _count(status())
                if total - before >= bar:
                    missed = min(missed, total - before - predicted)
                    looked += _LOOK_S
            failed = job.wait(_LIMIT_S)
        finally:
            job.kill()
    late = time.monotonic() - began - START_S - end * bars.OPEN_S
    if failed:
        raise RuntimeError(f"{cell.name}: the job failed")
    time.sleep(_QUIET_S)
    record = status()
    total, predicted = _count(record)
    believed = "{state} {sampler} seed {seed} epoch {epoch}".format(**record["plan"])
    return OnMount(cell, end - bar, max(0, total - before - predicted - missed), believed, late)


def _count(record: Record) -> tuple[int, int]:
    """Opens, and those that were foreseen."""
    return record["opens"]["total"], record["opens"]["predicted"]


def _job(cell: Cell, case: Case, root: Path) -> dict[str, object]:
    index = plan_play.index(FILES)
    readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (row, reader) in enumerate(zip(case.opens.rows.tolist(), case.opens.readers.tolist(), strict=True)):
        readers[reader].append((number, row))
    names = [os.fsdecode(index.path(row)) for row in range(index.n)]
    apart = int(_APART * len(cell.ranks) * cell.each)
    return {"root": str(root), "names": names, "pause": bars.OPEN_S, "apart": apart, "readers": list(readers.values())}


def measured(count: int, seed: int) -> Iterator[OnMount]:
    """Drawn cells, each on a mount of its own."""
    with lab.place() as place, lab.tmpfs_directory(index_bytes()) as source:
        fill(source)
        for number, cell in enumerate(drawn(count, seed)):
            with _mounted(cell, source, place / f"mnt{number}") as path:
                yield measure(cell, path, place, partial(locate(str(path), os.environ).call, "status"))


def index_bytes() -> int:
    """Room for the files, each in pages of its own."""
    return plan_play.index(FILES).n * 8192


@contextmanager
def _mounted(cell: Cell, source: Path, path: Path) -> Iterator[Path]:
    with mock.patch.dict(os.environ, cell.environment):
        mount = lab.nopfs_mount(source, path, "--index-dir", path.parent / "index", *options(cell))
        with mount as there:
            yield there.path
