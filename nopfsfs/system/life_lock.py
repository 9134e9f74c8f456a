"""A lock by which others know that some process of a mount lives, also those who cannot see its process ids.

In another pid namespace, as a container has, a process id names another process or none. Such a container may share
/run or /tmp with the node, and the state directories there. So supervisor, servers and stager of a mount hold a shared
lock on a file of its state directory, each from its start to its end. The lock belongs to the open file (fcntl(2),
"Open file description locks"): who looks takes no lock, and so never keeps a process from its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from contextlib import suppress

from nopfsfs.system.as_user import bytes_as_user, fd_as_user
from nopfsfs.system.descriptors import closed_on_error, closing_fd
from nopfsfs.system.directory_access import open_regular

FILE = "alive"
_MODE = 0o1600  # the sticky bit: systemd-tmpfiles leaves such a file in /tmp, which nobody reads for weeks
_LOOK_S = 0.1  # each look at another user's file costs a process
_FIND_S = 3.0  # for a look at a file of another user
_YES = b"1"
_FLOCK = "hhqqi4x"  # struct flock of fcntl(2) where off_t has 64 bits: type, whence, start, length, pid


def make(state_dir: str) -> int:
    """Make the file in a new state directory, and hold the lock until the descriptor that is returned is closed. Raises
    OSError."""
    fd = os.open(os.path.join(state_dir, FILE), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with closed_on_error(fd):
        _lock(fd)
    return fd


def hold(state_dir: str) -> None:
    """Hold the lock until this process ends. Nothing is held where there is no such file: the state directory is gone,
    or an earlier release made it, whose mounts are known by their process ids alone."""
    with suppress(OSError):
        _lock(_open(state_dir))  # never closed: the end of the process ends the lock


def is_held(state_dir: str, owner: int | None = None) -> bool:
    """Return whether any process holds the lock. True also where that cannot be known; False where there is no such
    file. `owner`: the user to act as, where root looks at a user's mount."""

    def look() -> bytes:
        with closing_fd(_open(state_dir)) as fd:
            return _holds(fd)

    try:
        return bytes_as_user(os.geteuid() if owner is None else owner, look, _FIND_S) == _YES
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)


def open_lock(state_dir: str, owner: int) -> int:
    """Open the file as user `owner`, for `await_release`; return the descriptor, -1 where there is none. It leads to
    the lock also when the mount has removed its state directory."""
    try:
        return fd_as_user(owner, lambda: _open(state_dir), _FIND_S)
    except OSError:
        return -1


def await_release(fd: int, owner: int, deadline: float) -> bool:
    """Wait until no process holds the lock of descriptor `fd`, at most up to `deadline` of `time.monotonic()`; return
    whether none does."""
    while fd >= 0:
        left = deadline - time.monotonic()
        with suppress(OSError):
            if bytes_as_user(owner, lambda: _holds(fd), max(left, _LOOK_S)) != _YES:
                break
        if left <= _LOOK_S:
            return False
        time.sleep(_LOOK_S)
    return True


def _holds(fd: int) -> bytes:
    """Return `_YES` where some process holds the lock of this file. Raises OSError."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    found = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return b"" if found == fcntl.F_UNLCK else _YES


def _lock(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))


def _open(state_dir: str) -> int:
    """Open the file of a state directory to look at it, or to lock it. Raises OSError."""
    with closing_fd(os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        return open_regular(FILE, directory)
