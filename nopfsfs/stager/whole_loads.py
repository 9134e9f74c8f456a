"""Loads of files that are staged whole, from their begin to their publication.

`WholeLoads` also notes the ends of blocks of range loads, which begin in `range_loads.py`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import HOME_HERE, Columns, Metric, Tier
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, Origin
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.left_alone import LeftAlone, Tiers
from nopfsfs.stager.load import BLOCK, DONE, NOWHERE, RUNNING, Load, Notes, SharedOpen
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.source import Source

_SOURCE_FETCHES = (Metric.SOURCE_FETCHES, Metric.SOURCE_FETCHED_BYTES, Metric.SOURCE_FETCH_NS)
_DISK_FETCHES = (Metric.DISK_FETCHES, Metric.DISK_FETCHED_BYTES, Metric.DISK_FETCH_NS)
_PEER_FETCHES = (Metric.PEER_FETCHES, Metric.PEER_FETCHED_BYTES, Metric.PEER_FETCH_NS)


class WholeLoads:
    """Loads of whole files, one for a row. The caller holds its own lock.

    `limit`: bytes of the largest file that is staged whole. `left_alone`: rows that are not prefetched now. `tiers`
    says which disk tiers may be read. `answer` sends an answer to a server.
    """

    def __init__(
        self, pool: ExtentPool, queue: ReadQueue, *, index: Index, columns: Columns, gauge: memoryview, ring: Ring,
        source: Source, answer: Callable[[Answer], None], left_alone: LeftAlone, tiers: Tiers, block: int = BLOCK,
        young: Notes | None = None,
    ) -> None:  # fmt: skip
        self._pool, self._queue = pool, queue
        self._index, self._columns, self._ring, self._source = index, columns, ring, source
        self._gauge, self._answer = gauge, answer
        self._block = block
        self.left_alone, self._tiers = left_alone, tiers
        self._young = young
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
            self._gauge[Metric.FETCHES_DONE] += 1
            if self._loads[row].stuck:
                self._ring.put(Event.STUCK, row)
            return None
        if self._columns.tier[row] == Tier.RAM:
            self.fetch_ended(row, Event.STAGED, self._source.size(row))
        elif self._columns.stale[row]:
            self.fetch_ended(row, Event.FAILED, errno.ESTALE)
        elif (load := self._begin(row, prefetch=True, node=node)) is not None:
            return load
        else:
            self._gauge[Metric.NO_ROOM] += 1
            self.fetch_ended(row, Event.FAILED, errno.ENOSPC)
        return None

    def fetch_ended(self, row: int, event: Event, value: int) -> None:
        """Report how a fetch without a load ended."""
        self._gauge[Metric.FETCHES_DONE] += 1
        self._ring.put(event, row, value)

    def begin_demanded(self, row: int, node: int | None = None) -> Load | None:
        """Begin to stage a row for a server, from `node` or here; the caller queues the blocks that the server waits
        for. None when the row may not or cannot be staged whole."""
        load = self._begin(row, prefetch=False, node=node)
        if load is not None and len(load.blocks) > 1:
            self._queue.follow(load)
        return load

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
        from_disk = int(self._columns.disk[row])
        if from_disk and not self._tiers.may_read(from_disk):
            from_disk = 0
        load = Load(
            row, 0, size, extent, True, SharedOpen(self._source, row), version, from_disk=from_disk, prefetch=prefetch,
            # Copies on disk, and those of other nodes, are verified whole before any byte of them is used.
            from_peer=node, block=max(size, 1) if from_disk or node is not None else self._block,
        )  # fmt: skip
        if node is not None:
            load.blocks[0], load.running = RUNNING, 1  # not by a worker
        self._loads[row] = load
        return load

    # ---- other nodes, and what hangs ----------------------------------------------------------------------

    def arrived(self, load: Load, checksum: int, took_ns: int) -> None:
        """End a load whose bytes have all come from another node."""
        load.checksum = checksum
        if self._young is not None:
            self._young.note_whole(load.row, load.version, load.length, checksum)
        self.block_ended(load, 0, 0, took_ns)
        self.finish(load)

    def read_source(self, load: Load, *, anew: bool) -> None:
        """Go on with a load from the source; `anew`: in another extent, as the load's own may still be written to."""
        load.from_peer, load.from_disk, load.running = None, 0, 0
        load.divide(self._block)
        if anew:
            try:
                load.arena = self._pool.allocate(load.length)
            except NoRoom:
                load.arena = NOWHERE
                self._gauge[Metric.NO_ROOM] += 1
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

    def disk_hangs(self, load: Load) -> None:
        """Read the source instead, into another extent: the disk may still write this one."""
        self.read_source(load, anew=True)
        self._queue.lease(load)  # at once, also where only another node waits for it

    # ---- end ----------------------------------------------------------------------------------------------

    def block_ended(self, load: Load, block: int, error: int, took_ns: int) -> bool:
        """Note that a block was read, or not, in how much time, and answer; True when it was the load's last."""
        load.running -= 1
        if error:
            self._fail(load, error)
            if error != errno.ESTALE:
                self._gauge[Metric.SOURCE_ERRORS] += 1
        elif not load.failed:
            load.blocks[block] = DONE
            load.left -= 1
            waiting = load.waiters
            load.waiters = [w for w in waiting if not load.ready(w.start, w.end)]
            # Under the lock: a grace request that is sent after these extents were given up must come after the
            # answers that name them, or the server would pass the grace before it reads those answers.
            for w in waiting:
                if load.ready(w.start, w.end):
                    at = load.arena + w.start - load.start
                    self._answer(Answer(w.id, 0, at, w.end - w.start, load.origin()))
        if not error:
            self._count(load, load.size_of(block), took_ns)
        return load.running == 0 and (load.failed or load.left == 0)

    def _fail(self, load: Load, error: int) -> None:
        load.failed, load.error = True, error
        for waiter in load.waiters:
            self._answer(Answer(waiter.id, error, 0, 0))
        load.waiters.clear()

    def _count(self, load: Load, size: int, took_ns: int) -> None:
        gauge = self._gauge
        if not load.from_disk and load.from_peer is None:
            gauge[Metric.SOURCE_READ_BYTES] += size
        if len(load.blocks) > 1 or not load.whole:
            return  # the cost of a file that is read at once is measured on such files alone
        kinds = _DISK_FETCHES if load.from_disk else _SOURCE_FETCHES if load.from_peer is None else _PEER_FETCHES
        fetches, fetched, ns = kinds
        gauge[fetches] += 1
        gauge[fetched] += size
        gauge[ns] += took_ns

    def finish(self, load: Load) -> None:
        """Publish a complete staged copy, or clear away a failed one."""
        row = load.row
        del self._loads[row]
        self.ended.append(row)
        if load.prefetch:
            self._gauge[Metric.FETCHES_DONE] += 1
        if load.failed or self._columns.stale[row] or self._columns.version[row] != load.version:
            if load.arena != NOWHERE:
                self._pool.retire(load.arena)
            self._ring.put(Event.FAILED, row, load.error or errno.ESTALE)
            return
        columns = self._columns
        columns.slot[row] = load.arena
        if not load.from_disk:
            columns.check[row] = load.checksum
        columns.tier[row] = Tier.RAM
        if load.stuck or self.left_alone.any:
            self.left_alone.worked(row)
        self._gauge[Metric.STAGED_FILES] += 1
        self._gauge[Metric.STAGED_BYTES] += load.length
        if load.length and load.origin() == Origin.SOURCE and columns.holder[row] not in (0, HOME_HERE):
            self._ring.put(Event.STRAY, row, load.length)  # before: it may not be held for long
        self._ring.put(Event.STAGED, row, load.length)
