"""When is a process that died started again, and when is it given up?"""

from __future__ import annotations

from collections.abc import Callable

# A process that has done so much, or lived so long, did not die of what it was started with.
DONE, LIVED_S = 8, 20.0
# So many deaths in vain, one after the other, cost nothing; then come so many pauses, each twice the one before.
FREE = 4
PAUSE_S, PAUSES = 0.25, 6


class Deaths:
    """The deaths of one process and those in its place. `done()`: how much they have done; `now()`: seconds."""

    def __init__(self, done: Callable[[], int], now: Callable[[], float]) -> None:
        self._done, self._now = done, now
        self._vain = 0
        self._at_start = 0
        self._since = 0.0

    def started(self) -> None:
        """Another process is in its place."""
        self._at_start, self._since = self._done(), self._now()

    def pause(self) -> float | None:
        """It has died: seconds to wait before the next is started, 0 mostly; None: there is to be no next."""
        in_vain = self._done() - self._at_start < DONE and self._now() - self._since < LIVED_S
        self._vain = self._vain + 1 if in_vain else 0
        if self._vain <= FREE:
            return 0.0
        pauses = self._vain - FREE
        return PAUSE_S * 2.0 ** (pauses - 1) if pauses <= PAUSES else None
