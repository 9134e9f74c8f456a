"""The kernel's page cache of the mount as a tier: push bytes into it, drop them, invalidate a changed file.

`push` and `invalidate` write notifications to the FUSE descriptor. Both may block, in uninterruptible sleep, while a
READ of that inode is unanswered; so they are called in threads that do nothing else, and nothing waits for those.
Message layouts: linux/fuse.h, struct fuse_out_header, fuse_notify_store_out, fuse_notify_inval_inode_out.
"""

from __future__ import annotations

import os
import struct

_NOTIFY_INVAL_INODE = 2
_NOTIFY_STORE = 4
_OUT_HEADER = struct.Struct("<IiQ")
_STORE = struct.Struct("<QQII")
_INVAL = struct.Struct("<Qqq")
STORE_CHUNK = 1 << 20  # bytes a notification; bounds how long the inode's pages stay locked


def push(fuse_fd: int, inode: int, data: memoryview, offset: int = 0) -> None:
    """Put `data` into the page cache of `inode` at `offset`. Raises FileNotFoundError while the kernel does not
    know the inode, OSError when the connection is gone."""
    for start in range(0, len(data), STORE_CHUNK):
        part = data[start : start + STORE_CHUNK]
        head = _OUT_HEADER.pack(_OUT_HEADER.size + _STORE.size + len(part), _NOTIFY_STORE, 0)
        os.writev(fuse_fd, [head + _STORE.pack(inode, offset + start, len(part), 0), part])


def invalidate(fuse_fd: int, inode: int) -> None:
    """Forget the pages and attributes of `inode`. An inode that the kernel does not know is no error."""
    message = _OUT_HEADER.pack(_OUT_HEADER.size + _INVAL.size, _NOTIFY_INVAL_INODE, 0) + _INVAL.pack(inode, 0, 0)
    try:
        os.write(fuse_fd, message)
    except FileNotFoundError:
        pass


def drop(tree_fd: int | None, path: bytes, offset: int = 0, length: int = 0) -> None:
    """Drop the clean pages of a range of a file (length 0: to its end), best effort, keeping its attributes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=tree_fd)
    try:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
