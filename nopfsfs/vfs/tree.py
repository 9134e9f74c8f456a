"""The mounted tree: names, attributes, listings, links and extended attributes of rows. Speaks no protocol.

All but the extended attributes come from the index and wait for nothing. Extended attributes are read from the source
at each request: `listxattr` and `getxattr` may block as long as the source does.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from nopfsfs.dataset.index import Index
from nopfsfs.vfs.tree_errors import (
    NameTooLong,
    NoSuchAttribute,
    NotADirectory,
    NotALink,
    NotFound,
    SourceFailed,
    StaleFile,
)

BLOCK = 4096  # bytes, of statfs; the unit of page caches and most file systems
SECTOR = 512  # bytes, of st_blocks, whatever the block size is (stat(2))
NAME_MAX = 255  # bytes
OWN_PREFIX = b"user.nopfs."
NO_ATTRIBUTE = {errno.ENODATA, errno.ENOTSUP, errno.ENOSYS}
GONE = {errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP}


class Attributes(NamedTuple):
    """Attributes of a row as stat(2) gives them. Times in ns since 1970; `blocks` of 512 bytes. The access time is the
    mtime."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


class RefreshedAttributes(NamedTuple):
    """Attributes of a row whose file or rights changed at the source after the scan."""

    mode: int
    uid: int
    gid: int
    nlink: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Overrides(Protocol):
    """Attributes and ACLs that the mount shows in place of those of the index."""

    def get(self, row: int, /) -> RefreshedAttributes | None: ...
    def acl(self, row: int, /) -> bytes | None: ...


class FileSystemSize(NamedTuple):
    """Figures of the mount as statvfs(3) gives them. No block is free: the mount is read-only."""

    block_size: int
    blocks: int
    free_blocks: int
    files: int
    free_files: int
    name_max: int


class AttributesAtSource(Protocol):
    """Reader of the extended attributes of a row's own inode at the source. Both methods raise OSError."""

    def getxattr(self, row: int, name: bytes, /) -> bytes: ...
    def listxattr(self, row: int, /) -> list[bytes]: ...


OwnAttributes = Callable[[int], Mapping[bytes, bytes]]
"""Gives the user.nopfs.* attributes of a row, full names to values."""


def _none(row: int) -> Mapping[bytes, bytes]:
    return {}


class Tree:
    """The index as a read-only file system. Rows are those of the index; the inode is row + 1."""

    def __init__(
        self, index: Index, source: AttributesAtSource, overrides: Overrides, own_attributes: OwnAttributes = _none
    ) -> None:
        self.index = index
        self._at = index.at
        self._n, self._n_dirs = index.n, index.n_dirs
        self._source = source
        self._overrides = overrides
        self._own = own_attributes
        blocks = -(-index.total_bytes // BLOCK)
        self.file_system = FileSystemSize(BLOCK, blocks, 0, index.n, 0, NAME_MAX)

    def lookup(self, dir_row: int, name: bytes) -> int:
        """The row of a name, b"." and b".." included; the root is its own parent. Raises NotFound,
        NotADirectory, NameTooLong."""
        self._directory(dir_row)
        if len(name) > NAME_MAX:
            raise NameTooLong(name)
        if name == b".":
            return dir_row
        if name == b"..":
            return self.index.parent(dir_row)
        row = self.index.lookup(dir_row, name)
        if row < 0:
            raise NotFound(name)
        return row

    def attributes(self, row: int) -> Attributes:
        """The attributes of a row: those of `overrides` where it has the row, else of the index. Raises NotFound."""
        self._row(row)
        at = self._at
        new = self._overrides.get(row)
        if new is not None:
            mode, uid, gid, nlink, size, mtime, ctime = new
        else:
            mode, uid, gid, nlink = at.mode[row], at.uid[row], at.gid[row], at.nlink[row]
            size, mtime, ctime = at.size[row], at.mtime_ns[row], at.ctime_ns[row]
        rdev = 0
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            size, rdev = 0, size  # the index keeps it there
        return Attributes(row + 1, mode, nlink, uid, gid, rdev, size, -(-size // SECTOR), mtime, mtime, ctime)

    def entries(self, dir_row: int, start: int = 0) -> Iterator[tuple[int, bytes, int]]:
        """(position, name, row) of the directory's entries from position `start`, sorted by name, without b"." and
        b"..". A position means the same entry for as long as the mount lives. Raises NotFound,
        NotADirectory."""
        self._directory(dir_row)
        return self.index.entries(dir_row, start)

    def acl(self, row: int) -> bytes:
        """The POSIX access ACL in the kernel's format; b"" where there is none. Waits for nothing. Raises NotFound, and
        SourceFailed (EIO) where the row has an ACL that `overrides` does not know."""
        self._row(row)
        acl = self._overrides.acl(row)
        if acl is None:
            raise SourceFailed(errno.EIO, "an ACL that is too long")
        return acl

    def readlink(self, row: int) -> bytes:
        """The target of a symbolic link. Raises NotFound, NotALink."""
        self._row(row)
        try:
            return self.index.readlink(row)
        except KeyError:
            raise NotALink(row) from None

    def listxattr(self, row: int) -> list[bytes]:
        """Names of the extended attributes, the mount's own first. May block.

        Raises NotFound, StaleFile, SourceFailed."""
        self._row(row)
        try:
            theirs = self._source.listxattr(row)
        except OSError as error:
            if error.errno not in NO_ATTRIBUTE:
                raise _source_error(error) from error
            theirs = []
        return [*self._own(row), *(name for name in theirs if not name.startswith(OWN_PREFIX))]

    def getxattr(self, row: int, name: bytes) -> bytes:
        """The value of an extended attribute. May block, except for an attribute of the mount itself.

        Raises NotFound, NoSuchAttribute, StaleFile, SourceFailed."""
        self._row(row)
        if name.startswith(OWN_PREFIX):
            value = self._own(row).get(name)
            if value is None:
                raise NoSuchAttribute(name)
            return value
        try:
            return self._source.getxattr(row, name)
        except OSError as error:
            raise _source_error(error) from error

    def _row(self, row: int) -> None:
        if not 0 <= row < self._n:
            raise NotFound(row)

    def _directory(self, row: int) -> None:
        if not 0 <= row < self._n_dirs:
            self._row(row)
            raise NotADirectory(row)


def _source_error(error: OSError) -> NoSuchAttribute | StaleFile | SourceFailed:
    """The tree error for an error of the source."""
    if error.errno in NO_ATTRIBUTE:
        return NoSuchAttribute(str(error))
    if error.errno in GONE:
        return StaleFile(str(error))
    return SourceFailed(error.errno or errno.EIO, str(error))
