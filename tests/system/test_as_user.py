"""What root does as another user, with that user's rights and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nopfsfs.system.as_user import as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
USER = 12345


def children() -> str:
    return "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))


def test_the_call_has_the_users_rights_alone(open_to_all: Path) -> None:
    mine, theirs = open_to_all / "mine", open_to_all / "theirs"
    for path, owner in ((mine, 0), (theirs, USER)):
        path.mkdir(mode=0o700)
        os.chown(path, owner, owner)

    as_user(USER, lambda: (theirs / "made").touch(), 10)
    as_user(USER, lambda: (mine / "made").touch(), 10)

    assert (theirs / "made").stat().st_uid == USER
    assert not (mine / "made").exists()
    assert (os.geteuid(), os.getuid()) == (0, 0)


def test_no_process_of_another_is_hit() -> None:
    with subprocess.Popen(["sleep", "60"]) as roots, subprocess.Popen(["sleep", "60"], user=USER) as theirs:
        as_user(USER, lambda: os.kill(roots.pid, signal.SIGTERM), 10)
        as_user(USER, lambda: os.kill(theirs.pid, signal.SIGTERM), 10)
        assert theirs.wait(10) == -signal.SIGTERM
        assert roots.poll() is None
        roots.kill()


def test_a_call_that_does_not_return_is_given_up() -> None:
    before, began = children(), time.monotonic()

    as_user(USER, lambda: os.kill(os.getpid(), signal.SIGSTOP), 0.2)

    assert time.monotonic() - began < 5
    assert children() == before, "it was ended, and is no zombie"
