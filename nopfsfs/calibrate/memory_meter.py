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

Copy = Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]


@dataclass(slots=True)
class MemoryMeter:
    """Meter that uses at most `room` bytes, in pieces of `size`. `tell` receives texts that name the present step."""

    size: int
    room: int
    crew: MeterThreads
    tell: Callable[[str], None]

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
            self.tell(f"writing, {threads} at once")
            write.append((threads, self._rate(mapped, piece, threads, each, _into, fresh=fd)))
            self.tell(f"reading, {threads} at once")
            read.append((threads, self._rate(mapped, piece, threads, each, _out_of)))
        return {"read": read, "write": write}

    def _rate(
        self, mapped: NDArray[np.uint8], piece: int, threads: int, seconds: float, copy: Copy, fresh: int = -1
    ) -> float:
        """Bytes per second of passes over the whole memory, of which each thread copies its part. `fresh`: the memory's
        descriptor, where each pass is to begin with fresh pages, as a staged file does; else below 0."""
        pieces = mapped.reshape(-1, piece)
        done, took = 0, 0.0
        ends = [len(pieces) * n // threads for n in range(threads + 1)]
        buffers = np.ones((threads, piece), np.uint8)

        def work(number: int) -> None:
            for one in pieces[ends[number] : ends[number + 1]]:
                copy(one, buffers[number])

        while done == 0 or took < seconds:
            if fresh >= 0:
                arena.punch(fresh, 0, mapped.nbytes)
            began = time.monotonic()
            self.crew.run(work, threads, seconds)
            took += time.monotonic() - began
            done += mapped.nbytes
        return done / took


def _into(mapped: NDArray[np.uint8], buffer: NDArray[np.uint8]) -> None:
    np.copyto(mapped, buffer)


def _out_of(mapped: NDArray[np.uint8], buffer: NDArray[np.uint8]) -> None:
    np.copyto(buffer, mapped)
