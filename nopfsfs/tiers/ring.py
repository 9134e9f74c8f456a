"""A ring of events in shared memory: one writer, one reader, no lock, no wait. A reader that lags loses the oldest.

An event is two 64-bit words: kind and row, and a value that the kind defines.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.tiers import shared

CAPACITY = 1 << 18  # events; 4 MiB, ten seconds of the busiest reader
_HEADER = 8  # words; 0 is the number of events ever written
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1


class Event(IntEnum):
    """What happened. Server: OPEN (value: process), READ (value: end offset), RELEASE. Stager: the rest; value is
    the size in bytes, for FAILED the errno, for ON_DISK the tier."""

    OPEN = 1
    READ = 2
    RELEASE = 3
    STAGED = 10
    EVICTED = 11
    FAILED = 12
    PUSHED = 13
    PUSH_FAILED = 14
    DROPPED = 15
    ON_DISK = 16
    OFF_DISK = 17
    CHANGED = 18


class Ring:
    """One end of the ring. The writer calls `put`, the reader `take`."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        self._memory = shared.attach(fd, writable=writable)
        self._words = memoryview(self._memory).cast("Q")
        self._array: npt.NDArray[Any] = np.frombuffer(self._memory, dtype="u8", offset=_HEADER * 8)
        self._head = int(self._words[0])
        self._tail = 0
        self.lost = 0

    @staticmethod
    def create(name: str) -> int:
        return shared.create(f"ring-{name}", (_HEADER + 2 * CAPACITY) * 8)

    def put(self, kind: int, row: int, value: int = 0) -> None:
        """Append one event: its words first, the count that publishes it last."""
        head = self._head
        at = _HEADER + 2 * (head % CAPACITY)
        words = self._words
        words[at] = kind << _ROW_BITS | row
        words[at + 1] = value
        self._head = head + 1
        words[0] = head + 1

    def pending(self) -> int:
        """Events written and not yet taken."""
        return int(self._words[0]) - self._tail

    def take(self, most: int = CAPACITY // 2) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Up to `most` new events, oldest first: (kinds u8[k], rows i64[k], values u64[k])."""
        head = int(self._words[0])
        if head - self._tail > CAPACITY:
            self.lost += head - self._tail - CAPACITY // 2
            self._tail = head - CAPACITY // 2
        count = min(head - self._tail, most)
        index = (self._tail + np.arange(count, dtype=np.int64)) % CAPACITY * 2
        first = self._array[index]
        values = self._array[index + 1]
        # What the writer has come round to since, or is about to write, may be torn.
        torn = min(count, max(0, int(self._words[0]) + 1 - CAPACITY - self._tail))
        self._tail += count
        self.lost += torn
        first, values = first[torn:], values[torn:]
        return (first >> np.uint64(_ROW_BITS)).astype(np.uint8), (first & np.uint64(_ROW_MASK)).astype(np.int64), values
