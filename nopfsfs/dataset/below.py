"""Access to the rows of an index at the source: the only module that resolves paths of the source.

Each access opens the root anew, compares it with the root that was indexed, and resolves from there without following
links (`system/beneath.py`). So no user who may rename within the source leads a root process elsewhere, and no open
descriptor keeps the source from being unmounted. Another directory may be in the place of the source, such as the empty
mountpoint of a file system that is not mounted now. Then every access fails with ESTALE. When the source is back,
accesses succeed again.

The root is accepted if its inode number is the indexed one, and its device is that of the last full comparison. A full
comparison checks type and id of the file system (statfs) against those of the scan, if the id outlives a remount. A
remount may change the device number. statfs asks the server of a network file system. So statfs is left out where the
device is known. `stat`, which is used to detect a changed file, always compares in full.

A link that was followed (--follow-symlinks) must lead to the same path and inode as at the scan; else ESTALE. Its
target is opened with O_PATH, compared, and only then opened for reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from nopfsfs.dataset.index import Index
from nopfsfs.system.beneath import open_absolute, open_beneath, open_followed, place_of, reopen
from nopfsfs.system.descriptors import closed_on_error, closing_fd
from nopfsfs.system.file_system import FileSystem, file_system

_DIRECTORY = os.O_PATH | os.O_DIRECTORY


class BelowSource:
    """Opener of rows of the index below `root`, an absolute path free of links. Keeps no descriptors; safe in any
    thread. `known`: the file system of the root at the scan; None: not known. `any_root`: accept any directory at
    `root` as the source, to compare the files below it."""

    def __init__(self, root: bytes, index: Index, known: FileSystem | None = None, *, any_root: bool = False) -> None:
        self._root, self._index, self._known = root, index, known
        self._root_ino = None if any_root else index.at.src_ino[0]
        self._plain = not len(index.led_row)
        self._device = -1  # device of the root at the last full comparison

    def open(self, row: int, flags: int) -> int:
        """A descriptor of the file at the row's path. The file is compared with the row only where a followed link
        leads to it. With O_PATH, a link at that path is opened itself. Raises OSError: ESTALE where the source is
        not there, ELOOP or ENOTDIR where a link or a file is on the way."""
        if self._plain and row:  # as `_open` does it, in fewer steps: every staged file is opened here
            root = self._open_root(False)
            try:
                return open_beneath(root, self._index.path(row), flags)
            finally:
                os.close(root)
        return self._open(row, flags, in_full=False)

    def stat(self, row: int) -> os.stat_result:
        """The present attributes of the file at the row's path; of a link, its own. Raises OSError."""
        with self.looked(row) as (_, st):
            return st

    @contextlib.contextmanager
    def looked(self, row: int) -> Iterator[tuple[int, os.stat_result]]:
        """Yield an O_PATH descriptor of the file at the row's path, and its attributes as `stat` gives them. Raises
        OSError."""
        with closing_fd(self._open(row, os.O_PATH, in_full=True)) as fd:
            yield fd, os.fstat(fd)

    def _open(self, row: int, flags: int, *, in_full: bool) -> int:
        anchor, below = self._index.anchor(row)
        if anchor == 0:
            at = self._open_root(in_full)
            if not row:
                return at if flags & os.O_PATH else _reopened(at, flags)
        else:
            at = self._open_followed(anchor, in_full)
            if anchor == row:
                return at if flags & os.O_PATH else _reopened(at, flags)
        try:
            return open_beneath(at, below, flags)
        finally:
            os.close(at)

    def _open_followed(self, row: int, in_full: bool) -> int:
        """An O_PATH descriptor of the target of the followed link at the row's path. Raises OSError: ESTALE where the
        target is not that of the scan."""
        index = self._index
        with closing_fd(self._open(index.parent(row), _DIRECTORY, in_full=in_full)) as above:
            fd = open_followed(above, index.name(index.at.primary[row]))
        with closed_on_error(fd):
            st = os.fstat(fd)
            another = st.st_ino != index.at.src_ino[row] or (st.st_mode ^ index.at.mode[row]) >> 12
            if another or place_of(fd) != index.led_to(row):
                raise OSError(errno.ESTALE, "a followed link leads elsewhere")
        return fd

    def _open_root(self, in_full: bool) -> int:
        """An O_PATH descriptor of the root. Raises OSError: ESTALE where the root is not the indexed one."""
        try:
            fd = open_absolute(self._root, _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OSError(errno.ESTALE, "the source is not there") from error
        try:
            st = os.fstat(fd)
            if not self._is_root(fd, st, in_full):
                raise OSError(errno.ESTALE, "something else is where the source was")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _is_root(self, fd: int, st: os.stat_result, in_full: bool) -> bool:
        """True when a directory is the root that was indexed."""
        if self._root_ino is None:
            return True
        if st.st_ino != self._root_ino:
            return False
        if st.st_dev == self._device and not in_full:
            return True
        if self._known is not None and not self._known.may_be(file_system(fd, st.st_dev)):
            self._device = -1
            return False
        self._device = st.st_dev
        return True


def _reopened(fd: int, flags: int) -> int:
    """A descriptor, opened with `flags`, of the file of an O_PATH descriptor, which is closed. Raises OSError."""
    with closing_fd(fd):
        return reopen(fd, flags)
