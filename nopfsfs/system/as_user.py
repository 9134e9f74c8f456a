"""A function call as another user, with a limit: what root does to files and processes of a user.

A child process gives up root for the user, for good, and calls the function. So the kernel refuses whatever the user
may not do: no link, pid or file that the user has prepared leads root anywhere. The user may stop or kill the child;
the wait has a limit.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import signal
import time
from collections.abc import Callable

_REAP_S = 1.0  # for a killed child to end; one that the kernel holds is left to init
_DONE = b"1"


def as_user(uid: int, call: Callable[[], None], limit_s: float) -> bool:
    """Call `call` as user `uid`, with the user's groups and nobody's rights else; in this process where it is that user
    already. Return whether it returned, within `limit_s` seconds, and raised nothing."""
    if uid == os.geteuid() == os.getuid():
        call()
        return True
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _be(uid, call, writing)
    os.close(writing)
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        return bool(poll.poll(limit_s * 1000)) and os.read(reading, 1) == _DONE
    finally:
        os.close(reading)
        _reap(child)


def _be(uid: int, call: Callable[[], None], writing: int) -> None:
    """The whole life of the child."""
    status = 1
    try:
        gid, groups = _groups(uid)
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        call()
        os.write(writing, _DONE)
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is flushed or cleaned up twice


def _groups(uid: int) -> tuple[int, list[int]]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:  # a user whom this node does not know by name
        return uid, [uid]
    return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)


def _reap(child: int) -> None:
    """End the child and take note of its end."""
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)  # not reaped yet: the pid is still the child's
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.002)
