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
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from nopfsfs.dataset.index import Index
from nopfsfs.fetch.backings import Backings
from nopfsfs.fetch.exchange import Exchange
from nopfsfs.fetch.grace import Grace
from nopfsfs.fetch.loads import BLOCK, IDLE_S, RANGE_BLOCK, Load, OpenSource, Waiter
from nopfsfs.fetch.pins import Pins
from nopfsfs.fetch.ranges import Ranges
from nopfsfs.fetch.reader import BlockReader, DiskReader, Notes
from nopfsfs.fetch.source import Changed, Source
from nopfsfs.fetch.staging import Staging
from nopfsfs.fetch.wire import Answer, Demand, Origin
from nopfsfs.fetch.work import Job, Work
from nopfsfs.tiers.arena import Arena, NoRoom
from nopfsfs.tiers.columns import Columns, Gauge, Gauges, Tier
from nopfsfs.tiers.ring import Event, Ring

log = logging.getLogger(__name__)


class Pinned(NamedTuple):
    """The staged bytes of a row, and where they lie in the arena: safe from reuse until `unpin(slot)`."""

    slot: int
    data: memoryview


class Desk:
    """See the module. Public methods may be called from any thread unless they say otherwise."""

    def __init__(
        self, *, index: Index, columns: Columns, gauges: Gauges, ring: Ring, arena: Arena, source: Source,
        disks: DiskReader, concurrency: int, answer: Callable[[Answer], None], ask_grace: Callable[[int], bool],
        changed: Callable[[int], None], block: int = BLOCK, range_block: int = RANGE_BLOCK,
        poke: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic,
        young: Notes | None = None,
    ) -> None:  # fmt: skip
        self._index, self._columns, self._ring, self._arena = index, columns, ring, arena
        self._source = source
        self._gauge = gauges.block
        self._answer, self._changed = answer, changed
        self._lock = threading.Lock()
        self._work = Work(self._lock, concurrency)
        self._reader = BlockReader(columns, self._gauge, arena, source, disks, young)
        self._staging = Staging(
            index=index, columns=columns, gauge=self._gauge, ring=ring, source=source, work=self._work,
            allocate=self._allocate, retire=self._retire, free=self._free, answer=answer, block=block, young=young,
        )  # fmt: skip
        self._ranges = Ranges(
            source, allocate=self._allocate, retire=self._retire, close=self._work.close, block=range_block
        )
        self._pins = Pins(self._retire)
        self._idle: threading.Timer | None = None  # closes files that nobody reads
        self.exchange = Exchange(
            self._staging, lock=self._lock, index=index, columns=columns, source=source, gauge=self._gauge,
            pins=self._pins, poke=poke, clock=clock,
        )  # fmt: skip
        self._staging.peering, self._staging.lending = self.exchange.peering, self.exchange.lending
        self._work.begin_row = self._staging.begin_prefetch
        self._grace: Grace[Callable[[], None]] = Grace(ask_grace, lambda done: done())
        self._give_up_backing: Callable[[int], None] = lambda row: None

    # ---- orders -------------------------------------------------------------------------------------------

    def fetch(self, rows: list[int]) -> None:
        """Queue rows to be staged, in this order."""
        with self._lock:
            self._staging.fetch(rows)

    def cancel(self) -> None:
        """Forget the queued rows that nobody has begun."""
        with self._lock:
            self._staging.cancel()

    def set_budget(self, budget: int, whole_limit: int, range_budget: int) -> None:
        """Change the arena's budget, the size of the largest file that is staged whole, and how much of the arena
        blocks of files read by ranges may take; bytes. Blocks make room at once, staged files when they are evicted."""
        with self._lock:
            self._arena.budget = budget
            self._gauge[Gauge.ARENA_USED] = self._arena.used
            self._staging.limit = whole_limit
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
                self._answer(answer)  # under the lock: see `Staging.block_ended`
            if 0 <= demand.row < self._index.n and demand.offset >= 0:
                self._read_ahead(demand.row, demand.offset)

    def grace_passed(self, number: int) -> None:
        with self._lock:
            self._grace.passed(number)

    def pin(self, row: int) -> Pinned | None:
        """None when the row is not staged."""
        with self._lock:
            if self._columns.tier[row] != Tier.RAM:
                return None
            slot = int(self._columns.slot[row])
            self._pins.pin(slot)
            return Pinned(slot, self._arena.view[slot : slot + self._source.size(row)])

    def unpin(self, slot: int) -> None:
        with self._lock:
            self._pins.unpin(slot)

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
            if self._idle is not None:
                self._idle.cancel()
            self._work.stop()

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
        load = self._staging.of(row) or self._staging.begin_demanded(row)
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
        self._staging.wait(load, load.blocks_of(start, end))
        return None

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
            self._work.follow(load)

    # ---- eviction (lock held) -----------------------------------------------------------------------------

    def _evict(self, row: int) -> bool:
        """Withdraw the staged copy of a row; whether there was one."""
        if self._columns.tier[row] != Tier.RAM:
            return False
        # Out of use at once, pinned or not: the row's file may have changed.
        slot = int(self._columns.slot[row])
        self._columns.tier[row] = Tier.NONE
        self._pins.give_up(slot)
        self._gauge[Gauge.EVICTIONS] += 1
        self._ring.put(Event.EVICTED, row, self._source.size(row))
        return True

    def _retire(self, arena: int) -> None:
        self._grace.retire(partial(self._free, arena))

    def _free(self, arena: int) -> None:
        self._arena.free(arena)
        self._gauge[Gauge.ARENA_USED] = self._arena.used
        self._work.room()

    # ---- workers ------------------------------------------------------------------------------------------

    def work(self, *, demands_only: bool) -> None:
        """The life of one worker thread, until `stop`."""
        while (work := self._work.next(demands_only, wait=True)) is not None:
            self._do(*work)

    def run_one(self) -> bool:
        """Do the next thing that is to be done, in this thread; whether there was one."""
        work = self._work.next(False, wait=False)
        if work is None:
            return False
        self._do(*work)
        return True

    def _do(self, job: Job | None, closing: list[OpenSource]) -> None:
        if job is not None:
            self._run(*job)
        for file in closing:
            file.close()

    def _run(self, load: Load, block: int) -> None:
        """Read one block, outside the lock, then tell who waits for it."""
        error: int = 0
        began = time.monotonic_ns()
        try:
            self._reader.read(load, block)
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

    def _finish_block(self, load: Load, block: int, error: int, took_ns: int) -> bool:
        with self._lock:
            return self._staging.block_ended(load, block, error, took_ns)

    def _finish_load(self, load: Load) -> None:
        if load.whole:
            opens = load.file.opens
            load.file.close()
            if not load.failed:
                self._reader.complete(load)
        with self._lock:
            if load.whole:
                self._gauge[Gauge.SOURCE_OPENS] += opens
                self._staging.finish(load)
            else:
                self._finish_range(load)

    def _finish_range(self, load: Load) -> None:
        if load.file.opens:
            self._gauge[Gauge.SOURCE_OPENS] += load.file.opens
            load.file.opens = 0
        self._ranges.ended(load)
        self._close_idle_later()

    def _close_idle_later(self) -> None:
        if self._idle is None:
            self._idle = threading.Timer(IDLE_S, self._close_idle)
            self._idle.daemon = True
            self._idle.start()

    def _close_idle(self) -> None:
        with self._lock:
            self._idle = None
            if self._ranges.close_idle(time.monotonic() - IDLE_S):
                self._close_idle_later()
