"""Small files that a mount leaves for the next one: read only if they are this user's."""

from __future__ import annotations

import os
import stat

from nopfsfs.system.trusted_path import trusted_parent


def read_own(path: str, most: int) -> bytes:
    """The bytes of a regular file of this user's, at most `most` + 1 of them; no link is followed. Raises ValueError
    for a file of another user or kind, OSError."""
    with trusted_parent(path) as (directory, name):
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise ValueError("not a file of this user")
        return file.read(most + 1)
