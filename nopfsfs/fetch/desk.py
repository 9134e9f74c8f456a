"""The desk of the stager: what is to be read from the source, by whom, and where it goes.

It owns the arena, the loads in flight, and the stager's columns, under one lock that is never held over I/O. Demands
overtake prefetches; a demand and a prefetch of one file share one load, and so one open. Nothing here waits
for the pusher: a demand that finds no room is answered "no room", and the server then reads the source itself.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import xxhash

from nopfsfs.dataset.index import Index
from nopfsfs.fetch.backings import Backings
from nopfsfs.fetch.grace import Grace
from nopfsfs.fetch.loads import BLOCK, DONE, PENDING, RANGE_BLOCK, RUNNING, Load, OpenSource, Waiter
from nopfsfs.fetch.ranges import Ranges
from nopfsfs.fetch.source import Changed, Source, read_exactly
from nopfsfs.fetch.wire import Answer, Demand, Origin
from nopfsfs.tiers.arena import Arena, NoRoom
from nopfsfs.tiers.columns import Columns, Gauge, Gauges, Tier
from nopfsfs.tiers.ring import Event, Ring

log = logging.getLogger(__name__)
_SOURCE_FETCHES = (Gauge.SOURCE_FETCHES, Gauge.SOURCE_FETCHED_BYTES, Gauge.SOURCE_FETCH_NS)
_DISK_FETCHES = (Gauge.DISK_FETCHES, Gauge.DISK_FETCHED_BYTES, Gauge.DISK_FETCH_NS)
Job = tuple[Load, int]


class DiskReader(Protocol):
    """What the desk needs of the disk tiers."""

    def read(self, disk: int, row: int, into: memoryview) -> None: ...


class Desk:
    """See the module. Public methods may be called from any thread unless they say otherwise."""

    def __init__(
        self, *, index: Index, columns: Columns, gauges: Gauges, ring: Ring, arena: Arena, source: Source,
        disks: DiskReader, concurrency: int, answer: Callable[[Answer], None], ask_grace: Callable[[int], bool],
        changed: Callable[[int], None], block: int = BLOCK, range_block: int = RANGE_BLOCK,
    ) -> None:  # fmt: skip
        self._index, self._columns, self._ring, self._arena = index, columns, ring, arena
        self._source, self._disks = source, disks
        self._gauge = gauges.block
        self._answer, self._changed = answer, changed
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # anything to read
        self._urgent = threading.Condition(self._lock)  # a demand, for the threads that keep free for demands
        self._demands: deque[Job] = deque()
        self._prefetches: deque[int] = deque()  # rows
        self._followups: deque[Job] = deque()  # further blocks of loads begun, and read-ahead
        self._loads: dict[int, Load] = {}  # whole loads by row
        self._ranges = Ranges(
            source, allocate=self._allocate, retire=self._retire, close=self._close_later, block=range_block
        )
        self._closing: list[OpenSource] = []  # closed by a worker: closing a file may wait for the source
        self._block = block
        self._pins: dict[int, tuple[int, int]] = {}  # row: (how often, slot)
        self._retire_when_unpinned: set[int] = set()
        self._grace: Grace[Callable[[], None]] = Grace(ask_grace, lambda done: done())
        self._give_up_backing: Callable[[int], None] = lambda row: None
        self._concurrency = concurrency
        self._prefetching = 0
        self._whole_limit = 0
        self._stopped = False

    # ---- orders -------------------------------------------------------------------------------------------

    def fetch(self, rows: list[int]) -> None:
        """Queue rows to be staged, in this order."""
        with self._work:
            self._prefetches.extend(rows)
            self._work.notify(min(len(rows), self._concurrency))

    def cancel(self) -> None:
        """Forget the queued rows that nobody has begun."""
        with self._lock:
            while self._prefetches:
                self._ring.put(Event.FAILED, self._prefetches.popleft(), errno.ECANCELED)
                self._gauge[Gauge.FETCHES_DONE] += 1

    def set_budget(self, budget: int, whole_limit: int, range_budget: int) -> None:
        """Change the arena's budget, the size of the largest file that is staged whole, and how much of the arena
        blocks of files read by ranges may take; bytes. Blocks make room at once, staged files when they are evicted."""
        with self._lock:
            self._arena.budget = budget
            self._whole_limit = whole_limit
            self._ranges.resize(range_budget)

    def evict(self, rows: list[int]) -> None:
        """Free the staged copies of these rows in the arena."""
        with self._lock:
            for row in rows:
                if not self._evict(row):
                    self._ring.put(Event.EVICTED, row)  # of a stager that died before it could say so

    def demand(self, demand: Demand) -> None:
        """Answer a READ of the server, now or when its bytes have arrived."""
        with self._lock:
            answer = self._serve(demand)
            if answer is not None:
                self._answer(answer)  # under the lock: see _finish_block
            if 0 <= demand.row < self._index.n and demand.offset >= 0:
                self._read_ahead(demand.row, demand.offset)

    def grace_passed(self, number: int) -> None:
        with self._lock:
            self._grace.passed(number)

    def pin(self, row: int) -> memoryview | None:
        """The staged bytes of a row, safe from reuse until `unpin`; None when it is not staged."""
        with self._lock:
            slot = int(self._columns.slot[row])
            count, pinned = self._pins.get(row, (0, slot))
            if self._columns.tier[row] != Tier.RAM or pinned != slot:
                return None
            self._pins[row] = count + 1, slot
            return self._arena.view[slot : slot + self._source.size(row)]

    def unpin(self, row: int) -> None:
        with self._lock:
            count, slot = self._pins[row]
            self._pins[row] = count - 1, slot
            if count == 1:
                del self._pins[row]
                if row in self._retire_when_unpinned:
                    self._retire_when_unpinned.discard(row)
                    self._retire(slot)

    def forget(self, row: int) -> int:
        """Withdraw everything that is held of a row whose source changed; the disk tier whose copy is to be removed."""
        with self._lock:
            self._evict(row)
            disk = int(self._columns.disk[row])
            self._columns.disk[row] = 0
            self._give_up_backing(row)
            self._ranges.forget(row)
        return disk

    def publish_disk(self, row: int, number: int, version: int) -> bool:
        """Say that disk tier `number` holds the row; False when the row has changed since it was written."""
        with self._lock:
            if self._columns.version[row] != version or self._columns.stale[row]:
                return False
            self._columns.disk[row] = number
            self._ring.put(Event.ON_DISK, row, number)
            return True

    def publish_backing(self, row: int, tier: int, number: int) -> bool:
        """Say that the row's copy on disk tier `tier` is registered as `number`; False when there is no such copy any
        more."""
        with self._lock:
            if self._columns.disk[row] != tier or self._columns.version[row] or self._columns.stale[row]:
                return False
            self._columns.backing[row] = number
            self._ring.put(Event.BACKED, row, 1)
            return True

    def withdraw_disk(self, row: int) -> int:
        """No longer use the row's copy on disk; the tier that holds it, 0 for none."""
        with self._lock:
            number = int(self._columns.disk[row])
            self._columns.disk[row] = 0
            self._give_up_backing(row)
            return number

    def publish(self, event: Event, row: int, value: int = 0) -> None:
        """Tell the supervisor; the ring has one writer at a time, under the desk's lock."""
        with self._lock:
            self._ring.put(event, row, value)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._work.notify_all()
            self._urgent.notify_all()

    # ---- registered copies --------------------------------------------------------------------------------

    def keep_backings(self, backings: Backings) -> None:
        """Withdraw there what is registered of a row, with its copy on disk, and what is registered now."""
        with self._lock:
            self._give_up_backing = backings.withdraw
            backings.take_over()

    def after_grace(self, what: Callable[[], None]) -> None:
        """Call `what` when all servers have passed a grace; with the lock held, as this is called."""
        self._grace.retire(what)

    # ---- demands (lock held) ------------------------------------------------------------------------------

    def _serve(self, demand: Demand) -> Answer | None:
        row, start = demand.row, demand.offset
        if not self._index.n_dirs <= row < self._index.n or start < 0:
            return Answer(demand.id, errno.EIO, 0, 0)
        size = self._source.size(row)
        end = min(start + demand.length, size)
        if start >= end:
            return Answer(demand.id, 0, 0, 0)
        if self._columns.stale[row]:
            return Answer(demand.id, errno.ESTALE, 0, 0)
        if self._columns.tier[row] == Tier.RAM:
            return Answer(demand.id, 0, int(self._columns.slot[row]) + start, end - start, Origin.RAM)
        load = self._loads.get(row) or self._begin_whole(row, size, prefetch=False)
        if load is None:
            load = self._ranges.load(row, start // self._ranges.block, int(self._columns.version[row]))
            if load is None:
                self._gauge[Gauge.NO_ROOM] += 1
                return Answer(demand.id, errno.ENOSPC, 0, 0)
            end = min(end, load.start + load.length)
        if load.failed:
            return Answer(demand.id, load.error, 0, 0)
        if load.version != self._columns.version[row]:
            return Answer(demand.id, errno.ENOSPC, 0, 0)  # begun before the file changed: not its bytes
        if load.ready(start, end):
            return Answer(demand.id, 0, load.arena + start - load.start, end - start, load.origin())
        load.waiters.append(Waiter(demand.id, start, end))
        for block in load.blocks_of(start, end):
            if load.blocks[block] == PENDING:
                self._demands.append((load, block))
        self._work.notify()
        self._urgent.notify()
        return None

    def _begin_whole(self, row: int, size: int, *, prefetch: bool) -> Load | None:
        """A new whole load of a row, its blocks not queued; None when it may not or cannot be staged whole."""
        if size > self._whole_limit:
            return None
        try:
            arena = self._allocate(size)
        except NoRoom:
            return None
        version = int(self._columns.version[row])
        from_disk = int(self._columns.disk[row])
        load = Load(
            row, 0, size, arena, True, OpenSource(self._source, row), version, from_disk=from_disk, prefetch=prefetch,
            # A copy on disk is verified whole before any byte of it is used.
            block=max(size, 1) if from_disk else self._block,
        )  # fmt: skip
        self._loads[row] = load
        if len(load.blocks) > 1:
            self._followups.extend((load, block) for block in range(len(load.blocks)))
            self._work.notify(min(len(load.blocks), self._concurrency))
        return load

    def _allocate(self, size: int) -> int:
        """An extent of the arena. Raises NoRoom."""
        try:
            arena = self._arena.allocate(size)
        except NoRoom:
            # Range blocks above their share make room; the freed memory comes back after a grace, so
            # this one goes without, and the next one finds it.
            if self._ranges.used > self._ranges.budget:
                self._ranges.drop_oldest()
            raise
        self._gauge[Gauge.ARENA_USED] = self._arena.used
        return arena

    def _read_ahead(self, row: int, start: int) -> None:
        """After the answer to a demand for `start`: it may give up the very block that the answer names."""
        for load in self._ranges.ahead(row, start // self._ranges.block, int(self._columns.version[row])):
            self._followups.append((load, 0))
            self._work.notify()

    # ---- eviction (lock held) -----------------------------------------------------------------------------

    def _evict(self, row: int) -> bool:
        """Withdraw the staged copy of a row; whether there was one."""
        if self._columns.tier[row] != Tier.RAM:
            return False
        # Out of use at once, pinned or not: the row's file may have changed.
        slot = int(self._columns.slot[row])
        self._columns.tier[row] = Tier.NONE
        if self._pins.get(row, (0, -1))[1] == slot:
            self._retire_when_unpinned.add(row)
        else:
            self._retire(slot)
        self._gauge[Gauge.EVICTIONS] += 1
        self._ring.put(Event.EVICTED, row, self._source.size(row))
        return True

    def _retire(self, arena: int) -> None:
        self._grace.retire(partial(self._free, arena))

    def _close_later(self, file: OpenSource) -> None:
        self._closing.append(file)
        self._work.notify()

    def _free(self, arena: int) -> None:
        self._arena.free(arena)
        self._gauge[Gauge.ARENA_USED] = self._arena.used
        if self._prefetches:
            self._work.notify()

    # ---- workers ------------------------------------------------------------------------------------------

    def work(self, *, demands_only: bool) -> None:
        """The life of one worker thread, until `stop`."""
        while (work := self._next(demands_only, wait=True)) is not None:
            self._do(*work)

    def run_one(self) -> bool:
        """Do the next thing that is to be done, in this thread; whether there was one."""
        work = self._next(False, wait=False)
        if work is None:
            return False
        self._do(*work)
        return True

    def _next(self, demands_only: bool, *, wait: bool) -> tuple[Job | None, list[OpenSource]] | None:
        """What one worker is to do: a job, and files to close. None: nothing, or, after a wait, no more."""
        wake = self._urgent if demands_only else self._work
        with self._lock:
            while not self._stopped:
                job = self._take(demands_only)
                closing: list[OpenSource] = []
                if not demands_only:
                    closing, self._closing = self._closing, closing
                if job is not None or closing:
                    return job, closing
                if not wait:
                    break
                wake.wait(timeout=60)
        return None

    def _do(self, job: Job | None, closing: list[OpenSource]) -> None:
        if job is not None:
            self._run(*job)
        for file in closing:
            file.close()

    def _take(self, demands_only: bool) -> Job | None:
        for queue in (self._demands,) if demands_only else (self._demands, self._followups):
            while queue:
                load, block = queue.popleft()
                if load.blocks[block] == PENDING and not load.failed:
                    return self._start(load, block)
        if demands_only or self._prefetching >= self._concurrency:
            return None
        while self._prefetches:
            row = self._prefetches.popleft()
            load_or_none = self._begin_prefetch(row)
            if load_or_none is not None:
                return self._start(load_or_none, 0)
        return None

    def _start(self, load: Load, block: int) -> Job:
        load.blocks[block] = RUNNING
        load.running += 1
        return load, block

    def _begin_prefetch(self, row: int) -> Load | None:
        """Begin to stage a row; or say at once how it ended, unless the end of a load in flight will say it."""
        if not self._index.n_dirs <= row < self._index.n:
            return None
        if row in self._loads:
            self._gauge[Gauge.FETCHES_DONE] += 1
            return None
        size = self._source.size(row)
        if self._columns.tier[row] == Tier.RAM:
            event, value = Event.STAGED, size
        elif self._columns.stale[row]:
            event, value = Event.FAILED, errno.ESTALE
        else:
            load = self._begin_whole(row, size, prefetch=True)
            if load is not None:
                self._prefetching += 1
                return load
            self._gauge[Gauge.NO_ROOM] += 1
            event, value = Event.FAILED, errno.ENOSPC
        self._gauge[Gauge.FETCHES_DONE] += 1
        self._ring.put(event, row, value)
        return None

    def _run(self, load: Load, block: int) -> None:
        """Read one block, outside the lock, then tell who waits for it."""
        error: int = 0
        began = time.monotonic_ns()
        try:
            self._read(load, block)
        except Changed:
            error = errno.ESTALE
        except OSError as e:
            error = e.errno or errno.EIO
        except Exception:
            log.exception("reading row %d failed", load.row)
            error = errno.EIO
        last = self._finish_block(load, block, error, time.monotonic_ns() - began)
        if last:
            self._finish_load(load)
        if error == errno.ESTALE:
            try:
                self._changed(load.row)
            except Exception:
                log.exception("refreshing row %d failed", load.row)  # and this thread lives on

    def _read(self, load: Load, block: int) -> None:
        start = block * load.block
        view = self._arena.view[load.arena + start : load.arena + min(load.length, start + load.block)]
        if load.from_disk:
            try:
                self._disks.read(load.from_disk, load.row, view)
                if xxhash.xxh3_64_intdigest(view) == int(self._columns.check[load.row]):
                    return
                self._gauge[Gauge.CORRUPT_COPIES] += 1
                log.error("copy of %r on disk is corrupt; reading the source", self._source.path(load.row))
            except OSError as e:
                self._gauge[Gauge.DISK_ERRORS] += 1
                log.warning("cannot read a copy on disk: %s; reading the source", e)
            load.from_disk = 0
        fd, identity = load.file.ensure()
        read_exactly(fd, identity, view, load.start + start)
        if load.whole and len(load.blocks) == 1:
            load.checksum = xxhash.xxh3_64_intdigest(view)

    def _finish_block(self, load: Load, block: int, error: int, took_ns: int) -> bool:
        """Note the block's end, and what reading it took, and answer; True when it was the load's last."""
        answers: list[Answer] = []
        with self._lock:
            load.running -= 1
            if error:
                load.failed, load.error = True, error
                answers = [Answer(w.id, error, 0, 0) for w in load.waiters]
                load.waiters.clear()
                if error != errno.ESTALE:
                    self._gauge[Gauge.SOURCE_ERRORS] += 1
            elif not load.failed:
                load.blocks[block] = DONE
                load.left -= 1
                waiting = load.waiters
                load.waiters = [w for w in waiting if not load.ready(w.start, w.end)]
                answers = [
                    Answer(w.id, 0, load.arena + w.start - load.start, w.end - w.start, load.origin())
                    for w in waiting
                    if load.ready(w.start, w.end)
                ]
            if not error:
                self._count(load, min(load.block, load.length - block * load.block), took_ns)
            # Under the lock: a grace request that is sent after these extents were given up must come after the
            # answers that name them, or the server would let go of bytes that it is yet to be told of.
            for answer in answers:
                self._answer(answer)
            return load.running == 0 and (load.failed or load.left == 0)

    def _count(self, load: Load, size: int, took_ns: int) -> None:
        gauge = self._gauge
        if not load.from_disk:
            gauge[Gauge.SOURCE_READ_BYTES] += size
        if len(load.blocks) > 1 or not load.whole:
            return  # what a file costs that is read at once is seen from those that were
        fetches, fetched, ns = _DISK_FETCHES if load.from_disk else _SOURCE_FETCHES
        gauge[fetches] += 1
        gauge[fetched] += size
        gauge[ns] += took_ns

    def _finish_load(self, load: Load) -> None:
        """Publish a complete staged copy, or clear away a failed one."""
        if load.whole:
            opens = load.file.opens
            load.file.close()
            if not load.failed and len(load.blocks) > 1:
                load.checksum = xxhash.xxh3_64_intdigest(self._arena.view[load.arena : load.arena + load.length])
        with self._work:
            if load.whole:
                self._gauge[Gauge.SOURCE_OPENS] += opens
                self._finish_whole(load)
            else:
                self._finish_range(load)

    def _finish_whole(self, load: Load) -> None:
        row = load.row
        del self._loads[row]
        if load.prefetch:
            self._prefetching -= 1
            self._gauge[Gauge.FETCHES_DONE] += 1
        self._work.notify()
        if load.failed or self._columns.stale[row] or self._columns.version[row] != load.version:
            self._retire(load.arena)
            self._ring.put(Event.FAILED, row, load.error or errno.ESTALE)
            return
        columns = self._columns
        columns.slot[row] = load.arena
        if not load.from_disk:
            columns.check[row] = load.checksum
        columns.tier[row] = Tier.RAM
        self._gauge[Gauge.STAGED_FILES] += 1
        self._gauge[Gauge.STAGED_BYTES] += load.length
        self._ring.put(Event.STAGED, row, load.length)

    def _finish_range(self, load: Load) -> None:
        if load.file.opens:
            self._gauge[Gauge.SOURCE_OPENS] += load.file.opens
            load.file.opens = 0
        self._ranges.ended(load)
