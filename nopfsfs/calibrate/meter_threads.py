"""Threads that measure, and the thread that watches them. The watching thread never touches what is measured, so it can
always report that another sleeps in the kernel. Such a thread is left behind; the process ends without it
(`meter_process`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

LOOK_S = 0.02  # between two checks of the threads
LEAVE_S = 5.0  # for threads to notice that they should stop
T = TypeVar("T")


class MeterStopped(Exception):
    """The command was ended: clear up and end."""


class MeterHangs(Exception):
    """No answer comes from what is measured; the text is what was being done."""


@dataclass(slots=True)
class MeterThreads:
    """Runner of work on several threads for a time. `poll` is called all the while, and may raise MeterStopped.
    `patience`: seconds beyond their time after which threads count as hanging."""

    poll: Callable[[], None]
    patience: float
    doing: dict[int, str] = field(default_factory=dict)  # by thread: its present step, for MeterHangs
    _until: float = 0.0

    def late(self) -> bool:
        """True when the threads should come to an end."""
        return time.monotonic() >= self._until

    def run(self, work: Callable[[int], None], threads: int, seconds: float) -> None:
        """Call `work(number)` on `threads` threads; return when all have returned. `work` checks `late`, which is true
        after `seconds`. Raises what one of the threads raised, MeterStopped, MeterHangs."""
        failed: list[BaseException] = []
        self.doing.clear()

        def body(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                failed.append(error)
                self._until = 0.0

        started = time.monotonic()
        self._until = started + seconds
        workers = [threading.Thread(target=body, args=(n,), name=f"measure-{n}", daemon=True) for n in range(threads)]
        for one in workers:
            one.start()
        try:
            self._watch(workers, started + seconds + self.patience)
        except MeterStopped:
            self._until = 0.0
            leave = time.monotonic() + LEAVE_S
            for one in workers:
                one.join(max(0.0, leave - time.monotonic()))
            raise
        if failed:
            raise failed[0]

    def _watch(self, workers: list[threading.Thread], limit: float) -> None:
        for number, one in enumerate(workers):
            while one.is_alive():
                one.join(LOOK_S)
                self.poll()
                if time.monotonic() > limit and one.is_alive():
                    raise MeterHangs(self.doing.get(number, "measuring"))


def pop(waiting: list[T]) -> T | None:
    """Take the last of what waits, in one step, so that no two threads get the same; None where nothing waits."""
    try:
        return waiting.pop()
    except IndexError:
        return None
