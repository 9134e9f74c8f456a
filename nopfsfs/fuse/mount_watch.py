"""Checks of a mount from outside: gone, in use, its connection ended."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

from nopfsfs.fuse.mount_table import Mount, holders, parse_mountinfo
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.directory_access import mount_of


class MountWatch:
    """Watches this process's table of mounts for the mount with device minor `minor`. `fileno` becomes readable when
    the table has changed since `gone` was called. Raises OSError."""

    def __init__(self, minor: int) -> None:
        self._minor = minor
        with ExitStack() as stack:
            self._table = open("/proc/self/mountinfo", "rb")  # noqa: SIM115
            stack.callback(self._table.close)
            self._epoll = stack.enter_context(select.epoll())
            self._epoll.register(self._table, select.EPOLLPRI | select.EPOLLET)
            self._made = stack.pop_all()

    def fileno(self) -> int:
        """The descriptor for select and its like."""
        return self._epoll.fileno()

    def unmounted(self) -> bool:
        """Return True when the mount is nowhere in this namespace any more, wherever it was moved."""
        self._epoll.poll(0)
        self._table.seek(0)
        return not _holds(self._table.read(), self._minor)

    def close(self) -> None:
        """Close the table."""
        self._made.close()


def _holds(table: bytes, minor: int) -> bool:
    return any((mount.major, mount.minor) == (0, minor) for mount in parse_mountinfo(os.fsdecode(table)))


def is_over(fuse_fd: int) -> bool:
    """Return True when the connection of a FUSE descriptor has ended. Waits for nothing."""
    poll = select.poll()
    poll.register(fuse_fd, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def is_used(mount: Mount, ours: Iterable[int]) -> bool:
    """Return True when a process other than `ours` uses a mount: open, mapped, as a directory, or by a copy of it
    in its namespace. Exact also for a detached mount. Reads /proc alone, as far as allowed."""
    skip = {os.getpid(), *ours}
    if holders(mount, skip):
        return True
    others = [f"/proc/{name}" for name in os.listdir("/proc") if name.isdecimal() and int(name) not in skip]
    directories = (f"{base}/{what}" for base in others for what in ("cwd", "root"))
    return any(_mount_id(path) == mount.mount_id for path in directories) or any(
        _holds(table, mount.minor) for table in _tables(others)
    )


def _tables(others: Iterable[str]) -> Iterator[bytes]:
    """The tables of mounts, one for each namespace."""
    seen = set()
    for base in others:
        with suppress(OSError):
            namespace = os.readlink(f"{base}/ns/mnt")
            if namespace not in seen:
                with open(f"{base}/mountinfo", "rb") as file:
                    yield file.read()
                seen.add(namespace)


def _mount_id(path: str) -> int | None:
    """The id of the mount that a link of /proc leads to; no request goes to its file system."""
    with suppress(OSError), closing_fd(os.open(path, os.O_PATH | os.O_CLOEXEC)) as fd:
        return mount_of(fd)
    return None
