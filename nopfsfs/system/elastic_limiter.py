"""`ElasticLimiter`: a limit on threads that grows when the threads that there are do not come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

WAITED_S, WAITED_MOST_S = 0.1, 2.0
Result = TypeVar("Result")


class ElasticLimiter:
    """Limiter that lets calls run in `least` threads at a time. While all of these are busy and a call has waited for
    `WAITED_S`, calls run in up to `most` threads. The surplus ends with the calls that made it necessary."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._tokens = trio.CapacityLimiter(least)

    async def run(self, work: Callable[..., Result], *args: object) -> Result:
        """Call `work` in a thread. A caller that is cancelled abandons the thread, which counts until its call ends."""
        return await trio.to_thread.run_sync(
            work, *args, abandon_on_cancel=True,
            limiter=self,  # type: ignore[arg-type]  # trio uses these two methods of a limiter only
        )  # fmt: skip

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a thread. After each pause in vain, raise the limit by one thread: an added thread may go to another
        call that waits."""
        pause_s = WAITED_S
        while True:
            with trio.move_on_after(pause_s):
                await self._tokens.acquire_on_behalf_of(borrower)
                return
            if self._tokens.total_tokens < self._most:
                self._tokens.total_tokens += 1
            pause_s = min(2 * pause_s, WAITED_MOST_S)  # thousands may wait

    def release_on_behalf_of(self, borrower: object) -> None:
        """Give back the thread of a call that has ended, and lower the limit again."""
        self._tokens.release_on_behalf_of(borrower)
        needed = self._tokens.borrowed_tokens + self._least
        if self._tokens.total_tokens > needed:
            self._tokens.total_tokens = needed
