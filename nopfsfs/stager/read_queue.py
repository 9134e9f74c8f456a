"""The order in which workers read blocks and close files. The queue begins no load itself.

Demands come first, then loads that other nodes' readers wait for. What nobody waits for needs a slot for each block
(`tiers/source_slots.py`). Slots of the source go first to further blocks of begun loads, then to loads that were begun
already. After these come the queued rows, in their order, then the rows that come last. Blocks that are read ahead for
the copies of large files have every other slot. Loads and rows with a copy on disk have queues and slots of their own.
No file takes all workers: blocks beyond its share are set aside. The slot of a stuck worker is given to another, while
the source answers at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

from nopfsfs.protocol.columns import Metric
from nopfsfs.stager.load import PENDING, RUNNING, Load, SharedOpen
from nopfsfs.stager.workers import SPARE_MOST, Worker, Workers
from nopfsfs.tiers.source_slots import DEMAND, DISK_DEMAND, DISK_PREFETCH, PREFETCH, ReadLane, SourceSlots


class BlockRead(NamedTuple):
    """A block of a load that is to be read; `lane`: as what, once it is taken."""

    load: Load
    block: int
    lane: ReadLane = PREFETCH


class RowToBegin(NamedTuple):
    """A queued row whose turn has come: `take_begun` is called with its load, if the row gets one."""

    row: int


Step = BlockRead | SharedOpen  # a block to be read, or a file to be closed
REST_S = 60.0
SLOTS_MOST = 1 << 16  # more than there ever are
CLOSING_MOST = 16  # files that are closed only when there is nothing else to do
SPARE_SLOTS = SPARE_MOST // 2  # slots in the places of stuck ones: demands have the other spare threads


class ReadQueue:
    """All that waits for a worker. The caller holds its own lock, and wakes as many workers as `take_wakes` says."""

    def __init__(self, slots: SourceSlots, workers: Workers) -> None:
        self._workers = workers
        self._slots = slots
        self._aside: dict[int, list[tuple[deque[BlockRead], BlockRead]]] = {}  # by row: its file has its share
        self._served = 0  # demands that workers took
        self._given_on = 0  # slots of stuck workers
        self._wakes = [0, 0]  # workers to be woken, by `Worker.urgent`
        self._timekeeper: Worker | None = None  # rests until the bandwidth lets a prefetch begin
        self._demands: deque[BlockRead] = deque()
        self._leases: deque[BlockRead] = deque()
        self._followups: deque[BlockRead] = deque()
        self._aheads: deque[BlockRead] = deque()
        self._ahead_next = False
        self._begun: deque[Load] = deque()
        self._rows: deque[int] = deque()
        self._last_rows: dict[int, None] = {}  # in their order
        self._on_disk: deque[Load] = deque()  # begun
        self._disk_rows: deque[int] = deque()
        self._closing: deque[SharedOpen] = deque()  # by a worker: closing a file may wait for the source

    # ---- adding -------------------------------------------------------------------------------------------

    def fetch(self, rows: Collection[int], disk_rows: Iterable[int] = ()) -> None:
        """Queue rows, in this order, after those that were queued before; `disk_rows`: with a copy on disk."""
        self._rows.extend(rows)
        self._disk_rows.extend(disk_rows)
        if self._last_rows:
            for row in rows:
                self._last_rows.pop(row, None)
        self._wake_for_slots()

    def fetch_last(self, rows: Iterable[int]) -> None:
        """Queue rows, in this order, after all that `fetch` queues before and later."""
        self._last_rows.update(dict.fromkeys(rows))
        self._wake_for_slots()

    def cancel_last(self) -> list[int]:
        """Forget the rows of `fetch_last`, and return them."""
        rows = [*self._last_rows]
        self._last_rows.clear()
        return rows

    def cancel(self) -> list[int]:
        """Forget the queued rows, and return them."""
        rows = [*self._rows, *self._disk_rows]
        self._rows.clear()
        self._disk_rows.clear()
        return rows

    def demand(self, load: Load, blocks: Iterable[int], *, first: bool = False) -> None:
        """Queue blocks that a server waits for; `first`: before other demands, as the server has waited long."""
        reads = [BlockRead(load, block) for block in blocks if load.blocks[block] == PENDING]
        if first:
            self._demands.extendleft(reversed(reads))
        else:
            self._demands.extend(reads)
        self._wake_for(len(reads))

    def lease(self, load: Load) -> None:
        """Queue all blocks of a load that a reader of another node waits for."""
        self._leases.extend(BlockRead(load, block) for block in range(len(load.blocks)))
        self._wake_for(len(load.blocks))

    def follow(self, load: Load) -> None:
        """Queue all blocks of a load of the source. Nobody waits for those that are still to be read then."""
        self._followups.extend(BlockRead(load, block) for block in range(len(load.blocks)))
        self._wake_for_slots()

    def read_ahead(self, load: Load) -> None:
        """Queue a block of a large file that is read for its copy on disk."""
        self._aheads.append(BlockRead(load, 0))
        self._wake_for_slots()

    def queue(self, load: Load) -> None:
        """Queue a load that waits for a slot."""
        (self._on_disk if load.from_disk else self._begun).append(load)
        self._wake_for_slots()

    def close(self, file: SharedOpen) -> None:
        """Queue a file to be closed."""
        self._closing.append(file)
        self._wakes[False] += 1

    # ---- slots --------------------------------------------------------------------------------------------

    def set_limit(self, limit: int, bandwidth: int) -> None:
        """Change the number of requests that may be under way at the source, and the bytes a second; 0: no bound."""
        self._slots.set_limit(limit)
        if bandwidth != self._slots.bandwidth:
            self._slots.bandwidth = bandwidth
            self._wakes[False] += 1  # it rests by another time
        self._wake_for_slots()

    def rest_s(self, worker: Worker) -> float:
        """Seconds for which an idle worker may rest: until something is queued, but for one that keeps the time of the
        bandwidth and wakes others."""
        waits = not worker.urgent and self._waiting
        if not waits or self._slots.free <= 0 or self._timekeeper not in (None, worker):
            return REST_S
        rest_s = self._slots.rest_s
        self._timekeeper = worker if rest_s else None
        return rest_s or REST_S

    def leave_slot(self, worker: Worker) -> None:
        """Free the slot of a stuck worker that nobody waits for: it closes a file, or reads a disk."""
        self._free(worker)
        self._wake_for_slots()

    def give_on(self, worker: Worker) -> None:
        """Give the slot of a stuck worker to another, if there are some to spare."""
        if worker.lane is not None and self._given_on < SPARE_SLOTS:
            self.leave_slot(worker)
            worker.given_on = True
            self._given_on += 1

    def _free(self, worker: Worker) -> None:
        if worker.lane is not None:
            self._slots.end(worker.lane)
            worker.lane = None

    def has_room(self) -> None:
        """Note that the arena has room again."""
        self._wake_for_slots()

    def slot_is_free(self) -> None:
        """Note that a read beside those of the workers has ended."""
        self._wake_for_slots()

    # ---- taking -------------------------------------------------------------------------------------------

    def end(self, worker: Worker) -> None:
        """End what the worker has done. It may take another step before `pass_on`."""
        self._free(worker)
        if worker.given_on:
            worker.given_on = False
            self._given_on -= 1
        row = self._workers.end(worker)
        if row in self._aside:
            self._bring_back(row)

    def begin(self, worker: Worker, step: Step) -> None:
        """Note that the worker does this."""
        if worker is self._timekeeper:
            self._timekeeper = None
            self._wakes[False] += 1  # another keeps the time
        if isinstance(step, SharedOpen):
            self._workers.begin(worker, None)
        else:
            worker.lane = step.lane
            self._workers.begin(worker, step.load, step.block)

    def pass_on(self) -> None:
        """Wake another worker if there is a slot left that something waits for. Each worker that is woken does so."""
        self._wake_for_slots(most=1)

    def take(self, demands_only: bool) -> Step | RowToBegin | None:
        """The next thing to do; `demands_only`: for readers that wait, of this node or another."""
        if not demands_only and len(self._closing) > CLOSING_MOST:
            return self._closing.popleft()
        for queue in (self._demands, self._leases):
            if (read := self._next(queue)) is not None:
                self._served += queue is self._demands
                return self._start(read, DISK_DEMAND if read.load.from_disk else DEMAND)
        if demands_only:
            return None
        step = self._take_of_source() or self._take_of_disk()
        return step or (self._closing.popleft() if self._closing else None)

    def _take_of_source(self) -> BlockRead | RowToBegin | None:
        while self._slots.ready > 0:
            self._ahead_next = not self._ahead_next
            for queue in (self._aheads, self._followups) if self._ahead_next else (self._followups,):
                if (read := self._next(queue)) is not None:
                    return self._start(read, PREFETCH)
            if self._begun:
                if (begun := self.take_begun(self._begun.popleft())) is not None:
                    return begun
            elif self._rows:
                return RowToBegin(self._rows.popleft())
            elif self._last_rows:
                return RowToBegin(self._take_last())
            elif (read := self._next(self._aheads)) is not None:
                return self._start(read, PREFETCH)
            else:
                break
        return None

    def _take_last(self) -> int:
        row = next(iter(self._last_rows))
        del self._last_rows[row]
        return row

    def _take_of_disk(self) -> BlockRead | RowToBegin | None:
        while self._slots.free_of_disk > 0:
            if self._on_disk:
                if (begun := self.take_begun(self._on_disk.popleft())) is not None:
                    return begun
            elif self._disk_rows:
                return RowToBegin(self._disk_rows.popleft())
            else:
                break
        return None

    def take_begun(self, load: Load) -> BlockRead | None:
        """The first block of a load that nobody waits for; its others are queued. None when all of it was read, or is
        being read, for who waits. None also when there is no slot: the load may be of another kind than the row was
        queued for."""
        pending = [block for block, state in enumerate(load.blocks) if state == PENDING]
        if load.failed or not pending:
            return None
        if (self._slots.free_of_disk if load.from_disk else self._slots.ready) <= 0:
            (self._on_disk if load.from_disk else self._begun).append(load)
            return None
        if len(pending) > 1:
            self.follow(load)
        return self._start(BlockRead(load, pending[0]), DISK_PREFETCH if load.from_disk else PREFETCH)

    def _next(self, queue: deque[BlockRead]) -> BlockRead | None:
        """Take the next block of a queue that is still to be read, and whose file has room for another worker."""
        while queue:
            read = queue.popleft()
            if read.load.blocks[read.block] != PENDING or read.load.failed:
                continue
            if self._workers.has_room(read.load.row):
                return read
            self._aside.setdefault(read.load.row, []).append((queue, read))
        return None

    def _start(self, read: BlockRead, lane: ReadLane) -> BlockRead:
        read.load.blocks[read.block] = RUNNING
        read.load.running += 1
        self._slots.begin(lane, read.load.size_of(read.block))
        return BlockRead(read.load, read.block, lane)

    # ---- waking -------------------------------------------------------------------------------------------

    @property
    def _waiting(self) -> int:
        """Blocks, loads and rows that wait for a slot of the source."""
        waiting = len(self._followups) + len(self._aheads) + len(self._begun)
        return waiting + len(self._rows) + len(self._last_rows)

    def take_wakes(self) -> tuple[int, int]:
        """The numbers of workers to be woken since the last call: of those for all work, of those for demands."""
        self._slots.wait(self._waiting > 0)
        others, urgent = self._wakes
        self._wakes = [0, 0]
        return others, urgent

    def missing(self) -> tuple[int, int]:
        """The numbers of threads to be started now, for all work and for demands."""
        return self._workers.missing(len(self._demands), self._served)

    def lacking(self) -> tuple[int, int]:
        """The numbers of threads to be started now, as `missing`, for a higher limit and for demands that no idle
        worker takes."""
        return self._workers.lacking(len(self._demands))

    def _bring_back(self, row: int) -> None:
        """Queue the blocks again that were set aside of a file which has room for another worker."""
        aside = self._aside.pop(row)
        for queue, read in reversed(aside):
            queue.appendleft(read)
        self._wake_for(len(aside))

    def _wake_for(self, reads: int) -> None:
        """Wake as many workers of each kind as there are blocks: whoever is woken may get stuck at the first."""
        self._wakes[False] += reads
        self._wakes[True] += reads

    def _wake_for_slots(self, most: int = SLOTS_MOST) -> None:
        """Wake as many workers as there are free slots that something waits for, of each kind `most`."""
        if waiting := self._waiting:
            self._wakes[False] += max(0, min(waiting, self._slots.ready, most))
        if on_disk := len(self._on_disk) + len(self._disk_rows):
            self._wakes[False] += max(0, min(on_disk, self._slots.free_of_disk, most))


class ReadsBeside:
    """Reads of the source beside those of the workers, each with a slot as a prefetch has one. `acting`: the lock under
    which the slots are used."""

    def __init__(
        self, acting: AbstractContextManager[None], queue: ReadQueue, slots: SourceSlots, metrics: memoryview
    ) -> None:  # fmt: skip
        self._acting, self._queue, self._slots, self._metrics = acting, queue, slots, metrics

    def begin(self, size: int) -> bool:
        """Begin a read of so many bytes, 0 to open a file, if a slot is free; return False if none is."""
        with self._acting:
            if self._slots.ready <= 0:
                return False
            self._slots.begin(PREFETCH, size)
            self._metrics[Metric.SOURCE_OPENS] += not size
            return True

    def end(self, size: int) -> None:
        """End a read that has brought so many bytes."""
        with self._acting:
            self._slots.end(PREFETCH)
            self._queue.slot_is_free()
            self._metrics[Metric.SOURCE_READ_BYTES] += size
