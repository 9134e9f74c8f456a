"""A plan that fails is made anew, with what users have said, and the status says so meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.supervisor import plan_jobs as module
from nopfsfs.supervisor.plan_worker import PlanWorker
from nopfsfs.system.outages import Outages
from tests.asynchronous import without_threads


class Loop:
    """What a plan sees of the event loop."""

    def __init__(self) -> None:
        self.awaiting_plan = False
        self.outages = Outages()
        self.follower: Any = None
        self.follower_lost = trio.Event()
        self.looked = trio.lowlevel.ParkingLot()

    def await_plan(self) -> None:
        self.awaiting_plan = True

    def follow(self, follower: Any) -> None:
        self.follower, self.awaiting_plan = follower, False

    async def run(self) -> None:
        while True:
            self.looked.unpark_all()
            await trio.sleep(0.5)


class Follower:
    """Fails in one of its works at the time that is said."""

    def __init__(self, fails: str = "", at: float = 0.0) -> None:
        self._fails, self._at = fails, at
        self.registered: list[Any] = []

    def _work(self, name: str) -> None:
        if name == self._fails and trio.current_time() >= self._at:
            raise MemoryError(name)

    def work(self) -> None:
        self._work("work")

    def work_apart(self) -> None:
        self._work("apart")

    def work_far(self) -> None:
        self._work("far")

    def register(self, tables: Any, *, replace_said: bool = True) -> None:
        self.registered.append(tables)


class FailingJobs(Follower):
    """Hands out a job that fails, again and again: the same search, which goes on where it was."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def work(self) -> Any:
        self.asked += 1
        return BackgroundJob(self._fail, lambda _: None) if self.asked < 200 else None

    def _fail(self) -> None:
        raise MemoryError

    def finish(self, job: BackgroundJob) -> None:
        job.deliver()


def run(
    monkeypatch: pytest.MonkeyPatch, followers: list[Any], seconds: float, *,
    give_back: Callable[[], None] = lambda: None,
) -> tuple[Loop, PlanWorker, list[float]]:  # fmt: skip
    """Let plans run so long, in virtual time, with these followers one after the other, the last again and again."""
    made: list[float] = []
    loop = Loop()
    plans = PlanWorker(cast(Any, loop), cast(Any, None), cast(Any, SimpleNamespace(plans=(), remember=False)))

    async def make() -> Any:
        made.append(trio.current_time())
        found = followers.pop(0) if len(followers) > 1 else followers[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def main() -> None:
        base = trio.current_time()
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loop.run)
                nursery.start_soon(plans.run)
        made[:] = [at - base for at in made]

    monkeypatch.setattr(plans, "_make", make)
    monkeypatch.setattr(module.node_memory, "give_back", give_back)
    without_threads(monkeypatch)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))
    return loop, plans, made


@pytest.mark.parametrize("where", ["work", "apart"])
def test_a_plan_that_fails_is_made_anew(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    good = Follower()
    loop, _, made = run(monkeypatch, [Follower(where), good], 5.0)
    assert len(made) == 2
    assert loop.follower is good
    assert loop.outages.all() == []


@pytest.mark.long
def test_a_plan_that_cannot_be_made_is_tried_less_and_less_often_and_said_to_be_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, plans, made = run(monkeypatch, [OSError("no memory")], 600.0)
    gaps = [round(later - before) for before, later in zip(made, made[1:], strict=False)]  # noqa: RUF007
    assert gaps[:4] == [1, 2, 4, 8]
    assert set(gaps[6:]) == {60}
    (off,) = loop.outages.all()
    assert (off["what"], off["why"]) == ("plan", "failed: OSError: no memory")
    assert loop.follower is None

    async def ask() -> None:
        with pytest.raises(ValueError, match="could make no plan"):
            await plans.forget()

    trio.run(ask)


@pytest.mark.long
def test_a_computation_that_fails_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = FailingJobs()
    loop, _, made = run(monkeypatch, [follower], 600.0)
    assert (len(made), loop.follower) == (1, follower)
    assert 10 <= follower.asked <= 20


def test_a_system_that_refuses_new_threads_costs_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    follower = Follower()
    loop, _, made = run(monkeypatch, [follower], 5.0, give_back=refuse)
    assert (len(made), loop.follower) == (1, follower)


def test_far_epochs_that_fail_leave_the_plan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower("far")
    loop, _, made = run(monkeypatch, [follower], 20.0)
    assert (len(made), loop.follower) == (1, follower)
    assert [one["what"] for one in loop.outages.all()] == ["plan of epochs further ahead"]
