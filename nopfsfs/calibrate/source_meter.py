"""Meter of a source: whole files, read one by one and many at once, each only once and never from a cache.

Chance decides which file is read when. Some files are looked at before (stat) to find large ones. A few are opened for
their first byte only, which shows what a file costs beside its bytes.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nopfsfs.calibrate.meter_threads import MeterThreads, pop
from nopfsfs.calibrate.random_walk import Walk, walk
from nopfsfs.performance import fit
from nopfsfs.performance.fit import Level, Readings
from nopfsfs.system.beneath import open_absolute
from nopfsfs.system.descriptors import advise, closing_fd

AT_ONCE = (1, 2, 4, 8, 16, 32, 64)  # nopfs-mount reads 64 at once by default
CHUNK = 1 << 20  # bytes of one read; each thread has a buffer of it: 64 MiB in all
FEWEST_EACH = 2  # files for each thread, or it is no reading of so many at once
FEWEST_ALONE = 8  # files read one by one
WALK_SHARE = 0.15  # of the time
WALK_MOST_S = 10.0
LOOK_SHARE = 0.25  # of the files, looked at for large ones
LOOK_MOST = 1000
LOOK_THREADS = 16  # as the scan of a mount
LOOK_LEAST = 64  # with fewer files none is looked at before
LARGE_FACTOR = 2.0  # the mean of the large ones over the median; with less, reading them shows nothing new
LARGE_SHARE = 0.1  # of the files that were looked at
POINTS_MOST = 2000  # times of single files that are reported
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW

Row = tuple[float, float, int, float]  # begin, end, bytes, share of the file
Report = Callable[[str], None]


class NothingRead(Exception):
    """No file could be read; the text says why."""


class _Skip(Exception):
    """The file cannot be measured with: it is not regular, or another name of it was read."""


@dataclass(slots=True)
class SourceMeter:
    """Meter of the tree at `root`. `report` receives texts that name the present step."""

    root: bytes
    meter_threads: MeterThreads
    report: Report
    skip: frozenset[bytes] = frozenset()
    rng: random.Random = field(default_factory=random.Random)
    read: int = 0  # files
    _failed: list[str] = field(default_factory=list)  # files that could not be read, and why
    _links: set[tuple[int, int]] = field(default_factory=set)
    _sizes: list[int] = field(default_factory=list)

    def measure(self, seconds: float) -> dict[str, Any]:
        """Measure for about `seconds`; return the figures, as `result.source_of` takes them. Raises NothingRead,
        MeterHangs, MeterStopped."""
        began = time.monotonic()
        found = self._walk(min(seconds * WALK_SHARE, WALK_MOST_S))
        left = found.paths
        slices = len(AT_ONCE) + 3  # the look and the first bytes of single files take half of one each
        each = max(0.05, (seconds - (time.monotonic() - began)) / slices)
        large = self._look_for_large(left, each / 2)
        self.report("first bytes")
        count = _part(left, slices, min(FEWEST_ALONE, len(left) // 4), _later(-1))
        first = self._run(left, count, 1, each / 2, _read_first)
        levels, alone = self._levels(left, each)
        if not any(level.bytes for level in levels):
            raise NothingRead(f"all of its files that were read, {self.read}, are empty")
        best = fit.knee([(level.at_once, level.files) for level in levels])
        heads = self._probe("first bytes", left, levels[-1].at_once, each, _read_first)
        return {
            "seen": found.seen, "whole": found.whole, "read": self.read,
            "skipped": len(self._failed) + found.skipped, "why": self._failed[0] if self._failed else found.why,
            "median": float(np.median(self._sizes)), "smallest": min(self._sizes), "largest": max(self._sizes),
            "alone": [[row[2], row[1] - row[0]] for row in alone[:POINTS_MOST]],
            "first": [row[1] - row[0] for _, row in first[:POINTS_MOST]],
            "levels": [_level(level) for level in levels],
            "heads": _level(heads),
            "large": _level(self._probe("large files", large, best, each, _read_whole)),
        }  # fmt: skip

    def _walk(self, seconds: float) -> Walk:
        self.report("looking for files")
        found: list[Walk] = []

        def entering(path: bytes) -> None:
            self.meter_threads.doing[0] = f"listing {os.fsdecode(path)}"

        def look(_: int) -> None:
            found.append(walk(self.root, self.meter_threads.late, self.rng, self.skip, entering))

        try:
            self.meter_threads.run(look, 1, seconds)
        except OSError as error:
            raise NothingRead(f"it cannot be listed: {error.strerror}") from error
        if not found[0].paths:
            raise NothingRead("it holds no files" if not found[0].skipped else f"no file found; {found[0].why}")
        return found[0]

    def _look_for_large(self, left: list[bytes], seconds: float) -> list[bytes]:
        """Take the largest of some files from `left`; return their paths, largest last. The others are put back, to be
        read last."""
        count = min(int(len(left) * LOOK_SHARE), LOOK_MOST) if len(left) >= LOOK_LEAST else 0
        if count == 0:
            return []
        self.report("looking for large files")
        looked, left[-count:] = left[-count:], []
        waiting, sizes = list(looked), dict[bytes, int]()

        def look(number: int) -> None:
            while not self.meter_threads.late() and (path := pop(waiting)) is not None:
                self.meter_threads.doing[number] = f"looking at {os.fsdecode(path)}"
                try:
                    sizes[path] = _size(path)
                except OSError:
                    continue  # reading the file will report that

        self.meter_threads.run(look, LOOK_THREADS, seconds)
        in_order = sorted(sizes, key=sizes.__getitem__)
        large = in_order[len(in_order) - int(len(in_order) * LARGE_SHARE) :]
        worth = bool(large) and np.mean([sizes[p] for p in large]) >= LARGE_FACTOR * np.median(list(sizes.values()))
        kept = set(large) if worth else set()
        left[:0] = [path for path in looked if path not in kept]
        return [path for path in in_order if path in kept]

    def _levels(self, left: list[bytes], each: float) -> tuple[list[Level], list[Row]]:
        """Measure with 1, 2, 4, ... files at once, as far as the files go; return the levels, and the readings of
        single files. Raises NothingRead."""
        levels: list[Level] = []
        alone: list[Row] = []
        for number, at_once in enumerate(AT_ONCE):
            fewest = FEWEST_EACH * at_once if levels else FEWEST_ALONE
            if levels and len(left) < fewest:
                break
            self.report(f"{at_once} at once")
            count = _part(left, len(AT_ONCE) - number + 1, fewest, _later(number))
            rows = self._run(left, count, at_once, each, _read_whole)
            if not rows:
                break
            if not levels:
                alone = [row for _, row in rows]
            self._sizes += [row[2] for _, row in rows if row[3] == 1.0]
            levels.append(fit.throughput(_readings(rows), at_once))
        if not levels:
            raise NothingRead(f"none of {len(self._failed)} files could be read, such as {self._failed[0]}")
        if not self._sizes:  # the time ended within each file: the files are larger than that
            self._sizes = [row[2] for row in alone]
        return levels, alone

    def _probe(self, what: str, left: list[bytes], at_once: int, seconds: float, how: How) -> Level | None:
        """Measure with further files, read as `how` does; None where there are too few."""
        if len(left) < FEWEST_EACH * at_once:
            return None
        self.report(f"{what}, {at_once} at once")
        rows = self._run(left, len(left), at_once, seconds, how)
        return fit.throughput(_readings(rows), at_once) if rows else None

    def _run(self, left: list[bytes], count: int, at_once: int, seconds: float, how: How) -> list[tuple[int, Row]]:
        """Read `count` files from the end of `left`, or as many as there is time for; return (thread, reading) of
        each."""
        if count == 0:
            return []
        paths, left[-count:] = left[-count:], []
        rows: list[list[Row]] = [[] for _ in range(at_once)]

        def read(number: int) -> None:
            buffer = memoryview(bytearray(CHUNK))
            while not self.meter_threads.late() and (path := pop(paths)) is not None:
                self.meter_threads.doing[number] = f"reading {os.fsdecode(path)}"
                try:
                    rows[number].append(self._read(path, buffer, how))
                except _Skip:
                    continue
                except OSError as error:
                    self._failed.append(f"{os.fsdecode(path)}: {error.strerror}")

        self.meter_threads.run(read, at_once, seconds)
        left += paths  # for which there was no time
        done = [(number, row) for number, of_one in enumerate(rows) for row in of_one]
        self.read += len(done)
        return done

    def _read(self, path: bytes, buffer: memoryview, how: How) -> Row:
        """Read one file. The time that it takes to drop what an earlier reader left in the page cache is left out."""
        begin = time.monotonic()
        with closing_fd(open_absolute(path, _FLAGS)) as fd:
            found = os.fstat(fd)
            opened = time.monotonic()
            if not stat.S_ISREG(found.st_mode) or self._is_known(found):
                raise _Skip
            advise(fd, os.POSIX_FADV_DONTNEED)
            if how is _read_first:
                advise(fd, os.POSIX_FADV_RANDOM)  # no read-ahead: one page
            begin += time.monotonic() - opened
            size, share = how(fd, found.st_size, buffer, self.meter_threads.late)
            end = time.monotonic()
            advise(fd, os.POSIX_FADV_DONTNEED)
        return begin, end, size, share

    def _is_known(self, found: os.stat_result) -> bool:
        """True when this is another name of a file that was read."""
        if found.st_nlink < 2:
            return False
        key = (found.st_dev, found.st_ino)
        known = key in self._links
        self._links.add(key)
        return known


How = Callable[[int, int, memoryview, Callable[[], bool]], tuple[int, float]]


def _read_whole(fd: int, size: int, buffer: memoryview, late: Callable[[], bool]) -> tuple[int, float]:
    """Read the file; return bytes read, and their share of the file: less than 1 where the time was over before."""
    done = 0
    while done < size:
        got = os.preadv(fd, [buffer], done)
        if got == 0:
            break  # the file was cut short meanwhile
        done += got
        if done < size and late():
            return done, done / size
    return done, 1.0


def _read_first(fd: int, size: int, buffer: memoryview, late: Callable[[], bool]) -> tuple[int, float]:
    return os.preadv(fd, [buffer[:1]], 0), 1.0


def _size(path: bytes) -> int:
    with closing_fd(open_absolute(path, os.O_PATH)) as fd:
        return os.fstat(fd).st_size


def _part(left: list[bytes], slices: int, fewest: int, later: int) -> int:
    """The number of files for one of `slices` slices of the time: a slice's share. `later` files stay in `left` where
    there are so many. At least `fewest` are taken in any case."""
    return min(len(left), max(fewest, min(len(left) // slices, len(left) - later)))


def _later(number: int) -> int:
    """The least number of files for the levels after level `number`, and for the first bytes after them."""
    return FEWEST_EACH * (sum(AT_ONCE[number + 1 :]) + AT_ONCE[-1])


def _readings(rows: Sequence[tuple[int, Row]]) -> Readings:
    columns = np.array([(*row, thread) for thread, row in rows], np.float64).T
    return Readings(*columns)


def _level(level: Level | None) -> list[float] | None:
    return None if level is None else [level.at_once, level.files, level.bytes]
