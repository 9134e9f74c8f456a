"""A disk that does not answer whoever writes there: nothing that waits behind it waits for long."""

from __future__ import annotations

import queue

from nopfsfs.stager.disk_watch import LIMIT_S, DiskTask, DiskWatch


class Bench:
    def __init__(self) -> None:
        self.now = 50.0
        self.tasks: queue.SimpleQueue[DiskTask | None] = queue.SimpleQueue()
        self.refused: list[int] = []
        self.hanging: list[int] = []
        self.awake = 0
        self.watch = DiskWatch(
            self.tasks, self.refused.append, self.hanging.append, self._wake, lambda: self.now
        )  # fmt: skip

    def _wake(self) -> None:
        self.awake += 1

    def left(self) -> list[DiskTask | None]:
        return [self.tasks.get() for _ in range(self.tasks.qsize())]


def test_nothing_is_said_of_what_ends_in_time() -> None:
    b = Bench()
    assert not b.watch.look()
    with b.watch.at(7, 1):
        assert b.awake == 1
        b.now += LIMIT_S - 0.1
        assert b.watch.look()
        assert b.watch.settle()
    assert not b.watch.look()
    assert (b.refused, b.hanging) == ([], [])


def test_what_is_written_too_slowly_and_what_waits_behind_it_is_refused_once() -> None:
    b = Bench()
    for task in ((8, 1), (9, -1), (10, 2), (-1, 0), None):
        b.tasks.put(task)  # type: ignore[arg-type]
    with b.watch.at(7, 1):
        b.now += LIMIT_S
        assert b.watch.look()
        assert b.watch.look()
        b.tasks.put((11, 1))
        assert b.watch.look()
        assert not b.watch.settle(), "it was said already"
    assert (b.refused, b.hanging) == ([7, 8, 10, 11], [1])
    assert b.left() == [(9, -1), (-1, 0), None], "what nobody waits for is done when the disk answers"


def test_what_has_said_how_it_ended_is_not_refused_as_well() -> None:
    b = Bench()
    with b.watch.at(7, 1):
        assert b.watch.settle()
        b.now += LIMIT_S
        b.watch.look()
    assert (b.refused, b.hanging) == ([], [1])


def test_a_removal_that_hangs_refuses_what_waits_behind_it() -> None:
    b = Bench()
    b.tasks.put((8, 2))
    with b.watch.at(7, -2):
        b.now += LIMIT_S
        b.watch.look()
    assert (b.refused, b.hanging) == ([8], [2])
