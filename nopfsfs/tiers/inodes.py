"""Inode numbers of the mount: the row, and the version of its file.

A file that changed at the source gets another inode, as one does that was replaced by rename: the kernel then keeps the
pages of the two apart, and a handle of the old version can never be given bytes of the new one.
"""

from __future__ import annotations

_VERSION_SHIFT = 40  # more rows than any tree has
_ROW_MASK = (1 << _VERSION_SHIFT) - 1


def inode_of(row: int, version: int) -> int:
    """The inode number of a version of a row; row + 1 for the version that was indexed."""
    return version << _VERSION_SHIFT | row + 1


def row_of(inode: int) -> int:
    return (inode & _ROW_MASK) - 1


def version_of(inode: int) -> int:
    return inode >> _VERSION_SHIFT
