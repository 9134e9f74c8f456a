"""Files that changed at the source: the old version is withdrawn at once, the new one taken up when it has settled.

Owns the columns `stale`, `version` and `new_*`. A writer may be at work when a change is noticed: bytes read then may
be half old and half new under attributes that no longer change. So a version is taken up only when it has been seen
the same twice, `SETTLE_S` apart; until then opens and reads get ESTALE.
"""

from __future__ import annotations

import logging
import queue
import stat
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nopfsfs.dataset.index import Index
from nopfsfs.fetch.source import Identity, Source
from nopfsfs.tiers.columns import Columns, Gauge, Gauges

log = logging.getLogger(__name__)
SETTLE_S = 1.0  # the clock of no file system in use ticks more slowly, but for FAT's


class _Seen(NamedTuple):
    """What the source has in a row's place."""

    identity: Identity
    mode: int
    uid: int
    gid: int


class _Waiting(NamedTuple):
    """A row that settles. `renew`: give it a new version even if it looks the same."""

    due: float
    row: int
    seen: _Seen | None
    renew: bool


class Changes:
    """See the module. `forget` withdraws all copies of a row; `show` makes the kernel see its new version."""

    def __init__(
        self, *, index: Index, columns: Columns, gauges: Gauges, source: Source, forget: Callable[[int], None],
        show: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._index, self._columns, self._gauge, self._source = index, columns, gauges.block, source
        self._forget, self._show = forget, show
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._logged: set[int] = set()

    def noticed(self, row: int) -> None:
        """A read found that the row's file is not the known one."""
        with self._lock:
            if not self._index.n_dirs <= row < self._index.n or self._columns.stale[row]:
                return
            try:
                seen = self._look(row)
            except OSError:
                return  # it vanished: each read of it says so, until it is back
            if seen is not None and seen.identity == self._source.identity(row):
                return  # another thread has seen to it, or it is back
            if row not in self._logged:
                self._logged.add(row)
                log.warning("%r changed at the source; open handles get ESTALE", self._source.path(row))
            if seen is None:
                self._forget(row)  # no file any more: each read of it says so
                return
            self._columns.stale[row] = 1
            self._forget(row)
            self._waiting.put(_Waiting(time.monotonic() + SETTLE_S, row, seen, renew=False))

    def renew(self, row: int) -> None:
        """The row's file looks as it did and holds other bytes: withdraw what is held, and take the file up anew."""
        with self._lock:
            if self._columns.stale[row]:
                return
            self._columns.stale[row] = 1
            self._forget(row)
            self._waiting.put(_Waiting(time.monotonic() + SETTLE_S, row, None, renew=True))

    def take_over(self) -> None:
        """Finish what a stager before this one had begun when it died."""
        for row in np.flatnonzero(self._columns.stale).tolist():
            self._forget(row)  # it may have died before it had withdrawn the old version
            self._waiting.put(_Waiting(time.monotonic(), row, None, renew=True))

    def stop(self) -> None:
        self._waiting.put(None)

    def run(self) -> None:
        """The life of the thread in which changed files settle."""
        while (waiting := self._waiting.get()) is not None:
            time.sleep(max(0.0, waiting.due - time.monotonic()))
            try:
                with self._lock:
                    self._settle(waiting)
            except Exception:
                log.exception("taking up the new version of row %d failed", waiting.row)

    def _settle(self, waiting: _Waiting) -> None:
        row = waiting.row
        try:
            seen = self._look(row)
        except OSError:
            seen = None
        if not waiting.renew and (seen is None or seen.identity == self._source.identity(row)):
            self._columns.stale[row] = 0  # gone, or back: then nothing has to be taken up
        elif seen is None or seen != waiting.seen:
            self._waiting.put(waiting._replace(due=time.monotonic() + SETTLE_S, seen=seen))
        else:
            self._take_up(row, seen)
            self._show(row)

    def _take_up(self, row: int, seen: _Seen) -> None:
        columns, new = self._columns, seen.identity
        columns.new_size[row], columns.new_mtime_ns[row] = new.size, new.mtime_ns
        columns.new_ctime_ns[row], columns.new_ino[row] = new.ctime_ns, new.ino
        columns.new_mode[row], columns.new_uid[row], columns.new_gid[row] = seen.mode, seen.uid, seen.gid
        columns.version[row] = int(columns.version[row]) % 255 + 1
        self._gauge[Gauge.CHANGED_FILES] += 1

    def _look(self, row: int) -> _Seen | None:
        """None where something is that is not a file. Raises OSError."""
        st = self._source.stat(row)
        if not stat.S_ISREG(st.st_mode):
            return None
        return _Seen(Identity(st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino), st.st_mode, st.st_uid, st.st_gid)
