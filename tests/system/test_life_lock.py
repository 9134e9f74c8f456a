"""The lock that says that some process of a mount lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from tests.waiting import wait_until

HOLD = "import sys; from nopfsfs.system import life_lock; life_lock.hold(sys.argv[1]); print(flush=True); input()"


def holder(state_dir: Path) -> subprocess.Popen[bytes]:
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(state_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_it_is_held_as_long_as_any_process_holds_it(tmp_path: Path) -> None:
    with closing_fd(life_lock.make(str(tmp_path))):
        assert life_lock.is_held(str(tmp_path))
        first, second = holder(tmp_path), holder(tmp_path)
    assert life_lock.is_held(str(tmp_path))
    first.kill()
    first.communicate()
    assert life_lock.is_held(str(tmp_path))
    second.communicate(b"\n")
    assert not life_lock.is_held(str(tmp_path))


def test_a_child_that_was_forked_holds_it_on(tmp_path: Path) -> None:
    """As a server does whose supervisor dies."""
    fd = life_lock.make(str(tmp_path))
    child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    os.close(fd)
    assert life_lock.is_held(str(tmp_path))
    child.kill()
    child.wait()
    assert life_lock.await_release(str(tmp_path), os.geteuid(), time.monotonic() + 10.0)


def test_who_looks_takes_no_lock(tmp_path: Path) -> None:
    with closing_fd(life_lock.make(str(tmp_path))) as fd:
        life_lock._lock(fd)
    looks = [life_lock.is_held(str(tmp_path)) for _ in range(100)]
    assert not any(looks)


def test_the_wait_has_a_limit(tmp_path: Path) -> None:
    with closing_fd(life_lock.make(str(tmp_path))):
        assert not life_lock.await_release(str(tmp_path), os.geteuid(), time.monotonic() + 0.05)


def test_without_a_file_nobody_holds_it(tmp_path: Path) -> None:
    life_lock.hold("")
    life_lock.hold(str(tmp_path / "none"))
    assert not life_lock.is_held(str(tmp_path))
    assert not life_lock.is_held(str(tmp_path / "none"))


@pytest.mark.parametrize("what", ["fifo", "directory", "link"])
def test_what_is_no_file_of_a_mount_proves_nothing(what: str, tmp_path: Path) -> None:
    """It counts as held: nothing is removed that is not proven dead. Nobody waits for it."""
    path = tmp_path / life_lock.FILE
    if what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "other")
    life_lock.hold(str(tmp_path))
    assert life_lock.is_held(str(tmp_path))


def test_a_killed_holder_that_nobody_has_waited_for(tmp_path: Path) -> None:
    """A zombie holds nothing."""
    os.close(life_lock.make(str(tmp_path)))
    process = holder(tmp_path)
    process.kill()
    assert wait_until(lambda: not life_lock.is_held(str(tmp_path)))
    process.communicate()
