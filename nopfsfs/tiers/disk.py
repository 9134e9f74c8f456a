"""The disk tiers: one file for each staged copy, in a directory that one mount owns.

Layout: PATH/nopfs-PID-RANDOM/{lock,ab/ROW}. The lock is held as long as the stager lives; directories whose lock is
free are leftovers of killed runs and are removed at the next start. A tier that fails is left alone for a while and
then used again. Copies are verified by the reader against the checksum in the columns.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field

log = logging.getLogger(__name__)
RETRY_AFTER_S = 30.0
FLOOR_BYTES = 256 << 20  # left free on the file system, whatever the limit says
FLOOR_INODES = 1000
_PREFIX = "nopfs-"


class DiskFull(OSError):
    """The tier's own limit, or the floor of its file system, is reached."""


@dataclass(slots=True)
class Disk:
    """One disk tier. `limit` in bytes, None: up to the floor. Thread-safe."""

    path: str
    limit: int | None
    home: str = ""
    used: int = 0
    _lock_fd: int = -1
    _failed_at: float = -RETRY_AFTER_S
    _sizes: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, uid: int = -1, gid: int = -1) -> None:
        """Clear away leftovers and make this mount's own directory, owned by `uid`. Raises OSError."""
        clear_leftovers(self.path)
        # Locked before it gets the name by which others look for leftovers.
        made = tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=self.path)
        try:
            self._lock_fd = os.open(os.path.join(made, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.chown(made, uid, gid)
            home = os.path.join(self.path, os.path.basename(made)[1:])
            os.rename(made, home)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
            raise
        self.home = home

    def close(self) -> None:
        """Remove everything that this mount kept here."""
        if self.home:
            shutil.rmtree(self.home, ignore_errors=True)
            os.close(self._lock_fd)
            self.home = ""

    def usable(self) -> bool:
        """Whether the tier has not failed lately."""
        return bool(self.home) and time.monotonic() - self._failed_at >= RETRY_AFTER_S

    def failed(self) -> None:
        """Note a failure: the tier is bypassed for a while."""
        self._failed_at = time.monotonic()

    def write(self, row: int, data: memoryview) -> None:
        """Keep a copy of a row. Raises DiskFull, OSError; then nothing of it is kept."""
        with self._lock:
            self._reserve(row, len(data))
        name = self._name(row)
        try:
            os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # never rewritten: the kernel may be reading an older copy by itself
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, data)
            finally:
                os.close(fd)
        except OSError:
            self.remove(row)
            raise

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the copy. Raises OSError, also when it is too short."""
        fd = self.open_copy(row)
        try:
            done = 0
            while done < len(into):
                got = os.preadv(fd, [into[done:]], done)
                if got == 0:
                    raise OSError(errno.EIO, "copy on disk is too short")
                done += got
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def open_copy(self, row: int, flags: int = 0) -> int:
        """A descriptor of a row's copy. Raises OSError."""
        return os.open(self._name(row), os.O_RDONLY | os.O_CLOEXEC | flags)

    def remove(self, row: int) -> None:
        """Forget the copy of a row, if there is one."""
        try:
            os.unlink(self._name(row))
        except OSError:
            pass
        with self._lock:
            self.used -= self._sizes.pop(row, 0)

    def _reserve(self, row: int, size: int) -> None:
        size = -(-size // 4096) * 4096
        if self.limit is not None and self.used + size > self.limit:
            raise DiskFull(errno.ENOSPC, "disk tier is full")
        vfs = os.statvfs(self.path)
        low_inodes = vfs.f_files and vfs.f_favail < FLOOR_INODES
        if self.limit is None and (vfs.f_bavail * vfs.f_frsize < size + FLOOR_BYTES or low_inodes):
            raise DiskFull(errno.ENOSPC, "file system of the disk tier is nearly full")
        self.used += size - self._sizes.get(row, 0)
        self._sizes[row] = size

    def _name(self, row: int) -> str:
        return os.path.join(self.home, f"{row & 0xFF:02x}", str(row))


class Disks:
    """The disk tiers of a mount by number, counted from 1 as in the column `disk`."""

    def __init__(self, disks: list[Disk]) -> None:
        self._disks = disks

    def __len__(self) -> int:
        return len(self._disks)

    def __getitem__(self, number: int) -> Disk:
        return self._disks[number - 1]

    def read(self, number: int, row: int, into: memoryview) -> None:
        self[number].read(row, into)

    def used(self) -> int:
        return sum(d.used for d in self._disks)

    def close(self) -> None:
        for disk in self._disks:
            disk.close()


def clear_leftovers(path: str) -> None:
    """Remove the directories of mounts that are no more."""
    with os.scandir(path) as entries:
        found = [e.path for e in entries if e.name.startswith(_PREFIX) and e.is_dir(follow_symlinks=False)]
    for home in found:
        try:
            fd = os.open(os.path.join(home, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # It got its name with its lock: this one was half removed. Unless it never was ours.
            if all(re.fullmatch("[0-9a-f]{2}", name) for name in os.listdir(home)):
                shutil.rmtree(home, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)
        except BlockingIOError:
            pass  # its mount is alive
        finally:
            os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:])
