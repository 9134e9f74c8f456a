"""What the desk's workers are to do, and in what order.

Demands come first, then what other nodes' readers wait for, then further blocks of what was begun. What nobody waits
for needs a slot, of which there are as many as the source is read by at once: first loads that were begun already, then
the rows that were asked for, in their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from nopfsfs.fetch.loads import PENDING, RUNNING, Load, OpenSource

Job = tuple[Load, int]
Step = tuple[Job | None, list[OpenSource]]  # a block to be read, files to be closed


class Work:
    """See the module. All is called with `lock` held, but for `next`. `begin_row`, set before first use, begins to
    stage a row, if that is to be read here: the load, none of its blocks begun."""

    begin_row: Callable[[int], Load | None]

    def __init__(self, lock: threading.Lock, slots: int) -> None:
        self._lock = lock
        self._any = threading.Condition(lock)
        self._urgent = threading.Condition(lock)  # for the threads that keep free for who waits
        self._demands: deque[Job] = deque()
        self._lends: deque[Job] = deque()
        self._followups: deque[Job] = deque()
        self._begun: deque[Load] = deque()
        self._rows: deque[int] = deque()
        self._closing: list[OpenSource] = []  # by a worker: closing a file may wait for the source
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
        self._any.notify()
        self._urgent.notify()

    def lend(self, load: Load) -> None:
        """A reader of another node waits for all of it."""
        self._lends.extend((load, block) for block in range(len(load.blocks)))
        self._any.notify()
        self._urgent.notify()

    def follow(self, load: Load) -> None:
        """Read what of it nobody waits for, without a slot."""
        self._followups.extend((load, block) for block in range(len(load.blocks)))
        self._any.notify(min(len(load.blocks), self._slots))

    def queue(self, load: Load) -> None:
        """Read it when there is a slot."""
        self._begun.append(load)
        self._any.notify()

    def close(self, file: OpenSource) -> None:
        self._closing.append(file)
        self._any.notify()

    def ended(self, load: Load) -> None:
        """A whole load has ended."""
        if load.slot:
            load.slot = False
            self._taken -= 1
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

    def next(self, demands_only: bool, *, wait: bool) -> Step | None:
        """What one worker is to do. None: nothing, or, after a wait, no more. Takes the lock."""
        wake = self._urgent if demands_only else self._any
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

    def _take(self, demands_only: bool) -> Job | None:
        urgent = (self._demands, self._lends)
        for queue in urgent if demands_only else (*urgent, self._followups):
            while queue:
                load, block = queue.popleft()
                if load.blocks[block] == PENDING and not load.failed:
                    return _start(load, block)
        while not demands_only and self._taken < self._slots and (self._begun or self._rows):
            found = self._begun.popleft() if self._begun else self.begin_row(self._rows.popleft())
            if found is not None and (job := self._take_slot(found)) is not None:
                return job
        return None

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
