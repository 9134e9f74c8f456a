"""Mounting and unmounting, with mount(2) and with fusermount3."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse import mounting
from nopfsfs.fuse.mount_table import Mount, find_mount
from nopfsfs.fuse.mounting import Busy, NotMounted, mount_fuse, unmount
from tests.conftest import FakeMounts, tmpfs, unmount_at

EVERY_MODE = {"ro", "nosuid", "nodev"}


def config(source: str | Path, mountpoint: Path, **more: object) -> MountConfig:
    return MountConfig(source=str(source), mountpoint=str(mountpoint), **more)  # type: ignore[arg-type]


@pytest.mark.mount
@pytest.mark.parametrize("way", ["mount(2)", "fusermount3"])
@pytest.mark.parametrize("noexec", [False, True])
def test_mount_and_unmount(
    way: str, noexec: bool, tmp_path: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "fusermount3":
        monkeypatch.setattr(mounting, "may_mount", lambda: False)
    elif not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    source = f"{tmp_path}/a b,c\\d"

    fd, made = mount_fuse(config(source, mountpoint, mount_options=("noexec",) if noexec else ()))
    try:
        mount = find_mount(str(mountpoint))
        assert mount == made
        assert mount.is_nopfs
        assert mount.source == source
        assert set(mount.options) >= EVERY_MODE
        assert ("noexec" in mount.options) == noexec
        assert "default_permissions" in mount.super_options
        assert "allow_other" not in mount.super_options
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        unmount(made)
        os.close(fd)
    assert find_mount(str(mountpoint)) is None
    with pytest.raises(NotMounted):
        unmount(made)


@pytest.mark.mount
def test_allow_other(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake_mount()
    mount = find_mount(str(mountpoint))

    assert mount is not None
    assert "allow_other" in mount.super_options


@pytest.mark.mount
@pytest.mark.parametrize("way", ["mount(2)", "fusermount3"])
def test_busy_and_lazy(way: str, fake_mount: FakeMounts, mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mount()
    if way == "fusermount3":
        monkeypatch.setattr(mounting, "may_mount", lambda: False)
    with open(mountpoint / "hello") as file:
        with pytest.raises(Busy):
            unmount_at(mountpoint)
        unmount_at(mountpoint, lazy=True)

        assert find_mount(str(mountpoint)) is None
        assert file.read() == "hello world\n"


@pytest.mark.mount
def test_unmounting_does_not_wait_for_the_daemon(fake_mount: FakeMounts, mountpoint: Path) -> None:
    fake = fake_mount()
    fake.process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()

    unmount_at(mountpoint)

    assert time.monotonic() - begin < 20, "it would wait for ever"


@pytest.mark.mount
@pytest.mark.parametrize("way", ["mount(2)", "fusermount3"])
def test_a_mount_made_meanwhile_at_the_same_place_stays(
    way: str, fake_mount: FakeMounts, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is unmounted, or out of reach below the other."""
    fake_mount()
    ours = find_mount(str(mountpoint))
    assert ours is not None
    if way == "fusermount3":
        monkeypatch.setattr(mounting, "may_mount", lambda: False)
    for unmounted in (False, True):
        if unmounted:
            unmount(ours)
        with tmpfs(mountpoint, "1M"):
            for lazy in (False, True):
                with pytest.raises(NotMounted):
                    unmount(ours, lazy)
            other = find_mount(str(mountpoint))
            assert other is not None
            assert other.fstype == "tmpfs"


def test_no_device(tmp_path: Path) -> None:
    with pytest.raises(NopfsError, match="is missing: load the module") as raised:
        mounting.open_dev_fuse(str(tmp_path / "fuse"))
    assert raised.value.exit_code is Exit.NO_FUSE

    with pytest.raises(NopfsError, match="cannot be opened") as raised:
        mounting.open_dev_fuse(str(tmp_path))
    assert raised.value.exit_code is Exit.NO_FUSE


def test_no_right_and_no_helper(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "may_mount", lambda: False)
    monkeypatch.setattr(mounting, "helper", lambda: None)
    monkeypatch.setattr(mounting, "is_in_place", lambda mount: True)
    mount = Mount(1, 0, 1, "/", str(mountpoint), (), "fuse.nopfs", "/src", ())

    for act in lambda: mount_fuse(config("/src", mountpoint)), lambda: unmount(mount):
        with pytest.raises(NopfsError, match="apt-get install fuse3") as raised:
            act()
        assert raised.value.exit_code is Exit.NO_RIGHT


def test_what_the_helper_says_is_passed_on(mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fusermount3"
    script.write_text("#!/bin/sh\necho 'fusermount3: mount failed:\nOperation not permitted' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(mounting, "may_mount", lambda: False)
    monkeypatch.setattr(mounting, "helper", lambda: str(script))

    with pytest.raises(NopfsError, match="mount failed: Operation not permitted; see") as raised:
        mount_fuse(config("/src", mountpoint))

    assert raised.value.exit_code is Exit.NO_RIGHT


# Mounts, keeps the descriptor, and then does something else than to send it.
KEEPS_THE_DESCRIPTOR = """#!{python} -IS
import os, socket, subprocess, sys, time
kept, sent = socket.socketpair()
environment = {{**os.environ, "_FUSE_COMMFD": str(sent.fileno())}}
code = subprocess.run(["{real}", *sys.argv[1:]], pass_fds=[sent.fileno()], env=environment).returncode
if code or "-u" in sys.argv:
    sys.exit(code)
open("{mounted}", "w")
{then}
"""


@pytest.mark.mount
@pytest.mark.parametrize(
    ("then", "message"),
    [("time.sleep(60)", "did not answer"), ("sys.exit(0)", "sent no descriptor"), ("sys.exit('no')", "no; see")],
)
def test_what_the_helper_mounted_is_cleared_when_it_fails(
    then: str, message: str, tmp_path: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mounting.helper()
    if real is None:
        pytest.skip("needs fusermount3")
    script, mounted = tmp_path / "fusermount3", tmp_path / "mounted"
    script.write_text(KEEPS_THE_DESCRIPTOR.format(python=sys.executable, real=real, mounted=mounted, then=then))
    script.chmod(0o755)
    monkeypatch.setattr(mounting, "may_mount", lambda: False)
    monkeypatch.setattr(mounting, "helper", lambda: str(script))
    monkeypatch.setattr(mounting, "HELPER_S", 3.0)

    with pytest.raises(NopfsError, match=message):
        mount_fuse(config("/src", mountpoint))

    assert mounted.exists()
    assert find_mount(str(mountpoint)) is None


def test_a_mountpoint_that_cannot_be(tmp_path: Path) -> None:
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    with pytest.raises(NopfsError, match="cannot mount at") as raised:
        mount_fuse(config("/src", tmp_path / "missing"))

    assert raised.value.exit_code is Exit.MOUNTPOINT


@pytest.mark.mount
@pytest.mark.parametrize("where", ["last", "above"])
def test_a_link_that_has_come_into_the_path_leads_no_mount_elsewhere(where: str, tmp_path: Path) -> None:
    """The path was free of links when it was checked; its owner may change that while the source is scanned."""
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    (tmp_path / "closed" / "mnt").mkdir(parents=True)
    link, target = ("mnt", "closed/mnt") if where == "last" else ("dir", "closed")
    (tmp_path / link).symlink_to(target)

    with pytest.raises(NopfsError, match=r"cannot mount at .*: a link is in the way") as raised:
        mount_fuse(config("/src", tmp_path / "mnt" if where == "last" else tmp_path / "dir" / "mnt"))

    assert raised.value.exit_code is Exit.MOUNTPOINT
    assert find_mount(str(tmp_path / "closed" / "mnt")) is None


@pytest.mark.mount
def test_a_directory_that_is_moved_while_it_is_mounted_on_keeps_no_mount(
    mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    moved = mountpoint.with_name("moved")

    def late(*arguments: str | int, mount: Callable[..., None] = mounting._mount) -> None:
        mountpoint.rename(moved)
        mount(*arguments)
        assert find_mount(str(moved)) is not None

    monkeypatch.setattr(mounting, "_mount", late)
    with pytest.raises(NopfsError, match="was replaced or unmounted while") as raised:
        mount_fuse(config("/src", mountpoint))

    assert raised.value.exit_code is Exit.MOUNTPOINT
    assert find_mount(str(moved)) is None


def test_user_allow_other(tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    assert not mounting.user_allow_other(str(conf))
    conf.write_text("#user_allow_other\nmount_max = 3\n")
    assert not mounting.user_allow_other(str(conf))
    conf.write_text("mount_max = 3\nuser_allow_other\n")
    assert mounting.user_allow_other(str(conf))
