"""The state of the stager: loads under way, the arena, and the stager's columns, under one lock.

The lock is never held over I/O. Demands overtake prefetches; a demand and a prefetch of one file share one load, and so
one open. A demand that finds no room is answered "no room", and the server then reads the source itself. Nothing here
waits for the pusher. A public method takes the lock, acts, and settles where it may have left something to a part.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence

from nopfsfs.dataset.index import Index
from nopfsfs.policy import left_alone
from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, Demand
from nopfsfs.protocol.stager_peer import Record, RecordKind
from nopfsfs.stager.demands import Demands
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.large.block_copies import BlockCopies, LargeSetup
from nopfsfs.stager.large.large_copies import LargeCopies
from nopfsfs.stager.leases import Leases
from nopfsfs.stager.load import BLOCK, RANGE_BLOCK, Load
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.passthrough_copies import PassthroughCopies
from nopfsfs.stager.peer_link import PeerLink, PeerOutbox
from nopfsfs.stager.published_copies import AdoptedCopies, PinnedCopy, PublishedCopies
from nopfsfs.stager.range_loads import RangeLoads
from nopfsfs.stager.read_queue import ReadQueue, ReadsBeside, RowToBegin, Step
from nopfsfs.stager.remote_fetches import RemoteFetches
from nopfsfs.stager.stuck_reads import StuckReads
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.stager.workers import Worker, Workers
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.system.settled_lock import SettledLock
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import IDLE_S, Source
from nopfsfs.tiers.source_slots import SourceSlots

ROOM_CHECK_S = 0.02  # between looks at whether the arena has room for leases


class StagerState:
    """All parts under one lock. Any thread may call the public methods."""

    def __init__(
        self, *, index: Index, columns: Columns, metrics: memoryview, ring: Ring, arena: Arena, source: Source,
        concurrency: int, answer: Callable[[Answer], None], ask_grace: Callable[[int], bool], block: int = BLOCK,
        range_block: int = RANGE_BLOCK, poke: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic, young: YoungFiles | None = None,
        registered: PassthroughCopies | None = None, lanes: LoadLanes | None = None, kept: KeptRows | None = None,
        large: LargeSetup | None = None,
    ) -> None:  # fmt: skip
        """`answer` and `ask_grace` send to servers. `poke` makes the loop ask `peer_pause` anew. `registered`: copies
        on disk that the kernel reads itself. `kept`: rows whose copies outlive mounts. `large`: see `LargeSetup`."""
        self._metrics = metrics
        self._ring, self._disk, self._n = ring, columns.disk, index.n
        self._lock = threading.Lock()
        self._acting = SettledLock(self._lock, self._settle)
        self._may_work, self._may_serve = threading.Condition(self._lock), threading.Condition(self._lock)
        self.awake = threading.Event()  # set when something begins that `check_stuck` is to see to
        self._stopped = False
        self.tiers = left_alone.Tiers(clock)  # disk tiers that are bypassed
        workers = self._workers = Workers(clock, index.src_dev.data.__getitem__, max(1, len(index.devices)))
        pool = self._pool = ExtentPool(arena, metrics, ask_grace)
        self._slots = SourceSlots(concurrency, metrics, clock)
        queue = self._queue = ReadQueue(self._slots, workers)
        self.beside = ReadsBeside(self._acting, queue, self._slots, metrics)
        lanes = lanes or LoadLanes(metrics, clock)
        self._copies = PublishedCopies(pool, registered, columns=columns, ring=ring, source=source, metrics=metrics)
        self.adopted = AdoptedCopies(self._lock, self._copies)
        loads = self._loads = WholeLoads(
            pool, queue, index=index, columns=columns, metrics=metrics, ring=ring, source=source, answer=answer,
            left_alone=left_alone.rows(clock), tiers=self.tiers, lanes=lanes, block=block, young=young, kept=kept,
        )  # fmt: skip
        copies = self._block_copies = BlockCopies(large, columns, ring, source, pool, self.tiers, range_block, clock)
        ranges = self._ranges = RangeLoads(pool, queue, source, copies, range_block)
        self.large = LargeCopies(self._acting, copies, pool, ranges, queue, columns=columns, ring=ring, clock=clock)
        self._stuck = StuckReads(pool, queue, workers, loads, ranges, tiers=self.tiers, metrics=metrics, clock=clock)
        outbox = self._outbox = PeerOutbox(poke)
        remote = self._remote = RemoteFetches(
            pool, queue, loads, lanes, outbox, columns=columns, source=source, metrics=metrics, poke=poke, clock=clock
        )
        self._leases = Leases(
            pool, loads, outbox, index=index, columns=columns, source=source, metrics=metrics, poke=poke, clock=clock
        )
        self._demands = Demands(
            queue, workers, loads, ranges, remote, copies, index=index, columns=columns, source=source, metrics=metrics,
            answer=answer, clock=clock,
        )  # fmt: skip

    def _settle(self) -> None:
        """Hand on what the parts have left for each other (lock held); each public method ends with this."""
        while self._loads.ended:
            self._leases.load_ended(self._loads.ended.popleft())
        if self._remote.may_send:
            self._remote.send_next()
        for _ in range(self._pool.take_refused()):
            # Range blocks above their share make room. Their memory comes back after a grace period, for the next load.
            if self._ranges.used > self._ranges.budget:
                self._ranges.drop_oldest()
        if freed := self._pool.take_freed():
            self._queue.has_room()
        if self._demands.retry(freed=freed) and not self.awake.is_set():
            self.awake.set()  # also where nothing else is under way that would end their waiting
        self.large.go_on()
        self._wake_workers()

    def _wake_workers(self) -> None:
        others, urgent = self._queue.take_wakes()
        self._may_work.notify(others)
        self._may_serve.notify(urgent)

    # ---- commands -----------------------------------------------------------------------------------------

    def fetch(self, rows: list[int], *, last: bool = False) -> None:
        """Queue rows to be staged, in this order. `last`: after all others, those to come included."""
        with self._acting:
            if last:
                self._queue.fetch_last(rows)
                return
            here, on_disk = list[int](), list[int]()
            for row in rows:
                node = self._remote.node_of(row)
                if node is None:
                    (on_disk if 0 <= row < self._n and self._disk[row] else here).append(row)
                else:
                    self._remote.queue(row, node)
            self._queue.fetch(here, on_disk)

    def cancel(self, *, last: bool = False) -> None:
        """Forget the queued rows that nobody has begun, of those of `fetch` with the same `last`."""
        with self._acting:
            for row in self._queue.cancel_last() if last else (*self._queue.cancel(), *self._remote.cancel()):
                self._loads.fetch_ended(row, Event.FAILED, errno.ECANCELED)

    def set_budget(self, budget: int, whole_limit: int, ranges: int, resident: int = 0, large: int = 0) -> None:
        """Change the arena's budget, and the size of the largest file that is staged whole; bytes. `ranges`, and the
        others as in `RangeLoads.resize`: how much of the arena blocks of files read by ranges may take. Blocks make
        room at once, staged files when they are evicted."""
        with self._acting:
            self._pool.set_budget(budget)
            self._loads.limit = self._block_copies.limit = whole_limit
            self._ranges.resize(ranges, resident, large)

    def evict(self, rows: list[int], *, blocks: bool = False) -> None:
        """Free the staged copies of these rows in the arena; `blocks`: only blocks of files read by ranges."""
        with self._acting:
            if blocks:
                self._ranges.forget_all(rows)
            for row in () if blocks else rows:
                if not self._copies.evict(row):
                    self._ring.put(Event.EVICTED, row)  # of a stager that died before it could say so

    def publish(self, event: Event, row: int, value: int = 0) -> None:
        """Put an event into the ring, which has one writer at a time, under this lock."""
        with self._lock:
            self._ring.put(event, row, value)

    def stop(self) -> None:
        """End the workers after their present steps."""
        with self._lock:
            self._stopped = True
            self._may_work.notify_all()
            self._may_serve.notify_all()

    # ---- demands ------------------------------------------------------------------------------------------

    def demand(self, demand: Demand) -> bool:
        """Answer a READ of the server, now or when its bytes have arrived. True: threads are to be started for it."""
        with self._acting:
            self._demands.take(demand)
            return any(self._queue.lacking())

    # ---- copies -------------------------------------------------------------------------------------------

    def grace_passed(self, number: int) -> None:
        """Take the answers of all servers to grace request `number`."""
        with self._acting:
            self._pool.grace.passed(number)

    def pin(self, row: int) -> PinnedCopy | None:
        """Pin the staged copy of a row; None when the row is not staged."""
        with self._lock:
            return self._copies.pin(row)

    def unpin(self, slot: int) -> None:
        """Take one pin back."""
        with self._acting:
            self._pool.unpin(slot)

    def forget(self, row: int) -> int:
        """Withdraw every copy of a row whose source changed; the disk tier whose copy is to be removed, or 0."""
        with self._acting:
            self._copies.evict(row)
            self._block_copies.drop(row)
            self._ranges.forget(row)
            return self._copies.withdraw_disk(row)

    def publish_disk(self, row: int, tier: int, version: int) -> bool:
        """Publish a copy on disk tier `tier`; False when the row has changed since it was written."""
        with self._lock:
            return self._copies.publish_disk(row, tier, version)

    def publish_backing(self, row: int, tier: int, number: int) -> bool:
        """Publish the number by which the kernel knows the copy on disk tier `tier`; False when it is gone."""
        with self._lock:
            return self._copies.publish_backing(row, tier, number)

    def withdraw_disk(self, row: int, tier: int | None = None) -> int:
        """Withdraw the copy on disk, on any tier or only on `tier`; the tier that holds it, 0 for none."""
        with self._acting:
            if tier in (None, self._disk[row]):
                self._block_copies.drop(row)
            return self._copies.withdraw_disk(row, tier)

    # ---- the peer process ---------------------------------------------------------------------------------

    def attach_peer(self, link: PeerLink) -> None:
        """Use this peer process. The one before was detached."""
        with self._lock:
            self._outbox.attach(link)
            self._remote.attach()

    def detach_peer(self) -> None:
        """Go on without the peer process, which has ended."""
        with self._acting:
            self._outbox.detach()
            self._leases.detach()
            self._remote.detach()

    def peer_message(self, kind: RecordKind, records: Sequence[Record]) -> None:
        """Take a message of the peer process."""
        with self._acting:
            self._remote.peer_lives()
            if kind == RecordKind.GOT:
                self._remote.received(records)
            elif kind == RecordKind.FREED:
                self._remote.freed(records)
            elif kind == RecordKind.LEND:
                self._leases.requested(records)
            elif kind == RecordKind.BACK:
                self._leases.returned(records)

    def flush_peer(self, link: PeerLink) -> None:
        """Send what waits for room in the socket."""
        with self._lock:
            link.flush()

    def peer_pause(self) -> float | None:
        """Seconds until `check_limits` is to be called; None when there are no limits."""
        with self._lock:
            if self._leases.without_room:
                return ROOM_CHECK_S
            return self._remote.pause

    def check_limits(self) -> None:
        """Give up requests to other nodes that have run out, and try leases again that wait for room."""
        with self._acting:
            self._remote.check_limits()
            if self._leases.without_room:
                self._leases.try_again()

    # ---- workers ------------------------------------------------------------------------------------------

    def set_limit(self, limit: int, threads: int, bandwidth: int = 0, *, mark: bool = False) -> None:
        """Set how many requests may be under way at the source, and how many bytes a second (0: no bound). There are to
        be at least so many `threads`. `mark`: only requests that begin from now on are young."""
        with self._acting:
            if mark:
                self._slots.mark()
            self._queue.set_limit(limit, bandwidth)
            self._workers.threads[False] = max(self._workers.threads[False], threads)

    def set_threads(self, threads: int, urgent: int, urgent_most: int = 0) -> None:
        """Set how many workers there are to be, and how many more that serve demands only; those may become more."""
        with self._lock:
            self._workers.threads[:] = threads, urgent
            self._workers.urgent_most = urgent_most

    def lacking(self) -> tuple[int, int]:
        """The numbers of threads to be started now, as nothing stuck is in their places."""
        with self._lock:
            return (0, 0) if self._stopped else self._queue.lacking()

    def enter(self, worker: Worker) -> None:
        """Count one more worker."""
        with self._lock:
            self._workers.enter(worker)

    def leave(self, worker: Worker) -> None:
        """Count out a worker that could not be started."""
        with self._lock:
            self._workers.leave(worker)

    def next_step(self, worker: Worker, *, wait: bool) -> Step | None:
        """End the worker's step, and return its next one. None: there is none, or, after a wait, none will come."""
        with self._lock:
            self._queue.end(worker)
            while not self._stopped:
                step = self._take(worker)
                if step is not None:
                    self._queue.begin(worker, step)
                self._queue.pass_on()
                self._wake_workers()
                if step is not None:
                    if not self.awake.is_set():
                        self.awake.set()
                    return step
                if not wait or not self._workers.may_rest(worker):
                    break
                self._workers.rest(worker, True)
                (self._may_serve if worker.urgent else self._may_work).wait(self._queue.rest_s(worker))
                self._workers.rest(worker, False)
            if wait:
                self._workers.leave(worker)
        return None

    def _take(self, worker: Worker) -> Step | None:
        """The next thing to do, after as many rows as it takes were begun (lock held)."""
        while isinstance(step := self._queue.take(worker.urgent), RowToBegin):
            load = self._begin(step.row)
            self._settle()  # before the next look: this may have queued more
            if load is not None and (read := self._queue.take_begun(load)) is not None:
                return read
        return step

    def _begin(self, row: int) -> Load | None:
        """Begin to stage a queued row, if that is to be read here (lock held)."""
        node = self._remote.node_for_prefetch(row)
        if node is not None:
            self._remote.queue(row, node)
        elif self._loads.of(row) is None and (row in self._loads.left_alone or self._workers.device_hangs(row)):
            self._loads.fetch_ended(row, Event.FAILED, errno.EAGAIN)
        else:
            return self._loads.begin_prefetch(row)
        return None

    def block_ended(self, worker: Worker, load: Load, block: int, error: int, took_ns: int) -> bool:
        """Note that a block was read, or not, and in how much time; True when it was the load's last. A whole load
        that needs a checksum is then to be ended by `load_complete`. The load may have gone on without this read."""
        with self._acting:
            if worker.lost >= 0:
                self._stuck.late_read_ended(worker)
                return False
            worker.load = None
            if not error and not load.from_disk:
                self._workers.took(load.row, took_ns / 1e9)
                self._slots.ended_well(load.size_of(block), took_ns, worker.since)
            elif error != errno.ESTALE and self._workers.was_long(took_ns / 1e9):
                self._loads.left_alone.hung(load.row)
            self._metrics[Metric.SOURCE_OPENS] += load.file.new_opens()  # first: who is answered may look at the counts
            last = self._loads.block_ended(load, block, error, took_ns)
            if last and not load.needs_checksum:
                self._finish(load)
            return last

    def load_complete(self, load: Load) -> None:
        """End a whole load whose checksum is known."""
        with self._acting:
            self._finish(load)

    def _finish(self, load: Load) -> None:
        if load.whole:
            self._loads.finish(load)
        else:
            self._ranges.ended(load)

    # ---- what hangs ---------------------------------------------------------------------------------------

    def check_stuck(self) -> tuple[tuple[int, int], bool]:
        """Take what hangs out of the way, and close files that nobody reads; called often while anything is under way.
        Returns the numbers of threads to be started, for all work and for demands, and False when nothing is to be
        looked at."""
        with self._acting:
            self._slots.count()
            goes_on = self._stuck.check()
            waits = self._ranges.close_idle(time.monotonic() - IDLE_S), self._demands.retry(), self.large.waits
            goes_on = any(waits) or goes_on
            missing = (0, 0) if self._stopped else self._queue.missing()
        return missing, goes_on

    def disk_hangs(self, number: int) -> None:
        """Do not read a disk tier for a while that does not answer whoever writes there."""
        with self._lock:
            self.tiers.hung(number, reading=False)

    def confirmed(self, worker: Worker, load: Load) -> None:
        """Note that the source has answered for a copy on disk, which the worker reads now."""
        with self._lock:
            self._workers.confirmed(worker, load)

    def disk_answered(self, worker: Worker) -> bool:
        """Note that the disk has answered a worker; True when the worker's load has waited for that."""
        with self._lock:
            return self._stuck.disk_answered(worker)
