"""Reading the source, every read bracketed: returned bytes are those that the source held when it was indexed.

A file is compared with the index when it is opened and again after each read (size, mtime, ctime, inode). A writer
updates the times before it changes bytes, so bytes read before an unchanged comparison are the indexed ones.
`dataset/below.py` finds a row's file, and keeps others from leading this process elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nopfsfs.config import MountConfig
from nopfsfs.dataset.below import BelowSource
from nopfsfs.dataset.directory_scan import ACL_NAME
from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, new_place
from nopfsfs.system.beneath import by_descriptor
from nopfsfs.system.descriptors import advise, closing_fd, fill
from nopfsfs.system.file_system import FileSystem

IDLE_S = 2.0  # a file that nobody reads is closed after this: the source can be unmounted
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_ANOTHER_FILE = (errno.ELOOP, errno.ENOTDIR)  # a link or a file on the way
_TYPE = 12  # bits of st_mode below the type
Rows = npt.NDArray[np.int64]
_NO_ACL = (errno.ENODATA, errno.ENOTSUP, errno.ENOSYS)


class Changed(Exception):
    """The file at the source is not the one that was indexed."""


class Identity(NamedTuple):
    """The marks of a version of a file: bytes, ns, ns, inode number."""

    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


class Source:
    """Opens and reads rows of the index below `root`, an absolute path free of links, and asks for their attributes.
    `known`: the file system of the root as it was at the scan. Holds no descriptors; safe in any thread."""

    def __init__(self, root: bytes, index: Index, columns: Columns, known: FileSystem | None = None) -> None:
        self._root = root
        self._index = index
        self._columns = columns
        self._below = BelowSource(root, index, known)
        self._size = index.size.data
        self._mtime = index.mtime_ns.data
        self._ctime = index.ctime_ns.data
        self._ino = index.src_ino.data
        self._version = columns.version.data

    def path(self, row: int) -> bytes:
        """Absolute path of the row at the source, to be shown; no access goes by it."""
        below = self._index.path(row)
        return os.path.join(self._root, below) if below else self._root

    def identity(self, row: int) -> Identity:
        """The identity that the row's bytes must have: of the index, or of its last refresh."""
        version = self._version[row]
        if version:
            c, at = self._columns, new_place(row, version)
            return Identity(int(c.new_size[at]), int(c.new_mtime_ns[at]), int(c.new_ctime_ns[at]), int(c.new_ino[at]))
        return Identity(self._size[row], self._mtime[row], self._ctime[row], self._ino[row])

    def size(self, row: int) -> int:
        """The row's size in bytes."""
        version = self._version[row]
        return int(self._columns.new_size[new_place(row, version)]) if version else self._size[row]

    def sizes(self, rows: Rows) -> Rows:
        """The rows' sizes in bytes."""
        versions = self._columns.version[rows]
        return np.where(versions > 0, self._columns.new_size[new_place(rows, versions)], self._index.size[rows])

    def look(self, row: int, ask: Callable[[os.stat_result], bool]) -> tuple[os.stat_result, bytes | None]:
        """The attributes of the file in the row's place now, and the POSIX access ACL of that very inode. The ACL is
        b"" for none, and None where `ask` returns False for the attributes. Raises OSError; ESTALE where the source is
        not there, and where a followed link leads elsewhere."""
        with self._below.looked(row) as (fd, st):
            return st, acl_of(fd) if ask(st) else None

    def open(self, row: int) -> tuple[int, Identity]:
        """Open the row's file: (descriptor, its identity). Raises Changed, OSError."""
        identity = self.identity(row)
        try:
            fd = self._below.open(row, _OPEN_FLAGS)
        except OSError as e:
            if e.errno in _ANOTHER_FILE:
                raise Changed from None
            raise
        try:
            check(fd, identity)
        except BaseException:
            os.close(fd)
            raise
        return fd, identity

    @contextlib.contextmanager
    def inode(self, row: int) -> Iterator[int]:
        """An O_PATH descriptor of the very inode that the row is known by, for a moment. Raises OSError; ESTALE where
        another one is in its place."""
        try:
            fd = self._below.open(row, os.O_PATH)
        except OSError as e:
            if e.errno in _ANOTHER_FILE:
                raise OSError(errno.ESTALE, "another file is there") from None
            raise
        with closing_fd(fd):
            st = os.fstat(fd)
            # The number of an inode that was removed is soon given to another one, also to a link.
            if st.st_ino != self.identity(row).ino or (st.st_mode ^ self._index.at.mode[row]) >> _TYPE:
                raise OSError(errno.ESTALE, "another file is there")
            yield fd

    def confirm(self, row: int) -> None:
        """Compare the file in the row's place with the row, without opening it for reading. Raises Changed, OSError."""
        try:
            fd = self._below.open(row, os.O_PATH)
        except OSError as e:
            if e.errno in _ANOTHER_FILE:
                raise Changed from None
            raise
        with closing_fd(fd):
            check(fd, self.identity(row))

    def getxattr(self, row: int, name: bytes) -> bytes:
        """The value of an extended attribute of the row's inode. Raises OSError."""
        with self.inode(row) as fd:
            return os.getxattr(by_descriptor(fd), name)

    def listxattr(self, row: int) -> list[bytes]:
        """The names of the extended attributes of the row's inode. Raises OSError."""
        with self.inode(row) as fd:
            return [os.fsencode(name) for name in os.listxattr(by_descriptor(fd))]


def acl_of(fd: int) -> bytes:
    """The POSIX access ACL of a descriptor's file, b"" for none. Raises OSError."""
    try:
        return os.getxattr(by_descriptor(fd), ACL_NAME)
    except OSError as e:
        if e.errno in _NO_ACL:
            return b""
        raise


def known_file_system(config: MountConfig) -> FileSystem | None:
    """The source's file system as it was at the scan; None where a mount of an earlier release does not say."""
    return None if config.source_fs is None else FileSystem(*config.source_fs)


def check(fd: int, identity: Identity) -> None:
    """Raise Changed unless the open file still has this identity."""
    st = os.fstat(fd)
    if (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino) != identity:
        raise Changed


def read_exactly(fd: int, identity: Identity, into: memoryview, offset: int) -> None:
    """Fill `into` from `offset`, then compare. Raises Changed (also when the file ends early), OSError."""
    if not fill(fd, into, offset):
        raise Changed
    check(fd, identity)


def close(fd: int) -> None:
    """Close a source file and drop its pages from the source's page cache: the tiers hold them now."""
    advise(fd, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError):  # nothing was written: there is nothing that closing could lose
        os.close(fd)
