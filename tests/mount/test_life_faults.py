"""Faults that life brings: a source that fails half way, few descriptors, little memory, long names, mounts of mounts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slow_source import SlowSource
from slow_source_load import Limits

from tests.conftest import tmpfs
from tests.mount.conftest import Mounting
from tests.mount.harness import TEST_ID, Mounted, Reader, content, fill, mount_command, mounted, read_all, run, write
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

BLOCK = 1 << 20  # of a load, and of a READ
SIZE = 5 * BLOCK + 12345
NAME = "n" * 255
DEPTH = 17  # directories of 255 bytes each: 4,352 bytes, beyond PATH_MAX
FEW = 64  # descriptors
MEMORY = 640 << 20


def read(path: Path) -> object:
    """[length, sha256], or the errno, by a process of its own: a hang is an error."""
    with Reader("read", path) as reader:
        return reader.result()[0]


# ---- the source ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--ram", "4M"), marks=pytest.mark.slow)], ids=["whole", "ranges"]
)
def test_a_source_that_fails_after_some_blocks(mounting: Mounting, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The reader gets the errno; who reads later gets all bytes, from a source that works again."""
    write(tmp_path / "backing", {"f.jpg": content(1, SIZE), "g.jpg": content(2, 1000)})
    with SlowSource(tmp_path / "backing") as slow:
        right = read(slow.path / "f.jpg")
        slow.reset()
        with mounting(slow.path, *flags) as m:
            slow.set_limits(Limits(read_latency=0.15, concurrent=1))
            with Reader("read", m.path / "f.jpg") as reader:
                assert wait_until(lambda: slow.counters().files.get("f.jpg") is not None)
                assert wait_until(lambda: slow.counters().files["f.jpg"].bytes >= BLOCK)
                slow.fail("read", errno.EIO, "f.jpg")
                assert reader.result() == [errno.EIO]
            assert 0 < slow.counters().files["f.jpg"].bytes < SIZE
            slow.set_limits(Limits())
            assert read(m.path / "f.jpg") == errno.EIO
            assert (m.path / "g.jpg").read_bytes() == content(2, 1000)
            slow.release()
            assert read(m.path / "f.jpg") == right
            assert m.status()["state"] == "running"


# ---- what a node has too little of --------------------------------------------------------------------------------


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))


@pytest.mark.long
@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--servers", "2"), marks=pytest.mark.slow)], ids=["one server", "two servers"]
)
def test_few_descriptors(mounting: Mounting, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """It mounts and works, or says in one line why it does not; nothing between the two."""
    fill(tmp_path / "source", 300, 40_000)
    work = tmp_path / "try"
    (work / "mnt").mkdir(parents=True)
    with contextlib.suppress(RefusedInOneLine), mounted_or_refused(tmp_path / "source", *flags, work=work) as m:
        m.errors_expected = True
        read_all(m, rounds=2)
        assert m.status()["state"] == "running"


class RefusedInOneLine(Exception):
    """The mount was refused, as it may be."""


@contextlib.contextmanager
def mounted_or_refused(source: Path, *flags: str, work: Path) -> Iterator[Mounted]:
    """As `mounted`, with few descriptors; raises RefusedInOneLine where it says so and leaves nothing."""
    try:
        with mounted(source, *flags, work=work, preexec_fn=few_descriptors) as m:
            yield m
    except AssertionError as e:
        said = str(e)
        if "descriptors" in said and "Traceback" not in said:
            assert not os.path.ismount(work / "mnt")
            raise RefusedInOneLine from None
        raise


def memory_group(limit: int) -> tuple[Path, Callable[[], None]] | None:
    """A new cgroup with so much memory, and what puts a process there; None where there can be none."""
    name = f"nopfs-test-{uuid.uuid4().hex[:8]}"
    for top, file in ((Path("/sys/fs/cgroup"), "memory.max"), (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")):
        group = top / name
        try:
            group.mkdir()
            if not (group / file).exists():
                raise OSError(errno.ENOTSUP, "no group of memory")
            (group / file).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue

        def enter(group: Path = group) -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        return group, enter
    return None


@pytest.mark.slow
def test_less_memory_than_the_budget(mounting: Mounting, tmp_path: Path) -> None:
    """In a cgroup with half as much memory as it was told that it may take: every byte is right, and it lives."""
    found = memory_group(MEMORY // 2)
    if found is None:
        pytest.skip("no memory cgroup can be made here")
    group, enter = found
    try:
        fill(tmp_path / "source", 1200, 400_000)
        with mounting(tmp_path / "source", "--ram", f"{MEMORY >> 20}M", hangs_s=110, preexec_fn=enter) as m:
            m.errors_expected = True
            assert (group / "cgroup.procs").read_text().split(), "it is in there"
            read_all(m, readers=2, rounds=2, limit_s=100)
            status = m.status()
            assert status["state"] == "running"
            assert status["budget"]["total"] < MEMORY // 2
            assert status["read_errors"] == 0
    finally:
        assert wait_until(lambda: not (group / "cgroup.procs").read_text().split())
        group.rmdir()


# ---- names ---------------------------------------------------------------------------------------------------------


def descend(top: Path) -> Iterator[tuple[int, int]]:
    """(depth, descriptor) of a directory and of those that are called NAME, one in the other, while there are any."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for depth in range(DEPTH + 1):
            yield depth, fd
            try:
                below = os.open(NAME, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                return
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


def make_deep(top: Path) -> None:
    top.mkdir()
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for depth in range(DEPTH):
        for name in ("f", "x" * 255):
            file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
            os.write(file, content(depth * 2 + len(name) % 2, 5000))
            os.close(file)
        os.mkdir(NAME, dir_fd=fd)
        below = os.open(NAME, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.long
def test_long_names_and_paths_that_are_longer_than_any(tmp_path: Path) -> None:
    """What is listed can be read; what is not was counted, and said."""
    make_deep(tmp_path / "source")
    with mounted_saying(tmp_path / "source", work=tmp_path) as (m, said):
        there = 0
        for depth, fd in descend(m.path):
            there += len(os.listdir(fd))
            for name in set(os.listdir(fd)) - {NAME}:
                file = os.open(name, os.O_RDONLY, dir_fd=fd)
                try:
                    assert os.read(file, 10_000) == content(depth * 2 + len(name) % 2, 5000), (depth, len(name))
                finally:
                    os.close(file)
        assert there > 3 * 12, "paths of 3,072 bytes are no problem anywhere"
        assert there == 3 * DEPTH or "left out" in said


@contextlib.contextmanager
def mounted_saying(source: Path, *, work: Path) -> Iterator[tuple[Mounted, str]]:
    """A mount, and what nopfs-mount said: that of a first one, which is ended."""
    (work / "once").mkdir()
    with mounted(source, work=work / "once") as first:
        assert first.umount().returncode == 0
        first.wait_gone()
        again = run(mount_command(first), env={**os.environ, TEST_ID: first.test_id})
        assert again.returncode == 0, again.stderr
        yield first, again.stderr


# ---- mounts of mounts, and beside mounts --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mount_of_a_mount(tmp_path: Path) -> None:
    fill(tmp_path / "source", 60, 60_000)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with mounted(tmp_path / "source", work=tmp_path / "one") as one, mounted(one.path, work=tmp_path / "two") as two:
        read_all(two)
        one.kill("stager")
        one.errors_expected = True
        read_all(two)
        assert two.status()["read_errors"] == 0


@pytest.mark.slow
def test_two_mounts_of_one_source_with_one_disk_and_one_index(tmp_path: Path) -> None:
    """The end of one, even by a kill, takes nothing from the other."""
    fill(tmp_path / "source", 100, 60_000)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with tmpfs(tmp_path / "disk", "40M") as disk:
        flags = ("--disk", f"{disk}:15M", "--ram", "3M", "--index-dir", str(tmp_path / "index"), "--seed", "42")
        with mounted(tmp_path / "source", *flags, work=tmp_path / "one", disks=[disk]) as one:
            one.errors_expected = True
            with mounted(tmp_path / "source", *flags, work=tmp_path / "two") as two:
                read_all(two)
                read_all(one)
                assert wait_until(lambda: two.status()["used"]["disk"] > 0)
                two.kill("stager", signal.SIGKILL)
                two.errors_expected = True
                read_all(one)
            read_all(one, rounds=2)
            assert one.status()["served"]["disk"]["files"] > 0
            assert one.status()["read_errors"] == 0


def test_a_mount_below_its_own_source_is_refused_or_shows_itself_once(tmp_path: Path) -> None:
    """A mountpoint inside of the source: nobody waits for himself."""
    fill(tmp_path / "source", 10, 5000)
    (tmp_path / "source/mnt").mkdir()
    done = subprocess.run(
        ["timeout", "30", *mount_command(_named(tmp_path / "source", tmp_path / "source/mnt", tmp_path))],
        capture_output=True, text=True, check=False, env={**os.environ, TEST_ID: uuid.uuid4().hex},
    )  # fmt: skip
    try:
        assert done.returncode not in (0, 124), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    finally:
        subprocess.run(["umount", "-l", tmp_path / "source/mnt"], capture_output=True, check=False)


def _named(source: Path, path: Path, work: Path) -> Mounted:
    return Mounted(source, path, work / "log", "", "")
