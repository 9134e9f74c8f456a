"""Disk tiers: limits, failures, leftovers. A tiny tmpfs stands for a disk that is full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.fuse.mounting import may_mount
from nopfsfs.system.outages import MOST_S
from nopfsfs.tiers import disk as disk_module
from nopfsfs.tiers.disk import FIRST_REST_S, Disk, DiskFull, Disks, TierGone
from tests.conftest import tmpfs

KIB = 1024


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if not may_mount():
        pytest.skip("needs the right to call mount(2)")
    with tmpfs(tmp_path / "tiny", "64k") as path:
        yield path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    opened = Disk(str(tmp_path), 64 * KIB)
    opened.open()
    yield opened
    opened.close()


def home(disk: Disk) -> Path:
    """The directory of an open tier."""
    assert disk._directory is not None
    return Path(disk.path, disk._directory.name)


def view(size: int, value: int = 1) -> memoryview:
    return memoryview(bytes([value]) * size)


def test_a_copy_is_read_as_it_was_written_until_it_is_removed(disk: Disk) -> None:
    disk.write(7, view(5000, 3))
    into = bytearray(5000)
    disk.read(7, memoryview(into))
    assert into == view(5000, 3)
    assert disk.used == 8 * KIB  # whole blocks
    disk.remove(7)
    disk.remove(7)
    with pytest.raises(FileNotFoundError):
        disk.read(7, memoryview(into))
    assert disk.used == 0


def test_a_copy_that_is_open_is_never_rewritten(disk: Disk) -> None:
    """The kernel may be reading it by itself."""
    disk.write(7, memoryview(b"old" * 1000))
    fd = disk.open_copy(7)
    try:
        disk.write(7, memoryview(b"new"))
        assert os.read(fd, 4000) == b"old" * 1000
    finally:
        os.close(fd)
    into = bytearray(3)
    disk.read(7, memoryview(into))
    assert into == b"new"


def test_the_limit_is_never_exceeded(disk: Disk) -> None:
    for row in range(16):
        disk.write(row, view(4 * KIB))
    with pytest.raises(DiskFull):
        disk.write(16, view(1))
    assert disk.used == 64 * KIB
    disk.remove(3)
    disk.write(16, view(1))
    assert disk.used == 64 * KIB


def test_without_a_limit_a_floor_of_the_file_system_is_left(tiny: Path) -> None:
    disk = Disk(str(tiny), None)
    disk.open()
    with pytest.raises(DiskFull):
        disk.write(1, view(1))
    assert disk.used == 0
    disk.close()


def test_a_full_file_system_keeps_nothing_of_the_copy(tiny: Path) -> None:
    disk = Disk(str(tiny), 1 << 30)  # more than there is
    disk.open()
    disk.write(1, view(16 * KIB, 5))
    with pytest.raises(OSError, match="No space left"):
        disk.write(2, view(60 * KIB))
    assert disk.used == 16 * KIB
    assert not any(name == "2" for _, _, names in os.walk(tiny) for name in names)
    into = bytearray(16 * KIB)
    disk.read(1, memoryview(into))
    assert into == view(16 * KIB, 5)
    disk.close()
    assert os.listdir(tiny) == []


def test_a_copy_that_is_too_short_is_an_error(disk: Disk) -> None:
    disk.write(1, view(100))
    with pytest.raises(OSError, match="too short"):
        disk.read(1, memoryview(bytearray(101)))


def test_a_tier_that_fails_is_left_alone_for_longer_and_longer(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(disk_module.time, "monotonic", lambda: now)
    assert disk.usable()
    rests = []
    for _ in range(3):
        disk.failed()
        disk.failed()  # what had begun before, too
        began = now
        while not disk.usable():
            now += 1
        rests.append(now - began)
    assert rests == [FIRST_REST_S, MOST_S, MOST_S]
    disk.worked()
    disk.failed()
    now += FIRST_REST_S
    assert disk.usable()


def test_a_tier_that_was_not_opened_is_not_usable(tmp_path: Path) -> None:
    assert not Disk(str(tmp_path), None).usable()


def test_a_tier_whose_directory_was_removed_is_made_anew(disk: Disk, tmp_path: Path) -> None:
    disk.write(1, view(5000))
    assert not disk.is_gone()
    shutil.rmtree(home(disk))
    assert disk.is_gone()
    with pytest.raises(TierGone):
        disk.write(2, view(100))
    with pytest.raises(FileNotFoundError):
        disk.read(1, memoryview(bytearray(5000)))
    assert disk.used == 8 * KIB, "the first copy is yet to be withdrawn"
    disk.open()
    assert disk.used == 0
    assert not disk.is_gone()
    disk.write(2, view(100, 7))
    into = bytearray(100)
    disk.read(2, memoryview(into))
    assert into == view(100, 7)
    disk.close()
    assert os.listdir(tmp_path) == []


def test_who_reads_a_copy_while_the_tier_is_made_anew_has_its_directory(disk: Disk) -> None:
    disk.write(1, view(100, 1))
    directory = disk._directory
    assert directory is not None
    disk.open()  # by another thread
    fd = os.open("01/1", os.O_RDONLY, dir_fd=directory.copies)
    assert os.read(fd, 200) == view(100, 1)
    os.close(fd)
    copies = directory.copies
    directory.remove()
    del directory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copies)


def test_a_tier_that_cannot_be_made_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    disk = Disk(str(tmp_path / "missing"), None)
    assert disk.is_rested()
    with pytest.raises(FileNotFoundError):
        disk.open()
    assert not disk.is_open
    assert not disk.is_rested()
    (tmp_path / "missing").mkdir()
    monkeypatch.setattr(disk_module.time, "monotonic", lambda: now + FIRST_REST_S + 60)
    assert disk.is_rested()
    disk.open()
    assert disk.usable()
    disk.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "close", "open"])
def test_an_error_in_mid_write_keeps_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, error: int, call: str
) -> None:
    """A network file system says only at close that there is no room."""
    disk.write(1, view(5000, 1))
    real, calls = getattr(os, call), []

    def fail(*args: Any, **options: Any) -> Any:
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **options)
        calls.append(args)
        if call == "write" and len(calls) == 1:
            return real(args[0], args[1][:4096])
        if call == "close":
            real(*args)
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match=os.strerror(error)):
            disk.write(257, view(20000))
    assert calls
    assert disk.used == 8 * KIB
    assert sorted(p.name for p in home(disk).rglob("*") if p.is_file()) == ["1", "marker"]
    disk.write(257, view(20000, 2))
    into = bytearray(20000)
    disk.read(257, memoryview(into))
    assert into == view(20000, 2)


def test_a_copy_that_cannot_be_removed_goes_on_taking_room(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write(1, view(5000))

    def fail(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        disk.remove(1)
    assert disk.used == 8 * KIB
    disk.remove(1)
    assert disk.used == 0


def test_a_copy_that_is_written_again_is_counted_once(disk: Disk) -> None:
    disk.write(1, view(60 * KIB))
    disk.write(1, view(64 * KIB))
    assert disk.used == 64 * KIB


def test_a_tier_that_cannot_be_made_leaves_nothing(tiny: Path) -> None:
    """There is an inode for its directory, but none for its marker."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", tiny], check=True)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space left"):
        Disk(str(tiny), 1 << 20).open()
    assert list(tiny.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_tiers_are_counted_from_one(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    disks = Disks([Disk(str(path), None) for path in paths])
    assert len(disks) == 2
    assert [disks[number].path for number in (1, 2)] == [str(path) for path in paths]
