"""docs/semantics.md says what each operation does: its rows are tried on a real mount."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nopfsfs.fuse.mounting import may_mount
from tests.conftest import place_for_all
from tests.mount.harness import Mounted, module, mounted, run, write
from tests.mount.modes import CORES, Mode
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

TEXT = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
DATA = b"data" * 1000
RESENDS = tuple(map(int, os.uname().release.split(".", 2)[:2])) >= (6, 9)


def rows(section: str) -> dict[str, str]:
    """Operation to result, of the table below a heading."""
    part = TEXT.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", part, re.MULTILINE)
    return {operation: result for operation, result in found if operation != "operation"}


@pytest.fixture(scope="module")
def m(tmp_path_factory: pytest.TempPathFactory, mode: Mode) -> Iterator[Mounted]:
    work = place_for_all(tmp_path_factory, "semantics")
    source = work / "source"
    write(source, {"f": DATA, "d/g": b"g"})
    os.symlink("f", source / "link")
    (source / "e").mkdir()
    with suppress(OSError):  # this file system knows none
        os.setxattr(source / "f", "user.label", b"cat \x00\xff")
    with mounted(source, work=work, mode=mode) as made:
        yield made


@pytest.fixture
def fd(m: Mounted) -> Iterator[int]:
    fd = os.open(m.path / "f", os.O_RDONLY)
    yield fd
    os.close(fd)


CHANGING: dict[str, Callable[[Path], object]] = {
    "open for writing": lambda p: os.open(p / "f", os.O_WRONLY),
    "open for reading and writing": lambda p: os.open(p / "f", os.O_RDWR),
    "create a file": lambda p: os.open(p / "new", os.O_CREAT | os.O_WRONLY),
    "truncate": lambda p: os.truncate(p / "f", 0),
    "unlink": lambda p: os.unlink(p / "f"),
    "mkdir": lambda p: os.mkdir(p / "new"),
    "rmdir": lambda p: os.rmdir(p / "e"),
    "rename": lambda p: os.rename(p / "f", p / "new"),
    "link": lambda p: os.link(p / "f", p / "new"),
    "symlink": lambda p: os.symlink("f", p / "new"),
    "mkfifo": lambda p: os.mkfifo(p / "new"),
    "chmod": lambda p: os.chmod(p / "f", 0o777),
    "chown": lambda p: os.chown(p / "f", 1, 1),
    "utime": lambda p: os.utime(p / "f"),
    "setxattr": lambda p: os.setxattr(p / "f", "user.x", b"x"),
    "removexattr": lambda p: os.removexattr(p / "f", "user.x"),
}

FAILING: dict[str, Callable[[Path, int], object]] = {
    "lookup of a name that was not indexed": lambda p, fd: os.stat(p / "new"),
    "lookup of a name over 255 bytes": lambda p, fd: os.stat(p / ("x" * 256)),
    "lookup below a file": lambda p, fd: os.stat(p / "f/x"),
    "read of a directory": lambda p, fd: read_directory(p),
    "mmap, shared for writing": lambda p, fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    "readlink of a file that is no link": lambda p, fd: os.readlink(p / "f"),
    "getxattr of an attribute that is missing": lambda p, fd: os.getxattr(p / "f", "user.missing"),
    "ioctl": lambda p, fd: termios.tcgetattr(fd),
}

WORKING: dict[str, Callable[[Path, int], bool]] = {
    "lookup of a name that was indexed": lambda p, fd: (p / "d/g").stat().st_size == 1,
    "listing a directory": lambda p, fd: os.listdir(p) == ["d", "e", "f", "link"],
    "stat": lambda p, fd: os.fstat(fd).st_size == len(DATA),
    "open for reading": lambda p, fd: open(p / "d/g", "rb").close() is None,
    "open with O_DIRECT": lambda p, fd: os.close(os.open(p / "f", os.O_RDONLY | os.O_DIRECT)) is None,
    "read, pread": lambda p, fd: os.pread(fd, 10_000, 4) == DATA[4:],
    "read beyond the end": lambda p, fd: os.pread(fd, 10, 1 << 40) == b"",
    "mmap, private or shared for reading": lambda p, fd: mapped(fd) == DATA,
    "sendfile, splice, copy_file_range from the mount": lambda p, fd: copied(fd) == DATA,
    "lseek with SEEK_DATA, SEEK_HOLE": lambda p, fd: (
        os.lseek(fd, 0, os.SEEK_HOLE) == len(DATA) and os.lseek(fd, 9, os.SEEK_DATA) == 9
    ),
    "readlink": lambda p, fd: os.readlink(p / "link") == "f",
    "statfs": lambda p, fd: os.statvfs(p).f_bavail == 0 and os.statvfs(p).f_namemax == 255,
    "getxattr, listxattr": lambda p, fd: os.getxattr(p / "f", "user.nopfs.version") == b"0",
    "access": lambda p, fd: os.access(p / "f", os.R_OK) and not os.access(p / "f", os.W_OK),
    "flock, fcntl locks": lambda p, fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB) is None,
}
UNTRIED = {"inotify"}


def test_the_mode_is_shown(m: Mounted, mode: Mode) -> None:
    usual = {
        "fast_path": True, "resend": True, "redelivery": "kernel", "passthrough": False, "signal": "open",
        "privileged": may_mount(), "servers": CORES,
    }  # fmt: skip
    wanted = {**usual, **mode.expected}
    if not RESENDS and wanted["resend"]:
        wanted |= {"resend": False, "redelivery": "records"}

    modes = m.status()["modes"]
    assert bool(modes.pop("signal_because")) == (modes["signal"] == "open"), "why not otherwise, by default"
    assert modes == wanted
    text = run([*module("nopfs"), "status", str(m.path)]).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("modes ")]
    assert ("no fast path" not in line) == wanted["fast_path"]
    assert ("no resend" in line) == (wanted["redelivery"] == "none")
    assert ("redelivery by records" in line) == (wanted["redelivery"] == "records")
    assert f"signal {wanted['signal']}" in line
    assert ("mount(2)" if wanted["privileged"] else "fusermount3") in line


def test_extended_attributes_are_the_sources_and_the_mounts_own(m: Mounted) -> None:
    theirs = os.listxattr(m.source / "f")

    assert (m.path / "f").read_bytes() == DATA
    assert wait_until(lambda: b"ram" in os.getxattr(m.path / "f", "user.nopfs.tiers").split(b","))
    assert set(os.listxattr(m.path / "f")) == {"user.nopfs.tiers", "user.nopfs.version", *theirs}
    for name in theirs:
        assert os.getxattr(m.path / "f", name) == os.getxattr(m.source / "f", name)


def read_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.read(fd, 1)
    finally:
        os.close(fd)


def mapped(fd: int) -> bytes:
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        return memory[:]


def copied(fd: int) -> bytes:
    to = os.memfd_create("copy")
    try:
        os.sendfile(to, fd, 0, len(DATA))
        return os.pread(to, 2 * len(DATA), 0)
    finally:
        os.close(to)


def test_every_row_is_tried() -> None:
    assert set(rows("Reading")) == FAILING.keys() | WORKING.keys() | UNTRIED
    assert set(rows("Changing")) == CHANGING.keys()


@pytest.mark.parametrize("operation", CHANGING)
def test_changing(m: Mounted, operation: str) -> None:
    before = sorted(os.listdir(m.source)), (m.source / "f").stat()

    with pytest.raises(OSError) as raised:
        CHANGING[operation](m.path)

    assert errno.errorcode[raised.value.errno or 0] == rows("Changing")[operation]
    assert before == (sorted(os.listdir(m.source)), (m.source / "f").stat())


@pytest.mark.parametrize("operation", FAILING)
def test_failing(m: Mounted, fd: int, operation: str) -> None:
    with pytest.raises((OSError, termios.error)) as raised:
        FAILING[operation](m.path, fd)

    assert errno.errorcode[raised.value.args[0]] == re.split("[ ,;]", rows("Reading")[operation])[0]


@pytest.mark.parametrize("operation", WORKING)
def test_working(m: Mounted, fd: int, operation: str) -> None:
    assert WORKING[operation](m.path, fd)
