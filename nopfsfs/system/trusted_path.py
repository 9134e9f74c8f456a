"""Paths that lead where their owner says: opened step by step, through no link of another user.

A process that uses a file below a directory that others may change must not be led elsewhere by their links. A
link is followed where it is root's or this user's; the last component is never followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from nopfsfs.system.descriptors import closed_on_error, closing_fd

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40  # symbolic links in one path, as in the kernel


@contextlib.contextmanager
def trusted_parent(path: str) -> Iterator[tuple[int, str]]:
    """Yield (descriptor of the directory of `path`, last component). Raises OSError; ELOOP names the foreign link."""
    directory, name = os.path.split(os.path.abspath(path))
    with closing_fd(open_trusted(directory)) as fd:
        yield fd, name


def make_directories(path: str, mode: int) -> None:
    """Make directory `path` and those above it that are missing, all with `mode`. Raises OSError as `open_trusted`."""
    os.close(open_trusted(os.path.abspath(path), make=mode))


def open_trusted(path: str, *, links: bool = True, make: int | None = None) -> int:
    """Return an O_PATH descriptor of directory `path`, absolute. `make`: directories that are missing are made with
    this mode.

    Raises OSError: ELOOP where the path goes through a link of another user, or through any where `links` is false."""
    todo = _parts(path)
    done, fd, followed = "/", os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), 0
    try:
        while todo:
            name = todo.pop()
            step = _step(fd, name, make)
            status = os.fstat(step)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink("", dir_fd=step)
                os.close(step)
                followed += 1
                where = os.path.join(done, name)
                if not links or followed > MAX_LINKS:
                    raise OSError(errno.ELOOP, "a link is in the way", where)
                if status.st_uid not in (0, os.geteuid()):
                    raise OSError(errno.ELOOP, f"a link of user {status.st_uid} is in the way", where)
                todo += _parts(target)
                if target.startswith("/"):
                    step, done = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "/"
                else:
                    continue
            else:
                done = os.path.join(done, name)
            os.close(fd)
            fd = step
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), done)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _step(fd: int, name: str, make: int | None) -> int:
    try:
        return os.open(name, _STEP, dir_fd=fd)
    except FileNotFoundError:
        if make is None:
            raise
    with contextlib.suppress(FileExistsError):  # made meanwhile by another process: checked like one that was there
        os.mkdir(name, make, dir_fd=fd)
    return os.open(name, _STEP, dir_fd=fd)


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


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


def open_for_append(path: str) -> int:
    """Return a descriptor of a regular file or a character device at `path`, made where nothing is, to be appended to.

    Raises OSError; EPERM where what is there has further names, or is another user's who does not own the directory."""
    with trusted_parent(path) as (directory, name):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=directory)
        above = os.fstat(directory).st_uid
    with closed_on_error(fd):
        found = os.fstat(fd)
        if found.st_uid not in (0, os.geteuid(), above):
            raise OSError(errno.EPERM, f"the file is user {found.st_uid}'s", path)
        if not stat.S_ISCHR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
            raise OSError(errno.EPERM, "no regular file, or one with several names", path)
    return fd
