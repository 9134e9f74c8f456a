"""Reading the source, every read bracketed: what is returned is what the source held when it was indexed, or an error.

A file is compared with the index when it is opened and again after each read (size, mtime, ctime, inode). A writer
updates the times before it changes bytes, so bytes read before an unchanged comparison are the indexed ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

from nopfsfs.dataset.index import FOLLOWED, Index
from nopfsfs.tiers.columns import Columns

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Changed(Exception):
    """The file at the source is not the one that was indexed."""


class Identity(NamedTuple):
    """What makes a file the same file: bytes, ns, ns, inode number."""

    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


class Source:
    """Opens and reads rows of the index below `root`. Holds no descriptors; safe in any thread."""

    def __init__(self, root: bytes, index: Index, columns: Columns) -> None:
        self._root = root
        self._index = index
        self._columns = columns
        self._size = index.size.data
        self._mtime = index.mtime_ns.data
        self._ctime = index.ctime_ns.data
        self._ino = index.src_ino.data
        self._version = columns.version.data

    def path(self, row: int) -> bytes:
        """Absolute path of the row at the source."""
        below = self._index.path(row)
        return os.path.join(self._root, below) if below else self._root

    def identity(self, row: int) -> Identity:
        """The identity that the row's bytes must have: of the index, or of its last refresh."""
        if self._version[row]:
            c = self._columns
            return Identity(
                int(c.new_size[row]), int(c.new_mtime_ns[row]), int(c.new_ctime_ns[row]), int(c.new_ino[row])
            )
        return Identity(self._size[row], self._mtime[row], self._ctime[row], self._ino[row])

    def size(self, row: int) -> int:
        """The row's size in bytes."""
        return int(self._columns.new_size[row]) if self._version[row] else self._size[row]

    def stat(self, row: int) -> os.stat_result:
        """What the source has at the row's path now. Raises OSError."""
        return os.stat(self.path(row), follow_symlinks=self._followed(row))

    def acl(self, row: int) -> bytes | None:
        """The POSIX access ACL of what the source has at the row's path, or None. Raises OSError."""
        try:
            return os.getxattr(self.path(row), "system.posix_acl_access", follow_symlinks=self._followed(row))
        except OSError as e:
            if e.errno in (errno.ENODATA, errno.ENOTSUP, errno.ENOSYS):
                return None
            raise

    def _followed(self, row: int) -> bool:
        """Whether links may lead to the row (--follow-symlinks). Else one that took the file's place since is a
        change: it may lead to what this process may read and the source's owner may not."""
        return bool(self._index.flags[row] & FOLLOWED)

    def open(self, row: int) -> tuple[int, Identity]:
        """Open the row's file: (descriptor, its identity). Raises Changed, OSError."""
        identity = self.identity(row)
        try:
            fd = os.open(self.path(row), _OPEN_FLAGS if self._followed(row) else _OPEN_FLAGS | os.O_NOFOLLOW)
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise Changed from None
            raise
        try:
            check(fd, identity)
        except BaseException:
            os.close(fd)
            raise
        return fd, identity


def check(fd: int, identity: Identity) -> None:
    """Raises Changed unless the open file still has this identity."""
    st = os.fstat(fd)
    if (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino) != identity:
        raise Changed


def read_exactly(fd: int, identity: Identity, into: memoryview, offset: int) -> None:
    """Fill `into` from `offset`, then compare. Raises Changed (also when the file ends early), OSError."""
    done = 0
    while done < len(into):
        got = os.preadv(fd, [into[done:]], offset + done)
        if got == 0:
            raise Changed
        done += got
    check(fd, identity)


def close(fd: int) -> None:
    """Close a source file and drop its pages from the source's page cache: the tiers hold them now."""
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        pass  # some file systems refuse the advice; it is only an advice
    with contextlib.suppress(OSError):  # nothing was written: there is nothing that closing could lose
        os.close(fd)
