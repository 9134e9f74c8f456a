"""Inode numbers and handles: row and version come back as they went in, and nothing overlaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.tiers import inodes

ROWS = st.integers(0, (1 << 32) - 1)  # the index counts them with 32 bits
VERSIONS = st.integers(0, inodes.VERSION_LAST)


@given(ROWS, VERSIONS)
def test_an_inode_number_says_row_and_version_and_is_no_negative_number(row: int, version: int) -> None:
    inode = inodes.inode_of(row, version)
    assert (inodes.row_of(inode), inodes.version_of(inode)) == (row, version)
    assert inode < 1 << 63


@given(ROWS, st.integers(0, 7), VERSIONS)
def test_the_parts_of_a_handle_do_not_overlap(row: int, flags: int, version: int) -> None:
    handle = row << inodes.HANDLE_ROW | flags << inodes.HANDLE_FLAGS | version
    assert (handle >> inodes.HANDLE_ROW, handle & inodes.HANDLE_VERSION) == (row, version)
    assert handle >> inodes.HANDLE_FLAGS & 7 == flags
    assert handle < 1 << 63
