"""What a follower hands out is run when the event loop has looked, one job of each kind at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.supervisor import plan_jobs as module
from nopfsfs.supervisor.plan_jobs import FAR_LOOK_S, FAR_PAUSE, PlanJobs
from nopfsfs.system.outages import Outages

# Virtual seconds that the computation which runs now takes.
THREAD_TAKES: list[float] = []


class Follower:
    """Hands out so many jobs of each kind, and notes when it was asked, in virtual seconds."""

    def __init__(
        self, work: int = 0, apart: int = 0, far: int = 0, far_s: float = 0.0, wanted_until: float = math.inf
    ) -> None:
        self._wanted_until = wanted_until
        self._left = {"work": work, "apart": apart, "far": far}
        self._far_s = far_s
        self.asked: dict[str, list[float]] = {kind: [] for kind in self._left}
        self.done: list[str] = []
        self.finished = 0
        self.running: set[str] = set()

    def _job(self, kind: str, compute: Callable[[], Any] = lambda: None) -> BackgroundJob | None:
        self.asked[kind].append(trio.current_time())
        assert kind not in self.running, "one at a time"
        if not self._left[kind]:
            return None
        self._left[kind] -= 1
        self.running.add(kind)
        return BackgroundJob(
            compute, lambda _: self._delivered(kind), wanted=lambda: trio.current_time() < self._wanted_until
        )

    def _delivered(self, kind: str) -> None:
        self.running.remove(kind)
        self.done.append(kind)

    def work(self) -> BackgroundJob | None:
        return self._job("work")

    def work_apart(self) -> BackgroundJob | None:
        return self._job("apart")

    def work_far(self) -> BackgroundJob | None:
        return self._job("far", lambda: THREAD_TAKES.append(self._far_s))

    def finish(self, job: BackgroundJob) -> None:
        self.finished += 1
        delivered = len(self.done)
        job.deliver()
        if len(self.done) == delivered:
            self.running.discard("apart")  # only these are cancelled


@pytest.fixture(autouse=True)
def _neither_processes_nor_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real thread takes real time to begin, in which the virtual clock of an idle event loop goes on."""

    async def compute(call: Callable[[], Any]) -> Any:
        return call()

    async def run_sync(call: Callable[[], Any], *, abandon_on_cancel: bool = False) -> Any:
        result = call()
        await trio.sleep(THREAD_TAKES.pop() if THREAD_TAKES else 0.0)
        return result

    monkeypatch.setattr(module.node_memory, "give_back", lambda: None)
    monkeypatch.setattr(module.low_priority_call, "compute", compute)
    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def run(follower: Follower, looks: int, pause: float) -> None:
    """Run its jobs while an event loop looks so many times, in virtual time."""

    async def main() -> None:
        looked = trio.lowlevel.ParkingLot()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PlanJobs(cast(Any, follower), looked, Outages()).run)
            for _ in range(looks):
                await trio.sleep(pause)
                looked.unpark_all()
            await trio.sleep(pause)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))


def test_it_is_asked_for_work_when_the_event_loop_has_looked_and_at_no_other_time() -> None:
    follower = Follower()
    run(follower, looks=5, pause=60.0)
    assert len(follower.asked["work"]) == 1 + 5  # at first, and after each look
    assert len(follower.asked["apart"]) == len(follower.asked["far"]) == 5


def test_all_the_work_there_is_is_done_at_once() -> None:
    follower = Follower(work=7)
    run(follower, looks=0, pause=60.0)
    assert follower.done == ["work"] * 7
    follower = Follower(work=7, apart=2)
    run(follower, looks=2, pause=60.0)
    assert sorted(follower.done) == ["apart"] * 2 + ["work"] * 7


def test_a_process_apart_ends_when_nothing_needs_its_result_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[float] = []

    async def compute(_call: Callable[[], Any]) -> None:
        try:
            await trio.sleep(600.0)
        finally:
            ended.append(trio.current_time())

    monkeypatch.setattr(module.low_priority_call, "compute", compute)
    follower = Follower(apart=1, wanted_until=25.0)
    run(follower, looks=4, pause=10.0)
    assert ended == [30.0]  # at the first look after that
    assert (follower.finished, follower.done) == (1, [])


def test_epochs_further_ahead_take_a_part_of_the_time() -> None:
    follower = Follower(far=4, far_s=2.0)
    run(follower, looks=400, pause=0.1)
    first, *later = follower.asked["far"][:5]
    assert len(follower.done) == 4
    ran = [later[0] - first, *(b - a for a, b in zip(later, later[1:], strict=False))]  # noqa: RUF007
    assert all(2.0 * (1 + FAR_PAUSE) <= gap <= 2.0 * (1 + FAR_PAUSE) + 2 * FAR_LOOK_S for gap in ran)
