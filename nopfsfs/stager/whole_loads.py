"""Loads from their begin to their end: where files that are staged whole are read from, who is told when blocks arrive,
and when a file is published.

Everything here is called with the desk's lock held. Range blocks begin elsewhere (`ranges.py`), and are told of here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import HOME_HERE, Columns, Metric, Tier
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, Origin
from nopfsfs.stager.block_reader import Notes
from nopfsfs.stager.leases import Leases
from nopfsfs.stager.left_alone import LeftAlone, Tiers
from nopfsfs.stager.load import DONE, NOWHERE, RUNNING, Load, SharedOpen
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.remote_fetches import RemoteFetches
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.source import Source

_SOURCE_FETCHES = (Metric.SOURCE_FETCHES, Metric.SOURCE_FETCHED_BYTES, Metric.SOURCE_FETCH_NS)
_DISK_FETCHES = (Metric.DISK_FETCHES, Metric.DISK_FETCHED_BYTES, Metric.DISK_FETCH_NS)
_PEER_FETCHES = (Metric.PEER_FETCHES, Metric.PEER_FETCHED_BYTES, Metric.PEER_FETCH_NS)


class WholeLoads:
    """See the module. `allocate` gives an extent or raises NoRoom, `retire` takes it back after a grace, `free` at
    once; `limit` is the size of the largest file that is staged whole. `left_alone` are rows that nobody prefetches
    now, `tiers` says which disk tiers may be read. `peering` and `lending` are set before first use."""

    peering: RemoteFetches
    lending: Leases

    def __init__(
        self, *, index: Index, columns: Columns, gauge: memoryview, ring: Ring, source: Source, work: ReadQueue,
        allocate: Callable[[int], int], retire: Callable[[int], None], free: Callable[[int], None],
        answer: Callable[[Answer], None], block: int, left_alone: LeftAlone, tiers: Tiers,
        hangs: Callable[[int], bool], young: Notes | None = None,
    ) -> None:  # fmt: skip
        """`hangs(row)`: whether nothing is read any more of the device where the row is, though others are."""
        self._index, self._columns, self._ring, self._source, self._work = index, columns, ring, source, work
        self._gauge, self._answer = gauge, answer
        self._allocate, self._retire, self.free = allocate, retire, free
        self._block = block
        self.left_alone, self._tiers, self._hangs = left_alone, tiers, hangs
        self._young = young
        self._loads: dict[int, Load] = {}  # by row
        self.limit = 0

    # ---- begin --------------------------------------------------------------------------------------------

    def fetch(self, rows: Iterable[int]) -> None:
        """Queue rows to be staged, in this order."""
        here: list[int] = []
        for row in rows:
            node = self.peering.node_of(row)
            if node is None:
                here.append(row)
            else:
                self.peering.queue(row, node)
        self._work.fetch(here)
        self.peering.send_next()

    def cancel(self) -> None:
        """Forget the queued rows that nobody has begun."""
        for row in (*self._work.cancel(), *self.peering.cancel()):
            self._fetch_ended(row, Event.FAILED, errno.ECANCELED)

    def of(self, row: int) -> Load | None:
        """The load of the row that is under way."""
        return self._loads.get(row)

    def begin_demanded(self, row: int) -> Load | None:
        """A load that somebody is about to `wait` for; None when the row may not or cannot be staged whole."""
        load = self._begin_whole(row, self._source.size(row), prefetch=False, node=self.peering.node_of(row))
        if load is not None and len(load.blocks) > 1:
            self._work.follow(load)
        return load

    def wait(self, load: Load, blocks: Iterable[int]) -> None:
        """A server waits for these blocks of a load."""
        if load.from_peer is None:
            self._work.demand(load, blocks)
        else:
            self.peering.demand(load)

    def begin_prefetch(self, row: int) -> Load | None:
        """Begin to stage a row from here, unless it is another node's by now."""
        node = self.peering.node_of(row)
        if node is None:
            if row not in self._loads and (row in self.left_alone or self._hangs(row)):
                self._fetch_ended(row, Event.FAILED, errno.EAGAIN)
                return None
            return self._begin_fetch(row, None)
        self.peering.queue(row, node)
        self.peering.send_next()
        return None

    def _begin_fetch(self, row: int, node: int | None) -> Load | None:
        """Begin to stage a row; or say at once how it ended, unless the end of a load in flight will say it."""
        if not self._index.n_dirs <= row < self._index.n:
            return None
        if row in self._loads:
            self._gauge[Metric.FETCHES_DONE] += 1
            if self._loads[row].stuck:
                self._ring.put(Event.STUCK, row)
            return None
        size = self._source.size(row)
        if self._columns.tier[row] == Tier.RAM:
            event, value = Event.STAGED, size
        elif self._columns.stale[row]:
            event, value = Event.FAILED, errno.ESTALE
        else:
            load = self._begin_whole(row, size, prefetch=True, node=node)
            if load is not None:
                return load
            self._gauge[Metric.NO_ROOM] += 1
            event, value = Event.FAILED, errno.ENOSPC
        self._fetch_ended(row, event, value)
        return None

    def _fetch_ended(self, row: int, event: Event, value: int) -> None:
        self._gauge[Metric.FETCHES_DONE] += 1
        self._ring.put(event, row, value)

    def _begin_whole(self, row: int, size: int, *, prefetch: bool, node: int | None) -> Load | None:
        """A new whole load of a row, nothing of it queued; None when it may not or cannot be staged whole. It is asked
        of `node`, or read here."""
        if size > self.limit:
            return None
        try:
            arena = self._allocate(size)
        except NoRoom:
            return None
        version = int(self._columns.version[row])
        from_disk = int(self._columns.disk[row])
        if from_disk and not self._tiers.may_read(from_disk):
            from_disk = 0
        load = Load(
            row, 0, size, arena, True, SharedOpen(self._source, row), version, from_disk=from_disk, prefetch=prefetch,
            # Copies on disk, and those of other nodes, are verified whole before any byte of them is used.
            from_peer=node, block=max(size, 1) if from_disk or node is not None else self._block,
        )  # fmt: skip
        if node is not None:
            load.blocks[0], load.running = RUNNING, 1  # not by a worker
        self._loads[row] = load
        return load

    # ---- other nodes --------------------------------------------------------------------------------------

    def begin_from_peer(self, row: int, node: int) -> Load | None:
        """See `peering.Loads`, as for the next four."""
        return self._begin_fetch(row, node)

    def arrived(self, load: Load, checksum: int, took_ns: int) -> None:
        load.checksum = checksum
        if self._young is not None:
            self._young.note_whole(load.row, load.version, load.length, checksum)
        self.block_ended(load, 0, 0, took_ns)
        self.finish(load)

    def read_source(self, load: Load, *, anew: bool) -> None:
        load.from_peer, load.from_disk, load.running = None, 0, 0
        load.divide(self._block)
        if anew:
            try:
                load.arena = self._allocate(load.length)
            except NoRoom:
                load.arena = NOWHERE
                self._gauge[Metric.NO_ROOM] += 1
                self._fail(load, errno.ENOSPC)
                self.finish(load)
                return
        for waiter in reversed(load.waiters):
            self._work.demand(load, load.blocks_of(waiter.start, waiter.end), first=True)
        if load.prefetch:
            self._work.queue(load)
        elif len(load.blocks) > 1:
            self._work.follow(load)

    def fetch_from_source(self, rows: Iterable[int]) -> None:
        self._work.fetch(rows)

    def load_to_lend(self, row: int, *, urgent: bool) -> bool:
        """See `lending.Loads`."""
        load = self._loads.get(row)
        if load is None:
            if not self._columns.disk[row] and self._columns.holder[row] != HOME_HERE:
                return False
            size = self._source.size(row)
            load = self._begin_whole(row, size, prefetch=False, node=None)
            if load is None:
                if size <= self.limit:
                    raise NoRoom
                return False
            if not urgent:
                self._work.queue(load)
        elif load.from_peer is not None or load.failed or load.version != self._columns.version[row]:
            return False
        if urgent:
            self._work.lend(load)
        return True

    # ---- what hangs ---------------------------------------------------------------------------------------

    def is_stuck(self, load: Load) -> None:
        """The source does not answer: the load goes on, but nothing else waits for it."""
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
        self._work.free_slot(load)
        self.read_source(load, anew=True)
        self._work.lend(load)  # at once, also where only another node waits for it

    # ---- end ----------------------------------------------------------------------------------------------

    def block_ended(self, load: Load, block: int, error: int, took_ns: int) -> bool:
        """Note the block's end, and what reading it took, and answer; True when it was the load's last."""
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
            # answers that name them, or the server would let go of bytes that it is yet to be told of.
            for w in waiting:
                if load.ready(w.start, w.end):
                    at = load.arena + w.start - load.start
                    self._answer(Answer(w.id, 0, at, w.end - w.start, load.origin()))
        if not error:
            self._count(load, min(load.block, load.length - block * load.block), took_ns)
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
            return  # what a file costs that is read at once is seen from those that were
        kinds = _DISK_FETCHES if load.from_disk else _SOURCE_FETCHES if load.from_peer is None else _PEER_FETCHES
        fetches, fetched, ns = kinds
        gauge[fetches] += 1
        gauge[fetched] += size
        gauge[ns] += took_ns

    def finish(self, load: Load) -> None:
        """Publish a complete staged copy, or clear away a failed one."""
        row = load.row
        del self._loads[row]
        if load.prefetch:
            self._gauge[Metric.FETCHES_DONE] += 1
        self._work.ended(load)
        if load.failed or self._columns.stale[row] or self._columns.version[row] != load.version:
            if load.arena != NOWHERE:
                self._retire(load.arena)
            self._ring.put(Event.FAILED, row, load.error or errno.ESTALE)
        else:
            columns = self._columns
            columns.slot[row] = load.arena
            if not load.from_disk:
                columns.check[row] = load.checksum
            columns.tier[row] = Tier.RAM
            if load.stuck or self.left_alone.any:
                self.left_alone.worked(row)
            self._gauge[Metric.STAGED_FILES] += 1
            self._gauge[Metric.STAGED_BYTES] += load.length
            if load.length and load.origin() == Origin.SOURCE and self._columns.holder[row] not in (0, HOME_HERE):
                self._ring.put(Event.STRAY, row, load.length)  # before: it may not be held for long
            self._ring.put(Event.STAGED, row, load.length)
        self.lending.loaded(row)

