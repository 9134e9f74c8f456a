"""Descriptors that a `with` block closes, and what is read through descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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


def fill(fd: int, view: memoryview, offset: int = 0) -> bool:
    """Read into all of `view` from `offset` on; False where the file ends before. Raises OSError."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            return False
        done += got
    return True


def advise(fd: int, advice: int) -> None:
    """Call posix_fadvise for a whole file. Some file systems refuse the advice; it is only an advice."""
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, advice)
