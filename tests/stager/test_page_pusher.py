"""The pusher among the stager's threads: what it leaves out, and what it looks at when nothing else is to be done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.protocol.columns import PAGED_LATE, SUPERVISOR, Metric, MetricBlock
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.tiers import page_cache
from tests.stager.rig import PAGE, write_files
from tests.stager.running import Running, Shared, running
from tests.waiting import wait_until


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Shared]:
    """Eight files of two pages and a bit, and a budget for all of them."""
    root = tmp_path / "source"
    write_files(root, [2 * PAGE + 100] * 8)
    made = Shared(root, 64 * PAGE)
    yield made
    made.close()


def staged(s: Running, count: int) -> list[int]:
    rows = [s.base.row(f"f{number:02}") for number in range(count)]
    s.command(StagerCommand.FETCH, rows)
    for row in rows:
        s.wait_for(Event.STAGED, row)
    return rows


class Held:
    """Pushes wait until they are let go; `done` are those that were let go, and looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.done: list[str] = []
        monkeypatch.setattr(page_cache, "push", self._push)
        monkeypatch.setattr(page_cache, "cached", self._cached)

    def _push(self, fuse_fd: int, inode: int, data: memoryview, offset: int = 0) -> None:
        self.begun.set()
        assert self.go.wait(20)
        self.done.append("push")

    def _cached(self, tree_fd: int | None, path: bytes) -> int:
        self.done.append("look")
        return 1 << 40


def test_a_push_that_comes_too_late_is_left_out(base: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the pusher is blocked, the reader comes to a row that it has yet to push."""
    held = Held(monkeypatch)
    with running(base) as s:
        first, late, last = staged(s, 3)
        s.command(StagerCommand.PUSH, [first, late, last])
        assert held.begun.wait(20)
        base.columns.paged[late] = PAGED_LATE
        held.go.set()
        s.wait_for(Event.PUSHED, first)
        s.wait_for(Event.PUSH_FAILED, late)
        s.wait_for(Event.PUSHED, last)
        assert (base.metrics[Metric.PUSHES_SPARED], base.metrics[Metric.PUSHES_DONE]) == (1, 3)
    assert held.done == ["push"] * 2


def test_what_is_cached_is_looked_at_when_nothing_is_left_to_push(
    base: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with running(base) as s:
        rows = staged(s, 4)
        s.command(StagerCommand.PUSH, rows[:2])
        assert held.begun.wait(20)
        s.command(StagerCommand.LOOK, rows[:3])
        s.command(StagerCommand.PUSH, rows[2:3])
        s.command(StagerCommand.LOOK, rows[3:])
        s.command(StagerCommand.FETCH, [base.row("f04")])
        s.wait_for(Event.STAGED, base.row("f04"))  # so the stager has taken the orders before
        held.go.set()
        s.wait_for(Event.PRESENT, rows[3])
        assert [row for event, row in s.events if event == Event.PRESENT] == [], "the look before was forgotten"
    assert held.done == ["push"] * 3 + ["look"]


def test_what_is_there_and_what_is_not(base: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {b"f00": 3 * PAGE, b"f01": 2 * PAGE, b"f02": 0}

    def cached(tree_fd: int | None, path: bytes) -> int:
        name = os.path.basename(path)
        if name not in sizes:
            raise OSError(errno.ESTALE, "is being forgotten")
        return sizes[name]

    monkeypatch.setattr(page_cache, "cached", cached)
    with running(base) as s:
        rows = [base.row(f"f0{number}") for number in (3, 0, 1, 2)]
        s.command(StagerCommand.LOOK, rows)
        s.wait_for(Event.PRESENT, rows[1])
        s.wait_for(Event.LACKING, rows[2])
        s.wait_for(Event.LACKING, rows[3])
        assert s.events == [], "of what cannot be opened nothing is known"


def test_a_system_that_does_not_tell_is_asked_once(base: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cached(tree_fd: int | None, path: bytes) -> int:
        asked.append(path)
        raise page_cache.Unmeasurable(errno.ENOSYS, "no such call")

    monkeypatch.setattr(page_cache, "cached", cached)
    with running(base) as s:
        rows = [base.row(f"f0{number}") for number in range(8)]
        s.command(StagerCommand.LOOK, rows)
        s.wait_for(Event.UNMEASURED, rows[0])
        s.command(StagerCommand.DROP, rows[:1])
        s.wait_for(Event.DROPPED, rows[0])
    assert len(asked) == 1


def test_the_kernel_says_how_much_of_a_file_it_has(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"x" * (10 * PAGE + 1))
        file.flush()
        os.fsync(file.fileno())  # what is dirty cannot be dropped
    try:
        assert page_cache.cached(None, os.fsencode(path)) == 11 * PAGE
    except page_cache.Unmeasurable:
        pytest.skip("this system has no cachestat")
    page_cache.drop(None, os.fsencode(path), 4 * PAGE, 2 * PAGE)
    left = page_cache.cached(None, os.fsencode(path))
    assert left in (9 * PAGE, 11 * PAGE), "or it lies in memory only"
    if left == 9 * PAGE:
        page_cache.drop(None, os.fsencode(path))
        assert page_cache.cached(None, os.fsencode(path)) == 0


@pytest.mark.parametrize(("number", "measurable"), [(errno.ENOSYS, False), (errno.EPERM, False), (errno.EBADF, True)])
def test_a_kernel_that_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, measurable: bool
) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(page_cache._libc, "syscall", lambda *_: -1)
    monkeypatch.setattr(page_cache.ctypes, "get_errno", lambda: number)
    with pytest.raises(OSError) as caught:
        page_cache.cached(None, os.fsencode(path))
    assert isinstance(caught.value, page_cache.Unmeasurable) != measurable
    assert caught.value.errno == number


def test_nothing_is_looked_at_when_it_stops_touching_the_mount(base: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    with running(base) as s:
        rows = staged(s, 2)
        s.command(StagerCommand.PUSH, rows)
        assert held.begun.wait(20)
        s.command(StagerCommand.LOOK, rows)
        s.command(StagerCommand.QUIESCE)
        s.command(StagerCommand.LOOK, rows)
        assert wait_until(lambda: s.stager.pusher._leaving)
        held.go.set()
    assert held.done == ["push"]


def test_in_a_quiet_mount_files_are_left_alone_but_changes_are_shown(
    base: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a stager that is started meanwhile; and what was ordered is done when the quiet is over."""
    held = Held(monkeypatch)
    held.go.set()
    supervisor = MetricBlock(base.fds["gauges"], SUPERVISOR, writable=True).block
    supervisor[Metric.QUIET] = 1
    with running(base) as s:
        rows = staged(s, 2)
        s.command(StagerCommand.PUSH, rows)
        s.command(StagerCommand.LOOK, rows)
        base.columns.stale[rows[0]] = 1
        assert wait_until(lambda: len(s.stager.pusher._queue) == 2)
        s.stager.pusher.invalidate(rows[0])
        assert wait_until(lambda: not base.columns.stale[rows[0]])
        assert held.done == []
        supervisor[Metric.QUIET] = 0
        assert wait_until(lambda: held.done == ["push", "push", "look", "look"])


def test_a_file_that_changes_after_the_mount_was_let_go_of_is_shown(base: Shared) -> None:
    """After a lazy unmount the mount goes on for whoever has it open."""
    tree = base.fds["tree"] = os.open(base.root, os.O_PATH)
    with running(base) as s:
        del base.fds["tree"]
        s.command(StagerCommand.QUIESCE)
        assert wait_until(lambda: not s.stager.pusher.holds_tree)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(tree)
        row = base.row("f00")
        (base.root / "f00").write_bytes(b"new")
        assert s.read(row) == (errno.ESTALE, b"")
        s.wait_for(Event.CHANGED, row)
        assert (base.columns.stale[row], s.read(row)) == (0, (0, b"new"))
