"""Processor time that callers of the control socket may take, whoever they are and however often they ask."""

from __future__ import annotations

import trio

SHARE = 0.1  # of a processor, in the long run
STORE_S = 0.5  # that may be taken at once: some hundreds of answers
CONNECTION_S = 0.0003  # what it takes to accept a connection and to let it go
ANSWER_MOST_S = 0.02  # counted for one answer: one that took longer has waited for others


class CallerBudget:
    """A store of processor time, which fills up at SHARE. Who finds it empty waits, first come, first served."""

    def __init__(self) -> None:
        self._left, self._at = STORE_S, trio.current_time()
        self._turn = trio.StrictFIFOLock()

    async def wait(self) -> None:
        """Wait until what was taken too much is made up for."""
        async with self._turn:
            if (missing := -self._filled()) > 0:
                await trio.sleep(missing / SHARE)

    def take(self, seconds: float) -> None:
        """Count so much as taken, also more than was left."""
        self._left = self._filled() - min(seconds, ANSWER_MOST_S)

    def _filled(self) -> float:
        now = trio.current_time()
        self._left, self._at = min(STORE_S, self._left + SHARE * (now - self._at)), now
        return self._left
