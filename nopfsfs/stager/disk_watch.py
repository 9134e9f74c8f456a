"""A watch over the disk thread: nothing waits for a disk that does not answer it.

The policy holds a copy in memory from its command to write it until an event says how that ended. So commands that wait
behind a disk that hangs are refused, and the present one is given up. When the disk answers, the copy of that command
is removed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT_S = 2.0  # for one command on a disk
DiskTask = tuple[int, int]  # row, and the disk tier to write to; 0 or less: something else


class _Step:
    """The present command of the thread, and its begin."""

    def __init__(self, row: int, tier: int, since: float) -> None:
        self.row, self.tier, self.since = row, tier, since
        self.settled = False  # an event says how it ended, or is about to
        self.late = False


class DiskWatch:
    """`refuse(row)` reports that the row is not on disk; `hangs(tier)` leaves the tier alone for a while."""

    def __init__(
        self, tasks: queue.SimpleQueue[DiskTask | None], refuse: Callable[[int], None], hangs: Callable[[int], None],
        awake: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._tasks, self._refuse, self._hangs, self._awake, self._clock = tasks, refuse, hangs, awake, clock
        self._lock = threading.Lock()
        self._step: _Step | None = None

    @contextmanager
    def at(self, row: int, tier: int) -> Iterator[None]:
        """Watch the thread while it carries out a command."""
        self._step = _Step(row, tier, self._clock())
        self._awake()
        try:
            yield
        finally:
            self._step = None

    def settle(self) -> bool:
        """Note that the thread is about to report how its command ended; False when the command was given up before."""
        with self._lock:
            step = self._step
            if step is None:
                return True
            step.settled = True
            return not step.late

    def look(self) -> bool:
        """Give up what takes too long; False when nothing is under way."""
        step = self._step
        if step is None:
            return False
        if self._clock() - step.since < LIMIT_S:
            return True
        with self._lock:
            news, step.late = not step.late, True
            refused = news and step.tier > 0 and not step.settled
        if news:
            self._hangs(abs(step.tier))
        if refused:
            self._refuse(step.row)
        self._refuse_waiting()
        return True

    def _refuse_waiting(self) -> None:
        kept: list[DiskTask | None] = []
        try:
            while True:
                task = self._tasks.get_nowait()
                if task is not None and task[1] > 0:
                    self._refuse(task[0])
                else:
                    kept.append(task)
        except queue.Empty:
            pass
        for task in kept:
            self._tasks.put(task)
