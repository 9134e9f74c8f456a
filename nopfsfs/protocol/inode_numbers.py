"""Inode numbers and handles of the mount: the row, and the version of its file.

A file that changed at the source gets another inode, as one does that was replaced by rename. So the kernel keeps the
pages of the two apart. A handle of the old version can never be given bytes of the new one. No version comes twice: a
file that has had the last one has no further version until a remount.
"""

from __future__ import annotations

_VERSION_SHIFT = 40  # more rows than any tree has
_ROW_MASK = (1 << _VERSION_SHIFT) - 1
VERSION_BITS = 23  # so that inode numbers and handles stay below 1 << 63: some programs take them for signed
VERSION_LAST = (1 << VERSION_BITS) - 1  # a version takes a second at least: that is 97 days of nothing but changes

# A handle: the row, three flags, the version.
HANDLE_VERSION = VERSION_LAST
HANDLE_FLAGS = VERSION_BITS  # the first bit of the flags
HANDLE_ROW = 28  # the first bit of the row


def inode_of(row: int, version: int) -> int:
    """The inode number of a version of a row; row + 1 for the version that was indexed."""
    return version << _VERSION_SHIFT | row + 1


def row_of(inode: int) -> int:
    return (inode & _ROW_MASK) - 1


def version_of(inode: int) -> int:
    return inode >> _VERSION_SHIFT
