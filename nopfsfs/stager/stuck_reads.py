"""Reads that take far too long, and the loads that wait for them.

A stuck read of a copy on disk is replaced by a read of the source. A stuck read of the source is replaced by a read of
the copy, if the load has passed one. Another stuck read of the source cannot be replaced; its slot is given to another
load, while the source answers at all.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from nopfsfs.policy.left_alone import Tiers
from nopfsfs.protocol.columns import Metric
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import Load
from nopfsfs.stager.range_loads import RangeLoads
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.stager.workers import Worker, Workers

log = logging.getLogger(__name__)
COUNT_S = 1.0  # between counts of the rows that are left alone


class StuckReads:
    """Finds stuck reads and lets others take their places. The caller holds its own lock."""

    def __init__(
        self, pool: ExtentPool, queue: ReadQueue, workers: Workers, loads: WholeLoads, ranges: RangeLoads, *,
        tiers: Tiers, metrics: memoryview, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._pool, self._queue, self._workers, self._loads, self._ranges = pool, queue, workers, loads, ranges
        self._tiers, self._metrics, self._clock = tiers, metrics, clock
        self._counted_at = 0.0

    def check(self) -> bool:
        """Find the reads that have got stuck; False when nothing is under way, and nothing is left alone."""
        for worker in self._workers.look():
            load = worker.load
            if load is None or worker.disk or load.unconfirmed:
                self._queue.leave_slot(worker)
            if load is not None and worker.disk:
                self._leave_disk(worker, load)
            elif load is not None and self._loads.has_copy(load):
                self._loads.source_hangs(load, worker)  # it keeps its slot: the source has a request less to take
            elif load is not None:
                self._loads.is_stuck(load)
                if not load.whole:
                    self._ranges.is_stuck(load)
        for worker in self._workers.stuck_while_others_end():
            self._queue.give_on(worker)
        self._count()
        return self._workers.busy or bool(self._metrics[Metric.LEFT_ALONE] or self._metrics[Metric.DISKS_BYPASSED])

    def _leave_disk(self, worker: Worker, load: Load) -> None:
        """Read the source instead of a disk tier that does not answer."""
        self._metrics[Metric.DISK_LATE] += 1
        if worker.disk not in self._tiers:
            log.warning("disk tier %d does not answer; the source is read instead", worker.disk)
        self._tiers.hung(worker.disk)
        if load.whole:
            self._loads.disk_hangs(load, worker)
        else:
            self._loads.give_up(load, errno.ENOSPC)  # the servers read by themselves
            self._ranges.disk_hangs(load, worker)

    def disk_answered(self, worker: Worker) -> bool:
        """Note that the disk has answered a worker; True when the worker's load has waited for that."""
        if worker.lost >= 0:
            return False
        self._tiers.worked(worker.disk)
        self._workers.again(worker)
        return True

    def late_read_ended(self, worker: Worker) -> None:
        """Free the extent of a read that came too late: no answer has named it."""
        if worker.disk:
            self._tiers.returned(worker.disk)
        else:
            self._loads.source_returned()
        lost, worker.lost = worker.lost, -1
        self._pool.free(lost)

    def _count(self) -> None:
        metrics, workers = self._metrics, self._workers
        metrics[Metric.STUCK_READS] = workers.stuck - self._tiers.stuck
        metrics[Metric.SPARE_WORKERS] = workers.spare
        metrics[Metric.STUCK_EVER] += workers.take_found()
        if (now := self._clock()) >= self._counted_at + COUNT_S:  # it may be a long list
            self._counted_at = now
            metrics[Metric.LEFT_ALONE] = len(self._loads.left_alone)
        metrics[Metric.DISKS_BYPASSED] = len(self._tiers)
