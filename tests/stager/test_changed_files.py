"""Files that changed at the source: withdrawn at once, taken up when they have settled."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.inode_numbers import VERSION_LAST
from nopfsfs.stager import changed_files as module
from nopfsfs.stager.changed_files import ChangedFiles
from nopfsfs.tiers import source as source_module
from tests.stager.rig import PAGE, Rig, write_files
from tests.waiting import wait_until

Ask = Callable[[os.stat_result], bool]


@dataclass
class Bench:
    """Changes over the columns of a rig; `shown` and `forgotten` are rows. `before_show` runs ahead of each look."""

    rig: Rig
    changes: ChangedFiles
    thread: threading.Thread
    shown: list[int] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)

    def mode(self, row: int) -> int:
        """Permission bits as they are served."""
        return self.changes.known_rights(row).mode & 0o7777

    @property
    def row(self) -> int:
        return self.rig.files[0]

    @property
    def path(self) -> Path:
        return self.rig.path(self.row)

    def state(self) -> tuple[int, int]:
        """(stale, version)."""
        return int(self.rig.columns.stale[self.row]), int(self.rig.columns.version[self.row])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    write_files(tmp_path, [PAGE, PAGE])
    r = Rig(tmp_path, budget=8 * PAGE)
    shown: list[int] = []
    forgotten: list[int] = []
    told: list[int] = []

    def show(row: int) -> None:
        r.columns.stale[row] = 0
        shown.append(row)

    made = ChangedFiles(
        index=r.index, columns=r.columns, metrics=r.metrics, source=r.source, forget=forgotten.append, show=show,
        notify=told.append,
    )  # fmt: skip
    thread = threading.Thread(target=made.run)
    thread.start()
    yield Bench(r, made, thread, shown, forgotten, told)
    made.stop()
    thread.join(10)
    assert not thread.is_alive()
    r.close()


def test_a_change_is_withdrawn_at_once_and_then_taken_up(bench: Bench) -> None:
    bench.path.write_bytes(b"new")
    bench.changes.noticed(bench.row)
    assert bench.forgotten == [bench.row]
    assert wait_until(lambda: bench.shown == [bench.row])
    assert bench.state() == (0, 1)
    st = bench.path.stat()
    assert bench.rig.source.identity(bench.row) == (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
    assert bench.rig.metric(Metric.CHANGED_FILES) == 1


def test_what_did_not_change_is_left_alone(bench: Bench) -> None:
    bench.changes.noticed(bench.row)
    bench.changes.noticed(0)
    bench.changes.noticed(10**6)
    assert (bench.forgotten, bench.shown, bench.state()) == ([], [], (0, 0))


def test_as_long_as_somebody_writes_it_is_stale(bench: Bench) -> None:
    """Bytes read while a writer is at work may be half of one version and half of another."""
    looks = 0
    look = bench.rig.source.look

    def writing(row: int, ask: Ask) -> tuple[os.stat_result, bytes | None]:
        nonlocal looks
        looks += 1
        if looks < 5:
            with open(bench.path, "ab") as file:
                file.write(b"more")
        return look(row, ask)

    bench.rig.source.look = writing  # type: ignore[method-assign]
    bench.changes.noticed(bench.row)
    assert wait_until(lambda: bench.shown == [bench.row])
    assert looks == 5, "until it was seen the same twice"
    assert bench.rig.source.size(bench.row) == PAGE + 4 * 4
    assert bench.state() == (0, 1)


def test_a_file_that_settles_where_the_source_does_not_answer_holds_up_no_other(bench: Bench) -> None:
    look, gate, other = bench.rig.source.look, threading.Event(), bench.rig.files[1]

    def hanging(row: int, ask: Ask) -> tuple[os.stat_result, bytes | None]:
        assert row != bench.row or gate.wait(20)
        return look(row, ask)

    for row in (bench.row, other):
        bench.rig.path(row).write_bytes(b"new")
        bench.changes.noticed(row)
    bench.rig.source.look = hanging  # type: ignore[method-assign]
    assert wait_until(lambda: bench.shown == [other])
    assert bench.state() == (1, 0)
    gate.set()
    assert wait_until(lambda: bench.shown == [other, bench.row])


def test_a_file_that_vanished_says_so_and_serves_again_when_it_is_back(bench: Bench) -> None:
    aside = bench.path.with_name("aside")
    bench.path.rename(aside)
    bench.changes.noticed(bench.row)
    assert bench.state() == (0, 0)
    assert bench.rig.read(bench.row).errno == errno.ENOENT
    aside.rename(bench.path)  # the same file, but for its ctime
    bench.changes.noticed(bench.row)
    assert wait_until(lambda: bench.state() == (0, 1))


def test_what_is_no_file_any_more_is_forgotten(bench: Bench) -> None:
    bench.path.unlink()
    bench.path.mkdir()
    bench.changes.noticed(bench.row)
    assert bench.forgotten == [bench.row]
    assert bench.shown == []


def test_a_change_begun_before_a_restart_gets_a_version_whatever_it_looks_like(bench: Bench) -> None:
    bench.rig.columns.stale[bench.row] = 1
    bench.changes.take_over()
    assert bench.forgotten == [bench.row]
    assert wait_until(lambda: bench.shown == [bench.row])
    assert bench.state() == (0, 1)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_present_version_keeps_its_size_until_the_next_one_counts(bench: Bench, before: int) -> None:
    """Readers take the size of the version that they read."""
    source, columns = bench.rig.source, bench.rig.columns
    for size in range(1, 1 + before):
        bench.path.write_bytes(b"x" * size)
        bench.rig.refresh(bench.row)
    present, found = source.identity(bench.row), []

    class Version:
        def __getitem__(self, row: int) -> int:
            return int(columns.version[row])

        def __setitem__(self, row: int, version: int) -> None:
            found.append(source.identity(row))
            columns.version[row] = version

    bench.changes._columns = cast(Any, SimpleNamespace(**{**vars(columns), "version": Version()}))
    bench.path.write_bytes(b"new")
    bench.changes.noticed(bench.row)
    assert wait_until(lambda: bench.shown == [bench.row])
    assert (found, source.size(bench.row)) == ([present], 3)


@pytest.mark.parametrize("before", [255, 65535, VERSION_LAST - 1])
def test_no_version_comes_back(bench: Bench, before: int) -> None:
    bench.rig.columns.version[bench.row] = before
    bench.rig.columns.stale[bench.row] = 1
    bench.changes.take_over()
    assert wait_until(lambda: bench.shown == [bench.row])
    assert bench.state() == (0, before + 1)


def test_rights_of_a_directory_are_renewed_in_place(bench: Bench) -> None:
    root = bench.rig.root
    root.chmod(0o711)
    assert bench.changes.look(0)
    assert (bench.mode(0), bench.told) == (0o711, [0])
    assert not bench.changes.look(0)
    (root / "another").write_bytes(b"x")  # its times change, its rights do not
    assert not bench.changes.look(0)
    assert bench.told == [0]
    assert (bench.forgotten, bench.shown, bench.rig.columns.version[0]) == ([], [], 0)


def test_rights_of_a_file_count_at_once_and_its_new_version_has_them(bench: Bench) -> None:
    bench.path.chmod(0o600)
    assert bench.changes.look(bench.row)
    assert (bench.mode(bench.row), bench.told) == (0o600, [bench.row])
    assert wait_until(lambda: bench.shown == [bench.row])
    assert bench.state() == (0, 1)
    assert bench.told == [bench.row]


def test_rights_that_change_while_a_file_settles_count_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 2.0)
    bench.path.write_bytes(b"new")
    assert bench.changes.look(bench.row)
    assert bench.state() == (1, 0)
    bench.path.chmod(0o400)
    assert bench.changes.look(bench.row)
    assert (bench.mode(bench.row), bench.told) == (0o400, [bench.row])


def test_a_look_that_was_overtaken_brings_back_no_rights(bench: Bench) -> None:
    """It has seen the rights of before, and comes to act after another has renewed them."""
    look, root = bench.rig.source.look, bench.rig.root

    def overtaken(row: int, ask: Ask) -> tuple[os.stat_result, bytes | None]:
        before = look(row, ask)
        bench.rig.source.look = look  # type: ignore[method-assign]
        root.chmod(0o700)
        assert bench.changes.look(row)
        return before

    root.chmod(0o755)
    bench.changes.look(0)
    bench.rig.source.look = overtaken  # type: ignore[method-assign]
    bench.changes.look(0)
    assert bench.mode(0) == 0o700


def test_an_acl_is_asked_for_until_it_cannot_change_unseen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one tick of the source's clock look like one."""
    asked = []

    def acl_of(fd: int) -> bytes:
        asked.append(0)
        return b""

    monkeypatch.setattr(source_module, "acl_of", acl_of)
    bench.changes.look(0)
    bench.changes.look(0)
    assert asked == [0, 0], "its ctime is of just now"
    monkeypatch.setattr(module, "RACY_NS", -10**9)
    bench.changes.look(0)
    bench.changes.look(0)
    assert asked == [0, 0, 0]


def test_an_acl_that_is_too_long_lets_nobody_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "acl_of", lambda fd: b"x" * 5000)
    bench.changes.look(bench.row)
    assert bench.changes.known_rights(bench.row).acl is None


def test_what_cannot_be_asked_stays_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> bytes:
        raise OSError(errno.EIO, "told to fail")

    monkeypatch.setattr(source_module, "acl_of", broken)
    before = bench.mode(0)
    bench.rig.root.chmod(before ^ 0o11)
    with pytest.raises(OSError):
        bench.changes.look(0)
    assert (bench.mode(0), bench.told) == (before, [])


def test_after_the_last_version_a_file_stays_stale(bench: Bench) -> None:
    other = bench.rig.files[1]
    bench.rig.columns.version[bench.row] = VERSION_LAST
    bench.rig.columns.stale[bench.row] = bench.rig.columns.stale[other] = 1
    bench.changes.take_over()
    assert wait_until(lambda: bench.shown == [other])  # it came after
    assert bench.state() == (1, VERSION_LAST)
    bench.changes.noticed(bench.row)
    assert bench.state() == (1, VERSION_LAST)
