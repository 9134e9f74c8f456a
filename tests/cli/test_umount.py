"""The ladder of nopfs-umount against real mounts with a stand-in for the daemon, and nopfs status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.cli import nopfs
from nopfsfs.cli.umount import Limits, Unmounter, main
from nopfsfs.control.find_mount import Located
from nopfsfs.control.process_list import write_pids
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import HeldConnection, Holder, Mount, find_mount, holders
from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.proc import is_stopped
from nopfsfs.system.state_dirs import StateDir, make_state_dir
from tests.conftest import FakeMount, FakeMounts
from tests.waiting import wait_until

SHORT = Limits(busy=0.5, call=1.0, end=1.0, term=0.5, kill=5.0)

Output = pytest.CaptureFixture[str]


def assert_nothing_left(fake: FakeMount) -> None:
    assert find_mount(fake.mountpoint) is None
    assert not os.path.exists(fake.state_dir)
    assert fake.process.poll() is not None


@pytest.fixture
def reader(mountpoint: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield an empty list; processes put there are ended."""
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def hold(mountpoint: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that keeps a file of the mount open for some seconds."""
    code = "import sys, time; f = open(sys.argv[1]); print(flush=True); time.sleep(float(sys.argv[2]))"
    argv = [sys.executable, "-c", code, f"{mountpoint}/hello", str(seconds)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.mount
def test_a_clean_unmount_prints_and_writes_the_final_record(
    fake_mount: FakeMounts, tmp_path: Path, capsys: Output
) -> None:
    fake = fake_mount()
    report = tmp_path / "report.json"

    assert main([fake.mountpoint, "--report", str(report)]) == Exit.OK

    assert wait_until(lambda: fake.process.poll() is not None)
    assert_nothing_left(fake)
    said = capsys.readouterr()
    assert said.err == ""
    assert re.search(r"page cache +150 +75.0% +150 MiB", said.out)
    assert "opens      200, predicted 198 (99.0%), among the next 512" in said.out
    assert "readers waited 1.2 s" in said.out
    record = json.loads(report.read_text())
    assert (record["state"], record["final"]) == ("ended", True)
    assert record["asked"] == ["status", "wait-final", "prepare-unmount"]
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.mount
def test_by_a_link_and_a_relative_path(fake_mount: FakeMounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_mount()
    (tmp_path / "link").symlink_to("mnt")
    monkeypatch.chdir(tmp_path)

    assert main(["./link/"]) == Exit.OK
    assert find_mount(fake.mountpoint) is None


@pytest.mark.mount
def test_busy_for_a_moment(
    fake_mount: FakeMounts, mountpoint: Path, reader: list[subprocess.Popen[str]], capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Until it was found out who holds it."""
    fake = fake_mount()
    reader.append(hold(mountpoint, 60))

    def found(*words: Any, **options: Any) -> tuple[Holder, ...]:
        there = holders(*words, **options)
        reader[0].kill()
        return there

    monkeypatch.setattr("nopfsfs.cli.umount.holders", found)

    assert main([fake.mountpoint]) == Exit.OK

    err = capsys.readouterr().err
    assert f"(pid {reader[0].pid}, open {mountpoint}/hello)" in err
    assert wait_until(lambda: fake.process.poll() is not None)
    assert_nothing_left(fake)


@pytest.mark.mount
def test_busy_for_too_long(
    fake_mount: FakeMounts, mountpoint: Path, reader: list[subprocess.Popen[str]], capsys: Output
) -> None:
    fake = fake_mount()
    reader.append(hold(mountpoint, 60))

    assert main([fake.mountpoint, "--timeout", "0.5"]) == Exit.LAZY

    said = capsys.readouterr()
    assert f"(pid {reader[0].pid}, open" in said.err
    assert "still in use after 0.5 s: unmounting it lazily" in said.err
    assert "page cache" in said.out
    assert wait_until(lambda: fake.process.poll() is not None)
    assert_nothing_left(fake)


@pytest.mark.mount
def test_a_daemon_that_does_not_end(fake_mount: FakeMounts, tmp_path: Path, capsys: Output) -> None:
    fake = fake_mount("--deaf")
    report = tmp_path / "report.json"

    assert main([fake.mountpoint, "--report", str(report)], SHORT) == Exit.STUCK

    said = capsys.readouterr()
    assert f"the daemon did not end within 1 s (supervisor {fake.process.pid}): ending it" in said.err
    assert "gave no final report" in said.err
    assert json.loads(report.read_text())["final"] is False
    assert_nothing_left(fake)


@pytest.mark.mount
def test_a_daemon_that_hangs(
    fake_mount: FakeMounts, mountpoint: Path, reader: list[subprocess.Popen[str]], capsys: Output
) -> None:
    """Stopped in the middle of a read: its reader sleeps until the connection is aborted."""
    fake = fake_mount()
    reader.append(
        subprocess.Popen(["cat", f"{mountpoint}/slow"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    )
    time.sleep(0.3)
    fake.process.send_signal(19)  # SIGSTOP
    begin = time.monotonic()

    assert main([fake.mountpoint], SHORT) == Exit.STUCK

    assert time.monotonic() - begin < 15
    assert_nothing_left(fake)
    assert reader[0].wait(20) != 0


@pytest.mark.mount
def test_a_process_that_cannot_be_seen_and_lives_on(fake_mount: FakeMounts, capsys: Output) -> None:
    """One in another pid namespace: it holds the lock, and is in no list."""
    fake = fake_mount()
    with closing_fd(life_lock.make(fake.state_dir)):
        assert main([fake.mountpoint], SHORT) == Exit.STUCK
    assert "some process of it lives on" in capsys.readouterr().err
    assert find_mount(fake.mountpoint) is None


def test_processes_of_a_later_mount_get_no_signal(tmp_path: Path) -> None:
    """Its state directory has the same path: the kernel gave it the same device number."""
    path = str(tmp_path / "run" / "state")
    with subprocess.Popen(["sleep", "60"]) as later:
        states = []
        for pid in os.getpid(), later.pid:
            make_state_dir(path, os.geteuid(), lambda made, pid=pid: write_pids(made, {"server": pid}))
            states.append(StateDir(path))
        mount = Mount(1, 0, 1, "/", "/nowhere", (), "fuse.nopfs", "s", ())
        ladder = Unmounter(Located("/nowhere", mount, path), SHORT, lambda line: None, {}, states[0])

        ladder._force([], HeldConnection(mount))

        assert later.poll() is None
        later.kill()
    for state in states:
        state.remove()
        state.close()


@pytest.mark.mount
def test_a_stale_mount_is_cleared(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()
    fake.kill()

    assert main([fake.mountpoint]) == Exit.OK

    assert f"cleared the stale mount at {fake.mountpoint}: its daemon was dead" in capsys.readouterr().err
    assert_nothing_left(fake)


@pytest.mark.mount
def test_a_stale_mount_has_no_report(fake_mount: FakeMounts, tmp_path: Path, capsys: Output) -> None:
    fake = fake_mount()
    fake.kill()

    assert main([fake.mountpoint, "--report", str(tmp_path / "r")]) == Exit.REPORT
    assert "left no report to write" in capsys.readouterr().err


@pytest.mark.mount
def test_a_report_that_cannot_be_written(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()

    assert main([fake.mountpoint, "--report", "/nonexistent/r"]) == Exit.REPORT
    assert "unmounted, but the report /nonexistent/r cannot be written" in capsys.readouterr().err
    assert find_mount(fake.mountpoint) is None


def test_not_mounted(mountpoint: Path, capsys: Output) -> None:
    assert main([str(mountpoint)]) == Exit.NOT_MOUNTED
    assert capsys.readouterr().err.startswith(f"nopfs-umount: nothing is mounted at {mountpoint};")
    assert main(["/proc"]) == Exit.NOT_MOUNTED
    assert "is not nopfs but proc; use umount" in capsys.readouterr().err
    assert nopfs.main(["status", str(mountpoint)]) == Exit.NOT_MOUNTED


@pytest.mark.mount
def test_the_mount_of_another_user(
    fake_mount: FakeMounts, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    fake = fake_mount()
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    monkeypatch.setattr("nopfsfs.cli.umount.may_mount", lambda: False)

    assert main([fake.mountpoint]) == Exit.NO_RIGHT

    message = f"nopfs-umount: {fake.mountpoint} was mounted by root; only that user and root can unmount it\n"
    assert capsys.readouterr().err == message
    assert find_mount(fake.mountpoint) is not None


def test_bad_timeout(mountpoint: Path, capsys: Output) -> None:
    assert main([str(mountpoint), "--timeout", "soon"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("nopfs-umount: --timeout: 'soon' is not a time")


@pytest.mark.mount
def test_status(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()

    assert nopfs.main(["status", fake.mountpoint]) == 0
    text = capsys.readouterr().out
    assert nopfs.main(["status", fake.mountpoint, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)

    assert "plan       locked, distributed, seed 42, epoch 1, at 5 of 10" in text
    assert "used       RAM 1.0 GiB of 4.0 GiB" in text
    assert "kept       99.8% of what was looked at in the page cache was there; 1,234 files were found evicted" in text
    assert 9 <= text.count("\n") <= 14
    assert record["plan"]["sampler"] == "distributed"


@pytest.mark.mount
def test_status_of_a_stale_and_of_a_hanging_mount(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()
    fake.process.send_signal(19)  # SIGSTOP
    assert wait_until(lambda: is_stopped(fake.process.pid))
    assert nopfs.main(["status", fake.mountpoint]) == Exit.STUCK
    assert f"is stopped, reads go on; let it go on: kill -CONT {fake.process.pid}" in capsys.readouterr().err

    fake.kill()
    assert nopfs.main(["status", fake.mountpoint]) == Exit.STUCK
    assert f"is dead; clear the mount: nopfs-umount {fake.mountpoint}" in capsys.readouterr().err


def test_nopfs_without_a_command(capsys: Output) -> None:
    assert nopfs.main([]) == Exit.USAGE
    assert nopfs.main(["frobnicate"]) == Exit.USAGE
    assert "see nopfs --help" in capsys.readouterr().err


def test_nopfs_with_a_path_mounts(mountpoint: Path, capsys: Output) -> None:
    """As mount.fuse3 calls it for `mount -t fuse.nopfs`."""
    assert nopfs.main(["/nonexistent", str(mountpoint), "-o", "rw,dev,suid,seed=42"]) == Exit.SOURCE
    assert capsys.readouterr().err.startswith("nopfs-mount: the source /nonexistent does not exist")
