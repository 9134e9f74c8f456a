"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def whole_file(path: str, mode: int) -> Iterator[IO[bytes]]:
    """A new file beside `path`, with that mode, which takes its place at the end; removed if that is not reached. A
    link is replaced, not followed. Raises OSError."""
    fd, new = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".nopfs-", suffix=".tmp")
    try:
        with open(fd, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())  # or a crash of the machine could leave a renamed file without its bytes
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise
