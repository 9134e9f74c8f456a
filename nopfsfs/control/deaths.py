"""When does a process that is replaced whenever it dies die too often?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

DEATHS, WINDOW_S = 5, 60.0
# A process that has done so much, or lived so long, did not die of what it was started with.
DONE, LIVED_S = 32, 20.0


class Deaths:
    """The deaths of one process and those in its place. `done()`: how much they have done; `now()`: seconds."""

    def __init__(self, done: Callable[[], int], now: Callable[[], float]) -> None:
        self._done, self._now = done, now
        self._vain: deque[float] = deque(maxlen=DEATHS)
        self._at_start = 0
        self._since = 0.0

    def started(self) -> None:
        """Another process is in its place."""
        self._at_start, self._since = self._done(), self._now()

    def died(self) -> bool:
        """Whether it has died in vain too often."""
        now = self._now()
        if self._done() - self._at_start < DONE and now - self._since < LIVED_S:
            self._vain.append(now)
        else:
            self._vain.clear()
        return len(self._vain) == DEATHS and now - self._vain[0] < WINDOW_S
