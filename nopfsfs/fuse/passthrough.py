"""Files that the kernel reads by itself: FUSE passthrough (Linux 6.9, CONFIG_FUSE_PASSTHROUGH, CAP_SYS_ADMIN).

A file is registered with the connection and then has a number. An OPEN that is answered with that number is served from
the file inside the kernel. A number lasts until it is withdrawn or the connection ends, even when the process that
registered it dies. The kernel keeps the file as long as the number or an open is there, also when it was unlinked.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress

from nopfsfs.fuse.kernel import BACKING_MAP, DEV_IOC_BACKING_CLOSE, DEV_IOC_BACKING_OPEN
from nopfsfs.system.descriptors import closing_fd

_NUMBER = struct.Struct("<i")


def register(fuse_fd: int, fd: int) -> int:
    """Register a file with the connection, and return its number, above 0. Raises OSError: EPERM without the right or
    the agreement, ELOOP where the file lies on a stacked file system (overlayfs)."""
    described = bytearray(BACKING_MAP.pack(fd, 0, 0))  # with bytes, Python returns these, not the number
    number = fcntl.ioctl(fuse_fd, DEV_IOC_BACKING_OPEN, described)
    assert isinstance(number, int)
    return number


def withdraw(fuse_fd: int, number: int) -> None:
    """Withdraw a number: no new open may use it. Raises OSError (ENOENT: it was withdrawn before)."""
    fcntl.ioctl(fuse_fd, DEV_IOC_BACKING_CLOSE, _NUMBER.pack(number))


def is_permitted(fuse_fd: int) -> bool:
    """Return True where this process may register files: it tries with a file of its own."""
    with closing_fd(os.memfd_create("nopfs-probe", os.MFD_CLOEXEC)) as fd, suppress(OSError):
        withdraw(fuse_fd, register(fuse_fd, fd))
        return True
    return False
