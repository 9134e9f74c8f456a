"""Descriptors that a `with` block closes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield `fd`, and close it at the end of the `with` block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def closed_on_error(fd: int) -> Iterator[int]:
    """Yield `fd`, and close it only where the `with` block raises."""
    try:
        yield fd
    except BaseException:
        os.close(fd)
        raise
