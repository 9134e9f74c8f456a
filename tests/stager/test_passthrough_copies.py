"""Copies on disk are registered when they are whole and right, and closed when nothing can use them any more."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash

from nopfsfs.fuse import passthrough
from nopfsfs.protocol.columns import Columns
from nopfsfs.stager import passthrough_copies as module
from nopfsfs.stager.passthrough_copies import PassthroughCopies
from nopfsfs.tiers.disk import Disk
from nopfsfs.tiers.open_modes import OpenModes

ROW, ROWS = 2, 6
DATA = bytes(range(256)) * 64
CHECK = xxhash.xxh3_64_intdigest(DATA)


class Kernel:
    """What it has registered: the content by number."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.last = 0
        self.refuses = 0

    def register(self, fuse_fd: int, fd: int) -> int:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.last += 1
        self.files[self.last] = os.pread(fd, 1 << 20, 0)
        return self.last

    def withdraw(self, fuse_fd: int, number: int) -> None:
        if number not in self.files:
            raise OSError(errno.ENOENT, "no such number")
        del self.files[number]


class Bench:
    """One stager's registrations, and what they touch; graces pass when the test says so."""

    def __init__(self, path: Path, kernel: Kernel) -> None:
        self.kernel = kernel
        self.fds = [Columns.create(ROWS), OpenModes.create(ROWS)]
        self.columns = Columns(self.fds[0], ROWS, writable=True)
        self.modes = OpenModes(self.fds[1], self.columns.backing.data)
        self.disk = Disk(str(path), None)
        self.disk.open()
        self.sizes = np.full(ROWS, len(DATA))
        self.graces: list[Callable[[], None]] = []
        self.poked = 0
        self.made = self.another()

    def another(self) -> PassthroughCopies:
        return PassthroughCopies(
            fuse_fd=-1, columns=self.columns, sizes=self.sizes, modes=self.modes, from_size=len(DATA),
            poke=self._poke,
        )  # fmt: skip

    def _poke(self) -> None:
        self.poked += 1

    def write(self, row: int = ROW) -> int:
        self.disk.write(row, memoryview(DATA))
        return self.made.register(self.disk, row, CHECK)

    def publish(self, row: int = ROW) -> int:
        number = self.write(row)
        self.columns.backing[row] = number
        return number

    def withdraw(self, row: int) -> None:
        if self.made.withdraw(row):
            self.graces.append(partial(self.made.grace_passed, row))

    def pass_graces(self) -> None:
        graces, self.graces = self.graces, []
        for passed in graces:
            passed()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(passthrough, "register", made.register)
    monkeypatch.setattr(passthrough, "withdraw", made.withdraw)
    return made


@pytest.fixture
def bench(tmp_path: Path, kernel: Kernel) -> Iterator[Bench]:
    made = Bench(tmp_path, kernel)
    yield made
    made.disk.close()
    for fd in made.fds:
        os.close(fd)


def test_a_copy_is_registered(bench: Bench) -> None:
    assert bench.write() == 1
    assert bench.kernel.files == {1: DATA}


def test_a_smaller_or_a_changed_file_is_not(bench: Bench) -> None:
    bench.sizes[ROW] -= 1
    assert bench.write() == 0
    bench.sizes[ROW] += 1
    bench.columns.version[ROW] = 1
    assert bench.write() == 0


def test_a_copy_that_is_not_what_was_staged_is_an_error(bench: Bench) -> None:
    bench.disk.write(ROW, memoryview(DATA[::-1]))
    with pytest.raises(OSError, match="not hold what was written"):
        bench.made.register(bench.disk, ROW, CHECK)
    assert bench.kernel.files == {}


def test_a_number_is_closed_after_a_grace(bench: Bench) -> None:
    bench.publish()
    bench.withdraw(ROW)
    bench.withdraw(ROW)
    assert bench.columns.backing[ROW] == -1
    assert not bench.made.sweep()
    assert bench.kernel.files
    bench.pass_graces()
    assert bench.poked == 1
    assert not bench.made.sweep()
    assert bench.kernel.files == {}
    assert bench.columns.backing[ROW] == 0
    assert bench.publish() == 2


def test_and_when_no_open_uses_it(bench: Bench) -> None:
    bench.publish()
    assert bench.modes.enter(ROW, may_pass=True) == 1
    bench.withdraw(ROW)
    bench.pass_graces()
    assert bench.made.sweep(), "look again"
    assert bench.kernel.files
    assert bench.write() == 0, "one number at a time"
    assert bench.modes.enter(ROW, may_pass=True) == 1, "the one in use"
    for _ in range(2):
        assert bench.made.sweep()
        bench.modes.leave(ROW, passed=True)
    assert not bench.made.sweep()
    assert bench.kernel.files == {}


def test_a_file_that_is_open_through_the_page_cache_does_not_hold_a_number(bench: Bench) -> None:
    bench.publish()
    bench.modes.enter(ROW, may_pass=False)
    bench.withdraw(ROW)
    bench.pass_graces()
    assert not bench.made.sweep()
    assert bench.kernel.files == {}


def test_another_stager_closes_what_one_that_died_had_registered(bench: Bench) -> None:
    for row in range(1, 5):
        bench.publish(row)
    bench.withdraw(1)
    bench.withdraw(2)
    bench.modes.enter(3, may_pass=True)
    bench.graces.clear()  # it died
    del bench.kernel.files[2]  # after it had closed this one, before it said so
    bench.made = bench.another()
    bench.graces += bench.made.take_over()
    assert bench.columns.backing.tolist() == [0, -1, -2, -3, -4, 0]
    assert not bench.made.taken_over.is_set()
    bench.pass_graces()
    assert bench.made.taken_over.is_set()
    assert bench.made.sweep()
    assert set(bench.kernel.files) == {3}
    bench.modes.leave(3, passed=True)
    assert not bench.made.sweep()
    assert bench.kernel.files == {}
    assert bench.columns.backing.tolist() == [0] * ROWS


@pytest.mark.parametrize("refused", [errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP])
def test_what_is_not_allowed_is_said_once(bench: Bench, refused: int, caplog: pytest.LogCaptureFixture) -> None:
    bench.kernel.refuses = refused
    assert [bench.write(row) for row in range(3)] == [0] * 3
    assert len(caplog.records) == 1
    assert "passthrough is off" in caplog.text


def test_a_failure_of_the_moment_is_none_of_the_tier(bench: Bench) -> None:
    bench.kernel.refuses = errno.ENOMEM
    assert bench.write(1) == 0
    bench.kernel.refuses = 0
    assert bench.write(2) == 1


def test_the_number_of_registered_files_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REGISTERED_MOST", 2)
    assert [bench.publish(row) for row in range(1, 5)] == [1, 2, 0, 0]
    assert bench.made.is_large(4), "and so the supervisor is told"
    bench.withdraw(1)
    bench.pass_graces()
    bench.made.sweep()
    assert bench.publish(5) == 3


def test_a_number_that_is_never_published_is_closed(bench: Bench) -> None:
    bench.made.close(bench.write())
    assert bench.kernel.files == {}


def test_a_tier_without_direct_reads_is_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bench.disk.open_copy

    def open_copy(self: Disk, row: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return plain(row, flags)

    monkeypatch.setattr(Disk, "open_copy", open_copy)
    assert bench.write() == 0
    assert bench.kernel.files == {}
