"""The order in which workers read blocks and close files. The queue begins no load itself.

Demands come first, then loads that other nodes' readers wait for, then further blocks of begun loads. A load that
nobody waits for needs a slot; the number of slots bounds the prefetches that read the source at once. Slots go first to
loads that were begun already, then to the queued rows, in their order. No file takes all workers: blocks beyond its
share are set aside. The slot of a stuck worker is given to another, while the source answers at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from nopfsfs.stager.load import PENDING, RUNNING, Load, SharedOpen
from nopfsfs.stager.workers import SPARE_MOST, Worker, Workers


class BlockRead(NamedTuple):
    """A block of a load that is to be read."""

    load: Load
    block: int


class RowToBegin(NamedTuple):
    """A queued row whose turn has come: `take_slot` is called with its load, if the row gets one."""

    row: int


Step = BlockRead | SharedOpen  # a block to be read, or a file to be closed
CLOSING_MOST = 16  # files that are closed only when there is nothing else to do
SPARE_SLOTS = SPARE_MOST // 2  # slots in the places of stuck ones: demands have the other spare threads


class ReadQueue:
    """All that waits for a worker. The caller holds its own lock, and wakes as many workers as `take_wakes` says."""

    def __init__(self, slots: int, workers: Workers) -> None:
        self._workers = workers
        self._aside: dict[int, list[tuple[deque[BlockRead], BlockRead]]] = {}  # by row: its file has its share
        self._served = 0  # demands that workers took
        self._given_on = 0  # slots of stuck loads
        self._wakes = [0, 0]  # workers to be woken, by `Worker.urgent`
        self._demands: deque[BlockRead] = deque()
        self._leases: deque[BlockRead] = deque()
        self._followups: deque[BlockRead] = deque()
        self._begun: deque[Load] = deque()
        self._rows: deque[int] = deque()
        self._closing: deque[SharedOpen] = deque()  # by a worker: closing a file may wait for the source
        self._slots, self._taken = slots, 0

    # ---- adding -------------------------------------------------------------------------------------------

    def fetch(self, rows: Iterable[int]) -> None:
        """Queue rows, in this order, after those that were queued before."""
        before = len(self._rows)
        self._rows.extend(rows)
        self._wakes[False] += min(len(self._rows) - before, self._slots)

    def cancel(self) -> list[int]:
        """Forget the queued rows, and return them."""
        rows = list(self._rows)
        self._rows.clear()
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
        """Queue all blocks of a load, without a slot. Nobody waits for those that are still to be read then."""
        self._followups.extend(BlockRead(load, block) for block in range(len(load.blocks)))
        self._wakes[False] += min(len(load.blocks), self._slots)

    def queue(self, load: Load) -> None:
        """Queue a load that waits for a slot."""
        self._begun.append(load)
        self._wakes[False] += 1

    def close(self, file: SharedOpen) -> None:
        """Queue a file to be closed."""
        self._closing.append(file)
        self._wakes[False] += 1

    # ---- slots --------------------------------------------------------------------------------------------

    def ended(self, load: Load) -> None:
        """Free the slot of a whole load that has ended."""
        if load.given_on:
            load.given_on = False
            self._given_on -= 1
        if load.slot:
            self.free_slot(load)
            self._wakes[False] += 1

    def leave_slot(self, worker: Worker) -> None:
        """Free the slot that a worker has kept since its load ended."""
        if worker.slot:
            worker.slot = False
            self._taken -= 1
            if self._begun or self._rows:
                self._wakes[False] += 1

    def free_slot(self, load: Load) -> None:
        """Free the load's slot, if it has one."""
        if load.slot:
            load.slot = False
            self._taken -= 1

    def give_on(self, load: Load) -> None:
        """Give the slot of a stuck load to another, if there are some to spare."""
        if load.slot and self._given_on < SPARE_SLOTS:
            load.given_on = True
            self._given_on += 1
            self.free_slot(load)
            self._wakes[False] += 1

    def has_room(self) -> None:
        """Note that the arena has room again."""
        if self._rows:
            self._wakes[False] += 1

    # ---- taking -------------------------------------------------------------------------------------------

    def end(self, worker: Worker) -> bool:
        """End what the worker has done; True when it gave a slot back by that."""
        freed, worker.slot = worker.slot, False
        self._taken -= freed
        row = self._workers.end(worker)
        if row in self._aside:
            self._bring_back(row)
        return freed

    def begin(self, worker: Worker, step: Step, *, freed: bool) -> None:
        """Note that the worker does this; `freed`: it gave a slot back just before."""
        load, block = (None, 0) if isinstance(step, SharedOpen) else step
        if freed and (load is None or not load.slot):
            self._wakes[False] += 1  # the slot is for another
        self._workers.begin(worker, load, block)

    def take(self, demands_only: bool) -> Step | RowToBegin | None:
        """The next thing to do; `demands_only`: for readers that wait, of this node or another."""
        if not demands_only and len(self._closing) > CLOSING_MOST:
            return self._closing.popleft()
        waited_for = (self._demands, self._leases)
        for queue in waited_for if demands_only else (*waited_for, self._followups):
            while queue:
                read = queue.popleft()
                if read.load.blocks[read.block] != PENDING or read.load.failed:
                    continue
                if not self._workers.has_room(read.load.row):
                    self._aside.setdefault(read.load.row, []).append((queue, read))
                    continue
                self._served += queue is self._demands
                return _start(read)
        if demands_only:
            return None
        while self._taken < self._slots and (self._begun or self._rows):
            if not self._begun:
                return RowToBegin(self._rows.popleft())
            if (begun := self.take_slot(self._begun.popleft())) is not None:
                return begun
        return self._closing.popleft() if self._closing else None

    def take_slot(self, load: Load) -> BlockRead | None:
        """Give the load a slot; its first block. None when all of it was read, or is being read, for who waits."""
        pending = [block for block, state in enumerate(load.blocks) if state == PENDING]
        if load.failed or not pending:
            return None
        load.slot = True
        self._taken += 1
        if len(pending) > 1:
            self.follow(load)
        return _start(BlockRead(load, pending[0]))

    def take_wakes(self) -> tuple[int, int]:
        """The numbers of workers to be woken since the last call: of those for all work, of those for demands."""
        others, urgent = self._wakes
        self._wakes = [0, 0]
        return others, urgent

    def missing(self) -> tuple[int, int]:
        """The numbers of threads to be started now, for all work and for demands."""
        return self._workers.missing(len(self._demands), self._served)

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


def _start(read: BlockRead) -> BlockRead:
    read.load.blocks[read.block] = RUNNING
    read.load.running += 1
    return read
