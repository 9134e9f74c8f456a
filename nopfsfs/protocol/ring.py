"""A ring of events in shared memory: one writer, one reader, no lock, no wait. A reader that lags loses the oldest.

An event is three 64-bit words: kind and row, a value that the kind defines, and when it was put. Several rings are
read as one, in the order of time (`take_all`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.system import shared_memory

CAPACITY = 1 << 18  # events; 6 MiB, ten seconds of the busiest reader
_HEADER = 8  # words; 0 is the number of events ever written
_WORDS = 3  # of an event
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1


class Event(IntEnum):
    """Kind of an event. Server: OPEN, TRIPWIRE (value: process), READ (value: end offset), RELEASE. TRIPWIRE: an open
    of a tripwire while no others show, counted as `Metric.TRIPWIRES`. Stager: the rest; value is the size in bytes,
    with exceptions. FAILED, UNMEASURED, UNCHECKED: the errno. ON_DISK, COPYING: the tier. OFF_DISK:
    1 when the tier failed or lost the copy and may be asked again later. LACKING: the bytes that the page cache still
    holds. BACKED: 1 when the kernel reads the copy on disk by itself. CHECKED: flags, below."""

    OPEN = 1
    READ = 2
    RELEASE = 3
    TRIPWIRE = 4
    STAGED = 10
    EVICTED = 11
    FAILED = 12
    PUSHED = 13
    PUSH_FAILED = 14
    DROPPED = 15
    ON_DISK = 16
    OFF_DISK = 17
    CHANGED = 18
    PRESENT = 19  # the page cache was looked at, and holds the whole file
    LACKING = 20  # it does not
    UNMEASURED = 21  # this system does not let it be looked at
    BACKED = 22
    STRAY = 23  # the row was read from the source, though it lives on another node; STAGED follows
    CHECKED = 33  # what is held of the row was compared with the source; value: where it differs, flags as below
    UNCHECKED = 34  # it could not be compared; value: the errno
    COPYING = 35  # a copy of a large row has begun on a disk tier, the value; ON_DISK or OFF_DISK follows
    STUCK = 32  # the source does not answer: the row's fetch counts no more; STAGED or FAILED follows when it does


IN_MEMORY, ON_TIER, NOT_HELD = 1, 2, 4  # values of CHECKED; 0: nowhere
monotonic_ns = time.monotonic_ns  # one clock for all processes
Events = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]  # kinds u8[k], rows i64[k], values u64[k]
TimedEvents = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]  # and times u64[k]


class Ring:
    """End of a ring. The writer calls `put`, the reader `take`."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        self._memory = shared_memory.attach(fd, writable=writable)
        self._words = memoryview(self._memory).cast("Q")
        self._array: npt.NDArray[Any] = np.frombuffer(self._memory, dtype="u8", offset=_HEADER * 8)
        self._head = int(self._words[0])
        self._tail = 0
        self.lost = 0

    @staticmethod
    def create(name: str) -> int:
        return shared_memory.create(f"ring-{name}", (_HEADER + _WORDS * CAPACITY) * 8)

    def put(self, kind: int, row: int, value: int = 0) -> None:
        """Append one event: its words first, the count that publishes it last."""
        head = self._head
        at = _HEADER + _WORDS * (head % CAPACITY)
        words = self._words
        words[at] = kind << _ROW_BITS | row
        words[at + 1] = value
        words[at + 2] = monotonic_ns()
        self._head = head + 1
        words[0] = head + 1

    def pending(self) -> int:
        """Events written and not yet taken."""
        return int(self._words[0]) - self._tail

    def take(self, most: int = CAPACITY // 2) -> Events:
        """Up to `most` new events, oldest first."""
        kinds, rows, values, _ = self._take(self._look(most))
        return kinds, rows, values

    def _look(self, most: int) -> int:
        """The number of events to take, up to `most`. Gives up the oldest when the writer is about to overwrite
        them."""
        head = int(self._words[0])
        if head - self._tail > CAPACITY:
            self.lost += head - self._tail - CAPACITY // 2
            self._tail = head - CAPACITY // 2
        return min(head - self._tail, most)

    def _before(self, count: int, moment: int) -> int:
        """The number of the next `count` events that were put before `moment`, at least."""
        index = (self._tail + np.arange(count, dtype=np.int64)) % CAPACITY * _WORDS + 2
        return int(np.searchsorted(self._array[index], np.uint64(moment)))

    def _last(self, count: int) -> int:
        """The time at which the last of the next `count` events was put."""
        return int(self._array[(self._tail + count - 1) % CAPACITY * _WORDS + 2])

    def _take(self, count: int) -> TimedEvents:
        """The next `count` events, less those that were overwritten meanwhile, and their times u64[k]."""
        index = (self._tail + np.arange(count, dtype=np.int64)) % CAPACITY * _WORDS
        first, values, times = (self._array[index + word] for word in range(_WORDS))
        # What the writer has come round to since, or is about to write, may be torn.
        torn = min(count, max(0, int(self._words[0]) + 1 - CAPACITY - self._tail))
        self._tail += count
        self.lost += torn
        first, values, times = first[torn:], values[torn:], times[torn:]
        kinds = (first >> np.uint64(_ROW_BITS)).astype(np.uint8)
        return kinds, (first & np.uint64(_ROW_MASK)).astype(np.int64), values, times


def take_all(rings: Sequence[Ring], most: int) -> TimedEvents:
    """Up to `most` new events of each ring, in the order of time, and when each was put, as of `monotonic_ns`. What one
    process put because of what another had put before comes after that."""
    if len(rings) == 1:
        return rings[0]._take(rings[0]._look(most))
    # what is put later waits for the next time: other rings may have more before it
    moment = monotonic_ns()
    counts = [ring._look(most) for ring in rings]
    for ring, count in zip(rings, counts, strict=True):
        if count == most:
            moment = min(moment, ring._last(count) + 1)
    parts = [ring._take(ring._before(count, moment)) for ring, count in zip(rings, counts, strict=True)]
    kinds, rows, values, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")
    return kinds[order], rows[order], values[order], times[order]
