"""A follower beside a job, in virtual time, as the supervisor has it: readers never wait, jobs take what they take.

The clock goes on by the opens, one each half millisecond. The supervisor looks at the rings, and for work, as often as
in a mount. A job is run at once, but its result is delivered when the clock has gone on by the processor time
that it took; the opens of that time are observed before. The supervisor's own time is counted, and stops nothing.
Epochs further ahead (`work_far`) are left out: they foresee no open. A job that takes longer than the case has opens
for is ended there: its result would come too late.
"""

from __future__ import annotations

import contextlib
import gc
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from identifying.bars import OPEN_S
from identifying.opens import Opens
from nopfsfs.plan.following.follower_output import BackgroundJob, PlanStatus
from nopfsfs.supervisor.event_loop import STAGING_PAUSE_S, WORK_PAUSE_S

# Between the mount and the first open: a training script takes longer to import torch.
BEFORE_S = 1.0
# From one thread to another and back; so no job takes no time.
HOP_S = 1e-4
# Until a process of its own has imported what it needs.
APART_START_S = 0.25
LOCKED = "locked"
# The stream is asked for so far ahead.
AHEAD = 256


class Following(Protocol):
    """What the supervisor uses of `nopfsfs.plan.following.follower.Follower`."""

    def observe(
        self, rows: NDArray[np.integer[Any]], readers: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.uint8]: ...
    def work(self) -> BackgroundJob | None: ...
    def work_apart(self) -> BackgroundJob | None: ...
    def finish(self, job: BackgroundJob) -> None: ...
    def status(self) -> PlanStatus: ...
    def upcoming(self, start: int, count: int) -> NDArray[np.int64]: ...
    @property
    def position(self) -> int: ...
    @property
    def hurries(self) -> bool: ...


@dataclass
class Costs:
    """Processor seconds up to the end of the case: of the supervisor, its longest `observe` and longest other call; of
    jobs in its threads, the longest; of jobs in processes of their own.
    """

    supervisor: float = 0.0
    longest_observe: float = 0.0
    longest_other: float = 0.0
    jobs: float = 0.0
    longest_job: float = 0.0
    apart: float = 0.0


@dataclass(frozen=True, eq=False)
class Played:
    """`foreseen` u8[m]: what `observe` said of each open; `locked`: opens until the status first said so, as of the
    look after; `status` in the end."""

    foreseen: NDArray[np.uint8]
    locked: int | None
    status: PlanStatus
    costs: Costs


class _Worker:
    """One task of the supervisor that asks for work, has it done elsewhere, and delivers it."""

    def __init__(self, ask: Callable[[], BackgroundJob | None], pause: float, start: float) -> None:
        self._ask, self._pause, self._start = ask, pause, start
        self._job: BackgroundJob | None = None
        self._result: Any = None
        self.due = self._ends = -BEFORE_S

    def act(self, play: _Play, end: float) -> float:
        """Delivers what is done and asks for more; the seconds that it takes, 0 when there is none. The case ends at
        `end`."""
        done, self._job = self._job, None
        if done is not None:
            done.take(self._result)
            play.other(lambda: play.follower.finish(done))
        job = self._job = play.other(self._ask)
        if job is None:
            self.due += self._pause
            return 0.0
        room = max(end - self.due - self._start, 0.0)
        took = play.seconds(lambda: self._compute(job), room)
        self.due = self.due + took + self._start + HOP_S if took < room else math.inf
        self._ends = min(self.due, end)
        return took

    def _compute(self, job: BackgroundJob) -> None:
        self._result = job.compute()

    def hurry(self, now: float) -> None:
        """Ask for work at once, where none is under way."""
        if self._job is None:
            self.due = min(self.due, now)

    def give_up(self, play: _Play, now: float) -> float:
        """End a job that nothing needs any more; the seconds that it had still to go."""
        job = self._job
        if job is None or job.wanted() or self._ends <= now:
            return 0.0
        self._job, self.due = None, now
        play.other(lambda: play.follower.finish(job))
        return self._ends - now


class _TooLongError(BaseException):
    """Nothing that a job does against its own faults may catch this."""


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Ends what runs inside after so many processor seconds by _TooLongError. For the main thread of a process."""

    def end(_number: int, _frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _Play:
    def __init__(self, follower: Following, clock: Callable[[], float]) -> None:
        self.follower, self._clock = follower, clock
        self.costs = Costs()

    def seconds(self, call: Callable[[], Any], most: float) -> float:
        """Processor time of a call, `most` where it takes longer."""
        if most <= 0:
            return 0.0  # there is no time to begin it
        began = self._clock()
        try:
            with _limit(most):
                call()
        except _TooLongError:
            return most
        return min(self._clock() - began, most)

    def other(self, call: Callable[[], Any]) -> Any:
        """The result of a call that the supervisor makes between its looks."""
        began = self._clock()
        result = call()
        took = self._clock() - began
        self.costs.supervisor += took
        self.costs.longest_other = max(self.costs.longest_other, took)
        return result

    def observe(self, there: Opens, begin: int, end: int) -> NDArray[np.uint8]:
        began = self._clock()
        foreseen = self.follower.observe(there.rows[begin:end], there.readers[begin:end])
        took = self._clock() - began
        self.costs.supervisor += took
        self.costs.longest_observe = max(self.costs.longest_observe, took)
        return foreseen


def play(follower: Following, there: Opens, clock: Callable[[], float] = time.process_time) -> Played:
    """Shows a follower all opens. Raises what it raises."""
    running = _Play(follower, clock)
    thread = _Worker(follower.work, WORK_PAUSE_S, 0.0)
    process = _Worker(follower.work_apart, WORK_PAUSE_S, APART_START_S)
    foreseen = np.zeros(len(there), np.uint8)
    locked: int | None = None
    seen, look = 0, 0.0
    last = int(there.number[-1]) + 1 if len(there) else 0
    gc.collect()  # what others have left is not this follower's cost
    while seen < len(there):
        next_one = min(thread, process, key=lambda worker: worker.due)
        if next_one.due <= look:
            took = next_one.act(running, last * OPEN_S)
            if next_one is process:
                running.costs.apart += took
            else:
                running.costs.jobs += took
                running.costs.longest_job = max(running.costs.longest_job, took)
            continue
        end = int(np.searchsorted(there.number, look / OPEN_S + 1e-6, side="right"))
        if end > seen:
            foreseen[seen:end] = running.observe(there, seen, end)
        seen = end
        if follower.hurries:
            thread.hurry(look)
        running.costs.apart -= process.give_up(running, look)
        running.other(lambda: follower.upcoming(follower.position, AHEAD))
        if locked is None and follower.status().state == LOCKED:
            locked = seen
        look += STAGING_PAUSE_S
    return Played(foreseen, locked, follower.status(), running.costs)
