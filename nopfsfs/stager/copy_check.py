"""Comparison of what is held of a file, in the arena and on disk, with the source, byte for byte, for `nopfs check`.

A few threads read the source beside the workers. Each read takes a slot of the source, as a prefetch does, when one is
free. So readers are not disturbed, and what the mount may have under way at the source holds. A thread that the source
or a disk keeps waiting gives its slot back and is passed by.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.ring import IN_MEMORY, NOT_HELD, ON_TIER, Event
from nopfsfs.stager.read_queue import ReadsBeside
from nopfsfs.stager.state import StagerState
from nopfsfs.system.descriptors import closing_fd, fill
from nopfsfs.system.elastic_threads import ElasticThreads
from nopfsfs.tiers.disk import Disks
from nopfsfs.tiers.source import Changed, Identity, Source, close, read_exactly

log = logging.getLogger(__name__)
CHECKERS, MOST_CHECKERS = 2, 4  # threads; with those that are kept waiting
BLOCK = 1 << 20  # bytes of one read
LOOK_S = 0.005  # between looks at whether a slot is free
GIVEN_UP_S = 10.0  # after which a read gives its slot back


class _NotWanted(Exception):
    """Nobody wants the comparison any more."""


class _Slot:
    """A slot of the source that a read has; given back once."""

    def __init__(self, beside: ReadsBeside, size: int) -> None:
        self._beside, self._size = beside, size
        self._lock = threading.Lock()
        self._held = True
        self.since = time.monotonic()

    def give_back(self, *, read: bool) -> None:
        """Let another have the slot. `read`: the bytes have come."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._beside.end(self._size if read else 0)


class CopyCheck:
    """`beside`: for reads of the source. `noticed(row)` is called for a file that has changed."""

    def __init__(
        self, state: StagerState, columns: Columns, source: Source, disks: Disks, noticed: Callable[[int], None]
    ) -> None:
        self._state, self._columns, self._source, self._disks = state, columns, source, disks
        self._beside, self._noticed = state.beside, noticed
        self._threads = ElasticThreads("check", CHECKERS, MOST_CHECKERS)
        self._lock = threading.Lock()
        self._slots: set[_Slot] = set()
        self._under_way = 0
        self._end = threading.Event()  # of the comparisons that were given

    def check(self, rows: list[int]) -> None:
        """Compare these rows. An event tells what was found of each: CHECKED or UNCHECKED."""
        with self._lock:
            self._under_way += len(rows)
        for row in rows:
            self._threads.put(partial(self._check, row, self._end))
        self._threads.replace_stuck()
        self._state.awake.set()

    def forget(self) -> None:
        """End all comparisons that were asked for, without an event."""
        before, self._end = self._end, threading.Event()
        before.set()

    def stop(self) -> None:
        """End the threads after their present reads."""
        self.forget()
        self._threads.stop()

    def look(self) -> bool:
        """Give the slots of reads back that take too long; False when nothing is under way."""
        now = time.monotonic()
        with self._lock:
            late = [slot for slot in self._slots if now - slot.since > GIVEN_UP_S]
            busy = self._under_way > 0
        for slot in late:
            slot.give_back(read=False)
        if busy:
            self._threads.replace_stuck()
        return busy

    # ---- in a thread ----------------------------------------------------------------------------------------

    def _check(self, row: int, end: threading.Event) -> None:
        event, value = Event.UNCHECKED, errno.EIO
        try:
            event, value = Event.CHECKED, self._compare(row, end)
        except Changed:
            value = errno.ESTALE
            self._noticed(row)
        except OSError as error:
            value = error.errno or errno.EIO
        except _NotWanted:
            pass
        finally:
            with self._lock:
                self._under_way -= 1
        if not end.is_set():
            self._state.publish(event, row, value)

    def _compare(self, row: int, end: threading.Event) -> int:
        """Return where a copy differs, flags of `ring`. Raises Changed, OSError, _NotWanted."""
        version, tier = int(self._columns.version[row]), int(self._columns.disk[row])
        pinned = self._state.pin(row)
        try:
            copy = self._open_copy(row, tier) if tier else None
            if copy is None:
                found = self._compare_with(row, None if pinned is None else pinned.data, -1, end)
            else:
                with closing_fd(copy):
                    found = self._compare_with(row, None if pinned is None else pinned.data, copy, end)
        finally:
            if pinned is not None:
                pinned.data.release()
                self._state.unpin(pinned.slot)
        if self._columns.version[row] != version:
            raise Changed
        if found & ON_TIER and self._columns.disk[row] != tier:
            found &= ~ON_TIER  # it was removed, or is being replaced
        if tier and copy is None and self._columns.disk[row] == tier:
            found = found & ~NOT_HELD | ON_TIER
        return found

    def _open_copy(self, row: int, tier: int) -> int | None:
        """A descriptor of the copy on disk; None where it cannot be opened."""
        try:
            return self._disks[tier].open_copy(row)
        except OSError as error:
            log.debug("the copy of row %d on disk tier %d: %s", row, tier, error)
            return None

    def _compare_with(self, row: int, held: memoryview | None, copy: int, end: threading.Event) -> int:
        """Compare a file with the bytes in the arena, and those of the descriptor `copy`, -1 for none."""
        if held is None and copy < 0:
            return NOT_HELD
        slot = self._slot(0, end)  # to open the file is a request, too
        try:
            fd, identity = self._source.open(row)
        finally:
            self._leave(slot, read=True)
        try:
            return self._compare_open(fd, identity, held, copy, end)
        finally:
            close(fd)

    def _compare_open(
        self, fd: int, identity: Identity, held: memoryview | None, copy: int, end: threading.Event
    ) -> int:  # fmt: skip
        found = 0
        buffer, other = memoryview(bytearray(BLOCK)), memoryview(bytearray(BLOCK))
        for start in range(0, identity.size, BLOCK):
            length = min(BLOCK, identity.size - start)
            slot = self._slot(length, end)
            read = False
            try:
                read_exactly(fd, identity, buffer[:length], start)
                read = True
            finally:
                self._leave(slot, read=read)
            if held is not None and not _same(held[start : start + length], buffer[:length]):
                found |= IN_MEMORY
            if copy >= 0 and not (_filled(copy, other[:length], start) and _same(other[:length], buffer[:length])):
                found |= ON_TIER
        if copy >= 0:
            os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
        return found

    def _slot(self, size: int, end: threading.Event) -> _Slot:
        """Wait for a free slot of the source, as long as the comparison is wanted. Raises _NotWanted."""
        while not self._beside.begin(size):
            end.wait(LOOK_S)
            if end.is_set():
                raise _NotWanted
        slot = _Slot(self._beside, size)
        with self._lock:
            self._slots.add(slot)
        if end.is_set():
            self._leave(slot, read=False)
            raise _NotWanted
        return slot

    def _leave(self, slot: _Slot, *, read: bool) -> None:
        with self._lock:
            self._slots.discard(slot)
        slot.give_back(read=read)


def _same(one: memoryview, other: memoryview) -> bool:
    """Compare bytes, without holding up the other threads for long."""
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))


def _filled(fd: int, into: memoryview, offset: int) -> bool:
    """Fill `into` from a copy on disk; False where the copy cannot be read so far."""
    try:
        return fill(fd, into, offset)
    except OSError:
        return False
