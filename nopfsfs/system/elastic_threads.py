"""`ElasticThreads`: threads that do tasks, and more threads while these do not come back.

Does what `system/elastic_limiter.py` does, for processes without trio.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)
STUCK_S = 10.0  # a task that takes longer is stuck: another thread takes the place of its thread
_LOOK_S = 0.25  # between two looks at whether a thread is stuck, while a task waits for one
_SLEEP_S = 60.0  # a limit, as every wait has one
Task = Callable[[], object]


class ElasticThreads:
    """Threads that do tasks in their order: `least` threads, and up to `most` while some are stuck. The surplus ends
    with the tasks that made it necessary. Daemon threads: a source may hold one for ever. Thread-safe."""

    def __init__(self, name: str, least: int, most: int) -> None:
        self._name, self._least, self._most = name, least, most
        lock = threading.Lock()
        self._has_task, self._begun = threading.Condition(lock), threading.Condition(lock)
        self._waiting: deque[tuple[int, Task]] = deque()
        self._since: dict[int, float] = {}  # by number of a task: when it was put, then when it began (time.monotonic)
        self._threads = 0
        self._stopped = False
        self.last = 0  # the number of the task that was put last

    @property
    def waiting(self) -> int:
        """The number of tasks that no thread has begun."""
        return len(self._waiting)

    def put(self, task: Task) -> None:
        """Queue a task. `replace_stuck` is to be called from time to time."""
        with self._has_task:
            self.last += 1
            self._waiting.append((self.last, task))
            self._since[self.last] = time.monotonic()
            self._has_task.notify()

    def hand_over(self, task: Task) -> None:
        """Queue a task, and wait until a thread has begun it, or `stop`."""
        self.put(task)
        with self._begun:
            while self._waiting and not self._stopped:
                self._replace_stuck()
                self._begun.wait(_LOOK_S)

    def replace_stuck(self) -> int:
        """Start the threads that are missing; return the number of tasks that have waited or lasted for too long."""
        with self._has_task:
            return self._replace_stuck()

    def lasts(self, number: int, limit_s: float) -> bool:
        """True while a task up to this number has not ended, which waits or lasts for less than `limit_s`."""
        now = time.monotonic()
        with self._has_task:
            return any(one <= number and now - since < limit_s for one, since in self._since.items())

    def stop(self) -> None:
        """End the threads after their present tasks."""
        with self._has_task:
            self._stopped = True
            self._has_task.notify_all()
            self._begun.notify_all()

    def _replace_stuck(self) -> int:
        now = time.monotonic()
        stuck = sum(now - since > STUCK_S for since in self._since.values())
        wanted = min(self._least + stuck, self._most, len(self._since))
        while self._threads < wanted and not self._stopped:
            try:
                threading.Thread(target=self._run, daemon=True, name=self._name).start()
            except RuntimeError:  # the system has no thread for us: the next look tries again
                break
            self._threads += 1
        return stuck

    def _run(self) -> None:
        """Do tasks until `stop`, or until this thread is surplus."""
        while (found := self._next()) is not None:
            number, task = found
            try:
                task()
            except Exception:
                log.exception("%s: %r failed", self._name, task)
            if self._ended(number):
                return

    def _next(self) -> tuple[int, Task] | None:
        with self._has_task:
            while not self._waiting and not self._stopped:
                self._has_task.wait(_SLEEP_S)
            if self._stopped:
                return None
            number, task = self._waiting.popleft()
            self._since[number] = time.monotonic()
            self._begun.notify()
            return number, task

    def _ended(self, number: int) -> bool:
        """Note that a task has ended; True when its thread is surplus: it was stuck, and another has its place."""
        with self._has_task:
            surplus = time.monotonic() - self._since.pop(number) > STUCK_S and self._threads > self._least
            self._threads -= surplus
            return surplus
