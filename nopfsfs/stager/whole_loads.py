"""Loads of files that are staged whole, from their begin to their publication.

`WholeLoads` also notes the ends of blocks of range loads, which begin in `range_loads.py`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from nopfsfs.dataset.index import Index
from nopfsfs.policy.left_alone import LeftAlone, Tiers
from nopfsfs.protocol.columns import (
    DISK_FETCHES_TOOK,
    HOME_HERE,
    PEER_FETCHES_TOOK,
    SOURCE_FETCHES_TOOK,
    Columns,
    Metric,
    Tier,
)  # fmt: skip
from nopfsfs.protocol.durations import bucket_of
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, Origin
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import BLOCK, DONE, NOWHERE, RUNNING, Load, SharedOpen
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.workers import Worker
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import Source

# Of files that were read at once: their number, bytes and nanoseconds, and the first counter of how long each took.
_FETCHES = {
    Origin.SOURCE: (Metric.SOURCE_FETCHES, Metric.SOURCE_FETCHED_BYTES, Metric.SOURCE_FETCH_NS, SOURCE_FETCHES_TOOK),
    Origin.DISK: (Metric.DISK_FETCHES, Metric.DISK_FETCHED_BYTES, Metric.DISK_FETCH_NS, DISK_FETCHES_TOOK),
    Origin.PEER: (Metric.PEER_FETCHES, Metric.PEER_FETCHED_BYTES, Metric.PEER_FETCH_NS, PEER_FETCHES_TOOK),
}  # fmt: skip
_STAGED = {
    Origin.SOURCE: (Metric.STAGED_SOURCE_FILES, Metric.STAGED_SOURCE_BYTES),
    Origin.DISK: (Metric.STAGED_DISK_FILES, Metric.STAGED_DISK_BYTES),
    Origin.PEER: (Metric.STAGED_PEER_FILES, Metric.STAGED_PEER_BYTES),
}


class WholeLoads:
    """Loads of whole files, one for a row. The caller holds its own lock.

    `limit`: bytes of the largest file that is staged whole. `left_alone`: rows that are not prefetched now. `tiers`
    says which disk tiers may be read. `answer` sends an answer to a server.
    """

    def __init__(
        self, pool: ExtentPool, queue: ReadQueue, *, index: Index, columns: Columns, metrics: memoryview, ring: Ring,
        source: Source, answer: Callable[[Answer], None], left_alone: LeftAlone, tiers: Tiers, lanes: LoadLanes,
        block: int = BLOCK, young: YoungFiles | None = None, kept: KeptRows | None = None,
    ) -> None:  # fmt: skip
        self._pool, self._queue = pool, queue
        self._index, self._columns, self._ring, self._source = index, columns, ring, source
        self._metrics, self._answer = metrics, answer
        self._block = block
        self.left_alone, self._tiers, self._lanes = left_alone, tiers, lanes
        self._young, self._kept = young, kept
        self._loads: dict[int, Load] = {}  # by row
        self.ended: deque[int] = deque()  # rows whose loads have ended; taken by `StagerState`
        self.limit = 0

    # ---- begin --------------------------------------------------------------------------------------------

    def of(self, row: int) -> Load | None:
        """The load of the row that is under way."""
        return self._loads.get(row)

    def begin_prefetch(self, row: int, node: int | None = None) -> Load | None:
        """Begin to stage a row for the supervisor, from `node` or here; nothing of the load is queued. None when no
        load begins: then an event says how the fetch ended, now or at the end of the load under way."""
        if not self._index.n_dirs <= row < self._index.n:
            return None
        if row in self._loads:
            self._metrics[Metric.FETCHES_DONE] += 1
            if self._loads[row].stuck:
                self._ring.put(Event.STUCK, row)
            return None
        if int(self._columns.tier[row]) == Tier.RAM:
            self.fetch_ended(row, Event.STAGED, self._source.size(row))
        elif self._columns.stale[row]:
            self.fetch_ended(row, Event.FAILED, errno.ESTALE)
        elif (load := self._begin(row, prefetch=True, node=node)) is not None:
            return load
        else:
            self._metrics[Metric.NO_ROOM] += 1
            self.fetch_ended(row, Event.FAILED, errno.ENOSPC)
        return None

    def fetch_ended(self, row: int, event: Event, value: int) -> None:
        """Report how a fetch without a load ended."""
        self._metrics[Metric.FETCHES_DONE] += 1
        self._ring.put(event, row, value)

    def begin_demanded(self, row: int, node: int | None = None) -> Load | None:
        """Begin to stage a row for a server, from `node` or here; the caller queues the blocks that the server waits
        for. None when the row may not or cannot be staged whole."""
        load = self._begin(row, prefetch=False, node=node)
        if load is not None and len(load.blocks) > 1:
            self._queue.follow(load)
        return load

    def reads_copy(self, row: int) -> bool:
        """True where a load of the row would be read from its copy on disk, but for the choice of lanes."""
        tier = int(self._columns.disk[row])
        return bool(tier) and tier not in self._tiers and self._source.size(row) <= self.limit

    def load_to_lease(self, row: int, *, urgent: bool) -> bool:
        """Load a row that is not staged, or join the load under way, for another node. False when that may not be.
        Raises NoRoom."""
        load = self._loads.get(row)
        if load is None:
            if not self._columns.disk[row] and self._columns.holder[row] != HOME_HERE:
                return False
            load = self._begin(row, prefetch=False, node=None)
            if load is None:
                if self._source.size(row) <= self.limit:
                    raise NoRoom
                return False
            if not urgent:
                self._queue.queue(load)
        elif load.from_peer is not None or load.failed or load.version != self._columns.version[row]:
            return False
        if urgent:
            self._queue.lease(load)
        return True

    def _begin(self, row: int, *, prefetch: bool, node: int | None) -> Load | None:
        # First: the size is that of this version, or the load is not published.
        version = int(self._columns.version[row])
        size = self._source.size(row)
        if size > self.limit:
            return None
        try:
            extent = self._pool.allocate(size)
        except NoRoom:
            return None
        from_disk, passed_disk = int(self._columns.disk[row]), 0
        bypassed = from_disk in self._tiers
        if from_disk and not bypassed and not self._lanes.reads_copy(size, from_disk, prefetch=prefetch):
            from_disk, passed_disk = 0, from_disk
        if from_disk and not self._tiers.may_read(from_disk):
            from_disk = 0
        load = Load(
            row, 0, size, extent, True, SharedOpen(self._source, row), version, from_disk=from_disk, prefetch=prefetch,
            # Copies on disk, and those of other nodes, are verified whole before any byte of them is used.
            from_peer=node, block=max(size, 1) if from_disk or node is not None else self._block,
            passed_disk=passed_disk, unconfirmed=bool(from_disk) and self._is_unconfirmed(row),
        )  # fmt: skip
        if node is not None:
            load.blocks[0], load.running = RUNNING, 1  # not by a worker
        self._loads[row] = load
        self._lanes.begin(load)
        return load

    def _is_unconfirmed(self, row: int) -> bool:
        return self._kept is not None and bool(self._kept.unconfirmed[row])

    # ---- other nodes, and what hangs ----------------------------------------------------------------------

    def arrived(self, load: Load, checksum: int, took_ns: int) -> None:
        """End a load whose bytes have all come from another node."""
        load.checksum = checksum
        if self._young is not None:
            self._young.note_arrived(load.row, load.version, load.length, checksum)
        self.block_ended(load, 0, 0, took_ns)
        self.finish(load)

    def read_source(self, load: Load, *, anew: bool) -> None:
        """Go on with a load from the source; `anew`: in another extent, as the load's own may still be written to."""
        load.from_peer, load.from_disk = None, 0
        self._go_on(load, self._block, anew=anew)

    def read_copy(self, load: Load, *, anew: bool) -> None:
        """Read the copy on disk after all, which was passed for the source; `anew`: as for `read_source`."""
        load.from_disk, load.passed_disk = load.passed_disk, 0
        load.unconfirmed = self._is_unconfirmed(load.row)
        self._go_on(load, max(load.length, 1), anew=anew)
        if not load.prefetch:
            self._queue.lease(load)  # at once, also where only another node waits for it

    def _go_on(self, load: Load, block: int, *, anew: bool) -> None:
        """Read all of a load again, from another place, in blocks of that size."""
        load.running = 0
        load.divide(block)
        self._lanes.begin(load)
        if anew:
            try:
                load.arena = self._pool.allocate(load.length)
            except NoRoom:
                load.arena = NOWHERE
                self._metrics[Metric.NO_ROOM] += 1
                self._fail(load, errno.ENOSPC)
                self.finish(load)
                return
        for waiter in reversed(load.waiters):
            self._queue.demand(load, load.blocks_of(waiter.start, waiter.end), first=True)
        if load.prefetch:
            self._queue.queue(load)
        elif len(load.blocks) > 1:
            self._queue.follow(load)

    def is_stuck(self, load: Load) -> None:
        """Note that the source does not answer: the load goes on, but nothing else waits for it."""
        if load.stuck:
            return
        load.stuck = True
        if not load.whole:
            return
        self.left_alone.hung(load.row)
        if load.prefetch:
            self._ring.put(Event.STUCK, load.row)

    def disk_hangs(self, load: Load, worker: Worker) -> None:
        """Read the source instead, into another extent: the worker may still write this one."""
        worker.lost, worker.load = load.arena, None
        self.read_source(load, anew=True)
        self._queue.lease(load)  # at once, also where only another node waits for it

    def source_hangs(self, load: Load, worker: Worker) -> None:
        """Read the copy on disk instead, as `disk_hangs`. The worker has the file, which it may be opening."""
        worker.lost, worker.load = load.arena, None
        load.file = SharedOpen(self._source, load.row)
        self._lanes.source_hangs(1)
        self.read_copy(load, anew=True)

    def source_returned(self) -> None:
        """Note that a read of the source has ended whose load has gone on from its copy."""
        self._lanes.source_hangs(-1)

    # ---- end ----------------------------------------------------------------------------------------------

    def block_ended(self, load: Load, block: int, error: int, took_ns: int) -> bool:
        """Note that a block was read, or not, in how much time, and answer; True when it was the load's last."""
        load.running -= 1
        if error:
            if error != errno.ESTALE:
                self._metrics[Metric.SOURCE_ERRORS] += 1
                self._lanes.source_failed()
            if error != errno.ESTALE and self.has_copy(load):
                self.read_copy(load, anew=False)
                return False
            self._fail(load, error)
        else:
            self._count(load, load.size_of(block), took_ns)  # first: who is answered may look at the counts
        if not load.failed:
            load.blocks[block] = DONE
            load.left -= 1
            waiting = load.waiters
            load.waiters = [w for w in waiting if not load.ready(w.start, w.end)]
            # Under the lock: a grace request that is sent after these extents were given up must come after the
            # answers that name them, or the server would pass the grace before it reads those answers.
            for w in waiting:
                if load.ready(w.start, w.end):
                    at = load.arena + w.start - load.start
                    self._answer(Answer(w.id, 0, at, w.end - w.start, load.serve(w.end - w.start)))
        return load.running == 0 and (load.failed or load.left == 0)

    def has_copy(self, load: Load) -> bool:
        """True for a load of one block whose copy on disk was passed for the source, and is still there. True means
        that the copy is read now: the tier counts that."""
        disk, row = load.passed_disk, load.row
        there = disk and self._columns.disk[row] == disk and self._columns.version[row] == load.version
        return bool(there) and len(load.blocks) == 1 and self._tiers.may_read(disk)

    def give_up(self, load: Load, error: int) -> None:
        """Answer all that wait for a load with an error."""
        self._fail(load, error)

    def _fail(self, load: Load, error: int) -> None:
        load.failed, load.error = True, error
        for waiter in load.waiters:
            self._answer(Answer(waiter.id, error, 0, 0))
        load.waiters.clear()

    def _count(self, load: Load, size: int, took_ns: int) -> None:
        metrics = self._metrics
        if not load.from_disk and load.from_peer is None:
            metrics[Metric.SOURCE_READ_BYTES] += size
        if len(load.blocks) > 1 or not load.whole:
            if load.origin() == Origin.SOURCE:
                self._lanes.block_read(size, took_ns / 1e9)
            return  # the cost of a file that is read at once is measured on such files alone
        self._lanes.end(load, took_ns / 1e9)
        fetches, fetched, ns, took = _FETCHES[load.origin()]
        metrics[fetches] += 1
        metrics[fetched] += size
        metrics[ns] += took_ns
        metrics[took + bucket_of(took_ns)] += 1

    def finish(self, load: Load) -> None:
        """Publish a complete staged copy, or clear away a failed one."""
        row = load.row
        del self._loads[row]
        self._lanes.end(load)
        self.ended.append(row)
        if load.prefetch:
            self._metrics[Metric.FETCHES_DONE] += 1
        if load.failed or self._columns.stale[row] or self._columns.version[row] != load.version:
            if load.arena != NOWHERE:
                self._pool.retire(load.arena)
            self._ring.put(Event.FAILED, row, load.error or errno.ESTALE)
            return
        columns = self._columns
        columns.slot[row] = load.arena
        self._count_staged(load, again=bool(columns.check[row]))
        if not load.from_disk:
            columns.check[row] = load.checksum
        columns.tier[row] = Tier.RAM
        if load.stuck or self.left_alone.any:
            self.left_alone.worked(row)
        if load.length and load.origin() == Origin.SOURCE and columns.holder[row] not in (0, HOME_HERE):
            self._ring.put(Event.STRAY, row, load.length)  # before: it may not be held for long
        self._ring.put(Event.STAGED, row, load.length)

    def _count_staged(self, load: Load, *, again: bool) -> None:
        """Count a copy that is staged whole. `again`: one of the same version had been staged before."""
        metrics, origin = self._metrics, load.origin()
        files, size = _STAGED[origin]
        for metric, count in (
            (Metric.STAGED_FILES, 1), (Metric.STAGED_BYTES, load.length), (files, 1), (size, load.length)
        ):  # fmt: skip
            metrics[metric] += count
        metrics[Metric.SECOND_READS] += again and origin == Origin.SOURCE
