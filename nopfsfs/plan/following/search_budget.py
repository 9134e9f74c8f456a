"""The processor time that searches may take."""

from __future__ import annotations

from collections.abc import Callable

# Searches may take so many seconds of a core at once, and this share of a core in the long run.
_BUDGET_S, _BUDGET_SHARE = 20.0, 0.03


class Budget:
    """Seconds of a core that searches may take. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._left = _BUDGET_S

    def spend(self, seconds: float) -> None:
        """Take so much."""
        self._left -= seconds

    @property
    def rests_s(self) -> float:
        """Seconds until searches may go on."""
        return 0.0 if self.left else -self._left / _BUDGET_SHARE

    @property
    def left(self) -> bool:
        """True: searches may go on."""
        now = self._clock()
        self._left = min(_BUDGET_S, self._left + _BUDGET_SHARE * (now - self._last))
        self._last = now
        return self._left > 0
