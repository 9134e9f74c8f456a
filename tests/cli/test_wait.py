"""`nopfs wait`: for mounts that are not there yet, answer, hang, are dead, or are someone else's."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nopfsfs.cli import nopfs, wait
from nopfsfs.control.client import SOCKET_NAME
from nopfsfs.control.process_list import PIDS_FILE, write_pids
from nopfsfs.errors import Exit
from tests.conftest import FakeMounts

Output = pytest.CaptureFixture[str]


@pytest.mark.mount
def test_a_mount_that_answers(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "5"]) == Exit.OK
    assert capsys.readouterr() == ("", "")


@pytest.mark.mount
def test_by_a_relative_path_before_it_is_mounted(
    fake_mount: FakeMounts, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mountpoint.parent)
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(nopfs.main(["wait", "mnt", "--timeout", "20s"])))
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive()

    fake_mount()

    waiting.join(20)
    assert codes == [Exit.OK]


def test_a_mount_that_never_comes(mountpoint: Path, capsys: Output) -> None:
    began = time.monotonic()

    assert nopfs.main(["wait", str(mountpoint), "--timeout", "0.5"]) == Exit.NOT_MOUNTED

    assert 0.5 <= time.monotonic() - began < 20
    said = capsys.readouterr().err
    assert said.startswith("nopfs: waited for 0.5 s: nothing is mounted at ")
    assert said.count("\n") == 1


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    assert nopfs.main(["wait", str(tmp_path / "none"), "--timeout", "0"]) == Exit.NOT_MOUNTED


@pytest.mark.mount
def test_a_mount_that_hangs(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()
    fake.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "1s"]) == Exit.STUCK

    assert time.monotonic() - began < 1 + 3 * wait.CALL_S
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.mount
def test_a_mount_whose_daemon_is_dead(fake_mount: FakeMounts, capsys: Output) -> None:
    fake = fake_mount()
    fake.kill()

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "0.5"]) == Exit.STUCK
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.mount
def test_a_mount_that_has_no_supervisor_yet_does_not_answer_though_its_server_does(
    fake_mount: FakeMounts, capsys: Output
) -> None:
    fake = fake_mount()
    os.unlink(f"{fake.state_dir}/{SOCKET_NAME}")
    os.unlink(f"{fake.state_dir}/{PIDS_FILE}")
    os.statvfs(fake.mountpoint)

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "0.5"]) == Exit.STUCK

    assert "does not answer: the daemon of this mount does not listen" in capsys.readouterr().err


@pytest.mark.mount
def test_a_mount_whose_servers_have_lost_their_supervisor(fake_mount: FakeMounts) -> None:
    fake = fake_mount()
    os.unlink(f"{fake.state_dir}/{SOCKET_NAME}")
    write_pids(fake.state_dir, {"server": fake.process.pid})

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "5s"]) == Exit.OK


@pytest.mark.mount
def test_a_mount_that_someone_else_made_is_asked_as_by_its_readers(
    fake_mount: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_mount()
    monkeypatch.setattr("nopfsfs.control.find_mount.call", pytest.fail)
    monkeypatch.setattr("os.geteuid", lambda: 65534)

    assert nopfs.main(["wait", fake.mountpoint, "--timeout", "5s"]) == Exit.OK


def test_a_time_that_is_none(capsys: Output) -> None:
    assert nopfs.main(["wait", "/mnt", "--timeout", "soon"]) == Exit.USAGE
    assert "--timeout: 'soon' is not a time" in capsys.readouterr().err
