"""The parts that measure, in this process: what they read and write, and that they leave nothing."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.calibrate import random_walk as walk_module
from nopfsfs.calibrate import source_meter as source_module
from nopfsfs.calibrate.disk_meter import BYTES_MOST, DiskMeter, NoDisk
from nopfsfs.calibrate.memory_meter import MemoryMeter
from nopfsfs.calibrate.meter_threads import MeterHangs, MeterStopped, MeterThreads
from nopfsfs.calibrate.random_walk import Walk, walk
from nopfsfs.calibrate.source_meter import NothingRead, SourceMeter
from nopfsfs.performance import fit
from tests.mount.harness import fill

SIZE = 20_000
FILES = 480  # enough for all levels
Lines = list[str]


def nothing() -> None:
    """A poll that goes on."""


def meter_threads(poll: Callable[[], None] = nothing, patience: float = 10.0) -> MeterThreads:
    return MeterThreads(poll, patience)


def reader(root: Path, lines: Lines | None = None) -> SourceMeter:
    return SourceMeter(os.fsencode(root), meter_threads(), (lines if lines is not None else []).append)


def look(root: Path, late: Callable[[], bool] = lambda: False, skip: tuple[Path, ...] = ()) -> Walk:
    return walk(os.fsencode(root), late, random.Random(1), frozenset(map(os.fsencode, skip)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    fill(root, FILES, SIZE, classes=8)
    return root


def test_a_walk_that_has_time_finds_all_files_and_no_links(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "class0")
    (tree / "class0" / "link.jpg").symlink_to("00000.jpg")
    os.mkfifo(tree / "fifo")

    found = look(tree)

    assert {Path(os.fsdecode(path)) for path in found.paths} == {p for p in tree.rglob("*.jpg") if not p.is_symlink()}
    assert (found.seen, found.whole, found.skipped) == (FILES, True, 0)
    assert found.paths != sorted(found.paths)


def test_a_walk_that_is_late_has_at_least_one_file(tree: Path) -> None:
    found = look(tree, late=lambda: True)

    assert 0 < found.seen < FILES
    assert not found.whole


def test_a_walk_leaves_out_what_it_is_told_to(tree: Path) -> None:
    found = look(tree, skip=(tree / "class0", tree / "class1"))

    assert found.seen == FILES * 6 // 8


def test_a_walk_counts_what_it_cannot_list(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = walk_module.open_absolute

    def refuse(path: bytes, flags: int) -> int:
        if path.endswith(b"class3"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags)

    monkeypatch.setattr(walk_module, "open_absolute", refuse)
    found = look(tree)

    assert (found.seen, found.skipped, found.why) == (FILES * 7 // 8, 1, f"{tree / 'class3'}: Permission denied")


@given(st.integers(0, 200), st.integers(1, 50), st.integers(0, 100))
def test_a_choice_is_bounded_and_has_no_file_twice(files: int, most: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_module, "MOST_FILES", most)
        found, rng = Walk(), random.Random(seed)
        for number in range(files):
            found.keep(b"%d" % number, rng)

    assert found.seen == files
    assert len(set(found.paths)) == len(found.paths) == min(files, most)


def test_a_source_is_read_at_all_levels(tree: Path) -> None:
    lines: Lines = []

    found = reader(tree, lines).measure(2.0)

    assert [level[0] for level in found["levels"]] == [1, 2, 4, 8, 16, 32, 64]
    assert all(files > 0 and size > 0 for _, files, size in found["levels"])
    assert found["heads"][0] == 64
    assert (found["seen"], found["whole"], found["skipped"]) == (FILES, True, 0)
    assert SIZE // 2 <= found["smallest"] <= found["median"] <= found["largest"] < 3 * SIZE // 2
    assert lines[:4] == ["looking for files", "looking for large files", "first bytes", "1 at once"]


def test_no_file_is_read_twice(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(tree / "class0" / "00000.jpg", tree / "class0" / "other name")
    real, opened = os.open, []

    def note(path: bytes, *rest: int) -> int:
        opened.append(path)
        return real(path, *rest)

    monkeypatch.setattr(os, "open", note)
    found = reader(tree).measure(2.0)

    assert len(opened) == len(set(opened))
    assert found["read"] <= FILES


@pytest.mark.parametrize("count", [1, 2, 10, 40])
def test_a_few_files_are_measured_as_far_as_they_go(tmp_path: Path, count: int) -> None:
    fill(tmp_path, count, SIZE)

    found = reader(tmp_path).measure(1.0)

    assert found["levels"][0][0] == 1
    assert len(found["levels"]) < 7
    assert found["read"] <= count


def test_large_files_are_found_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "knee", lambda levels: 1)  # or there may be too few of them to be read at once
    fill(tmp_path, 500, SIZE)
    for number in range(60):
        (tmp_path / f"large{number}").write_bytes(bytes(10 * SIZE))

    found = reader(tmp_path).measure(2.0)

    at_once, files, size = found["large"]
    assert at_once == 1
    assert size / files > 3 * SIZE


def test_files_of_no_bytes_and_a_file_of_many(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open(tmp_path / "large", "wb") as file:
        file.truncate(5 << 30)  # takes longer than there is time

    found = reader(tmp_path).measure(1.0)

    assert found["read"] in (1, 2)
    assert found["levels"][0][2] > 0


def test_a_source_of_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(NothingRead, match="empty"):
        reader(tmp_path).measure(1.0)


def test_a_source_without_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(NothingRead, match="no files"):
        reader(tmp_path).measure(1.0)


def test_a_source_none_of_whose_files_can_be_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: bytes, *rest: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(source_module, "open_absolute", refuse)
    with pytest.raises(NothingRead, match=r"none of \d+ files could be read, such as .*: Permission denied"):
        reader(tree).measure(1.0)


def meter(path: Path, limit: int | None = None, poll: Callable[[], None] = nothing) -> DiskMeter:
    return DiskMeter(str(path), SIZE, limit, meter_threads(poll), lambda doing: None)


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    found = meter(tmp_path).measure(1.0)

    assert [threads for threads, _ in found["read"]] == [threads for threads, _ in found["write"]] == [1, 2, 4, 8]
    assert all(rate > 0 for _, rate in found["read"] + found["write"])
    assert found["size"] == SIZE
    assert found["bytes"] <= BYTES_MOST
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize(("size", "pause"), [(SIZE, 0.02), (4 << 20, 0.1), (4 << 20, 0.5)])
def test_a_slow_disk_is_measured_in_about_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, pause: float
) -> None:
    """It takes `pause` seconds for a file, whatever else waits. There are at least two files to write and sync for each
    thread."""
    one = threading.Lock()

    def sync(fd: int) -> None:
        with one:
            time.sleep(pause)

    monkeypatch.setattr(os, "fdatasync", sync)
    began = time.monotonic()
    found = DiskMeter(str(tmp_path), size, None, meter_threads(), lambda doing: None).measure(1.0)

    assert time.monotonic() - began < 3.0 + 6 * pause
    # never faster than it is; slower where this machine does other things in that second
    assert 0.2 * size / pause <= found["write"][0][1] <= 1.5 * size / pause
    assert os.listdir(tmp_path) == []


def test_a_disk_tier_is_not_made_larger_than_it_may_be(tmp_path: Path) -> None:
    assert meter(tmp_path, limit=1 << 20).measure(1.0)["bytes"] <= 1 << 20


@pytest.mark.parametrize("limit", [1, 100_000])
def test_a_disk_without_room(tmp_path: Path, limit: int) -> None:
    with pytest.raises(NoDisk, match="no room"):
        meter(tmp_path, limit).measure(1.0)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(NoDisk, match="Input/output error"):
        meter(tmp_path).measure(1.0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("after", [0, 3, 10])
def test_who_is_stopped_leaves_nothing_on_the_disk(tmp_path: Path, after: int) -> None:
    polls = iter(range(10**9))

    def stop() -> None:
        if next(polls) >= after:
            raise MeterStopped

    with pytest.raises(MeterStopped):
        meter(tmp_path, poll=stop).measure(60.0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("room", [0, 1 << 20, 1 << 30])
def test_memory_is_measured_within_its_room(room: int) -> None:
    found = MemoryMeter(SIZE, room, meter_threads(), lambda doing: None).measure(0.1)

    assert [threads for threads, _ in found["read"]] == [threads for threads, _ in found["write"]] == [1, 2, 4]
    assert all(rate > 0 for _, rate in found["read"] + found["write"])
    assert found["bytes"] <= max(room, 8 * 4096)


def test_a_thread_that_hangs_is_named(tmp_path: Path) -> None:
    hanging = meter_threads(patience=0.2)

    def hang(number: int) -> None:
        hanging.doing[number] = "reading x"
        time.sleep(1.0)

    with pytest.raises(MeterHangs, match="reading x"):
        hanging.run(hang, 2, 0.0)


def test_what_a_thread_raises_is_raised() -> None:
    def fail(number: int) -> None:
        raise RuntimeError(f"thread {number}")

    with pytest.raises(RuntimeError, match="thread 0"):
        meter_threads().run(fail, 1, 10.0)
