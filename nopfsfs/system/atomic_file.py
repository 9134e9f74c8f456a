"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from nopfsfs.system.trusted_path import trusted_parent

TEMPORARY = (".nopfs-", ".tmp")  # prefix and suffix of a file being written


@contextmanager
def whole_file(path: str, mode: int) -> Iterator[IO[bytes]]:
    """Yield a new file beside `path`, with mode `mode`. At the end of the `with` block it replaces `path`; after an
    error it is removed. A link at `path` is replaced, not followed; no link of another user on the way there is
    followed. Raises OSError."""
    with trusted_parent(path) as (directory, name):
        new = secrets.token_hex(8).join(TEMPORARY)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            with open(fd, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())  # or a crash of the machine could leave a renamed file without its bytes
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(new, dir_fd=directory)
            raise
