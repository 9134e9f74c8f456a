"""Count of how long another process has been silent, in time in which this process ran."""

from __future__ import annotations

TICK_MOST_S = 1.0  # of the time between two calls of `look`, so much counts at most: this process may not have run
GAP_S = 2.5  # so long between two calls, this process has been suspended (freezer, SIGSTOP, a suspended machine)


class Patience:
    """Count of the seconds since a question was left unanswered. Call `look` several times a second.

    After a gap between two calls the count begins anew. What stopped this process may have stopped the other one as
    well, which then gets the whole time to answer."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._last: float | None = None

    def answered(self) -> None:
        """Note that the other process has answered."""
        self.silent_s = 0.0

    def look(self, now: float) -> float:
        """Return the seconds of silence until `now`, a time of a monotonic clock in seconds."""
        step = 0.0 if self._last is None else now - self._last
        self._last = now
        self.silent_s = 0.0 if step > GAP_S else self.silent_s + min(max(0.0, step), TICK_MOST_S)
        return self.silent_s
