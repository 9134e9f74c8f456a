"""Where files are fetched from when a disk becomes much slower than the source: a stager's state and its threads,
without FUSE. Every byte is compared.

    make bench BENCH='choice/*'

All files have a copy on disk. Eight readers read one file after the other. Reads of the disk and of the source take as
long as the benchmark says: the disk first a fraction of the source's time, then TIMES as long, then as before.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
import xxhash
from bench_entry import Entry, median_entry
from lab import Progress

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol.columns import Columns, Metric, MetricBlock
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.server_stager import Answer, Demand
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import WorkerThreads
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.source import Identity, Source

FILES, FILE_BYTES, READERS = 256, 100_000, 8
SOURCE_S, FAST_S, TIMES = 0.005, 0.001, 20
HEALTHY_S, LEFT_S, MEASURED_S, BACK_MOST_S, STAYS_S = 4.0, 10.0, 5.0, 30.0, 1.0
ANSWER_S = 10.0  # for one file


class _SlowedSource(Source):
    """A source whose opens take SOURCE_S."""

    def open(self, row: int) -> tuple[int, Identity]:
        time.sleep(SOURCE_S)
        return super().open(row)


class _SlowedDisk:
    """The copies on disk: the files themselves, after `seconds`."""

    def __init__(self, paths: dict[int, Path]) -> None:
        self.seconds = FAST_S
        self._paths = paths

    def read(self, disk: int, row: int, into: memoryview) -> None:
        time.sleep(self.seconds)
        into[:] = self._paths[row].read_bytes()


class Stage:
    """Files with copies on disk, a stager's state over them, and readers."""

    def __init__(self, root: Path) -> None:
        index = scan(str(root)).index
        self._rows = list(range(index.n_dirs, index.n))
        paths = {row: root / os.fsdecode(index.path(row)) for row in self._rows}
        self._contents = {row: path.read_bytes() for row, path in paths.items()}
        budget = 4 * FILES * FILE_BYTES
        self._fds = [Columns.create(index.n), MetricBlock.create(), Ring.create("bench"), arenas.create(budget)]
        columns, gauges = Columns(self._fds[0], index.n, writable=True), MetricBlock(self._fds[1], writable=True)
        self._gauge, self._arena = gauges.block, Arena(self._fds[3], budget)
        source, self.disk = _SlowedSource(os.fsencode(root), index, columns), _SlowedDisk(paths)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._events = Ring(self._fds[2], writable=False)
        self._state = StagerState(
            index=index, columns=columns, gauges=gauges, ring=Ring(self._fds[2], writable=True), arena=self._arena,
            source=source, concurrency=READERS, answer=self._answers.put, ask_grace=self._ask_grace,
        )  # fmt: skip
        self._state.set_budget(budget, budget, 0)
        reader = BlockReader(
            columns, self._gauge, self._arena, source, self.disk,  # type: ignore[arg-type]
            copy_lost=lambda row, disk: False,
        )  # fmt: skip
        WorkerThreads(self._state, reader, changed=lambda row: None).start(READERS, READERS)
        for row, content in self._contents.items():
            columns.check[row] = xxhash.xxh3_64_intdigest(content)
            self._state.publish_disk(row, 1, 0)
        self._reading: dict[int, int] = {}  # by demand: the row
        self._number = 0

    def _ask_grace(self, number: int) -> bool:
        self._answers.put(Answer(0, 0, number, 0))
        return False

    def from_disk_and_source(self) -> tuple[int, int]:
        """Files that came from there so far."""
        return self._gauge[Metric.STAGED_DISK_FILES], self._gauge[Metric.STAGED_SOURCE_FILES]

    def read(self, until: Callable[[], bool]) -> tuple[int, int]:
        """Let the readers read; files that came from disk, and from the source, meanwhile."""
        before = self.from_disk_and_source()
        while not until():
            self._begin()
            self._take(self._answers.get(timeout=ANSWER_S))
        disk, source = (now - then for now, then in zip(self.from_disk_and_source(), before, strict=True))
        return disk, source

    def _begin(self) -> None:
        while len(self._reading) < READERS:
            self._number += 1
            row = self._rows[self._number % FILES]
            self._reading[self._number] = row
            self._state.demand(Demand(self._number, row, 0, FILE_BYTES))

    def _take(self, answer: Answer) -> None:
        if answer.id == 0:
            self._state.grace_passed(answer.arena)
            return
        row = self._reading.pop(answer.id)
        if answer.errno or self._arena.view[answer.arena : answer.arena + answer.length] != self._contents[row]:
            raise SystemExit(f"row {row}: error {answer.errno}, or wrong bytes")
        self._state.evict([row])
        self._events.take()

    def close(self) -> None:
        self._state.stop()
        for fd in self._fds:
            os.close(fd)


@contextmanager
def stage() -> Iterator[Stage]:
    with lab.place() as place:
        for number in range(FILES):
            (place / f"{number:03}").write_bytes(os.urandom(FILE_BYTES))
        made = Stage(place)
        try:
            yield made
        finally:
            made.close()


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def entries() -> Iterator[Entry]:
    """choice/slow_disk/share_from_it, after ten seconds; how long it takes until the disk, fast again, is read alone;
    and the files that came from the source while the disk was fast: none."""
    with stage() as made, Progress(4) as progress:
        progress.doing("a healthy disk")
        _, from_source = made.read(_after(HEALTHY_S))
        progress.step()
        progress.doing("a slow disk")
        made.disk.seconds = TIMES * SOURCE_S
        made.read(_after(LEFT_S))
        progress.step()
        disk, source = made.read(_after(MEASURED_S))
        progress.step()
        progress.doing("a fast disk")
        made.disk.seconds = FAST_S
        began = back_at = time.monotonic()
        while time.monotonic() < began + BACK_MOST_S and time.monotonic() < back_at + STAYS_S:
            if made.read(_after(STAYS_S / 10))[1]:
                back_at = time.monotonic()
        progress.step()
    yield median_entry("choice/slow_disk/share_from_it", "", [disk / (disk + source)])
    yield median_entry("choice/slow_disk/seconds_until_back", "s", [back_at - began])
    yield median_entry("choice/slow_disk/source_reads_before", "", [float(from_source)])
