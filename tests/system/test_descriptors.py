"""Descriptors that a `with` block closes, and what is read through descriptors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nopfsfs.system.descriptors import advise, closed_on_error, closing_fd, fill


def is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_the_end_of_the_block_closes() -> None:
    with closing_fd(os.open("/", os.O_PATH)) as fd:
        assert is_open(fd)
    assert not is_open(fd)


def test_an_error_closes() -> None:
    for closing in (closing_fd, closed_on_error):
        with pytest.raises(KeyboardInterrupt), closing(os.open("/", os.O_PATH)) as fd:
            raise KeyboardInterrupt
        assert not is_open(fd)


def test_without_an_error_the_descriptor_stays() -> None:
    with closed_on_error(os.open("/", os.O_PATH)) as fd:
        pass
    assert is_open(fd)
    os.close(fd)


def test_a_view_is_filled_or_the_file_ends_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    view = memoryview(bytearray(4))
    with closing_fd(os.open(tmp_path / "file", os.O_RDONLY)) as fd:
        assert fill(fd, view, 6)
        assert view == b"6789"
        assert fill(fd, view)
        assert view == b"0123"
        assert not fill(fd, view, 7)


def test_advice_that_is_refused_is_no_error() -> None:
    reader, writer = os.pipe()
    with closing_fd(reader), closing_fd(writer):
        advise(reader, os.POSIX_FADV_DONTNEED)
