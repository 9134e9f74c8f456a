"""Threads for tasks that may not come back: others take their places, up to a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from nopfsfs.system import elastic_threads
from nopfsfs.system.elastic_threads import ElasticThreads
from tests.waiting import wait_until

Make = Callable[[int, int], ElasticThreads]


@pytest.fixture
def gate() -> threading.Event:
    """Opens when tasks that hang are to come back."""
    return threading.Event()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> Iterator[Make]:
    monkeypatch.setattr(elastic_threads, "STUCK_S", 0.05)
    monkeypatch.setattr(elastic_threads, "_LOOK_S", 0.01)
    made: list[ElasticThreads] = []

    def build(least: int, most: int) -> ElasticThreads:
        made.append(ElasticThreads("of a test", least, most))
        return made[-1]

    yield build
    gate.set()
    for threads in made:
        threads.stop()
    assert wait_until(lambda: count() == 0)


def count() -> int:
    """Threads that are there."""
    return sum(thread.name == "of a test" for thread in threading.enumerate())


def test_a_task_that_hangs_is_passed_by_and_the_surplus_ends_with_it(make: Make, gate: threading.Event) -> None:
    threads, done = make(1, 4), []
    threads.hand_over(lambda: gate.wait(30))
    threads.hand_over(lambda: done.append(1))
    threads.hand_over(lambda: done.append(2))
    # A thread that a busy machine holds up may count as stuck, too: another takes its place until it is back.
    assert wait_until(lambda: sorted(done) == [1, 2] and count() == 2)
    gate.set()
    assert wait_until(lambda: count() == 1)


def test_no_more_tasks_hang_than_there_may_be_threads(make: Make, gate: threading.Event) -> None:
    threads, begun = make(1, 3), []

    def hang() -> None:
        begun.append(0)
        gate.wait(30)

    for _ in range(5):
        threads.put(hang)
    assert wait_until(lambda: threads.replace_stuck() == 5 and len(begun) == 3)
    assert (count(), threads.waiting) == (3, 2)
    assert threads.lasts(threads.last, 30)
    assert not threads.lasts(threads.last, 0.01), "which is not waited for so long"
    gate.set()
    assert wait_until(lambda: len(begun) == 5 and not threads.lasts(threads.last, 30))


def test_a_task_waits_where_the_system_has_no_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """pids.max, RLIMIT_NPROC."""
    threads, done, start, refused = make(1, 2), threading.Event(), threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "of a test" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.hand_over(done.set)
    assert done.wait(20)
    assert len(refused) == 3


def test_a_task_that_raises_is_logged_and_ends_no_thread(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    threads, done = make(1, 1), threading.Event()
    threads.hand_over(lambda: 1 // 0)
    threads.hand_over(done.set)
    assert done.wait(20)
    assert "ZeroDivisionError" in caplog.text
