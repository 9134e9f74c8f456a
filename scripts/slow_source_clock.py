"""Waits of the slow source that end on time.

trio sleeps in epoll, whose time-out is rounded up to whole milliseconds: a 2 ms read would take up to 3 ms, and the
source would be slower than it claims. A timerfd wakes within tens of microseconds. Times are those of time.monotonic().
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import math
import os
import time
from typing import Any

import trio

NS_PER_S = 1_000_000_000
CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
LONGEST_S = 1e6  # of a wait: what is later is as good as never


class Alarm:
    """A time that one task waits for, and that others may change meanwhile."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval s, ns; value s, ns

    def close(self) -> None:
        os.close(self._fd)

    def set(self, at: float) -> None:
        """Go off at `at`, and at no earlier time that was set before; never, if that is infinite."""
        whole = 0 if math.isinf(at) else max(1, int(min(at, time.monotonic() + LONGEST_S) * NS_PER_S))
        self._spec[2], self._spec[3] = divmod(whole, NS_PER_S)
        self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, self._spec, None)

    async def wait(self) -> None:
        """Return when the alarm has gone off; now and then for nothing, where it was set anew meanwhile."""
        await trio.lowlevel.wait_readable(self._fd)
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass  # set anew between the wake-up and the read


class Timer:
    """Sleeps of many tasks."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._heap: list[tuple[float, int, trio.lowlevel.Task]] = []
        self._asleep: set[int] = set()
        self._ids = itertools.count()
        self._set_to = math.inf

    async def run(self) -> None:
        """Wake the sleepers that are due, for ever."""
        try:
            while True:
                await self._alarm.wait()
                self._wake()
        finally:
            self._alarm.close()

    async def sleep_until(self, deadline: float) -> None:
        """Return at `deadline`."""
        number = next(self._ids)
        self._asleep.add(number)
        heapq.heappush(self._heap, (deadline, number, trio.lowlevel.current_task()))
        if deadline < self._set_to:
            self._set(deadline)

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._asleep.discard(number)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _set(self, deadline: float) -> None:
        self._set_to = deadline
        self._alarm.set(deadline)

    def _wake(self) -> None:
        now = time.monotonic()
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, number, task = heapq.heappop(heap)
            if number in self._asleep:
                self._asleep.discard(number)
                trio.lowlevel.reschedule(task)
        self._set_to = math.inf
        if heap:
            self._set(heap[0][0])
