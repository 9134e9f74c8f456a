"""Inode numbers and handles: row and version come back as they went in, and nothing overlaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol import inode_numbers

ROWS = st.integers(0, (1 << 32) - 1)  # the index counts them with 32 bits
VERSIONS = st.integers(0, inode_numbers.VERSION_LAST)


@given(ROWS, VERSIONS)
def test_an_inode_number_says_row_and_version_and_is_no_negative_number(row: int, version: int) -> None:
    inode = inode_numbers.inode_of(row, version)
    assert (inode_numbers.row_of(inode), inode_numbers.version_of(inode)) == (row, version)
    assert inode < 1 << 63


@given(ROWS, st.integers(0, 7), VERSIONS)
def test_the_parts_of_a_handle_do_not_overlap(row: int, flags: int, version: int) -> None:
    handle = row << inode_numbers.HANDLE_ROW | flags << inode_numbers.HANDLE_FLAGS | version
    assert (handle >> inode_numbers.HANDLE_ROW, handle & inode_numbers.HANDLE_VERSION) == (row, version)
    assert handle >> inode_numbers.HANDLE_FLAGS & 7 == flags
    assert handle < 1 << 63
