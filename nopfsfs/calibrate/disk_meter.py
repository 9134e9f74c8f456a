"""Meter of a disk tier: files are written as a mount writes them, forced to the disk, dropped from the page cache, and
read. All lie in a directory of the kind that a mount has there. If this process is killed, the next process that uses
the tier removes the directory."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nopfsfs.calibrate.meter_threads import MeterThreads, pop
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.text.units import format_size
from nopfsfs.tiers.disk import FLOOR_BYTES, Disk, DiskFull
from nopfsfs.tiers.tier_directory import clear_leftovers

THREADS = (1, 2, 4, 8)
BYTES_MOST = 512 << 20  # written in all
FILES_MOST = 8192  # written in all: they must be removed again
FILE_LEAST, FILE_MOST = 4096, 4 << 20  # each of eight threads has a buffer of a file's size
FIRST_BYTES = 256 << 10, 8 << 20  # to learn how much can be written in the time: the second where there is time
_PARTS = len(THREADS) + len(FIRST_BYTES)  # rounds of writing, of about the same amount


class NoDisk(Exception):
    """The tier cannot be measured; the text says why."""


@dataclass(slots=True)
class DiskMeter:
    """Meter of the tier in directory `path`, with files of `size` bytes. `limit`: the tier's size; None: what is free.

    `report` receives texts that name the present step."""

    path: str
    size: int
    limit: int | None
    meter_threads: MeterThreads
    report: Callable[[str], None]
    _rows: int = 0
    _failed: list[OSError] = field(default_factory=list)

    def measure(self, seconds: float) -> dict[str, Any]:
        """Measure for about `seconds`; return the figures, as `result.disk_of` takes them, and the `real` path. Leaves
        no files. Raises NoDisk, MeterHangs, MeterStopped."""
        try:
            return {**self._measure(seconds), "real": os.path.realpath(self.path)}
        except OSError as error:
            raise NoDisk(f"it cannot be used: {error.strerror}") from error

    def _measure(self, seconds: float) -> dict[str, Any]:
        clear_leftovers(self.path)
        room = self._room()
        files = _PARTS * 2 * THREADS[-1]  # at least: two for each thread
        size = min(max(self.size, FILE_LEAST), FILE_MOST, room // files)
        if size < FILE_LEAST:
            raise NoDisk(f"it has no room: {format_size(max(0, room))} above the {format_size(FLOOR_BYTES)} left free")
        most = min(BYTES_MOST, room, size * FILES_MOST) // _PARTS
        disk = Disk(self.path, None)
        disk.open()
        try:
            data = os.urandom(size)  # a file system that compresses would be too fast
            return {"size": size, "capacity": self.limit or room, **self._rates(disk, data, most, seconds)}
        finally:
            disk.close()

    def _room(self) -> int:
        """Bytes that may be used: free space above the floor, at most `limit`."""
        space = os.statvfs(self.path)
        free = space.f_bavail * space.f_frsize - FLOOR_BYTES
        return free if self.limit is None else min(free, self.limit)

    def _rates(self, disk: Disk, data: bytes, most: int, seconds: float) -> dict[str, Any]:
        each = seconds / (2 * len(THREADS))
        self.report("writing")
        rate = 0.0
        for amount in FIRST_BYTES:
            if rate and amount > rate * each:
                break
            rows, took = self._write(disk, data, 1, min(most, amount), each)
            rate = len(rows) * len(data) / took
        write: list[tuple[int, float]] = []
        written: list[list[int]] = []
        for threads in THREADS:
            if write and 2 * threads * len(data) > 2 * rate * each:
                break  # the fewest files of so many threads would take too long
            self.report(f"writing, {threads} at once")
            rows, took = self._write(disk, data, threads, min(most, int(rate * each)), each)
            if not rows:
                break
            rate = len(rows) * len(data) / took
            write.append((threads, rate))
            written.append(rows)
        read: list[tuple[int, float]] = []
        for threads, rows in zip(THREADS, written, strict=False):
            self.report(f"reading, {threads} at once")
            read.append((threads, self._read(disk, rows, len(data), threads, each)))
        if not read:
            raise NoDisk(f"nothing can be written: {self._failed[0].strerror if self._failed else 'no file'}")
        return {"read": read, "write": write, "bytes": self._rows * len(data)}

    def _write(self, disk: Disk, data: bytes, threads: int, amount: int, seconds: float) -> tuple[list[int], float]:
        """Write files; return their rows, and the seconds until all had arrived on the disk."""
        waiting = [self._rows + n for n in range(max(2 * threads, amount // len(data)))]
        self._rows += len(waiting)
        rows: list[int] = []
        view = memoryview(data)

        def write(_: int) -> None:
            while (row := pop(waiting)) is not None:
                try:
                    disk.write(row, view)
                except OSError as error:
                    if isinstance(error, DiskFull) or error.errno in (errno.ENOSPC, errno.EDQUOT):
                        self._failed.append(error)
                        return  # another process fills the disk: what was written is enough
                    raise
                rows.append(row)
                if self.meter_threads.late():  # each thread writes one file, however busy the machine is
                    break

        self.meter_threads.doing[0] = f"writing to {self.path}"
        began = time.monotonic()
        self.meter_threads.run(write, threads, seconds)
        self._sync(disk, rows, threads)
        return rows, time.monotonic() - began

    def _sync(self, disk: Disk, rows: list[int], threads: int) -> None:
        """Wait until all files are on the disk. The tier does not wait for that, but can keep up no rate that the disk
        cannot."""
        waiting = list(rows)

        def sync(_: int) -> None:
            while (row := pop(waiting)) is not None:
                with closing_fd(disk.open_copy(row)) as fd:
                    os.fdatasync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

        self.meter_threads.run(sync, threads, 0.0)

    def _read(self, disk: Disk, rows: list[int], size: int, threads: int, seconds: float) -> float:
        """Read files; return bytes per second."""
        waiting, done = list(rows), [0] * threads

        def read(number: int) -> None:
            buffer = memoryview(bytearray(size))
            while (row := pop(waiting)) is not None:
                disk.read(row, buffer)
                done[number] += size
                if self.meter_threads.late():
                    break

        began = time.monotonic()
        self.meter_threads.run(read, threads, seconds)
        return sum(done) / (time.monotonic() - began)
