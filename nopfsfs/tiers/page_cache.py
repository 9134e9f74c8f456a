"""The kernel's page cache of the mount as a tier. Functions push bytes into it, drop them, and see what is left of
them. Others forget the name of a changed file, or its attributes.

`push`, `forget_name` and `forget_attributes` write notifications to the FUSE descriptor. The first two may block, in
uninterruptible sleep: `push` while a READ of that inode is unanswered, `forget_name` while a LOOKUP in that directory
is. So they are called in threads that do nothing else, and nothing waits for those. `forget_attributes` touches no page
and takes no lock of the inode (fs/fuse/inode.c, fuse_reverse_inval_inode with a negative offset).
Layouts of cachestat(2): linux/mman.h, struct cachestat_range, cachestat.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from nopfsfs.fuse import kernel
from nopfsfs.fuse.kernel import notification
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.system.descriptors import closing_fd

_RANGE = struct.Struct("<QQ")
_CACHESTAT = struct.Struct("<5Q")  # pages in the cache, dirty, under writeback, evicted, evicted recently
_NR_CACHESTAT = 451  # of cachestat(2), Linux 6.5, on all architectures that it is built for here
_libc = ctypes.CDLL(None, use_errno=True)  # its calls let other threads run
PAGE = os.sysconf("SC_PAGESIZE")
STORE_CHUNK = 1 << 20  # bytes a notification; bounds how long the inode's pages stay locked


def push(fuse_fd: int, inode: int, data: memoryview) -> None:
    """Put `data`, a whole file, into the page cache of `inode`. Raises FileNotFoundError while the kernel does not know
    the inode, OSError when the connection is gone."""
    for start in range(0, len(data), STORE_CHUNK):
        part = data[start : start + STORE_CHUNK]
        head = kernel.NOTIFY_STORE_OUT.pack(inode, start, len(part), 0)
        os.writev(fuse_fd, [notification(kernel.NOTIFY_STORE, head, len(part)), part])


def forget_name(fuse_fd: int, directory: int, name: bytes) -> None:
    """Make the kernel look `name` up anew in the inode `directory`. A name that it does not know is no error."""
    body = kernel.NOTIFY_INVAL_ENTRY_OUT.pack(directory, len(name), 0) + name + b"\0"
    with suppress(FileNotFoundError):
        os.write(fuse_fd, notification(kernel.NOTIFY_INVAL_ENTRY, body))


def forget_attributes(fuse_fd: int, inode: int) -> None:
    """Make the kernel ask for the attributes and ACLs of an inode anew before it next checks a right. The inode's pages
    stay, and an answer that is under way is not kept. An inode that it does not know is no error."""
    with suppress(FileNotFoundError):
        os.write(fuse_fd, notification(kernel.NOTIFY_INVAL_INODE, kernel.NOTIFY_INVAL_INODE_OUT.pack(inode, -1, 0)))


def forget_all_attributes(fuse_fd: int, first: int, versions: npt.NDArray[np.uint32]) -> None:
    """Call `forget_attributes` for the rows from `first` on. `versions`: u32[rows]. Takes some microseconds a row.
    Raises OSError when the connection is gone."""
    for row, version in enumerate(versions[first:].tolist(), first):
        forget_attributes(fuse_fd, inode_of(row, version))


def drop(tree_fd: int | None, path: bytes, offset: int = 0, length: int = 0) -> None:
    """Drop the clean pages of a range of a file (length 0: to its end), best effort, keeping its attributes."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=tree_fd)) as fd:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


class Unmeasurable(OSError):
    """The system does not say what its page cache holds, or not to this process."""


def cached(tree_fd: int | None, path: bytes) -> int:
    """Bytes of a file that the page cache holds, in whole pages. Raises Unmeasurable, OSError."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=tree_fd)) as fd:
        return cached_of(fd)


def cached_of(fd: int) -> int:
    """Bytes of an open file that the page cache holds, in whole pages. Raises Unmeasurable, OSError."""
    found = ctypes.create_string_buffer(_CACHESTAT.size)
    if _libc.syscall(ctypes.c_long(_NR_CACHESTAT), fd, _RANGE.pack(0, 0), found, 0) == 0:
        return int(_CACHESTAT.unpack(found.raw)[0]) * PAGE
    number = ctypes.get_errno()
    kind = Unmeasurable if number in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP) else OSError
    raise kind(number, os.strerror(number))
