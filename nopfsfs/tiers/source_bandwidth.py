"""The bytes a second that a mount reads from its source, bounded by a token bucket. Pure: the clock is passed in.

Each request takes its bytes when it begins. Prefetches begin while there are bytes; demands pass, and what they take is
owed, so that prefetches make up for it. A large block may take more than there is.
"""

from __future__ import annotations

from collections.abc import Callable

BURST_S = 0.25  # of the rate that an idle mount saves up: 2.5 % of ten seconds
_REST_LEAST_S = 0.002  # a thread that rests for less wakes for next to nothing


class SourceBandwidth:
    """A bucket that fills at `rate` bytes a second; 0: there is no bound. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate, self._left, self._at = 0, 0.0, clock()

    @property
    def rate(self) -> int:
        return self._rate

    @rate.setter
    def rate(self, rate: int) -> None:
        """Change the rate. What is owed stays."""
        self._fill()
        self._rate = rate
        self._left = min(self._left, BURST_S * rate) if rate else 0.0

    def take(self, size: int) -> None:
        """Take the bytes of a request that begins."""
        if self._rate:
            self._fill()
            self._left -= size

    @property
    def rest_s(self) -> float:
        """Seconds until a prefetch may begin; 0: now."""
        if not self._rate:
            return 0.0
        self._fill()
        return 0.0 if self._left >= 0 else max(_REST_LEAST_S, -self._left / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(BURST_S * self._rate, self._left + self._rate * (now - self._at))
        self._at = now
