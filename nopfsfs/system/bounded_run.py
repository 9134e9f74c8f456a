"""Runs of small helper programs with a limit on the wait, even if a program cannot be killed.

A process that touches a dead network file system, or a FUSE mount whose daemon hangs, sleeps where no signal reaches
it. A parent that waits for that process hangs too. So code that may touch such a place runs in a child, and a child
that does not end is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

_GRACE_S = 0.5  # for a killed child to go; one in uninterruptible sleep never does

# Interpreter flags: no site packages, no environment: 10 ms, and nothing of the user's is run.
_PROBE = """
import os, sys
try:
    os.statvfs(sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""
_LOOK = """
import os, sys
try:
    os.stat(sys.argv[1])
    os.statvfs(sys.argv[1])
except OSError:
    pass
"""


def module_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module of this package."""
    options = ["-P"] if sys.version_info >= (3, 11) else []  # the working directory must not decide what is imported
    return [sys.executable, *options, "-m", module, *words]


class Finished(NamedTuple):
    """Result of a helper; `code` is negative for a signal."""

    code: int
    out: str
    err: str


def run_bounded(argv: Sequence[str], limit_s: float, **popen: Any) -> Finished | None:
    """Run `argv` with no input; return how it ended, or None if it had not ended after `limit_s` seconds.

    Further arguments go to `subprocess.Popen`. Raises OSError when the program cannot be started.
    """
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return None
    return Finished(child.returncode, os.fsdecode(out), os.fsdecode(err))


def _abandon(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    try:
        child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        child.returncode = -9  # SIGKILL was sent, the child ends when it wakes; nothing waits for it any more


def probe_statvfs(path: str, limit_s: float) -> int | None:
    """Return 0 if statvfs(path) works, its errno if it fails, or None if it did not return within `limit_s`
    seconds.

    Unlike stat(2), which the kernel may answer from its cache, statvfs(2) always asks the daemon of a FUSE
    mount.
    """
    done = run_bounded([sys.executable, "-I", "-S", "-c", _PROBE, path], limit_s)
    return None if done is None else done.code


def answers(path: str, limit_s: float) -> bool:
    """Return whether stat(path) and statvfs(path) come to an end within `limit_s` seconds, be it an error."""
    return run_bounded([sys.executable, "-I", "-S", "-c", _LOOK, path], limit_s, cwd="/") is not None
