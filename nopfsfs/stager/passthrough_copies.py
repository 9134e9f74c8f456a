"""Copies on disk that the kernel reads by itself: registered when they are whole, withdrawn when they are given up.

Owns the column `backing`, under the desk's lock. A number that was withdrawn is closed only when no server can answer
an open with it (a grace after it was withdrawn, `stager/extents.py`) and no open that uses it is alive
(`tiers/open_modes.py`):
the kernel fails an open whose number it does not know, or that differs from the one in use. Until then it stays in the
column, below 0, so that the servers find what is in use, and the next stager what is to be closed. A row has one number
at a time.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from nopfsfs.fuse import passthrough
from nopfsfs.protocol.columns import Columns
from nopfsfs.tiers.open_modes import OpenModes

log = logging.getLogger(__name__)
# Each keeps an open file in the kernel, with its inode: some 2 KiB of memory that cannot be reclaimed.
REGISTERED_MOST = 1 << 16
LOOK_AGAIN_S = 1.0  # while withdrawn numbers are in use
_PIECE = 1 << 20
_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_OF_THE_TIER = (errno.ELOOP, errno.EINVAL, errno.EOPNOTSUPP)


class CopyStore(Protocol):
    """What is needed of a disk tier."""

    path: str

    def open_copy(self, row: int, flags: int = 0) -> int: ...


class PassthroughCopies:
    """`sizes` by row, bytes; `from_size`: files of that size or more are registered; 0: none. `after_grace(what)` calls
    `what` when all servers have passed a grace; it is called with the desk's lock held, and calls with it held. `poke`
    has `sweep` called in the disk thread."""

    def __init__(
        self, *, fuse_fd: int, columns: Columns, sizes: npt.NDArray[Any], modes: OpenModes | None, from_size: int,
        after_grace: Callable[[Callable[[], None]], None], poke: Callable[[], None],
    ) -> None:  # fmt: skip
        self._fd, self._columns, self._sizes, self._modes = fuse_fd, columns, sizes, modes
        self._from = from_size if modes is not None else 0
        self._after_grace, self._poke = after_grace, poke
        self._permitted = True
        self._unusable: set[str] = set()  # tiers
        self._usable: set[str] = set()
        self._registered = 0
        self._withdrawn: list[int] = []  # rows whose numbers no server will use anew
        self.taken_over = threading.Event()  # so is all that another stager had registered

    # ---- with the desk's lock held ------------------------------------------------------------------------

    def withdraw(self, row: int) -> None:
        """No open is to begin to use the row's number."""
        column = self._columns.backing
        if column[row] > 0:
            column[row] = -column[row]
            self._after_grace(partial(self._passed, row))

    def take_over(self) -> None:
        """Withdraw what another stager had registered: its copies went with it."""
        column = self._columns.backing
        rows = np.flatnonzero(column).tolist()
        if not rows:
            self.taken_over.set()
            return
        column[rows] = -np.abs(column[rows])
        self._registered += len(rows)
        for row in rows:
            self._after_grace(partial(self._passed, row))
        self._after_grace(self.taken_over.set)

    def _passed(self, row: int) -> None:
        self._withdrawn.append(row)
        self._poke()

    # ---- in the disk thread -------------------------------------------------------------------------------

    def register(self, tier: CopyStore, row: int, check: int) -> int:
        """The number of the row's copy, to be published; 0 where there is none to be. `check`: xxh3 of what it must
        hold. Raises OSError when the copy cannot be written or read, EIO when it holds something else."""
        if not self.is_wanted(tier, row):
            return 0
        fd = tier.open_copy(row)
        try:
            _verify(fd, check)
            number = self._register(tier, fd)
        finally:
            os.close(fd)
        self._registered += number > 0
        return number

    def _register(self, tier: CopyStore, fd: int) -> int:
        try:
            return passthrough.register(self._fd, fd)
        except OSError as e:
            self._refused(tier, e)
            return 0

    def is_large(self, row: int) -> bool:
        """Whether the supervisor takes the row for one that may be registered."""
        return bool(self._from and self._sizes[row] >= self._from)

    def is_wanted(self, tier: CopyStore, row: int) -> bool:
        """Whether the row's copy is one to be registered."""
        if not self.is_large(row):
            return False
        if self._columns.version[row] or self._columns.backing[row]:
            return False
        if not self._permitted or tier.path in self._unusable or self._registered >= REGISTERED_MOST:
            return False
        if tier.path not in self._usable and not self._takes_direct(tier, row):
            return False
        self._usable.add(tier.path)
        return True

    def _takes_direct(self, tier: CopyStore, row: int) -> bool:
        """Where no file can be opened with O_DIRECT, opens of the mount with O_DIRECT would fail."""
        try:
            os.close(tier.open_copy(row, os.O_DIRECT))
        except OSError as e:
            self._refused(tier, e)
            return False
        return True

    def _refused(self, tier: CopyStore, error: OSError) -> None:
        if error.errno == errno.EPERM:
            self._permitted = False
            log.warning("passthrough is off: the right to register files (CAP_SYS_ADMIN) is missing")
        elif error.errno in _OF_THE_TIER:
            self._unusable.add(tier.path)
            log.warning("passthrough is off for disk tier %s: its file system does not allow it (%s)", tier.path, error)
        else:
            log.info("a copy in %s is not passed through: %s", tier.path, error)

    def close(self, number: int) -> None:
        """A number that was never published is not needed."""
        self._registered -= 1
        try:
            passthrough.withdraw(self._fd, number)
        except OSError as e:
            if e.errno != errno.ENOENT:
                log.info("a registered file cannot be withdrawn: %s", e)  # the connection has ended, or the right

    def sweep(self) -> bool:
        """Close the withdrawn numbers that no open uses; whether others are left."""
        rows, self._withdrawn = self._withdrawn, []
        for row in rows:
            if self._modes is not None and self._modes.passing(row):
                self._withdrawn.append(row)
            else:
                self.close(-int(self._columns.backing[row]))
                self._columns.backing[row] = 0
        return bool(self._withdrawn)


def _verify(fd: int, check: int) -> None:
    """What is passed through is not looked at again. So it must be on disk, for errors of writing show then, and be
    what was written. Raises OSError."""
    _write_out(fd)
    found, at = xxhash.xxh3_64(), 0
    while piece := os.pread(fd, _PIECE, at):
        found.update(piece)
        at += len(piece)
    if found.intdigest() != check:
        raise OSError(errno.EIO, "it does not hold what was written")


def _write_out(fd: int) -> None:
    """Wait for a file's bytes to be written, and for nothing of others, as fdatasync would. Raises OSError."""
    if _libc.sync_file_range(fd, 0, 0, _WRITE_AND_WAIT) == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        raise OSError(ctypes.get_errno(), "writing it out failed")
    os.fdatasync(fd)
