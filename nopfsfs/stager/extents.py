"""When may an arena extent be reused, or a registered file be closed? After every server has passed through its event
loop once since it was retired.

A server takes arena bytes and hands them to the kernel without letting anything else run in between, and reads the
columns anew each time. So once it has come back to its event loop after an extent's last reference was
withdrawn, it can no longer be reading it. This is read-copy-update with the event loop as the quiescent state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Retired = TypeVar("Retired")


class GracePeriods(Generic[Retired]):
    """Retired extents, or things to be done, that wait for their grace. Not thread-safe; the caller holds its own lock.

    `ask(number)` makes every server pass through its event loop, after which `passed(number)` is called; True where
    there is no server to wait for.
    """

    def __init__(self, ask: Callable[[int], bool], free: Callable[[Retired], None]) -> None:
        self._ask = ask
        self._free = free
        self._waiting: deque[Retired] = deque()
        self._asked: deque[Retired] = deque()
        self._number = 0
        self._outstanding = False

    def retire(self, extent: Retired) -> None:
        """Free `extent` once no server can be reading it."""
        self._waiting.append(extent)
        self._request()

    def passed(self, number: int) -> None:
        """All servers have answered request `number`."""
        if not self._outstanding or number != self._number:
            return
        self._outstanding = False
        while self._asked:
            self._free(self._asked.popleft())
        self._request()

    def _request(self) -> None:
        if self._waiting and not self._outstanding:
            self._number += 1
            self._outstanding = True
            self._asked, self._waiting = self._waiting, self._asked
            if self._ask(self._number):
                self.passed(self._number)
