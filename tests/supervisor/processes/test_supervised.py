"""A process that dies, hangs, falls asleep or cannot be started is replaced, for ever; in vain, only after pauses."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.supervisor.processes.supervised import (
    DONE,
    FREE,
    HANGS_S,
    LIVED_S,
    LOOK_S,
    NO_PIDFD_LOOK_S,
    SILENT_S,
    START_S,
    Child,
    SupervisedProcess,
)
from nopfsfs.system.outages import FIRST_S, MOST_S, Outages, reason
from tests.examples import examples

PAUSES = [*[0.0] * FREE, FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]


class Process(Child):
    """A process of the test's, which ends when it is told to, and is `held` by the kernel when it is killed."""

    def __init__(self, held: bool) -> None:
        self.role, self.pid, self.running, self.held = "test", 1, False, held
        self._asleep = trio.Event()
        self._end, self._code = trio.Event(), 0

    def dies(self, status: int = -9) -> None:
        self._code = status
        self._end.set()

    async def ended(self) -> int:
        await self._end.wait()
        return self._code

    async def kill(self) -> bool:
        (self._asleep.set if self.held else self.dies)()
        return not self.held

    @property
    def status(self) -> int | None:
        return self._code if self._end.is_set() else None


class Work:
    """A role. `fails`: so often it cannot be started, which `shortage` says; `silent`: nothing is answered; `held`: see
    `Process`."""

    name, replaceable, lives_alone, ping_s = "worker", True, True, LOOK_S

    def __init__(self) -> None:
        self.outages = Outages()
        self.done = self.fails = self.pings = 0
        self.shortage: Exception = OSError(errno.EAGAIN, "no process to be had")
        self.silent = self.held = False
        self.strange = self.loses = 0  # so often it cannot be introduced; so many answers are lost
        self.goes_on = True
        self.log: list[tuple[float, str]] = []
        self._asked = False
        self.process = SupervisedProcess(self, trio.Lock(), self.outages, lambda: self.note("changed"))

    def note(self, what: str) -> None:
        self.log.append((trio.current_time(), what))

    def times(self, what: str) -> list[float]:
        return [time for time, noted in self.log if noted == what]

    @property
    def child(self) -> Process:
        assert isinstance(self.process.child, Process)
        return self.process.child

    async def start(self) -> Child:
        self.note("start")
        if self.fails:
            self.fails -= 1
            raise self.shortage
        return Process(self.held)

    async def introduce(self, child: Child) -> None:
        if self.strange:
            self.strange -= 1
            raise OSError(errno.EMFILE, "no descriptor to be had")
        self.note("introduced")

    async def listen(self, answered: Callable[[], None]) -> None:
        while True:
            await trio.sleep(LOOK_S / 4)
            if self._asked and not self.silent:
                self._asked = False
                if not self.loses:
                    answered()
                self.loses = max(0, self.loses - 1)

    def ping(self) -> bool:
        self.pings += 1
        self._asked = self.pings % 3 > 0  # each third finds no room in the socket
        return self._asked

    async def contain(self, child: Child) -> bool:
        self.note("contained")
        return self.goes_on

    def work_done(self) -> int:
        return self.done

    def off(self) -> list[str]:
        return [one["why"] for one in self.outages.all()]


@asynccontextmanager
async def running(work: Work) -> AsyncIterator[None]:
    await work.process.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.process.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def dies(work: Work, after_s: float = 0.0, done: int = 0) -> float:
    """The process dies; the seconds until there is another."""
    await trio.sleep(after_s)
    work.done += done
    began, before = trio.current_time(), work.child
    before.dies()
    while work.child is before:  # noqa: ASYNC110
        await trio.sleep(FIRST_S / 8)
    return round((trio.current_time() - began) / FIRST_S, 0) * FIRST_S


def run(test: Callable[[Work], Any]) -> None:
    """In virtual time."""

    async def main() -> None:
        work = Work()
        async with running(work):
            await test(work)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_deaths_in_vain_cost_pauses_that_double_up_to_a_minute_and_never_end() -> None:
    async def test(work: Work) -> None:
        pauses = [await dies(work) for _ in range(FREE + 20)]
        assert pauses[: len(PAUSES)] == PAUSES
        assert set(pauses[FREE + 8 :]) == {MOST_S}
        assert len(work.times("introduced")) == 1 + FREE, "the less it has to do with, the likelier it lives"
        await trio.sleep(2 * LIVED_S)
        assert len(work.times("introduced")) == 2 + FREE
        work.lives_alone = False
        assert [await dies(work) for _ in range(FREE + 3)][FREE + 2] == 2 * FIRST_S
        assert len(work.times("introduced")) == 2 + FREE + FREE + 3

    run(test)


@pytest.mark.parametrize(("after_s", "done"), [(LIVED_S, 0), (0.0, DONE)])
def test_who_lived_long_or_did_much_did_not_die_in_vain(after_s: float, done: int) -> None:
    async def test(work: Work) -> None:
        for _ in range(FREE + 3):
            await dies(work)
        assert await dies(work, after_s, done) == 0.0
        assert [await dies(work) for _ in range(FREE + 1)] == PAUSES[: FREE + 1], "and all before is forgotten"

    run(test)


def test_what_those_before_had_done_is_not_counted_again() -> None:
    async def test(work: Work) -> None:
        await dies(work, done=10 * DONE)
        assert [await dies(work, done=DONE - 1) for _ in range(FREE + 1)] == PAUSES[: FREE + 1]

    run(test)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 2 * int(LIVED_S)), st.integers(0, 2 * DONE)), max_size=12))
def test_a_pause_comes_after_so_many_in_vain_one_after_the_other(lives: list[tuple[int, int]]) -> None:
    async def test(work: Work) -> None:
        vain = 0
        for after_s, done in lives:
            pause = await dies(work, after_s, done)
            vain = vain + 1 if done < DONE and after_s < LIVED_S else 0
            assert (pause == 0.0) == (vain <= FREE)
            assert pause <= MOST_S

    run(test)


@pytest.mark.parametrize(
    "shortage", [OSError(errno.EAGAIN, "no process to be had"), RuntimeError("can't start new thread"), MemoryError()]
)
def test_one_that_cannot_be_started_is_tried_again_and_that_is_said(shortage: Exception) -> None:
    async def test(work: Work) -> None:
        work.fails, work.shortage = 20, shortage
        began = trio.current_time()
        work.child.dies()
        await trio.sleep(FIRST_S / 2)
        assert work.off() == [f"it cannot be started: {reason(shortage)}"]
        while not work.process.living:  # noqa: ASYNC110
            await trio.sleep(1.0)
        assert trio.current_time() - began > 8 * MOST_S
        await trio.sleep(2 * LOOK_S)
        assert work.off() == []

    run(test)


def test_one_that_hangs_is_said_and_then_killed_and_replaced() -> None:
    async def test(work: Work) -> None:
        await trio.sleep(1.0)
        first = work.child
        work.silent = True
        await trio.sleep(SILENT_S + 3 * LOOK_S)
        assert (work.child, work.off()) == (first, ["it does not answer"])
        work.silent = False
        await trio.sleep(HANGS_S)
        assert (work.child, work.off()) == (first, []), "it goes on"
        work.silent = True
        await trio.sleep(HANGS_S + 2 * LOOK_S)
        assert first.status == -9
        assert work.process.living not in (first, None)

    run(test)


def test_an_answer_that_is_lost_costs_no_process() -> None:
    async def test(work: Work) -> None:
        await trio.sleep(1.0)
        first = work.child
        work.loses = 2
        await trio.sleep(5 * HANGS_S)
        assert (work.child, work.off(), work.loses) == (first, [], 0)

    run(test)


def test_one_that_cannot_be_introduced_is_ended_before_another_is_started() -> None:
    async def test(work: Work) -> None:
        work.strange = 2
        first = work.child
        await dies(work)
        await trio.sleep(1.0)
        assert work.process.living not in (first, None)
        assert len(work.times("start")) == 4
        assert len(work.times("contained")) == 3, "each, before there was another"
        assert len(work.times("introduced")) == 2

    run(test)


def test_one_that_does_not_begin_has_more_time() -> None:
    async def test(work: Work) -> None:
        work.silent = True
        await dies(work)
        first = work.child
        await trio.sleep(START_S - 2 * LOOK_S)
        assert work.child is first
        await trio.sleep(4 * LOOK_S)
        assert work.child is not first

    run(test)


def test_one_whose_end_is_the_end_of_all_is_not_killed_for_silence() -> None:
    async def test(work: Work) -> None:
        await trio.sleep(1.0)
        work.replaceable, work.silent = False, True  # type: ignore[misc]
        await trio.sleep(10 * HANGS_S)
        assert work.process.living is work.child
        assert len(work.times("start")) == 1

    run(test)


def test_one_that_is_asleep_in_the_kernel_is_known_until_it_ends() -> None:
    async def test(work: Work) -> None:
        work.held = True
        await dies(work)
        first = work.child
        work.silent = True
        await trio.sleep(START_S + 3 * LOOK_S)
        assert work.process.asleep == [first]
        assert work.child is not first
        names = [what for _, what in work.log][-4:]
        assert names == ["contained", "start", "changed", "introduced"]
        first.dies()
        assert work.process.asleep == []

    run(test)


def test_nobody_waits_for_one_that_is_gone() -> None:
    async def test(work: Work) -> None:
        began, child = trio.current_time(), work.child
        answer = trio.Event()
        assert not await child.within(answer, 5.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.unless_gone, trio.sleep_forever)
            await trio.sleep(1.0)
            child.dies()
        assert not await child.within(answer, 5.0)
        assert trio.current_time() - began == pytest.approx(6.0)
        answer.set()
        assert await work.child.within(answer, 5.0)

    run(test)


def test_where_the_mount_ends_nothing_is_replaced() -> None:
    async def test(work: Work) -> None:
        work.process.stopping = True
        work.child.dies(0)
        await trio.sleep(MOST_S)
        assert work.times("contained")
        assert len(work.times("start")) == 1
        with pytest.raises(OSError, match="the mount ends"):
            await work.process.start()
        assert work.off() == []

    run(test)


def test_where_the_role_says_so_nothing_is_replaced() -> None:
    async def test(work: Work) -> None:
        work.goes_on = False
        work.child.dies()
        await trio.sleep(MOST_S)
        assert len(work.times("start")) == 1

    run(test)


@pytest.mark.parametrize(("number", "least"), [(errno.ENOSYS, 0.0), (errno.EPERM, 0.0), (errno.EMFILE, LOOK_S)])
def test_without_pidfds_an_end_is_noticed_soon(monkeypatch: pytest.MonkeyPatch, number: int, least: float) -> None:
    """Where there is none at this moment, the next look comes later."""

    def missing(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    child = Child.__new__(Child)
    child._process = subprocess.Popen(["sleep", "0.3"])
    child.pid = child._process.pid
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        child._process.wait(10)

    monkeypatch.setattr(os, "pidfd_open", missing)
    monkeypatch.setattr(trio, "sleep", sleep)
    assert trio.run(child.ended) == 0
    assert slept == [least or NO_PIDFD_LOOK_S]
