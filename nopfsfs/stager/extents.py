"""Extents of the arena from their allocation until they may be used again.

A server takes arena bytes and hands them to the kernel without letting anything else run in between, and reads the
columns anew each time. So once a server has come back to its event loop after an extent's last reference was
withdrawn, the server no longer reads that extent. A grace period ends when every server has done so. This is
read-copy-update with the event loop as the quiescent state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from nopfsfs.protocol.columns import Metric
from nopfsfs.tiers.arena import Arena, NoRoom

Action = Callable[[], None]


class GracePeriods:
    """Actions that wait for a grace period. Not thread-safe; the caller holds its own lock.

    `ask(number)` makes every server pass through its event loop, after which the owner calls `passed(number)`. `ask`
    returns True where no server has to be waited for.
    """

    def __init__(self, ask: Callable[[int], bool]) -> None:
        self._ask = ask
        self._waiting: deque[Action] = deque()
        self._asked: deque[Action] = deque()
        self._number = 0
        self._outstanding = False

    def after(self, action: Action) -> None:
        """Call `action` once no server can be reading what was withdrawn before."""
        self._waiting.append(action)
        self._request()

    def passed(self, number: int) -> None:
        """Act on the answers of all servers to request `number`."""
        if not self._outstanding or number != self._number:
            return
        self._outstanding = False
        while self._asked:
            self._asked.popleft()()
        self._request()

    def _request(self) -> None:
        if self._waiting and not self._outstanding:
            self._number += 1
            self._outstanding = True
            self._asked, self._waiting = self._waiting, self._asked
            if self._ask(self._number):
                self.passed(self._number)


class ExtentPool:
    """The arena's extents. Pins keep an extent for those that read it without a server's grace period: the pusher, the
    disk thread, other nodes. Not thread-safe; the caller holds its own lock."""

    def __init__(self, arena: Arena, metrics: memoryview, ask_grace: Callable[[int], bool]) -> None:
        self._arena, self._metrics = arena, metrics
        self.grace = GracePeriods(ask_grace)
        self._pins: dict[int, int] = {}
        self._retired: set[int] = set()  # extents that wait for their last pin
        self._refused, self._freed = 0, False  # since `take_refused` and `take_freed`

    def set_budget(self, budget: int) -> None:
        """Bound the memory that extents take; bytes."""
        self._arena.set_budget(budget)
        self._metrics[Metric.ARENA_USED] = self._arena.used

    def allocate(self, size: int) -> int:
        """The offset of an extent of `size` bytes. Raises NoRoom."""
        try:
            extent = self._arena.allocate(size)
        except NoRoom:
            self._refused += 1
            raise
        self._metrics[Metric.ARENA_USED] = self._arena.used
        return extent

    def view(self, extent: int, size: int) -> memoryview:
        """The first `size` bytes of an extent."""
        return self._arena.view[extent : extent + size]

    def free(self, extent: int) -> None:
        """Free an extent that no answer and no column has named."""
        self._arena.free(extent)
        self._metrics[Metric.ARENA_USED] = self._arena.used
        self._freed = True

    def retire(self, extent: int) -> None:
        """Free an extent that no column names any more, after its last pin and a grace period."""
        if extent in self._pins:
            self._retired.add(extent)
        else:
            self.grace.after(partial(self.free, extent))

    def pin(self, extent: int) -> None:
        """Keep an extent until `unpin`; pins are counted."""
        self._pins[extent] = self._pins.get(extent, 0) + 1

    def unpin(self, extent: int) -> None:
        """Take one pin back."""
        self._pins[extent] -= 1
        if not self._pins[extent]:
            del self._pins[extent]
            if extent in self._retired:
                self._retired.remove(extent)
                self.retire(extent)

    def take_refused(self) -> int:
        """The number of allocations that found no room since the last call."""
        refused, self._refused = self._refused, 0
        return refused

    def take_freed(self) -> bool:
        """True when an extent was freed since the last call."""
        freed, self._freed = self._freed, False
        return freed
