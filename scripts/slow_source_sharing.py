"""Reads that share the slow source equally, by a throughput curve: the simulator's source, driven by the clock.

With n reads under way it ends X(n) a second. The simulator knows when the next of them ends; an alarm is set to that
time, and set anew whenever a read comes. A process that was not run in time ends at once what was due meanwhile: its
delay makes some reads longer, and takes nothing from what the source gives later. Importing this module imports numpy.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import outcome
import trio
from slow_source_clock import Alarm
from slow_source_load import Change, Curve, UnderWay

from nopfsfs.sim.tuning.shared_source import Lane, SharedSource, SourceChange, ThroughputCurve


def throughput_curve(curve: Curve) -> ThroughputCurve:
    """The simulator's curve of the same shape."""
    falls_from, halves_after = (value or math.inf for value in (curve.falls_from, curve.halves_after))
    return ThroughputCurve(curve.seconds, curve.most, curve.bend, falls_from, halves_after)


class Sharing:
    """The reads under way, and the changes to come. `run` is a task that ends reads."""

    def __init__(self, curve: Curve, under_way: UnderWay) -> None:
        self._under_way = under_way
        self._alarm = Alarm()
        self._waiting: dict[Lane, trio.lowlevel.Task] = {}  # by read
        self._changes: deque[Change] = deque()  # `at` in seconds of the source
        self.set_curve(curve)

    async def run(self) -> None:
        """End reads when they are due, for ever."""
        try:
            while True:
                await self._alarm.wait()
                self.catch_up()
                self._set_alarm()
        finally:
            self._alarm.close()

    async def read(self) -> None:
        """Wait as long as a read takes. Raises OSError, as late, if the schedule wants reads to fail when it ends."""
        self.catch_up()
        task = trio.lowlevel.current_task()
        self._under_way.begin()
        self._begin(task)
        self._set_alarm()

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._under_way.end()
            self._waiting = {read: other for read, other in self._waiting.items() if other is not task}
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def set_curve(self, curve: Curve) -> None:
        """Follow a curve from its seed on, without a schedule. Reads under way begin anew."""
        self._source = SharedSource(throughput_curve(curve), curve.seed, noise=curve.noise)
        self._began = time.monotonic()  # the source's time 0
        self._changes.clear()
        self._errno = 0
        tasks = list(self._waiting.values())
        self._waiting.clear()
        for task in tasks:
            self._begin(task)
        self._set_alarm()

    def schedule(self, changes: Sequence[Change]) -> None:
        """Change the source at these times, in seconds from now, instead of what was scheduled before."""
        self.catch_up()
        now = self._source.now
        self._changes = deque(replace(change, at=change.at + now) for change in sorted(changes, key=lambda c: c.at))
        self.catch_up()
        self._set_alarm()

    def _begin(self, task: trio.lowlevel.Task) -> None:
        read = Lane(lambda seconds: None)
        read.when_ended = partial(self._ended, read)
        self._waiting[read] = task
        self._source.begin(read)

    def _ended(self, read: Lane, seconds: float) -> None:
        task = self._waiting.pop(read, None)
        if task is None:  # it was cancelled
            return
        self._under_way.end(self._began + self._source.now, read=not self._errno)
        if self._errno:
            trio.lowlevel.reschedule(task, outcome.Error(OSError(self._errno, os.strerror(self._errno))))
        else:
            trio.lowlevel.reschedule(task)

    def catch_up(self) -> None:
        """Let the source do what is due by now. What has ended counts as ended when it did."""
        now = time.monotonic() - self._began
        while self._changes and self._changes[0].at <= now:
            change = self._changes.popleft()
            self._source.run_until(change.at)
            self._errno = change.errno
            state = SourceChange(change.at, change.bandwidth, change.slower, change.stalled, change.background)
            self._source.change_to(state)
        self._source.run_until(now)

    def _set_alarm(self) -> None:
        """Wake up when something happens next; nobody needs to know of what happens while no reader waits."""
        due = math.inf
        if self._waiting:
            due = min(self._source.next_at, self._changes[0].at if self._changes else math.inf)
        self._alarm.set(self._began + due)
