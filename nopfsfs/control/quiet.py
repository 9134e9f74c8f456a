"""Commands that want the mount left alone for a while, as one that unmounts it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nopfsfs.control.socket import Caller

Act = Callable[[], Awaitable[None]]


class Quiet:
    """The callers for whom the mount is kept quiet. `begin` is called for each of them, `end` when the last has hung
    up: a command that was interrupted leaves a mount that works on as before."""

    def __init__(self, begin: Act, end: Act) -> None:
        self._begin, self._end = begin, end
        self._callers: set[Caller] = set()

    async def keep(self, caller: Caller) -> None:
        """Keep the mount quiet until the caller hangs up."""
        if caller in self._callers:
            return
        self._callers.add(caller)
        caller.at_end.append(lambda: self._gone(caller))
        await self._begin()

    async def _gone(self, caller: Caller) -> None:
        self._callers.discard(caller)
        if not self._callers:
            await self._end()
