"""Looks at rights and files at the source again, in the background: who may enter and read what, what has changed.

A few threads ask the source, at a rate that `recheck_schedule` sets; `stager/changed_files.py` takes up what they find.
A thread that the source keeps waiting is passed by, and another is started, up to a limit
(`system/elastic_threads.py`). Then the look stands still, and the status says so. The workers that serve readers are
others.
"""

from __future__ import annotations

import errno
import logging
import math
import queue
import stat
import threading
import time
from functools import partial

import numpy as np
import numpy.typing as npt

from nopfsfs.dataset.index import Index
from nopfsfs.policy.recheck_schedule import Schedule
from nopfsfs.protocol.columns import RECHECK_SHUT, Columns, Metric, Tier
from nopfsfs.stager.attribute_notices import AttributeNotices
from nopfsfs.stager.changed_files import ChangedFiles
from nopfsfs.system.elastic_threads import ElasticThreads
from nopfsfs.tiers.guarded import Guarded

log = logging.getLogger(__name__)
LOOKERS = 8  # threads; a look takes a millisecond or two on a parallel file system
MOST_LOOKERS = 24  # with those that wait for a source that does not answer
GIVEN_UP_S = 30.0  # a complete look that was asked for does not wait longer for one
_TICK_S, _IDLE_TICK_S = 0.02, 0.25  # between two looks at the clock; while many rows are due, and else
_MANY = 5  # rows at one tick
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP)
Rows = npt.NDArray[np.int64]


class Recheck:
    """`run` is the body of its thread, which starts the others. `request` may be called from any thread."""

    def __init__(
        self, *, index: Index, columns: Columns, metrics: memoryview, changes: ChangedFiles, notices: AttributeNotices,
        period_s: float, guarded: Guarded | None = None,
    ) -> None:  # fmt: skip
        """`period_s`: all files are looked at within this; 0: only on request. `guarded`: that of `changes`."""
        self._guarded = guarded
        self._index, self._columns, self._metrics = index, columns, metrics
        self._changes, self._notices = changes, notices
        self._period_s = period_s or math.inf
        self._lock = threading.Lock()
        self._lookers = ElasticThreads("recheck", LOOKERS, MOST_LOOKERS)
        self._last: tuple[int, int] | None = None  # of a request: its number, and that of its last look
        self._requested: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopped = False

    def request(self, number: int) -> None:
        """Look at every row once; `RECHECK_ANSWERED` is `number` when that is done and the kernel was notified."""
        self._requested.put(number)
        self._wake.set()

    def stop(self) -> None:
        """End the threads after their present looks."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        """Give out rows until `stop`."""
        kinds = self._index.mode >> 12
        files = np.flatnonzero(kinds != stat.S_IFLNK >> 12)
        files = files[files >= self._index.n_dirs]
        schedule = Schedule(
            self._index.n_dirs, files, self._period_s, time.monotonic(),
            dirs_in_use=self._directories_in_use, files_in_use=self._files_in_use,
        )  # fmt: skip
        rounds = 0
        while not self._stopped:
            while not self._requested.empty():
                schedule.request(self._requested.get())
            given = self._tick(schedule)
            self._metrics[Metric.RECHECK_POSITION] = schedule.files.place
            if schedule.files.rounds != rounds:
                rounds = schedule.files.rounds
                self._metrics[Metric.RECHECK_TOOK_MS] = int(1000 * schedule.files.took_s)
                self._metrics[Metric.RECHECK_ENDED_S] = int(time.time())
            self._wake.wait(_TICK_S if given >= _MANY or self._last else _IDLE_TICK_S)
            self._wake.clear()
        self._lookers.stop()

    # ---- giving out ---------------------------------------------------------------------------------------

    def _tick(self, schedule: Schedule) -> int:
        """Give out the rows that are due, and replace stuck threads; return the number of rows given out."""
        rows = [] if self._lookers.waiting else schedule.take(time.monotonic())
        for row in rows:
            self._lookers.put(partial(self._look, row))
        stuck = self._lookers.replace_stuck()
        shut = self._guarded is not None and self._guarded.shut
        self._metrics[Metric.RECHECK_STATE] = stuck | (RECHECK_SHUT if shut else 0)
        if schedule.given_out > (self._last or (self._metrics[Metric.RECHECK_ANSWERED], 0))[0]:
            self._last = (schedule.given_out, self._lookers.last)
        self._answer()
        return len(rows)

    def _answer(self) -> None:
        """Answer a request when its looks have ended, and the kernel was notified of what they found."""
        if self._last is None:
            return
        request, last = self._last
        if not self._lookers.lasts(last, GIVEN_UP_S) and self._notices.told(self._notices.given):
            self._metrics[Metric.RECHECK_ANSWERED] = request
            self._last = None

    def _files_in_use(self) -> Rows:
        """Files whose bytes are held in a tier or in the kernel's page cache."""
        c = self._columns
        return np.flatnonzero((c.tier == Tier.RAM) | (c.disk != 0) | (c.paged != 0))

    def _directories_in_use(self) -> Rows:
        """The directories above those files."""
        index = self._index
        rows = np.zeros(1, np.int64)
        files = self._files_in_use()
        above = np.unique(index.entry_parent[index.primary[files]]) if len(files) else rows
        while len(above):
            rows = np.union1d(rows, above)
            above = above[above != 0]
            above = np.setdiff1d(index.entry_parent[index.primary[above]], rows) if len(above) else above
        return rows.astype(np.int64)

    # ---- looking ------------------------------------------------------------------------------------------

    def _look(self, row: int) -> None:
        found, failed = False, False
        try:
            found = self._changes.look(row)
        except OSError as error:
            failed = error.errno not in _GONE
            if failed:
                log.debug("looking at row %d again: %s", row, error)
        except Exception:
            failed = True
            log.exception("looking at row %d again failed", row)
        with self._lock:  # the metrics have several writers here
            self._metrics[Metric.RECHECK_LOOKED] += 1
            self._metrics[Metric.RECHECK_FOUND] += found
            self._metrics[Metric.RECHECK_FAILED] += failed
        if self._last is not None:
            self._wake.set()
