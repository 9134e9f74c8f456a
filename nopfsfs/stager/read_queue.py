"""What the desk's workers are to do, and in what order.

Demands come first, then what other nodes' readers wait for, then further blocks of what was begun. What nobody waits
for needs a slot, of which there are as many as the source is read by at once: first loads that were begun already, then
the rows that were asked for, in their order. No file takes all workers: what is too much for it is set aside. A slot
whose worker is stuck is given to another, while the source answers at all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from nopfsfs.stager.load import PENDING, RUNNING, Load, SharedOpen
from nopfsfs.stager.workers import SPARE_MOST, Worker, Workers

Job = tuple[Load, int]
Step = Job | SharedOpen  # a block to be read, or a file to be closed
CLOSING_MOST = 16  # files that are closed only when there is nothing else to do
SPARE_SLOTS = SPARE_MOST // 2  # slots in the places of stuck ones: what is left is for who waits


class ReadQueue:
    """See the module. All is called with `lock` held, but for `next`. `begin_row`, set before first use, begins to
    stage a row, if that is to be read here: the load, none of its blocks begun."""

    begin_row: Callable[[int], Load | None]

    def __init__(self, lock: threading.Lock, slots: int, workers: Workers) -> None:
        self._lock = lock
        self._workers = workers
        self.awake = threading.Event()  # some worker has something to do
        self._aside: dict[int, list[tuple[deque[Job], Job]]] = {}  # by row: its file has all the workers it may have
        self._served = 0  # demands that workers took
        self._given_on = 0  # slots of stuck loads
        self._any = threading.Condition(lock)
        self._urgent = threading.Condition(lock)  # for the threads that keep free for who waits
        self._demands: deque[Job] = deque()
        self._lends: deque[Job] = deque()
        self._followups: deque[Job] = deque()
        self._begun: deque[Load] = deque()
        self._rows: deque[int] = deque()
        self._closing: deque[SharedOpen] = deque()  # by a worker: closing a file may wait for the source
        self._slots, self._taken = slots, 0
        self._stopped = False

    # ---- orders -------------------------------------------------------------------------------------------

    def fetch(self, rows: Iterable[int]) -> None:
        """Stage these, in this order, after what was asked before."""
        before = len(self._rows)
        self._rows.extend(rows)
        self._any.notify(min(len(self._rows) - before, self._slots))

    def cancel(self) -> list[int]:
        """Rows that nobody has begun, and nobody will."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def demand(self, load: Load, blocks: Iterable[int], *, first: bool = False) -> None:
        """A server waits for these blocks; `first`: it has waited for others' bytes already."""
        jobs = [(load, block) for block in blocks if load.blocks[block] == PENDING]
        if first:
            self._demands.extendleft(reversed(jobs))
        else:
            self._demands.extend(jobs)
        self._wake(len(jobs))

    def lend(self, load: Load) -> None:
        """A reader of another node waits for all of it."""
        self._lends.extend((load, block) for block in range(len(load.blocks)))
        self._wake(len(load.blocks))

    def follow(self, load: Load) -> None:
        """Read what of it nobody waits for, without a slot."""
        self._followups.extend((load, block) for block in range(len(load.blocks)))
        self._any.notify(min(len(load.blocks), self._slots))

    def queue(self, load: Load) -> None:
        """Read it when there is a slot."""
        self._begun.append(load)
        self._any.notify()

    def close(self, file: SharedOpen) -> None:
        self._closing.append(file)
        self._any.notify()

    def ended(self, load: Load) -> None:
        """A whole load has ended."""
        if load.given_on:
            load.given_on = False
            self._given_on -= 1
        if load.slot:
            self.free_slot(load)
            self._any.notify()

    def leave_slot(self, worker: Worker) -> None:
        """The worker has ended a load that had a slot."""
        if worker.slot:
            worker.slot = False
            self._taken -= 1
            if self._begun or self._rows:
                self._any.notify()

    def free_slot(self, load: Load) -> None:
        """The load has no slot any more."""
        if load.slot:
            load.slot = False
            self._taken -= 1

    def give_on(self, load: Load) -> None:
        """A load is stuck: another may have its slot, if there are some to spare."""
        if load.slot and self._given_on < SPARE_SLOTS:
            load.given_on = True
            self._given_on += 1
            self.free_slot(load)
            self._any.notify()

    def room(self) -> None:
        """There is room in the arena again."""
        if self._rows:
            self._any.notify()

    def stop(self) -> None:
        self._stopped = True
        self._any.notify_all()
        self._urgent.notify_all()

    # ---- workers ------------------------------------------------------------------------------------------

    def enter(self, worker: Worker) -> None:
        """One more worker. Takes the lock."""
        with self._lock:
            self._workers.enter(worker)

    def leave(self, worker: Worker) -> None:
        """It could not be started. Takes the lock."""
        with self._lock:
            self._workers.leave(worker)

    def next(self, worker: Worker, *, wait: bool) -> Step | None:
        """What the worker is to do next. None: nothing, or, after a wait, no more. Takes the lock."""
        wake = self._urgent if worker.urgent else self._any
        with self._lock:
            freed, worker.slot = worker.slot, False
            self._taken -= freed
            row = self._workers.end(worker)
            if row in self._aside:
                self._bring_back(row)
            while not self._stopped:
                step = self._take(worker.urgent)
                if step is not None:
                    if freed and (isinstance(step, SharedOpen) or not step[0].slot):
                        self._any.notify()  # the slot is for another
                    self._workers.begin(worker, None if isinstance(step, SharedOpen) else step[0])
                    if not self.awake.is_set():
                        self.awake.set()
                    return step
                if not wait or not self._workers.may_rest(worker):
                    break
                self._workers.rest(worker, True)
                wake.wait(timeout=60)
                self._workers.rest(worker, False)
            if wait:
                self._workers.leave(worker)
        return None

    def missing(self) -> tuple[int, int]:
        """How many threads are to be started now, for all and for demands only."""
        return (0, 0) if self._stopped else self._workers.missing(len(self._demands), self._served)

    def _bring_back(self, row: int) -> None:
        """There is room for another worker at the row's file."""
        aside = self._aside.pop(row)
        for queue, job in reversed(aside):
            queue.appendleft(job)
        self._wake(len(aside))

    def _wake(self, jobs: int) -> None:
        """For each of these: whoever is woken may get stuck at the first."""
        self._any.notify(jobs)
        self._urgent.notify(jobs)

    def _take(self, urgent: bool) -> Step | None:
        if not urgent and len(self._closing) > CLOSING_MOST:
            return self._closing.popleft()
        for queue in (self._demands, self._lends) if urgent else (self._demands, self._lends, self._followups):
            while queue:
                load, block = job = queue.popleft()
                if load.blocks[block] != PENDING or load.failed:
                    continue
                if not self._workers.has_room(load.row):
                    self._aside.setdefault(load.row, []).append((queue, job))
                    continue
                self._served += queue is self._demands
                return _start(load, block)
        if urgent:
            return None
        while self._taken < self._slots and (self._begun or self._rows):
            found = self._begun.popleft() if self._begun else self.begin_row(self._rows.popleft())
            if found is not None and (job_or_none := self._take_slot(found)) is not None:
                return job_or_none
        return self._closing.popleft() if self._closing else None

    def _take_slot(self, load: Load) -> Job | None:
        """Its first block; None when all of it was read, or is being read, for who waits."""
        pending = [block for block, state in enumerate(load.blocks) if state == PENDING]
        if load.failed or not pending:
            return None
        load.slot = True
        self._taken += 1
        if len(pending) > 1:
            self.follow(load)
        return _start(load, pending[0])


def _start(load: Load, block: int) -> Job:
    load.blocks[block] = RUNNING
    load.running += 1
    return load, block
