"""Threads that measure, and the one that watches them: it never touches what is measured, so it can always say that a
thread sleeps in the kernel. Such a thread is left behind; the process ends without it (`worker`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LOOK_S = 0.02  # between two looks at the threads
LEAVE_S = 5.0  # for threads to notice that they should stop


class MeterStopped(Exception):
    """The command was ended: clear up and go."""


class MeterHangs(Exception):
    """Something did not answer; the text is what was being done."""


@dataclass(slots=True)
class MeterThreads:
    """Runs work on several threads for a time. `poll` is called all the while, and may raise Stopped. `patience`:
    seconds beyond their time after which threads count as hanging."""

    poll: Callable[[], None]
    patience: float
    doing: dict[int, str] = field(default_factory=dict)  # by thread: what, for the message when it hangs
    _until: float = 0.0

    def late(self) -> bool:
        """Whether the threads should come to an end."""
        return time.monotonic() >= self._until

    def run(self, work: Callable[[int], None], threads: int, seconds: float) -> None:
        """Call `work(number)` on so many threads; return when all have returned. `work` looks at `late`, which is true
        after `seconds`. Raises what one of them raised, Stopped, Hangs."""
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
        crew = [threading.Thread(target=body, args=(n,), name=f"measure-{n}", daemon=True) for n in range(threads)]
        for one in crew:
            one.start()
        try:
            self._watch(crew, started + seconds + self.patience)
        except MeterStopped:
            self._until = 0.0
            leave = time.monotonic() + LEAVE_S
            for one in crew:
                one.join(max(0.0, leave - time.monotonic()))
            raise
        if failed:
            raise failed[0]

    def _watch(self, crew: list[threading.Thread], limit: float) -> None:
        for number, one in enumerate(crew):
            while one.is_alive():
                one.join(LOOK_S)
                self.poll()
                if time.monotonic() > limit and one.is_alive():
                    raise MeterHangs(self.doing.get(number, "measuring"))
