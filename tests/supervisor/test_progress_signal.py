"""When a mount goes over to tripwires by itself, and when it has all opens shown again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.supervisor.progress_signal import NO_ROOM, PASSED_THROUGH, PUZZLED, WATCHING, ProgressSignal
from tests.asynchronous import in_trio
from tests.waiting import until

N = 4000
LIMIT_S = 10.0


@dataclass
class Follower:
    steady: bool = True
    puzzled: bool = False
    opens: int = 0
    shortest_part: int = 1 << 20
    told: list[str] = field(default_factory=list)

    def show_only(self, showing: object) -> None:
        self.told.append("only")

    def show_all(self) -> None:
        self.told.append("all")

    def without_closes(self) -> None:
        self.told.append("no closes")


class Policy:
    def __init__(self, *, has_room_for_all: bool = True) -> None:
        self.has_room_for_all = has_room_for_all
        self.sees_closes = True

    def without_closes(self) -> None:
        self.sees_closes = False


def new_metrics() -> memoryview:
    return memoryview(np.zeros(METRICS, np.int64))


def make(how: str, metrics: memoryview, forget: Any = lambda: None, files: int = N) -> ProgressSignal:
    return ProgressSignal(how, Tripwires(1, files), np.full(files, 10), metrics, forget)


def turn(signal: ProgressSignal, follower: Follower, policy: Policy | None = None) -> None:
    """Look for opens, which all go by what servers were told, before and after."""
    heard(signal, follower)
    signal.taken(cast(Any, follower), cast(Any, policy or Policy()))
    heard(signal, follower)


def heard(signal: ProgressSignal, follower: Follower) -> None:
    """Take an open of a server that goes by what it was told last."""
    if signal.changes_at(np.array([signal.name == "tripwire"])) == 0:
        signal.change_over(cast(Any, follower))


@pytest.mark.parametrize(
    ("how", "follower", "room", "why"),
    [
        ("auto", Follower(), True, ""),
        ("auto", Follower(steady=False), True, WATCHING),
        ("auto", Follower(puzzled=True), True, PUZZLED),
        ("auto", Follower(), False, NO_ROOM),  # what was read has to go, and that takes closes
    ],
)
def test_auto_turns_when_the_plan_holds_and_no_close_is_needed(
    how: str, follower: Follower, room: bool, why: str
) -> None:
    metrics = new_metrics()
    signal, policy = make(how, metrics), Policy(has_room_for_all=room)
    assert signal.why == WATCHING

    turn(signal, follower, policy)

    assert signal.why == why
    assert signal.refusing == (not why)
    assert signal.name == ("open" if why else "tripwire")
    assert policy.sees_closes == bool(why)
    assert follower.told == ([] if why else ["only"])


@pytest.mark.parametrize("how", ["open", "tripwire"])
def test_what_was_asked_for_stays(how: str) -> None:
    metrics, follower = new_metrics(), Follower()
    signal = make(how, metrics)
    for follower.puzzled in (False, True, False):
        turn(signal, follower)
        assert (signal.name, signal.why, follower.told) == (how, "", [])


def test_files_that_are_passed_through_need_open() -> None:
    signal, follower = make("auto", new_metrics()), Follower()
    signal.keep_open(PASSED_THROUGH)
    turn(signal, follower)
    assert (signal.name, signal.why) == ("open", PASSED_THROUGH)


class Kernel:
    """Forgets when it is told to go on."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def forget(self) -> None:
        self.asked.release()
        assert self.goes_on.acquire(timeout=LIMIT_S)


@in_trio
async def test_all_opens_are_shown_again_while_somebody_reads_what_no_plan_explains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nopfsfs.supervisor.progress_signal.LEAST_S", 0.0)
    metrics, kernel, follower = new_metrics(), Kernel(), Follower()
    signal = make("auto", metrics, kernel.forget)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        turn(signal, follower)
        assert signal.name == "tripwire"
        follower.puzzled = True
        turn(signal, follower)
        await trio.to_thread.run_sync(kernel.asked.acquire)
        assert metrics[Metric.SHOWN] == Shown.FORGETTING
        assert signal.shown(np.arange(N)) is not None, "until all is forgotten, some do not show"
        assert follower.told == ["only"]
        kernel.goes_on.release()
        await until(lambda: metrics[Metric.SHOWN] == Shown.ALL)
        assert signal.changes_at(np.array([True, True])) == 2, "what comes now was put before all showed"
        signal.taken(cast(Any, follower), cast(Any, Policy()))
        assert signal.shown(np.arange(N)) is not None
        assert signal.changes_at(np.array([True, False, True])) == 1
        signal.change_over(cast(Any, follower))
        assert signal.shown(np.arange(N)) is None
        assert signal.changes_at(np.array([True, False])) == 2, "a server that is late does not change that"
        assert (follower.told, signal.name) == (["only", "all"], "attributes")
        turn(signal, follower)
        assert signal.name == "attributes"
        follower.puzzled = False
        turn(signal, follower)
        assert signal.name == "attributes", "who reads slowly may not have been seen yet"
        follower.opens = 10_000
        turn(signal, follower)
        assert (follower.told, signal.name) == (["only", "all", "only"], "tripwire")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("before", [Shown.TRIPWIRES, Shown.FORGETTING])
@in_trio
async def test_a_supervisor_that_takes_over_has_all_shown_for_it_knows_no_plan(before: Shown) -> None:
    metrics, follower = new_metrics(), Follower(steady=False)
    metrics[Metric.SHOWN] = before
    signal = make("auto", metrics)
    signal.inform(cast(Any, follower))
    assert follower.told == ["only"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        await until(lambda: metrics[Metric.SHOWN] == Shown.ALL)
        turn(signal, follower)
        assert follower.told == ["only", "all"]
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_follower_made_anew_before_the_change_has_come_has_all_shown_after_it() -> None:
    metrics, new = new_metrics(), Follower(steady=False)
    signal = make("auto", metrics)
    signal.taken(cast(Any, Follower()), cast(Any, Policy()))  # servers are told, and nothing has come since
    signal.inform(cast(Any, new))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (signal.name, new.told) == ("tripwire", ["no closes"]), "what waits was put before the change"
        turn(signal, new)
        await until(lambda: metrics[Metric.SHOWN] == Shown.ALL)
        turn(signal, new)
        assert new.told == ["no closes", "only", "all"]
        nursery.cancel_scope.cancel()


@in_trio
async def test_where_all_files_are_tripwires_nothing_is_to_be_shown_again() -> None:
    metrics, follower = new_metrics(), Follower(shortest_part=40)
    signal = make("auto", metrics, files=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        turn(signal, follower)
        follower.puzzled = True
        turn(signal, follower)
        await trio.testing.wait_all_tasks_blocked()
        assert (signal.name, follower.told) == ("tripwire", ["only"])
        nursery.cancel_scope.cancel()


def test_what_was_opened_before_it_turned_is_told_as_it_was() -> None:
    signal, follower = make("auto", new_metrics()), Follower()
    for _ in range(2):
        signal.taken(cast(Any, follower), cast(Any, Policy()))
        assert signal.refusing
        assert signal.shown(np.arange(N)) is None
        assert signal.changes_at(np.array([False] * 3)) == 3
    assert follower.told == []
    assert signal.changes_at(np.array([False, True, False])) == 1
    signal.change_over(cast(Any, follower))
    assert follower.told == ["only"]
    assert signal.shown(np.arange(N)) is not None
    assert signal.changes_at(np.array([False, True])) == 2, "a server that is late does not change that"


def test_opens_that_did_not_show_are_estimated() -> None:
    metrics = new_metrics()
    signal = make("tripwire", metrics)
    wires = int(Tripwires(1, N).mask().sum())
    server = np.zeros(METRICS, np.int64)
    server[Metric.TRIPWIRES], server[Metric.TRIPWIRE_BYTES], server[Metric.OPENS] = wires, 10 * wires, 5
    made = signal.estimate(server)
    assert (made[Metric.OPENS], made[Metric.OPENED_BYTES]) == (5 + N - 1, 10 * (N - 1)), "one epoch of all files"
    signal.count(np.ones(wires, bool), 2500.25, 2400.5)  # of a part of the files, in which there are more tripwires
    made = signal.estimate(server)
    assert (made[Metric.OPENS], made[Metric.OPENED_BYTES], signal.predicted) == (2505, 25_000, 2400)
    again = make("tripwire", metrics)  # another supervisor takes over
    assert again.estimate(server)[Metric.OPENS] == 2505


@pytest.mark.parametrize(("shortest", "apart"), [(N, 83), (1000, 20), (100, 15), (0, 15)])
def test_fewer_tripwires_follow_a_certain_order_than_find_one(shortest: int, apart: int) -> None:
    metrics = new_metrics()
    signal = make("auto", metrics)
    turn(signal, Follower(shortest_part=shortest))
    assert metrics[Metric.TRIPWIRES_APART] == apart
    few = Tripwires(1, N, apart=apart).mask()
    shown = signal.shown(np.arange(N))
    assert shown is not None
    assert np.array_equal(shown, few)
    server = np.zeros(METRICS, np.int64)
    server[Metric.TRIPWIRES], server[Metric.TRIPWIRE_BYTES] = few.sum(), 10 * few.sum()
    again = make("auto", metrics)  # another supervisor takes over
    for one in (signal, again):
        assert one.estimate(server)[[Metric.OPENS, Metric.OPENED_BYTES]].tolist() == [N - 1, 10 * (N - 1)]


def test_all_opens_stay_shown_where_a_new_plan_needs_more_tripwires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel remembers the names of all others."""
    monkeypatch.setattr("nopfsfs.supervisor.progress_signal.LEAST_S", 0.0)
    metrics, follower = new_metrics(), Follower(shortest_part=N)
    signal = make("auto", metrics)
    turn(signal, follower)
    metrics[Metric.SHOWN] = Shown.ALL
    signal = make("auto", metrics)
    signal.inform(cast(Any, follower))
    follower.opens, follower.shortest_part = 10_000, 500
    turn(signal, follower)
    assert signal.name == "attributes"
    follower.shortest_part = N
    turn(signal, follower)
    assert signal.name == "tripwire"


@in_trio
async def test_who_was_explained_meanwhile_needs_no_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, follower, forgot = new_metrics(), Follower(), []
    signal = make("auto", metrics, lambda: forgot.append(True))
    turn(signal, follower)
    for follower.puzzled in (True, False):
        turn(signal, follower)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (signal.name, forgot) == ("tripwire", [])
        nursery.cancel_scope.cancel()


def test_another_follower_counts_from_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nopfsfs.supervisor.progress_signal.LEAST_S", 0.0)
    metrics, follower = new_metrics(), Follower(opens=0)
    metrics[Metric.SHOWN] = Shown.ALL
    signal = make("auto", metrics)
    signal.inform(cast(Any, Follower(opens=5_000_000)))
    signal.inform(cast(Any, follower))
    assert follower.told == ["no closes"]
    follower.opens = 10_000
    turn(signal, follower)
    assert signal.name == "tripwire"


@in_trio
async def test_where_nothing_can_be_forgotten_tripwires_show_as_before() -> None:
    tried: list[bool] = []

    def gone() -> None:
        tried.append(True)
        raise OSError

    metrics, follower = new_metrics(), Follower(puzzled=True)
    metrics[Metric.SHOWN] = Shown.TRIPWIRES
    signal = make("auto", metrics, gone)
    turn(signal, follower)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        await until(lambda: tried)
        await trio.testing.wait_all_tasks_blocked()
        assert (follower.told, signal.name) == ([], "tripwire")
        nursery.cancel_scope.cancel()
