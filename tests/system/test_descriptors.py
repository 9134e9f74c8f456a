"""Descriptors that a `with` block closes."""

from __future__ import annotations

import os

import pytest

from nopfsfs.system.descriptors import closed_on_error, closing_fd


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
