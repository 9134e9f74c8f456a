"""Further handles on a mount: a second descriptor of its connection, and a detached copy of its tree."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

from nopfsfs.fuse.kernel import DEV_IOC_CLONE
from nopfsfs.system.descriptors import closed_on_error

_SYS_OPEN_TREE = 428  # the same on all architectures
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def clone_connection(fuse_fd: int) -> int:
    """Another descriptor of the same connection. When it is closed, the kernel fails the requests that were taken by
    it, whatever other descriptors there are. Raises OSError."""
    with closed_on_error(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)) as fd:
        fcntl.ioctl(fd, DEV_IOC_CLONE, struct.pack("I", fuse_fd))
    return fd


def detached_tree(mountpoint: str) -> int | None:
    """A descriptor of a detached copy of the mount; None where that is not permitted. It never makes `umount` find the
    mount busy, and keeps the file system alive until it is closed. Raises OSError."""
    fd = _libc.syscall(
        _SYS_OPEN_TREE, -100, os.fsencode(mountpoint), ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    )
    if fd >= 0:
        return int(fd)
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        return None
    raise OSError(ctypes.get_errno(), f"open_tree {mountpoint}")
