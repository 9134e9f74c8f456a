#!/usr/bin/env python3
"""Reads each file of a list, again and again, as fast as it gets them, until stdin is closed or the mount is gone.
Passes by what the source has errors for.

python endless.py LIST
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

READ_BYTES = 1 << 20
LOOK_FILES = 64  # between two looks at stdin
GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def stdin_is_closed() -> bool:
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def read_endlessly(paths: Sequence[str]) -> None:
    for number, path in enumerate(cycle(paths)):
        if number % LOOK_FILES == 0 and stdin_is_closed():
            return
        try:
            read_file(path)
        except OSError as error:
            if error.errno in GONE:
                return
            if error.errno != errno.EIO:
                raise


def read_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.read(fd, READ_BYTES):
            pass
    finally:
        os.close(fd)


if __name__ == "__main__":
    read_endlessly(Path(sys.argv[1]).read_text(errors="surrogateescape").splitlines())
