"""What another user has put where a mount's state is looked for: root neither waits for it nor acts on it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.cli import adopt, nopfs
from nopfsfs.cli.umount import Limits, Unmounter
from nopfsfs.control import process_list, takeover
from nopfsfs.control.client import Connection, NoAnswer, call, socket_address
from nopfsfs.control.find_mount import Located
from nopfsfs.control.process_list import Process, read_pids, start_time, write_pids
from nopfsfs.control.stale_mounts import is_orphaned, sweep_run_dir
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse import mounting
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.fuse.mounting import NotMounted
from nopfsfs.system import state_dirs
from nopfsfs.system.state_dirs import StateDir, find_state_dir, make_private_dir
from tests.conftest import FakeMounts, tmpfs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
USER = 12345
GONE = 1 << 22
MOUNT = Mount(1, 0, 1, "/", "/nowhere", (), "fuse.nopfs", "s", (f"user_id={USER}",))


@pytest.fixture
def theirs(open_to_all: Path) -> Path:
    """A state directory of another user."""
    path = open_to_all / "nopfs" / "state"
    path.mkdir(parents=True)
    for directory in (path.parent, path):
        os.chown(directory, USER, USER)
    return path


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process of root's and one of the user's."""
    with subprocess.Popen(["sleep", "60"]) as roots, subprocess.Popen(["sleep", "60"], user=USER) as users:
        yield [roots, users]
        roots.kill()
        users.kill()


def give(path: Path) -> None:
    os.chown(path, USER, USER, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["fifo", "link", "device", "directory", "huge", "roots", "deep", "numbers"])
def test_a_list_of_processes_that_is_none(kind: str, theirs: Path) -> None:
    listed = theirs / "pids"
    genuine = json.dumps({"server": {"pid": os.getpid(), "start_time": start_time(os.getpid())}})
    if kind == "fifo":
        os.mkfifo(listed)
    elif kind == "link":
        (theirs / "other").write_text(genuine)
        give(theirs / "other")
        listed.symlink_to("other")
    elif kind == "device":
        os.mknod(listed, 0o020666, os.makedev(1, 5))  # /dev/zero
    elif kind == "directory":
        listed.mkdir()
    else:
        text = {
            "huge": genuine + " " * (1 << 17),
            "roots": genuine,
            "deep": "[" * 60000,
            "numbers": json.dumps({str(n): {"pid": n, "start_time": 1} for n in (-1, 0, 1 << 70)}),
        }[kind]
        listed.write_text(text)
    if kind != "roots":
        give(listed)

    assert read_pids(str(theirs), owner=USER) == ()
    assert not is_orphaned(str(theirs), USER)


def test_only_processes_of_the_owner_are_the_mounts(theirs: Path, sleepers: list[subprocess.Popen[bytes]]) -> None:
    roots, users = sleepers
    write_pids(str(theirs), {"server": roots.pid, "stager": users.pid})
    give(theirs / "pids")

    assert [(p.role, p.pid) for p in read_pids(str(theirs), owner=USER)] == [("stager", users.pid)]
    assert not is_orphaned(str(theirs), USER)


@pytest.mark.mount
def test_what_lies_on_a_file_system_that_does_not_answer_is_not_waited_for(
    fake_mount: FakeMounts, mountpoint: Path, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may mount a file system, which that user serves, where the state of a mount is looked for."""
    monkeypatch.setattr(process_list, "_READ_S", 0.3)
    monkeypatch.setattr(state_dirs, "_FIND_S", 0.3)
    monkeypatch.setattr(state_dirs, "_REMOVE_S", 0.3)
    os.chown(open_to_all, USER, USER)
    fake = fake_mount()
    fake.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()

    assert read_pids(str(mountpoint / "state"), owner=USER) == ()
    with pytest.raises(NoAnswer):
        call(str(mountpoint / "state"), "status", 0.3, owner=USER)
    StateDir(str(mountpoint / "state"), USER).remove()
    monkeypatch.setattr(state_dirs, "user_run_dirs", lambda uid, env: (str(mountpoint / "nopfs"),))
    assert find_state_dir("/mnt/x", 7, USER, {}).startswith(f"/tmp/nopfs-{USER}/")

    assert time.monotonic() - began < 15


@pytest.mark.parametrize("command", ["adopt", "upgrade"])
def test_the_mount_of_another_user_is_not_taken_over(
    command: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root's supervisor could not go on with it, and the user's would have given it away."""
    located = Located("/nowhere", MOUNT, str(theirs))
    for name in "locate", "locate_living":
        monkeypatch.setattr(adopt, name, lambda path, env: located)
    monkeypatch.setattr(takeover, command, pytest.fail)

    assert nopfs.main([command, "/nowhere"]) == Exit.NO_RIGHT

    assert f"run nopfs {command} /nowhere as #{USER}" in capsys.readouterr().err


def test_a_run_directory_of_another_user_is_not_swept(open_to_all: Path) -> None:
    run, state = open_to_all / "run", open_to_all / "run" / "dead"
    state.mkdir(parents=True)
    write_pids(str(state), {"supervisor": GONE})
    (state / "pids").write_text(json.dumps({"supervisor": {"pid": GONE, "start_time": 1}}))
    give(run)
    sweep_run_dir(str(run))
    assert state.exists()

    (open_to_all / "link").symlink_to(run)
    os.chown(run, 0, 0)
    sweep_run_dir(str(open_to_all / "link"))
    assert state.exists()

    os.mkfifo(run / "fifo")
    (run / "waits").mkdir()
    os.mkfifo(run / "waits" / "pids")
    sweep_run_dir(str(run))  # ends, and sweeps what is ours
    assert sorted(os.listdir(run)) == ["fifo", "waits"]


def test_a_directory_is_closed_by_descriptor(open_to_all: Path) -> None:
    """Between the look at a directory and its chmod, its owner may put a link in its place."""
    target = open_to_all / "target"
    target.mkdir(mode=0o755)
    link = open_to_all / "run"
    link.symlink_to(target)
    with pytest.raises(NopfsError, match="someone else's"):
        make_private_dir(str(link), 0)
    assert target.stat().st_mode & 0o777 == 0o755


def unmounter(state: Path) -> Unmounter:
    located, held = Located("/nowhere", MOUNT, str(state)), StateDir(str(state), USER)
    return Unmounter(located, Limits(call=5.0), lambda line: None, {}, held)


def test_only_processes_of_the_mounts_owner_are_signalled(
    theirs: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    roots, users = sleepers
    listed: list[Process] = []
    for process in sleepers:
        started = start_time(process.pid)
        assert started is not None
        listed.append(Process("server", process.pid, started))

    unmounter(theirs)._signal(listed, signal.SIGTERM)

    assert users.wait(10) == -signal.SIGTERM
    assert roots.poll() is None


def test_what_root_may_remove_and_the_owner_may_not_stays(open_to_all: Path, theirs: Path) -> None:
    roots = open_to_all / "roots" / "state"
    roots.mkdir(parents=True)
    (roots / "file").touch()
    (theirs / "file").touch()
    link = open_to_all / "link"
    link.symlink_to(roots.parent)
    give(link)

    StateDir(str(link / "state"), USER).remove()
    assert (roots / "file").exists()

    StateDir(str(theirs), USER).remove()
    assert not theirs.exists()


@pytest.mark.mount
def test_a_mountpoint_above_which_a_link_has_come_is_not_unmounted(
    open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "is_in_place", lambda mount: True)  # it was, a moment before
    with tmpfs(open_to_all / "other", "1M") as other:
        (open_to_all / "link").symlink_to(open_to_all)
        with pytest.raises(NotMounted):
            mounting.unmount(replace(MOUNT, mountpoint=f"{open_to_all}/link/other"))
        assert os.path.ismount(other)


@pytest.mark.parametrize("owner", [0, USER])
def test_nobody_but_the_owner_is_talked_to(owner: int, theirs: Path) -> None:
    """A socket that somebody else listens at, in a directory of the right owner; and the other way round."""
    os.chown(theirs, owner, owner)
    asked: list[Any] = []
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(theirs)) as address:
            listener.bind(address)
        listener.listen()
        with pytest.raises(NopfsError, match="only root and the user who mounted"):
            call(str(theirs), "status", 1.0, owner=USER)
        if owner == 0:
            with Connection(str(theirs), 1.0, 0) as connection:
                connection.send("status")
                listener.settimeout(5)
                client, _ = listener.accept()
                asked.append(client.recv(100))
                client.close()
            assert asked == [b'{"command": "status"}\n']
