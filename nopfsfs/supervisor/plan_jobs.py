"""Runs the computations that a follower hands out, in a thread or in a process apart. Computations of later epochs run
at a pace of their own.

The follower is asked for computations when the event loop has looked at the rings. A clock for each would wake the
supervisor tens of times a second, beside readers that want the processor.
"""

from __future__ import annotations

import logging

import trio

from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.system import low_priority_call, node_memory
from nopfsfs.system.outages import Backoff, Outages, reason

log = logging.getLogger(__name__)
FAR_LOOK_S = 0.1  # between looks at epochs further ahead: what is kept depends on them, and one may take half a second
FAR_PAUSE = 4  # times as long as one took, before the next: a fifth of a core
FAILED_PAUSE_S = 1.0  # after the first fault; twice as long after the next, up to a minute
WHAT_FAR = "plan of epochs further ahead"


class PlanJobs:
    """Jobs of the follower: at most one of each kind at a time."""

    def __init__(self, follower: Follower, looked: trio.lowlevel.ParkingLot, outages: Outages) -> None:
        """`looked`: those parked there are woken when it is time to look for work."""
        self._follower, self._looked, self._outages = follower, looked, outages
        self._working = True  # the follower was made
        self._far = False
        self._apart: tuple[BackgroundJob, trio.CancelScope] | None = None
        self._far_at = trio.current_time()
        self._far_backoff = Backoff(FAILED_PAUSE_S)

    async def run(self) -> None:
        """Until cancelled. Raises whatever the follower raises when it is asked for work that the plan needs."""
        follower = self._follower
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work, follower.work())
            while True:
                await self._looked.park()
                if not self._working and (job := follower.work()) is not None:
                    self._working = True
                    nursery.start_soon(self._work, job)
                if self._apart is None and (job := follower.work_apart()) is not None:
                    self._apart = job, trio.CancelScope()
                    nursery.start_soon(self._work_apart, *self._apart)
                elif self._apart is not None and not self._apart[0].wanted():
                    self._apart[1].cancel()
                if not self._far and trio.current_time() >= self._far_at:
                    self._look_far(nursery)

    async def _work(self, job: BackgroundJob | None) -> None:
        """Do all that there is to do. A job that failed is handed out again: after a pause."""
        backoff = Backoff(FAILED_PAUSE_S)
        while job is not None:
            failed = True
            try:
                await trio.to_thread.run_sync(job.run, abandon_on_cancel=True)
                failed = False
            except Exception:
                log.exception("a computation of the plan failed")
            self._finish(job)  # also a failed one, or no other would begin
            if failed:
                await trio.sleep(backoff.failed())
            else:
                backoff.succeeded()
            job = self._follower.work()
        try:
            # what orders were computed in is as large as the orders
            await trio.to_thread.run_sync(node_memory.give_back)
        except RuntimeError as error:  # no thread can be started
            log.debug("memory of the plan's computations is not given back now: %s", error)
        self._working = False

    async def _work_apart(self, job: BackgroundJob, scope: trio.CancelScope) -> None:
        with scope:
            job.take(await low_priority_call.compute(job.compute))
        self._finish(job)  # also one that was cancelled
        self._apart = None

    def _finish(self, job: BackgroundJob) -> None:
        try:
            self._follower.finish(job)
        except Exception:
            log.exception("a result of the plan could not be used")

    def _look_far(self, nursery: trio.Nursery) -> None:
        try:
            job = self._follower.work_far()
        except Exception as e:
            self._far_failed(e)
            return
        self._far_at = trio.current_time() + FAR_LOOK_S
        if job is not None:
            self._far = True
            nursery.start_soon(self._work_far, job)

    async def _work_far(self, job: BackgroundJob) -> None:
        began = trio.current_time()
        try:
            await trio.to_thread.run_sync(job.run, abandon_on_cancel=True)
            job.deliver()
        except Exception as e:
            self._far_failed(e)
        else:
            self._outages.ended(WHAT_FAR)
            self._far_backoff.succeeded()
            self._far_at = trio.current_time() + FAR_PAUSE * (trio.current_time() - began)
        self._far = False

    def _far_failed(self, error: Exception) -> None:
        log.error("epochs further ahead cannot be computed now", exc_info=error)
        self._outages.began(WHAT_FAR, f"failed: {reason(error)}")
        self._far_at = trio.current_time() + self._far_backoff.failed()
