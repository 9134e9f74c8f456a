"""The disk tiers: one file for each staged copy, in a directory that one mount owns (`tier_directory.py`).

All access goes by the descriptor of that directory. A tier that fails is left alone for a while and then used again.
Copies are verified by the reader against the checksum in the columns.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from dataclasses import dataclass, field

from nopfsfs.system.descriptors import closed_on_error, closing_fd, fill
from nopfsfs.system.outages import Backoff
from nopfsfs.tiers.tier_directory import TierDirectory

FIRST_REST_S = 30.0  # after a failure; longer after the next (`Backoff`)
FLOOR_BYTES = 256 << 20  # left free on the file system of a tier without a limit
FLOOR_INODES = 1000


class DiskFull(OSError):
    """The tier's own limit, or the floor of its file system, is reached."""


class DiskBusy(OSError):
    """The copy cannot be written now, though nothing failed: another mount writes it, or room is being made."""


class TierGone(OSError):
    """Somebody removed the tier's directory, or it was never made: all copies are lost until `Disk.open` makes it."""


@dataclass(slots=True)
class Disk:
    """A disk tier. `limit` in bytes, None: up to the floor. Thread-safe, but for `open` and `close`."""

    path: str
    limit: int | None
    used: int = 0  # bytes
    _directory: TierDirectory | None = None
    _rests_until: float = -math.inf
    _backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_REST_S))
    _sizes: dict[int, int] = field(default_factory=dict)  # of what takes room, by row
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, uid: int = -1, gid: int = -1) -> None:
        """Make this mount's own directory, for user `uid` as in chown(2). What another one held is forgotten. Raises
        OSError; then the tier is bypassed for a while, and this can be called again."""
        self._forget()
        try:
            self._directory = TierDirectory(self.path, uid, gid)
        except OSError:
            self.failed()
            raise
        self.worked()

    def close(self) -> None:
        """Remove everything that this mount kept here."""
        directory = self._directory
        self._forget()
        if directory is not None:
            directory.remove()

    @property
    def is_open(self) -> bool:
        return self._directory is not None

    def is_gone(self) -> bool:
        """Return whether the tier was opened, and somebody removed its directory since."""
        directory = self._directory
        return directory is not None and directory.vanished()

    def is_rested(self) -> bool:
        """Return whether the tier has not failed lately."""
        return time.monotonic() >= self._rests_until

    def usable(self) -> bool:
        """Return whether copies may be written: the tier is open and has not failed lately."""
        return self.is_open and self.is_rested()

    def failed(self) -> None:
        """Note a failure: the tier is bypassed for a while. What fails meanwhile had begun before."""
        if self.is_rested():
            self._rests_until = time.monotonic() + self._backoff.failed()

    def worked(self) -> None:
        """Note that a copy was written, or the tier opened."""
        self._rests_until = -math.inf
        self._backoff.succeeded()

    def write(self, row: int, data: memoryview, version: int = 0) -> None:
        """Keep a copy of a row, of that version. Raises DiskFull, DiskBusy, TierGone, OSError; then nothing of it is
        kept."""
        directory = self._opened()
        with self._lock:
            self._reserve(directory, row, len(data))
        try:
            fd = _create(directory, row)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)  # a network file system says here what it could not write
        except OSError:
            self.remove(row)
            raise

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the copy. Raises OSError, also when it is too short."""
        with closing_fd(self.open_copy(row)) as fd:
            if not fill(fd, into):
                raise OSError(errno.EIO, "copy on disk is too short")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def read_block(self, row: int, into: memoryview, offset: int) -> None:
        """Fill `into` from the copy, also from one that is not whole yet. Raises OSError, also when it is too short."""
        with closing_fd(self.open_copy(row)) as fd:
            if not fill(fd, into, offset):
                raise OSError(errno.EIO, "copy on disk is too short")
            os.posix_fadvise(fd, offset, len(into), os.POSIX_FADV_DONTNEED)

    # ---- copies that are written by blocks ----------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Return whether a copy of so many bytes fits, as far as is known without a look."""
        return self.limit is None or self.used + size <= self.limit

    def begin_sparse(self, row: int, version: int, size: int) -> int:
        """Reserve the room of a copy, and return a descriptor of its file, all of which is a hole; `end_sparse` or
        `drop_sparse` follows. Raises as `write`."""
        directory = self._opened()
        with self._lock:
            self._reserve(directory, row, size)
        try:
            fd = _create(directory, row)
            with closed_on_error(fd):
                os.ftruncate(fd, size)
        except OSError:
            self.remove(row)
            raise
        return fd

    def end_sparse(self, row: int, version: int, check: int) -> None:
        """Keep a copy of which all blocks are there. Raises OSError."""

    def drop_sparse(self, row: int) -> None:
        """Remove a copy that is not whole."""
        self.remove(row)

    def open_copy(self, row: int, flags: int = 0) -> int:
        """Return a descriptor of a row's copy. Raises TierGone, OSError."""
        flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(_name(row), flags, dir_fd=self._opened().copies)

    def remove(self, row: int) -> None:
        """Forget the copy of a row, if there is one. One that cannot be removed goes on taking room."""
        directory = self._directory
        if directory is not None:
            try:
                os.unlink(_name(row), dir_fd=directory.copies)
            except FileNotFoundError:
                pass
            except OSError:
                return
        with self._lock:
            self.used -= self._sizes.pop(row, 0)

    def _forget(self) -> None:
        with self._lock:
            self._directory = None  # other threads may be reading there yet
            self._sizes.clear()
            self.used = 0

    def _opened(self) -> TierDirectory:
        # A local reference: the directory stays open until its user is done, whatever `open` does meanwhile.
        directory = self._directory
        if directory is None:
            raise TierGone(errno.ENOENT, "the disk tier is not open")
        return directory

    def _reserve(self, directory: TierDirectory, row: int, size: int) -> None:
        size = -(-size // 4096) * 4096
        added = size - self._sizes.get(row, 0)
        if self.limit is not None and self.used + added > self.limit:
            raise DiskFull(errno.ENOSPC, "disk tier is full")
        if self.limit is None and is_nearly_full(directory.copies, size):
            raise DiskFull(errno.ENOSPC, "file system of the disk tier is nearly full")
        self.used += added
        self._sizes[row] = size


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

    def read_block(self, number: int, row: int, into: memoryview, offset: int) -> None:
        self[number].read_block(row, into, offset)

    def with_room(self, size: int) -> int:
        """The first disk that has room for so many bytes and has not failed lately; 0 for none."""
        tiers = enumerate(self._disks, 1)
        return next((number for number, disk in tiers if disk.is_rested() and disk.has_room(size)), 0)

    def used(self) -> int:
        return sum(d.used for d in self._disks)

    def close(self) -> None:
        for disk in self._disks:
            disk.close()


def _name(row: int) -> str:
    return f"{row & 0xFF:02x}/{row}"


def _create(directory: TierDirectory, row: int) -> int:
    """A descriptor of a new file for the row's copy. Raises TierGone, OSError."""
    name, dir_fd = _name(row), directory.copies
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)  # never rewritten: the kernel may be reading an older copy by itself
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(name, flags, 0o600, dir_fd=dir_fd)
    except FileNotFoundError:
        pass  # the first in its subdirectory
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(name), 0o700, dir_fd=dir_fd)
        return os.open(name, flags, 0o600, dir_fd=dir_fd)
    except FileNotFoundError as e:
        raise TierGone(errno.ENOENT, f"its directory {directory.name} was removed") from e


def free_bytes(directory: int | str) -> int:
    """Bytes that are free on the file system of a directory, less the floor. Raises OSError."""
    return max(0, _above_floor(directory))


def is_nearly_full(directory: int, size: int) -> bool:
    """True when the file system of a directory would be left with less than the floor by `size` bytes more. Raises
    OSError."""
    return _above_floor(directory) < size


def _above_floor(directory: int | str) -> int:
    """Bytes above the floor, less than 0 for what it lacks. Raises OSError."""
    vfs = os.statvfs(directory)
    if vfs.f_files and vfs.f_favail < FLOOR_INODES:
        return -1
    return vfs.f_bavail * vfs.f_frsize - FLOOR_BYTES


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data`. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:])
