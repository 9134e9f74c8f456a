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


def test_a_child_with_the_descriptor_holds_it_on(tmp_path: Path) -> None:
    fd = life_lock.make(str(tmp_path))
    child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    os.close(fd)
    assert life_lock.is_held(str(tmp_path))
    with closing_fd(life_lock.open_lock(str(tmp_path), os.geteuid())) as seen:
        (tmp_path / life_lock.FILE).unlink()  # as a mount does before its last process has ended
        assert not life_lock.await_release(seen, os.geteuid(), time.monotonic() + 0.05)
        child.kill()
        child.wait()
        assert life_lock.await_release(seen, os.geteuid(), time.monotonic() + 10.0)


def test_who_looks_takes_no_lock(tmp_path: Path) -> None:
    """Also while the looks last: a lock that is taken then is there."""
    os.close(life_lock.make(str(tmp_path)))
    with closing_fd(life_lock.open_lock(str(tmp_path), os.geteuid())) as first:
        assert life_lock.await_release(first, os.geteuid(), time.monotonic())
        assert not life_lock.is_held(str(tmp_path))
        process = holder(tmp_path)
        assert life_lock.is_held(str(tmp_path))
        assert not life_lock.await_release(first, os.geteuid(), time.monotonic())
        process.communicate(b"\n")


def test_without_a_file_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    seen = life_lock.open_lock(str(tmp_path), os.geteuid())
    assert seen == -1
    assert life_lock.await_release(seen, os.geteuid(), time.monotonic())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_looks_as_the_user_whose_mount_it_is(open_to_all: Path) -> None:
    user = 65534
    (directory := open_to_all / "mount").mkdir(mode=0o700)
    held = life_lock.make(str(directory))
    os.chown(directory / life_lock.FILE, user, user)
    assert life_lock.is_held(str(directory), user), "the user may not enter it: that cannot be known"
    os.chown(directory, user, user)
    with closing_fd(life_lock.open_lock(str(directory), user)) as seen:
        assert life_lock.is_held(str(directory), user)
        assert not life_lock.await_release(seen, user, time.monotonic())
        os.close(held)
        assert life_lock.await_release(seen, user, time.monotonic() + 10.0)
        assert not life_lock.is_held(str(directory), user)


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
