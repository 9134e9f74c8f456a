"""Processes and threads as /proc shows them."""

from __future__ import annotations

import os
import subprocess

from nopfsfs.system.proc import is_dying

GONE = 1 << 23  # no process has such a number


def test_a_thread_that_is_gone_is_dying_and_one_that_lives_is_not() -> None:
    with subprocess.Popen(["sleep", "600"]) as reader:
        try:
            assert is_dying(GONE)
            assert not is_dying(0), "a pid namespace that is not seen from here"
            assert not is_dying(os.getpid())
            assert not is_dying(reader.pid)
        finally:
            reader.kill()
    assert is_dying(reader.pid)
