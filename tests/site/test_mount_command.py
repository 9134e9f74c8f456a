"""mount(8), umount(8) and fstab, as installed; and the unit of systemd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.control.readiness import READY
from nopfsfs.fuse.mount_table import find_mount, read_mounts
from tests.mount.harness import fill
from tests.site.node_files import ROOT, STAGE, make_machine, processes_of_mounts, sh
from tests.waiting import wait_until

pytestmark = [pytest.mark.site, pytest.mark.mount]

SOURCE, MOUNTPOINT = STAGE / "source", STAGE / "mnt"
UNIT = ROOT / "scripts/site/systemd/nopfs@.service"
HELPERS = ("mount.nopfs", "mount.fuse.nopfs")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The machine with both helpers installed, and the files of the source."""
    commands = make_machine()
    for helper in HELPERS:
        os.symlink(commands / "nopfs-mount", f"/usr/sbin/{helper}")
    MOUNTPOINT.mkdir()
    return fill(SOURCE, 30, 20_000)


@pytest.fixture
def machine(files: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The files; at the end nothing may be left of any mount."""
    Path("/etc/fstab").write_text("")
    yield files
    assert wait_until(lambda: not processes_of_mounts()), processes_of_mounts()
    assert [mount for mount in read_mounts() if mount.is_nopfs] == []
    assert not os.path.exists("/run/nopfs")
    assert os.listdir(MOUNTPOINT) == []


def check_all(files: dict[str, bytes]) -> None:
    assert {name: (MOUNTPOINT / name).read_bytes() for name in files} == files


def fails(command: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it said as an error."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_mount_and_umount(machine: dict[str, bytes]) -> None:
    sh(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT} -o seed=42,ram=64M,noexec")
    mount = find_mount(str(MOUNTPOINT))
    assert mount is not None
    assert (mount.is_nopfs, mount.source, "noexec" in mount.options) == (True, str(SOURCE), True)
    check_all(machine)

    sh(f"umount {MOUNTPOINT}")


def test_mount_takes_nopfs_for_no_type(machine: dict[str, bytes]) -> None:
    """mount(8) reads a type that begins with "no" as one to leave out, and never calls the helper: the page says so."""
    code, said = fails(f"mount -t nopfs {SOURCE} {MOUNTPOINT}")
    assert (code, "nopfs-mount" in said) == (32, False)


def test_through_fuse3_s_own_helper(machine: dict[str, bytes]) -> None:
    """Where nopfs is in the PATH of the system, and no helper is installed."""
    os.rename("/usr/sbin/mount.fuse.nopfs", "/usr/sbin/mount.fuse.nopfs-away")
    os.symlink(STAGE / "bin/nopfs", "/usr/sbin/nopfs")
    try:
        sh(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT} -o seed=42")
        check_all(machine)
        sh(f"umount {MOUNTPOINT}")
    finally:
        os.unlink("/usr/sbin/nopfs")
        os.rename("/usr/sbin/mount.fuse.nopfs-away", "/usr/sbin/mount.fuse.nopfs")


@pytest.mark.parametrize("kind", ["nopfs", "fuse.nopfs"])
def test_fstab(machine: dict[str, bytes], kind: str) -> None:
    Path("/etc/fstab").write_text(f"{SOURCE} {MOUNTPOINT} {kind} seed=42,ram=64M,_netdev,nofail 0 0\n")
    for _ in range(2):  # the second time it is there
        sh("mount -a")
        check_all(machine)
        assert len([mount for mount in read_mounts() if mount.is_nopfs]) == 1
    sh(f"umount {MOUNTPOINT}")
    sh(f"mount {MOUNTPOINT}")
    check_all(machine)
    sh("umount -a -t fuse.nopfs")


def test_what_is_wrong_is_said(machine: dict[str, bytes]) -> None:
    code, said = fails(f"mount -t fuse.nopfs /none/such {MOUNTPOINT}")
    assert (code, said.count("\n")) == (3, 1)
    assert "the source /none/such does not exist" in said
    code, said = fails(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT} -o sead=42")
    assert (code, "no such option" in said) == (2, True)
    sh(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT}")
    code, said = fails(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT}")
    assert (code, "is already mounted" in said) == (5, True)
    sh(f"umount {MOUNTPOINT}")


def test_a_busy_mount_is_said_to_be_so(machine: dict[str, bytes]) -> None:
    sh(f"mount -t fuse.nopfs {SOURCE} {MOUNTPOINT}")
    with (MOUNTPOINT / next(iter(machine))).open("rb"):
        code, said = fails(f"umount {MOUNTPOINT}")
        assert (code, "busy" in said) == (32, True)
        check_all(machine)
    sh(f"umount {MOUNTPOINT}")


def test_an_automount_is_refused_and_not_waited_for(machine: dict[str, bytes]) -> None:
    """systemd would wait for the mount that waits for systemd."""
    reading, writing = os.pipe()
    options = f"fd={writing},pgrp=1,minproto=5,maxproto=5,direct"
    command = ["mount", "-i", "-t", "autofs", "-o", options, "nobody", str(MOUNTPOINT)]
    done = subprocess.run(command, pass_fds=[writing], capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            pytest.skip(f"no automounts here: {done.stderr}")
        mounting = ["mount", "-t", "fuse.nopfs", str(SOURCE), str(MOUNTPOINT)]
        refused = subprocess.run(
            mounting, start_new_session=True, timeout=20, capture_output=True, text=True, check=False
        )
        assert (refused.returncode, "leave x-systemd.automount out" in refused.stderr) == (5, True), refused.stderr
    finally:
        sh(f"umount -i --no-canonicalize {MOUNTPOINT} || :")
        os.close(reading)
        os.close(writing)


def unit_line(name: str) -> list[str]:
    """The command of a line of the unit, for this machine."""
    found = re.search(rf"^{name}=-?(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    line = found[1].replace("%f", str(MOUNTPOINT)).replace("${SOURCE}", str(SOURCE)).replace("$OPTIONS", "--ram 64M")
    return line.replace("/opt/nopfsfs/bin", f"{STAGE}/bin").split()


@pytest.mark.parametrize("how", ["ExecStop", "SIGTERM"])
def test_the_unit_is_ready_when_the_mount_answers(machine: dict[str, bytes], how: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        service = subprocess.Popen(
            unit_line("ExecStart"), env={"PATH": "/usr/bin", "NOTIFY_SOCKET": str(tmp_path / "notify")}
        )
        assert manager.recv(100) == READY
        check_all(machine)
        if how == "ExecStop":
            subprocess.run(unit_line("ExecStop"), check=True, timeout=60, stdout=subprocess.DEVNULL)
        else:
            service.send_signal(signal.SIGTERM)
        assert service.wait(30) in (0, 143)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_systemd_takes_the_unit(machine: dict[str, bytes], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    text = UNIT.read_text().replace("/opt/nopfsfs/bin", f"{STAGE}/bin")
    (tmp_path / "nopfs@mnt-fast.service").write_text(text)

    code, said = fails(f"systemd-analyze verify --man=no --recursive-errors=no {tmp_path}/nopfs@mnt-fast.service")

    assert (code, [line for line in said.splitlines() if "nopfs" in line]) == (0, [])
