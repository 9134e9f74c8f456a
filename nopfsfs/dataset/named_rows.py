"""Rows that paths of the mount name: a file, or all files below a directory. Pure."""

from __future__ import annotations

import stat

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index

Rows = NDArray[np.int64]
NO_ROWS: Rows = np.zeros(0, np.int64)


class NamedRows:
    """The files that one list of paths names. A directory that was named before, or lies below one, adds nothing: so
    a long list costs no more than the tree."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._covered = np.zeros(index.n_dirs, np.bool_)

    def rows(self, path: bytes) -> Rows:
        """Rows of the regular files at `path` or below it, i64[k], in the order of the index; b"" names the root. Some
        may have been named before. Raises ValueError with what is wrong with the path."""
        index = self._index
        row = _lookup(index, path)
        if row < index.n_dirs:
            return self._below(row)
        kind = stat.S_IFMT(index.at.mode[row])
        if kind == stat.S_IFLNK:
            raise ValueError("is a link; name what it leads to")
        if kind != stat.S_IFREG:
            raise ValueError("is not a regular file")
        return np.array([row], np.int64)

    def _below(self, directory: int) -> Rows:
        if self._covered[directory]:
            return NO_ROWS
        index, end = self._index, _end(self._index, directory)
        self._covered[directory:end] = True
        if directory == 0:
            rows = np.arange(index.n_dirs, index.n, dtype=np.int64)
        else:
            entries = slice(index.at.first_entry[directory], index.at.first_entry[end])
            rows = index.entry_row[entries].astype(np.int64)
            rows = rows[rows >= index.n_dirs]
        files: Rows = rows[index.mode[rows] & 0o170000 == stat.S_IFREG]
        return files


def _lookup(index: Index, path: bytes) -> int:
    row = 0
    for name in path.split(b"/"):
        if name in (b"", b"."):
            continue
        if row >= index.n_dirs or (row := index.lookup(row, name)) < 0:
            raise ValueError("is not there")
    return row


def _end(index: Index, directory: int) -> int:
    """The row after the last directory below this one: those below it are the rows just after it."""
    last = directory
    while True:
        rows = index.entry_row[index.at.first_entry[last] : index.at.first_entry[last + 1]]
        rows = rows[rows < index.n_dirs]
        if not len(rows):
            return last + 1
        last = int(rows.max())
