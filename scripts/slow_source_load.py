"""What makes the slow source slow: latency, bandwidth, a limit of concurrent requests, faults, counters.

Owns no FUSE: `slow_source_fs` calls it around each request. Everything here runs on one trio thread and has
to be cheap, because the machine that runs the source also runs what is measured.
"""

from __future__ import annotations

import ctypes
import fnmatch
import heapq
import itertools
import os
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import trio

NS_PER_S = 1_000_000_000
CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
OPERATIONS = ("open", "read", "lookup", "getattr", "readdir")

_DURATION = re.compile(r"([0-9.]+)\s*(us|ms|s)?")
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0}
_RATE = re.compile(r"([0-9.]+)\s*([kmgKMG]?)(i?)B?(?:/s)?")
_RATE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def parse_duration(text: str) -> float:
    """Seconds from "5ms", "200us", "1s" or "0.5". Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a duration: {text!r} (like 5ms)")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def parse_rate(text: str) -> float:
    """Bytes per second from "400MB/s", "1GiB/s" or "4000000". Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a bandwidth: {text!r} (like 400MB/s)")
    return float(match[1]) * float((1024 if match[3] else 1000) ** _RATE_POWERS[match[2].lower()])


@dataclass(frozen=True)
class Limits:
    """How slow the source is; times in seconds, bandwidth in bytes per second (0: no limit)."""

    open_latency: float = 0.0
    read_latency: float = 0.0
    bandwidth: float = 0.0
    concurrent: int = 64


class Timer:
    """Sleeps that end on time.

    trio sleeps in epoll, whose time-out is rounded up to whole milliseconds: a 2 ms read would take up to
    3 ms, and the source would be slower than it claims. A timerfd wakes within tens of microseconds.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval s, ns; value s, ns
        self._heap: list[tuple[float, int, trio.lowlevel.Task]] = []
        self._asleep: set[int] = set()
        self._ids = itertools.count()
        self._armed = float("inf")

    async def run(self) -> None:
        """Wake the sleepers that are due, for ever."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                self._wake()
        finally:
            os.close(self._fd)

    async def sleep_until(self, deadline: float) -> None:
        """Return at `deadline`, a time of time.monotonic()."""
        number = next(self._ids)
        self._asleep.add(number)
        heapq.heappush(self._heap, (deadline, number, trio.lowlevel.current_task()))
        if deadline < self._armed:
            self._arm(deadline)

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._asleep.discard(number)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _arm(self, deadline: float) -> None:
        self._armed = deadline
        self._spec[2], self._spec[3] = divmod(max(1, int(deadline * NS_PER_S)), NS_PER_S)
        self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, self._spec, None)

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass  # re-armed between the wake-up and the read
        now = time.monotonic()
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, number, task = heapq.heappop(heap)
            if number in self._asleep:
                self._asleep.discard(number)
                trio.lowlevel.reschedule(task)
        self._armed = float("inf")
        if heap:
            self._arm(heap[0][0])


class Load:
    """Delays requests: so many at a time, each with its latency, all sharing one line."""

    def __init__(self, limits: Limits, timer: Timer) -> None:
        self.limits = limits
        self.in_flight = 0
        self.peak = 0
        self._timer = timer
        self._line_free = 0.0  # when the shared line has sent all that was promised
        self._waiting = trio.lowlevel.ParkingLot()

    async def enter(self) -> None:
        """Take one of the `concurrent` places; `leave` gives it back."""
        if self.in_flight >= self.limits.concurrent:
            await self._waiting.park()  # the place is handed over: in_flight stays
            return
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def leave(self) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self.in_flight -= 1

    async def open(self) -> None:
        """Wait as long as an open takes."""
        if self.limits.open_latency:
            await self._timer.sleep_until(time.monotonic() + self.limits.open_latency)

    async def read(self, size: int) -> None:
        """Wait as long as reading `size` bytes takes.

        The line serves in order of arrival; all latencies are equal, so no answer has to overtake another.
        """
        limits = self.limits
        now = time.monotonic()
        due = now + limits.read_latency
        if limits.bandwidth:
            due = self._line_free = max(due, self._line_free) + size / limits.bandwidth
        if due > now:
            await self._timer.sleep_until(due)


@dataclass
class Fault:
    """What happens to the next `count` requests (None: all) of an operation on matching paths.

    With an errno they fail; without one they wait until released.
    """

    operation: str
    pattern: str
    errno: int | None
    count: int | None
    released: trio.Event = field(default_factory=trio.Event)

    def take(self, operation: str, path: str) -> bool:
        """Whether this request is struck; uses up one of `count`."""
        if self.count == 0 or self.operation not in (operation, "any"):
            return False
        if not fnmatch.fnmatchcase(path, self.pattern):
            return False
        if self.count is not None:
            self.count -= 1
        return True


class Faults:
    """The faults that tests ordered."""

    def __init__(self) -> None:
        self.stalled = 0
        self._faults: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        if fault.operation not in (*OPERATIONS, "any"):
            raise ValueError(f"no such operation: {fault.operation}")
        self._faults.append(fault)

    def release(self) -> None:
        """End all faults; stalled requests go on."""
        for fault in self._faults:
            fault.released.set()
        self._faults.clear()

    async def strike(self, operation: str, path: str) -> None:
        """Raise OSError, wait, or do nothing, as ordered for this request."""
        for fault in self._faults:
            if fault.take(operation, path):
                if fault.errno is not None:
                    raise OSError(fault.errno, os.strerror(fault.errno))
                self.stalled += 1
                try:
                    await fault.released.wait()
                finally:
                    self.stalled -= 1
                return


class Counters:
    """Requests that arrived (failed ones too) and bytes that were answered, in total and per path."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.opens: defaultdict[str, int] = defaultdict(int)
        self.reads: defaultdict[str, int] = defaultdict(int)
        self.bytes: defaultdict[str, int] = defaultdict(int)
        self.looks: defaultdict[str, int] = defaultdict(int)  # at attributes: lookups, getattrs
        self.listings: defaultdict[str, int] = defaultdict(int)  # of directories

    def record(self, per_file: bool) -> dict[str, Any]:
        """Totals, and with `per_file` also {path: [opens, reads, bytes]}, and looks and listings by path."""
        totals: dict[str, Any] = {
            "opens": sum(self.opens.values()),
            "reads": sum(self.reads.values()),
            "bytes": sum(self.bytes.values()),
        }
        if per_file:
            paths = self.opens.keys() | self.reads.keys()
            totals["files"] = {p: [self.opens.get(p, 0), self.reads.get(p, 0), self.bytes.get(p, 0)] for p in paths}
            totals |= {"looks": dict(self.looks), "listings": dict(self.listings)}
        return totals
