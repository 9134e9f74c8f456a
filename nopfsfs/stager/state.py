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
from nopfsfs.protocol.columns import Columns, Metric, MetricBlock, Tier
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, Demand, Origin
from nopfsfs.stager import left_alone
from nopfsfs.stager.block_reader import BlockReader, DiskReader, GivenUp, Notes
from nopfsfs.stager.extents import GracePeriods
from nopfsfs.stager.left_alone import Tiers
from nopfsfs.stager.load import BLOCK, RANGE_BLOCK, Load, SharedOpen, Waiter
from nopfsfs.stager.passthrough_copies import PassthroughCopies
from nopfsfs.stager.peer_exchange import Exchange
from nopfsfs.stager.pins import Pins
from nopfsfs.stager.range_loads import RangeLoads
from nopfsfs.stager.read_queue import ReadQueue, Step
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.stager.workers import Worker, Workers
from nopfsfs.tiers.arena import Arena, NoRoom
from nopfsfs.tiers.source import IDLE_S, Changed, Source

log = logging.getLogger(__name__)
COUNT_S = 1.0  # between counts of what is left alone


class PinnedCopy(NamedTuple):
    """The staged bytes of a row, and where they lie in the arena: safe from reuse until `unpin(slot)`."""

    slot: int
    data: memoryview


class StagerState:
    """See the module. Public methods may be called from any thread unless they say otherwise."""

    def __init__(
        self, *, index: Index, columns: Columns, gauges: MetricBlock, ring: Ring, arena: Arena, source: Source,
        disks: DiskReader, concurrency: int, answer: Callable[[Answer], None], ask_grace: Callable[[int], bool],
        changed: Callable[[int], None], block: int = BLOCK, range_block: int = RANGE_BLOCK,
        poke: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic,
        copy_lost: Callable[[int, int], None] = lambda row, disk: None, young: Notes | None = None,
    ) -> None:  # fmt: skip
        """`copy_lost(row, disk)` has a copy removed that was withdrawn because it could not be read, or was corrupt."""
        self._index, self._columns, self._ring, self._arena = index, columns, ring, arena
        self._source = source
        self._gauge = gauges.block
        self._answer, self._changed, self._copy_lost = answer, changed, copy_lost
        self._lock = threading.Lock()
        self._device, self._devices = index.src_dev.data, max(1, len(index.devices))
        self.tiers = Tiers(clock)  # disk tiers that are bypassed
        self._workers = Workers(clock, self._device.__getitem__, self._devices)
        self._work = ReadQueue(self._lock, concurrency, self._workers)
        self._by_hand = Worker(urgent=False)
        self._clock, self._counted_at = clock, 0.0
        self._reader = BlockReader(columns, self._gauge, arena, source, disks, self._lose_copy, young)
        self._staging = WholeLoads(
            index=index, columns=columns, gauge=self._gauge, ring=ring, source=source, work=self._work,
            allocate=self._allocate, retire=self._retire, free=self._free, answer=answer, block=block,
            left_alone=left_alone.rows(clock), tiers=self.tiers, hangs=self._device_hangs,
            young=young,
        )  # fmt: skip
        self._ranges = RangeLoads(
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
        self._grace: GracePeriods[Callable[[], None]] = GracePeriods(ask_grace, lambda done: done())
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
            self._gauge[Metric.ARENA_USED] = self._arena.used
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
                self._answer(answer)  # under the lock: see `WholeLoads.block_ended`
            if 0 <= demand.row < self._index.n and demand.offset >= 0:
                self._read_ahead(demand.row, demand.offset)

    def grace_passed(self, number: int) -> None:
        with self._lock:
            self._grace.passed(number)

    def pin(self, row: int) -> PinnedCopy | None:
        """None when the row is not staged."""
        with self._lock:
            if self._columns.tier[row] != Tier.RAM:
                return None
            slot = int(self._columns.slot[row])
            self._pins.pin(slot)
            return PinnedCopy(slot, self._arena.view[slot : slot + self._source.size(row)])

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

    def _lose_copy(self, row: int, number: int) -> bool:
        """Withdraw a copy on disk tier `number` that is of no use; False when it was withdrawn before."""
        with self._lock:
            if self._columns.disk[row] != number:
                return False
            self._columns.disk[row] = 0
            self._give_up_backing(row)
        self._copy_lost(row, number)
        return True

    def publish(self, event: Event, row: int, value: int = 0) -> None:
        """Tell the supervisor; the ring has one writer at a time, under the desk's lock."""
        with self._lock:
            self._ring.put(event, row, value)

    def stop(self) -> None:
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            self._work.stop()

    @property
    def awake(self) -> threading.Event:
        """Set when something begins that `look` is to see to."""
        return self._work.awake

    # ---- registered copies --------------------------------------------------------------------------------

    def keep_backings(self, backings: PassthroughCopies) -> None:
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
        load = self._staging.of(row)
        if load is None and self._workers.exhausted:
            self._gauge[Metric.NO_ROOM] += 1
            return Answer(demand.id, errno.ENOSPC, 0, 0)  # the server has threads of its own
        load = load or self._staging.begin_demanded(row)
        if load is None:
            load = self._ranges.load(row, start // self._ranges.block, int(self._columns.version[row]))
            if load is None:
                self._gauge[Metric.NO_ROOM] += 1
                return Answer(demand.id, errno.ENOSPC, 0, 0)
            end = min(end, load.start + load.length)
        if load.failed or load.version != self._columns.version[row]:
            # It failed for whoever waited then, or has the bytes of a version before: the server reads by itself.
            return Answer(demand.id, errno.ENOSPC, 0, 0)
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
        self._gauge[Metric.ARENA_USED] = self._arena.used
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
        self._gauge[Metric.EVICTIONS] += 1
        self._ring.put(Event.EVICTED, row, self._source.size(row))
        return True

    def _retire(self, arena: int) -> None:
        self._grace.retire(partial(self._free, arena))

    def _free(self, arena: int) -> None:
        self._arena.free(arena)
        self._gauge[Metric.ARENA_USED] = self._arena.used
        self._work.room()

    # ---- workers ------------------------------------------------------------------------------------------

    def start(self, threads: int, urgent: int) -> None:
        """Have so many threads work, and `urgent` more that serve demands only; others in the places of stuck ones."""
        self._workers.threads[:] = threads, urgent
        self._start(threads, urgent)

    def _start(self, threads: int, urgent: int) -> None:
        for demands_only in [False] * threads + [True] * urgent:
            # Daemon threads: the source may hold one for ever, and the process must end.
            worker = Worker(urgent=demands_only)
            self._work.enter(worker)
            try:
                threading.Thread(target=self._live, args=(worker,), daemon=True).start()
            except RuntimeError:  # the system has no thread for us: those there are go on
                self._work.leave(worker)
                return

    def _live(self, worker: Worker) -> None:
        """The life of one worker thread, until `stop`, or until it is surplus."""
        while (step := self._work.next(worker, wait=True)) is not None:
            self._do(worker, step)

    def run_one(self) -> bool:
        """Do the next thing that is to be done, in this thread; whether there was one."""
        step = self._work.next(self._by_hand, wait=False)
        if step is None:
            return False
        self._do(self._by_hand, step)
        return True

    def _do(self, worker: Worker, step: Step) -> None:
        if isinstance(step, SharedOpen):
            step.close()
        else:
            self._run(worker, *step)

    def _run(self, worker: Worker, load: Load, block: int) -> None:
        """Read one block, outside the lock, then tell who waits for it."""
        error: int = 0
        began = time.monotonic_ns()
        try:
            self._reader.read(load, block, lambda: self._leave_disk(worker))
        except GivenUp:
            self._give_back(worker)
            return
        except Changed:
            error = errno.ESTALE
        except OSError as e:
            error = e.errno or errno.EIO
        except Exception:
            log.exception("reading row %d failed", load.row)
            error = errno.EIO
        self._finish_block(worker, load, block, error, time.monotonic_ns() - began)
        if error == errno.ESTALE:
            try:
                self._changed(load.row)
            except Exception:
                log.exception("refreshing row %d failed", load.row)  # and this thread lives on

    def _finish_block(self, worker: Worker, load: Load, block: int, error: int, took_ns: int) -> None:
        file = load.file
        with self._lock:
            worker.load = None
            if not error and not load.from_disk:
                self._workers.took(load.row, took_ns / 1e9)
            elif error != errno.ESTALE and self._workers.was_long(took_ns / 1e9):
                self._staging.left_alone.hung(load.row)
            last = self._staging.block_ended(load, block, error, took_ns)
            whole = last and load.whole
            sums_up = whole and len(load.blocks) > 1 and not load.failed
            if last and not sums_up:
                self._finish_load(worker, load)
        if sums_up:
            self._reader.complete(load)
            with self._lock:
                self._finish_load(worker, load)
        if whole:
            file.close()  # last: a source that does not answer may hold this thread here

    def _finish_load(self, worker: Worker, load: Load) -> None:
        """All of it was read, or it has failed (lock held)."""
        if not load.whole:
            self._finish_range(load)
            return
        self._gauge[Metric.SOURCE_OPENS] += load.file.opens
        worker.slot, load.slot = load.slot, False  # until the file is closed
        self._staging.finish(load)

    # ---- what hangs ---------------------------------------------------------------------------------------

    def look(self) -> bool:
        """See to what takes too long; call it often while anything is under way. Whether anything is."""
        with self._lock:
            for worker in self._workers.look():
                load = worker.load
                self._work.leave_slot(worker)
                if load is not None and worker.disk:
                    self._give_up_copy(worker, load)
                elif load is not None:
                    self._staging.is_stuck(load)
                    if not load.whole:
                        self._ranges.is_stuck(load)
            for load in self._workers.stuck_while_others_end():
                self._work.give_on(load)
            threads, urgent = self._work.missing()
            self._count_what_hangs()
            goes_on = self._workers.busy or bool(self._gauge[Metric.LEFT_ALONE] or self._gauge[Metric.DISKS_BYPASSED])
            if not goes_on:
                self._work.awake.clear()
        self._start(threads, urgent)
        return goes_on

    def disk_hangs(self, number: int) -> None:
        """A disk tier does not answer whoever writes there: do not read there either, for a while."""
        with self._lock:
            self.tiers.hung(number, reading=False)

    def _count_what_hangs(self) -> None:
        gauge, workers = self._gauge, self._workers
        gauge[Metric.STUCK_READS] = workers.stuck - self.tiers.stuck
        gauge[Metric.SPARE_WORKERS] = workers.spare
        gauge[Metric.STUCK_EVER] += workers.take_found()
        if (now := self._clock()) >= self._counted_at + COUNT_S:  # it may be a long list
            self._counted_at = now
            gauge[Metric.LEFT_ALONE] = len(self._staging.left_alone)
        gauge[Metric.DISKS_BYPASSED] = len(self.tiers)

    def _device_hangs(self, row: int) -> bool:
        return self._devices > 1 and self._workers.hangs(self._device[row])

    def _give_up_copy(self, worker: Worker, load: Load) -> None:
        """A disk tier does not answer (lock held)."""
        self._gauge[Metric.DISK_LATE] += 1
        if worker.disk not in self.tiers:
            log.warning("disk tier %d does not answer; the source is read instead", worker.disk)
        self.tiers.hung(worker.disk)
        worker.lost, worker.load = load.arena, None
        self._staging.disk_hangs(load)

    def _leave_disk(self, worker: Worker) -> bool:
        """The disk has answered a worker; whether its load has waited for that."""
        with self._lock:
            if worker.lost >= 0:
                return False
            self.tiers.worked(worker.disk)
            self._workers.again(worker)
            return True

    def _give_back(self, worker: Worker) -> None:
        """A disk has answered too late: nothing writes that extent any more, and no server was told of it."""
        with self._lock:
            self.tiers.returned(worker.disk)
            lost, worker.lost = worker.lost, -1
            self._free(lost)

    def _finish_range(self, load: Load) -> None:
        if load.file.opens:
            self._gauge[Metric.SOURCE_OPENS] += load.file.opens
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
