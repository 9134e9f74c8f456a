"""Meter of this machine's memory: copies between a mapping like the arena's and buffers, by several threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.calibrate.meter_threads import MeterThreads
from nopfsfs.system import shared_memory
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.tiers import arena

THREADS = (1, 2, 4)
PIECE_LEAST, PIECE_MOST = 4096, 8 << 20
MOST = 256 << 20  # bytes of memory that is used: more than a processor's caches
FEWEST_PIECES = 8
LEVEL_MOST_S = 0.5  # further passes make a copy rate no more exact


@dataclass(slots=True)
class MemoryMeter:
    """Meter that uses at most `room` bytes, in pieces of `size`. `report` receives texts that name the present step."""

    size: int
    room: int
    meter_threads: MeterThreads
    report: Callable[[str], None]

    def measure(self, seconds: float) -> dict[str, Any]:
        """Measure for about `seconds`; return the figures, as `result.memory_of` takes them. Raises MeterStopped,
        MeterHangs."""
        room = max(FEWEST_PIECES * PIECE_LEAST, min(MOST, self.room))
        piece = shared_memory.page_rounded(max(PIECE_LEAST, min(self.size, PIECE_MOST, room // FEWEST_PIECES)))
        length = room // piece * piece
        with closing_fd(shared_memory.create("calibrate", length)) as fd:
            return {"piece": piece, "bytes": length, **self._rates(fd, piece, seconds)}

    def _rates(self, fd: int, piece: int, seconds: float) -> dict[str, Any]:
        mapped = np.frombuffer(shared_memory.attach(fd, writable=True), np.uint8)
        each = min(LEVEL_MOST_S, seconds / (2 * len(THREADS)))
        read, write = [], []
        for threads in THREADS:
            self.report(f"writing, {threads} at once")
            write.append((threads, self._rate(mapped, piece, threads, each, fd)))
            self.report(f"reading, {threads} at once")
            read.append((threads, self._rate(mapped, piece, threads, each)))
        return {"read": read, "write": write}

    def _rate(self, mapped: NDArray[np.uint8], piece: int, threads: int, seconds: float, write: int = -1) -> float:
        """Bytes per second of passes over the whole memory, of which each thread copies its part. `write`: the memory's
        descriptor, where it is written, each time to fresh pages, as a staged file is; else it is read."""
        pieces = mapped.reshape(-1, piece)
        done, took = 0, 0.0
        ends = [len(pieces) * n // threads for n in range(threads + 1)]
        buffers = np.ones((threads, piece), np.uint8)

        def work(number: int) -> None:
            for one in pieces[ends[number] : ends[number + 1]]:
                into, of = (one, buffers[number]) if write >= 0 else (buffers[number], one)
                np.copyto(into, of)

        while done == 0 or took < seconds:
            if write >= 0:
                arena.punch(write, 0, mapped.nbytes)
            began = time.monotonic()
            self.meter_threads.run(work, threads, seconds)
            took += time.monotonic() - began
            done += mapped.nbytes
        return done / took
