"""Facts of a mount: what its supervisor says, whether mount, source and disks answer, its log."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nopfsfs.control.client import Command
from nopfsfs.control.find_mount import Located
from nopfsfs.fuse.mount_table import is_in_place
from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.trusted_path import trusted_parent

CALL_S = 5.0  # for an answer of the supervisor
LOG_BYTES = 1 << 18  # of the end of the log
DEEPEST = 16  # directories that are gone down for a file of the source
READ_BYTES = 4096


def ask(located: Located, command: Command, **further: Any) -> dict[str, Any]:
    """Return the record that the supervisor gives. Raises NopfsError."""
    return dict(located.call(command, CALL_S, **further))


def describe_mount(located: Located) -> dict[str, Any]:
    """Describe the mount as the kernel has it; `in_place`: nothing is mounted above it; `held`: its lock is."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = os.fsdecode(file.read()).split("\n")
    device = f"0:{located.mount.minor}"
    return {
        "path": located.path, "owner": located.owner, "owner_name": located.owner_name,
        "in_place": is_in_place(located.mount), "held": is_held(located),
        "mountinfo": [line for line in lines if line.split(" ")[2:3] == [device]], "mount": asdict(located.mount),
    }  # fmt: skip


def is_held(located: Located) -> bool:
    """Return whether some process of the mount lives, by its lock, as far as this user may look."""
    return os.geteuid() in (0, located.owner) and life_lock.is_held(located.state_dir, located.owner)


def look_at(path: str) -> dict[str, Any]:
    """Ask for the file system of a path: `errno` 0, or that of the error; room in bytes."""
    began = time.monotonic()
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"errno": error.errno, "text": error.strerror, "seconds": round(time.monotonic() - began, 3)}
    return {
        "errno": 0, "seconds": round(time.monotonic() - began, 3), "free_bytes": found.f_bavail * found.f_frsize,
        "total_bytes": found.f_blocks * found.f_frsize, "free_inodes": found.f_favail,
    }  # fmt: skip


def look_at_source(source: str) -> dict[str, Any]:
    """Ask for the source's root, and read the beginning of a file below: `errno` 0, or that of the error. `looked_at`:
    the path that was looked at last. The bytes are not kept."""
    began = time.monotonic()
    path = source
    try:
        os.statvfs(source)
        for _ in range(DEEPEST):
            file, below = _first_entries(path)
            if file is not None:
                path = file
                with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
                    os.pread(fd, READ_BYTES, 0)
            if below is None or file is not None:
                break
            path = below
    except OSError as error:
        return {
            "errno": error.errno, "text": error.strerror, "looked_at": path,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip
    return {"errno": 0, "looked_at": path, "seconds": round(time.monotonic() - began, 3)}


def _first_entries(directory: str) -> tuple[str | None, str | None]:
    """A regular file and a directory in a directory, no links; None where there is none among the first thousand."""
    file = below = None
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if file is None and entry.is_file(follow_symlinks=False):
                file = entry.path
            elif below is None and entry.is_dir(follow_symlinks=False):
                below = entry.path
            if file is not None or number >= 1000:
                break
    return file, below


def log_tail(options: Mapping[str, Any] | None, state_dir: str) -> dict[str, Any]:
    """The last lines of a mount's log: in the file that its options name, else in its state directory. No link of
    another user is followed. Raises OSError."""
    named = (options or {}).get("log_file")
    path = str(named or os.path.join(state_dir, "log"))
    if not named and not os.path.lexists(path):
        return {"path": None, "lines": [], "why": "the log goes to the terminal, or to the system's log"}
    with trusted_parent(path) as (directory, name):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=directory)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "the log is no regular file", path)
        begin = max(0, found.st_size - LOG_BYTES)
        file.seek(begin)
        tail = file.read(LOG_BYTES).decode("utf-8", "backslashreplace")
    lines = tail.splitlines()
    return {"path": path, "bytes": found.st_size, "lines": lines[1:] if begin else lines}
