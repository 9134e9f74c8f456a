"""Directories and files that are reached by descriptors: no link is followed, and no mount point is entered.

A path leads elsewhere whenever another user may rename a directory on it. A descriptor does not. A mount point may
belong to another user's FUSE daemon, which need not answer: nothing behind a mount point is opened or looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from itertools import islice

from nopfsfs.system.descriptors import closed_on_error, closing_fd

_BATCH = 4096  # names held in memory at a time: a directory of another user may have any number
_BATCHES = 1024  # in one call: that user may make names as fast as they are removed


def open_directory(name: str, dir_fd: int) -> int:
    """Open directory `name` of the directory `dir_fd`, to be listed. Raises OSError: NotADirectoryError for whatever
    is no directory, links included; EXDEV for a mount point."""
    with closing_fd(_open_entry(name, dir_fd)) as entry:
        if not stat.S_ISDIR(os.fstat(entry).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is no directory", name)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=entry)


def open_regular(name: str, dir_fd: int) -> int:
    """Open the regular file `name` of the directory `dir_fd` for reading. Raises OSError: EINVAL for whatever is no
    regular file, EXDEV for a mount point."""
    with closing_fd(_open_entry(name, dir_fd)) as entry:
        if not stat.S_ISREG(os.fstat(entry).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", name)
        # The same file, whatever has the name by now. Not blocking: its owner may hold a file lease (fcntl).
        return os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def unlink_files(dir_fd: int, is_ours: Callable[[str], bool]) -> None:
    """Unlink the entries of directory `dir_fd` for whose names `is_ours` is true. Entries that cannot be unlinked stay.
    Raises OSError when the directory cannot be listed."""
    for _ in range(_BATCHES):
        with os.scandir(dir_fd) as entries:
            names = list(islice((entry.name for entry in entries if is_ours(entry.name)), _BATCH))
        if sum([_unlink(name, dir_fd) for name in names]) == 0:
            return


def _unlink(name: str, dir_fd: int) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=dir_fd)
        return True
    return False


def _open_entry(name: str, dir_fd: int) -> int:
    """Return a descriptor that only names the entry: opening it asks nothing of a device, a fifo or a daemon."""
    with closed_on_error(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as entry:
        if mount_of(entry) != mount_of(dir_fd):
            raise OSError(errno.EXDEV, "is a mount point", name)
    return entry


def mount_of(fd: int | str, pid: int | str = "self") -> int:
    """The number of the mount that a descriptor of a process lies on, which the kernel reports without asking its file
    system. Raises OSError."""
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
        for line in file:
            key, _, value = line.partition(b":")
            if key == b"mnt_id":
                return int(value)
    raise OSError(errno.EIO, "the kernel does not say which mount a descriptor lies on")
