"""Files that the kernel reads by itself: FUSE passthrough (Linux 6.9, CONFIG_FUSE_PASSTHROUGH, CAP_SYS_ADMIN).

A file is registered with the connection and then has a number; an OPEN that is answered with that number is served from
the file inside the kernel. A number lasts until it is withdrawn or the connection ends, whoever registered it dies or
not; the kernel keeps the file as long as the number or an open is there, also when it was unlinked.
"""

from __future__ import annotations

import fcntl
import os
import struct

from nopfsfs.fuse.kernel import BACKING_MAP, DEV_IOC_BACKING_CLOSE, DEV_IOC_BACKING_OPEN

_NUMBER = struct.Struct("<i")


def register(fuse_fd: int, fd: int) -> int:
    """The number of a file at the connection, above 0. Raises OSError: EPERM without the right or the agreement, ELOOP
    where the file lies on a stacked file system (overlayfs)."""
    described = bytearray(BACKING_MAP.pack(fd, 0, 0))  # with bytes, Python returns these, not the number
    number = fcntl.ioctl(fuse_fd, DEV_IOC_BACKING_OPEN, described)
    assert isinstance(number, int)
    return number


def withdraw(fuse_fd: int, number: int) -> None:
    """The number may not be used any more. Raises OSError (ENOENT: it was withdrawn before)."""
    fcntl.ioctl(fuse_fd, DEV_IOC_BACKING_CLOSE, _NUMBER.pack(number))


def is_permitted(fuse_fd: int) -> bool:
    """Whether this process may register files; tried with one of its own."""
    fd = os.memfd_create("nopfs-probe", os.MFD_CLOEXEC)
    try:
        withdraw(fuse_fd, register(fuse_fd, fd))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
