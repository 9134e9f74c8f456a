"""Function calls as another user, with a limit: how root touches files, sockets and processes of a user.

A child process gives up root for the user, for good, and calls the function. So the kernel refuses whatever the user
may not do: no link, pid or file that the user has prepared leads root anywhere. Where the user has put a fifo, or a
file system that does not answer, only the child waits for ever. The user may also stop or kill the child. The wait for
the child's answer has a limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import signal
import socket
import struct
import time
from collections.abc import Callable

ANSWER_MOST = 1 << 17  # bytes of an answer
_REAP_S = 1.0  # for a killed child to end; one that the kernel holds is left to init
_ERRNO = struct.Struct("=i")  # begins every answer: 0, or the errno that the call failed with


def is_needed(uid: int) -> bool:
    """Return whether this process has root's rights, and user `uid` has not."""
    return os.geteuid() == 0 and uid != 0


def as_user(uid: int, call: Callable[[], None], limit_s: float) -> None:
    """Call `call` as user `uid`, with the user's groups and no other rights; in this process where that would add or
    take no rights. It is given up after `limit_s` seconds, and an OSError that it raises is ignored."""

    def nothing() -> bytes:
        call()
        return b""

    with contextlib.suppress(OSError):
        bytes_as_user(uid, nothing, limit_s)


def bytes_as_user(uid: int, call: Callable[[], bytes], limit_s: float) -> bytes:
    """Return what `call` returns, at most ANSWER_MOST bytes, when it is called as `as_user` does.

    Raises OSError: that of `call`, TimeoutError after `limit_s` seconds, ECHILD when the child ended without an
    answer."""
    if not is_needed(uid):
        return call()
    answer, fds = _ask(uid, lambda: (call(), []), limit_s)
    _close(fds)
    return answer


def fd_as_user(uid: int, call: Callable[[], int], limit_s: float) -> int:
    """Return the descriptor that `call` returns, when it is called as `as_user` does. Raises OSError as `bytes_as_user`
    does."""
    if not is_needed(uid):
        return call()
    _, fds = _ask(uid, lambda: (b"", [call()]), limit_s)
    if len(fds) != 1:
        _close(fds)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fds[0]


def _ask(uid: int, call: Callable[[], tuple[bytes, list[int]]], limit_s: float) -> tuple[bytes, list[int]]:
    """Run `call` in a child that is user `uid`; return its bytes and descriptors. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = os.fork()
            if child == 0:
                _be(uid, call, theirs)
        try:
            ours.settimeout(limit_s)
            message, fds, _, _ = socket.recv_fds(ours, _ERRNO.size + ANSWER_MOST, 1)
        finally:
            _reap(child)
    if len(message) < _ERRNO.size:
        raise ChildProcessError(errno.ECHILD, f"what was asked for as user {uid} ended without an answer")
    (number,) = _ERRNO.unpack_from(message)
    if number:
        _close(fds)
        raise OSError(number, os.strerror(number))
    for fd in fds:
        os.set_inheritable(fd, False)
    return message[_ERRNO.size :], fds


def _be(uid: int, call: Callable[[], tuple[bytes, list[int]]], answer: socket.socket) -> None:
    """Run the child, from its start to its end."""
    try:
        become_user(uid)
        try:
            text, fds = call()
            socket.send_fds(answer, [_ERRNO.pack(0) + text], fds)
        except OSError as error:
            answer.send(_ERRNO.pack(error.errno or errno.EIO))
    finally:
        os._exit(0)  # nothing of the parent's is flushed or cleaned up twice


def become_user(uid: int) -> None:
    """Give up root for user `uid`, with the user's groups, for good. Raises OSError."""
    gid, groups = _groups(uid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _groups(uid: int) -> tuple[int, list[int]]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:  # a user whom this node does not know by name
        return uid, [uid]
    return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _reap(child: int) -> None:
    """Kill the child, and wait up to _REAP_S for its end."""
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)  # not reaped yet: the pid is still the child's
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.002)
