"""Sees to it that nothing waits for a disk that does not answer the thread that writes there.

What the policy has ordered to be written, and is not, it holds in memory until it is told. So what waits behind a
disk that hangs is refused, and what is under way is given up: when the disk answers, its copy is removed again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT_S = 2.0  # for one thing that is done on a disk
Order = tuple[int, int]  # row, and a disk tier: to be written there; 0 or less: something else


class _Step:
    """What the thread does now, since when."""

    def __init__(self, row: int, tier: int, since: float) -> None:
        self.row, self.tier, self.since = row, tier, since
        self.settled = False  # the policy was told how it ended, or is about to be
        self.late = False


class DiskWatch:
    """`refuse(row)` tells the policy that the row is not on disk; `hangs(tier)` that the tier is to be left alone."""

    def __init__(
        self, orders: queue.SimpleQueue[Order | None], refuse: Callable[[int], None], hangs: Callable[[int], None],
        awake: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._orders, self._refuse, self._hangs, self._awake, self._clock = orders, refuse, hangs, awake, clock
        self._lock = threading.Lock()
        self._step: _Step | None = None

    @contextmanager
    def at(self, row: int, tier: int) -> Iterator[None]:
        """The thread carries out an order."""
        self._step = _Step(row, tier, self._clock())
        self._awake()
        try:
            yield
        finally:
            self._step = None

    def settle(self) -> bool:
        """The thread is about to say how its order ended; whether that is still to be said."""
        with self._lock:
            step = self._step
            if step is None:
                return True
            step.settled = True
            return not step.late

    def look(self) -> bool:
        """See to what takes too long; whether anything is under way."""
        step = self._step
        if step is None:
            return False
        if self._clock() - step.since < LIMIT_S:
            return True
        with self._lock:
            news, step.late = not step.late, True
            refused = news and step.tier > 0 and not step.settled
        if news:
            self._hangs(abs(step.tier))
        if refused:
            self._refuse(step.row)
        self._refuse_waiting()
        return True

    def _refuse_waiting(self) -> None:
        kept: list[Order | None] = []
        try:
            while True:
                order = self._orders.get_nowait()
                if order is not None and order[1] > 0:
                    self._refuse(order[0])
                else:
                    kept.append(order)
        except queue.Empty:
            pass
        for order in kept:
            self._orders.put(order)
