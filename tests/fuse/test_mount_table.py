"""Reading mountinfo, and looking at real mounts without touching them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nopfsfs.fuse import mount_table
from nopfsfs.fuse.mount_table import (
    HeldConnection,
    Holder,
    Mount,
    abort_connection,
    find_covering,
    find_mount,
    holders,
    is_stale,
    parse_mountinfo,
)
from nopfsfs.fuse.mounting import unmount
from tests.conftest import FakeMount, FakeMounts
from tests.waiting import wait_until

TEXT = r"""22 27 0:21 / /proc rw,nosuid shared:12 master:3 - proc proc rw
36 27 8:1 /sub\040dir /mnt/a\040b\134c\011 rw,noatime - ext4 /dev/sda1 rw,errors=remount-ro
41 27 0:44 / /mnt/fast ro,nosuid,nodev - fuse.nopfs /pfs/a\040b ro,user_id=1000,group_id=1000
42 41 0:45 / /mnt/fast rw - tmpfs  rw
"""


def test_parse() -> None:
    proc, bind, nopfs, on_top = parse_mountinfo(TEXT)

    assert (proc.mountpoint, proc.fstype, proc.options) == ("/proc", "proc", ("rw", "nosuid"))
    assert (bind.root, bind.mountpoint) == ("/sub dir", "/mnt/a b\\c\t")
    assert (nopfs.major, nopfs.minor, nopfs.source, nopfs.owner) == (0, 44, "/pfs/a b", 1000)
    assert nopfs.is_nopfs
    assert nopfs.is_fuse
    assert (on_top.fstype, on_top.source) == ("tmpfs", "")
    assert not bind.is_fuse


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_names_with_characters_that_end_a_line_elsewhere(character: str) -> None:
    """Any user may mount at such a name; whoever reads the table must not fail for it."""
    (mount,) = parse_mountinfo(f"36 27 8:1 / /home/a{character}b rw - ext4 /dev/sda1 rw\n")
    assert mount.mountpoint == f"/home/a{character}b"


def test_names_that_are_not_utf8() -> None:
    name = os.fsdecode(b"/mnt/\xff\xc3\xa4")
    line = f"1 2 0:3 / {name}\\040x rw - tmpfs tmpfs rw\n"

    assert parse_mountinfo(line)[0].mountpoint == name + " x"


def test_the_topmost_is_found() -> None:
    mounts = parse_mountinfo(TEXT)

    assert find_mount("/mnt/fast", mounts) is mounts[3]
    assert find_mount("/mnt", mounts) is None


def found(mountpoint: Path) -> Mount:
    mount = find_mount(str(mountpoint))
    assert mount is not None
    return mount


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/proc", ("/proc", "proc")),
        ("/proc/1", ("/proc", "proc")),
        ("/process", None),
        ("/mnt/a b\\c\t/x", ("/mnt/a b\\c\t", "ext4")),
        ("/mnt/fast/x", ("/mnt/fast", "tmpfs")),  # it is on top
    ],
)
def test_what_a_path_lies_on(path: str, expected: tuple[str, str] | None) -> None:
    found = find_covering(path, parse_mountinfo(TEXT))

    assert (found and (found.mountpoint, found.fstype)) == expected


def test_a_mount_is_stale_once_its_daemon_is_dead(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake = fake_mount()

    assert not is_stale(found(mountpoint))
    fake.kill()
    assert is_stale(found(mountpoint))


@pytest.mark.mount
def test_a_daemon_that_hangs_is_not_stale_until_it_is_aborted(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake = fake_mount()
    fake.process.send_signal(19)  # SIGSTOP

    assert not is_stale(found(mountpoint), limit_s=0.3)
    if not abort_connection(found(mountpoint).minor):
        pytest.skip("this system does not let us abort a connection")
    assert is_stale(found(mountpoint))


@contextmanager
def program(code: str, *args: str, cwd: str = "/") -> Iterator[int]:
    """Run Python code that prints a line when it holds something; yield its pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys, time\n{code}\nprint(flush=True)\ntime.sleep(60)", *args],
        stdout=subprocess.PIPE,
        cwd=cwd,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


MMAP = """
import mmap, os
fd = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.close(fd)
"""


@pytest.mark.mount
@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("f = open(sys.argv[1])", "open {}/hello"),
        (MMAP, "open {}/hello"),
        ("import os; os.chdir(sys.argv[2])", "cwd"),
    ],
    ids=["open", "mmap", "cwd"],
)
def test_holders(fake_mount: FakeMounts, mountpoint: Path, code: str, what: str) -> None:
    fake_mount()
    mount = found(mountpoint)
    assert holders(mount) == ()

    with program(code, f"{mountpoint}/hello", str(mountpoint)) as pid:
        expected = Holder(pid, Path(f"/proc/{pid}/comm").read_text().strip(), what.format(mountpoint))

        assert wait_until(lambda: holders(mount) == (expected,)), holders(mount)
        assert holders(mount, ignore=[pid]) == ()


@pytest.mark.mount
def test_a_mapping_without_a_descriptor_holds(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake_mount()
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(sys.argv[1], os.O_RDONLY)
libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
os.close(fd)
"""
    with program(code, f"{mountpoint}/hello") as pid:
        held = [(h.pid, h.what) for h in holders(found(mountpoint))]

    assert held == [(pid, f"mmap {mountpoint}/hello")]


@pytest.mark.mount
def test_a_connection_that_is_held_is_aborted(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake_mount()
    held = HeldConnection(found(mountpoint))
    try:
        if not held.abort(in_use=False):
            pytest.skip("this system does not let us abort a connection")
        assert is_stale(found(mountpoint))
    finally:
        held.close()


@pytest.mark.mount
def test_another_mount_with_the_number_of_one_that_is_gone_is_left_alone(
    fake_mount: FakeMounts, mountpoint: Path, source: Path, tmp_path: Path
) -> None:
    first = fake_mount()
    before = found(mountpoint)
    held = HeldConnection(before)
    unmount(before)
    first.process.wait(20)
    other = tmp_path / "other"
    other.mkdir()
    second = FakeMount(source, other)
    try:
        held.abort(in_use=False)
        assert not is_stale(found(other))
        if found(other).minor != before.minor:
            pytest.skip("the number was not used again")
    finally:
        held.close()
        second.end()


def test_who_holds_a_mount_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets nobody read the memory map of a process for as long as that waits for a page of a dead mount."""
    release = threading.Event()

    def uses(pid: int, mount: Mount) -> Iterator[str]:
        if pid == os.getpid():
            release.wait(30)
        yield "cwd"

    monkeypatch.setattr(mount_table, "_uses", uses)
    try:
        (mount,) = parse_mountinfo("9 1 0:9 / /nowhere rw - fuse.nopfs src rw")
        began = time.monotonic()
        found = holders(mount, limit_s=0.3)
        assert time.monotonic() - began < 5
    finally:
        release.set()
    assert 1 in {holder.pid for holder in found}  # who comes before it is named
