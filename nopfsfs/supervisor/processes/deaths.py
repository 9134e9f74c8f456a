"""How long to wait before a process that died is started again. It is never given up for good."""

from __future__ import annotations

from collections.abc import Callable

from nopfsfs.system.outages import Backoff

# A process that has done so much, or lived so long, did not die of what it was started with.
DONE, LIVED_S = 8, 20.0
# So many deaths in vain, one after the other, cost nothing; then come pauses that double, up to a minute.
FREE = 4
HOPELESS = 10  # deaths in vain after which there is little hope


class Deaths:
    """The deaths of one process and those in its place. `done()`: how much they have done; `now()`: seconds."""

    def __init__(self, done: Callable[[], int], now: Callable[[], float]) -> None:
        self._done, self._now = done, now
        self._vain = 0
        self._backoff = Backoff()
        self._at_start = 0
        self._since = 0.0

    def started(self) -> None:
        """Another process is in its place."""
        self._at_start, self._since = self._done(), self._now()

    def pause(self) -> float:
        """It has died, or could not be started: seconds to wait before the next is started, 0 mostly."""
        in_vain = self._done() - self._at_start < DONE and self._now() - self._since < LIVED_S
        self._vain = self._vain + 1 if in_vain else 0
        if self._vain <= FREE:
            self._backoff.succeeded()
            return 0.0
        return self._backoff.failed()

    @property
    def hopeless(self) -> bool:
        """Whether so many have died in vain that the next most likely will."""
        return self._vain > HOPELESS
