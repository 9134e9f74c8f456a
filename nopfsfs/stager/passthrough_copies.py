"""Copies on disk that the kernel reads by itself: registered when they are whole, withdrawn when they are given up.

Withdraws numbers in the column `backing`. A withdrawn number is closed only when two things hold. No server can answer
an open with it (a grace period after it was withdrawn, `stager/extents.py`). No open that uses it is alive
(`tiers/open_modes.py`). The kernel fails an open whose number it does not know, or that differs from the one in use.
Until then the number stays in the column, below 0. So the servers see that it is in use, and the next stager sees what
is to be closed. A row has one number at a time.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from nopfsfs.fuse import passthrough
from nopfsfs.protocol.columns import Columns
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.tiers.disk import Disk
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


class PassthroughCopies:
    """`sizes` by row, bytes; `from_size`: files of that size or more are registered; 0: none. `poke` has `sweep` called
    in the disk thread."""

    def __init__(
        self, *, fuse_fd: int, columns: Columns, sizes: npt.NDArray[Any], modes: OpenModes | None, from_size: int,
        poke: Callable[[], None],
    ) -> None:  # fmt: skip
        self._fd, self._columns, self._sizes, self._modes = fuse_fd, columns, sizes, modes
        self._from = from_size if modes is not None else 0
        self._poke = poke
        self._permitted = True
        self._unusable: set[str] = set()  # tiers
        self._usable: set[str] = set()
        self._registered = 0
        self._withdrawn: list[int] = []  # rows whose numbers no server will use anew
        self.taken_over = threading.Event()  # all that another stager had registered is withdrawn

    # ---- with the lock of StagerState held ----------------------------------------------------------------

    def withdraw(self, row: int) -> bool:
        """Let no more opens use the row's number. True: `grace_passed` is to be called after a grace period."""
        column = self._columns.backing
        if column[row] <= 0:
            return False
        column[row] = -column[row]
        return True

    def take_over(self) -> list[Callable[[], None]]:
        """Withdraw all that another stager had registered, as its copies went with it. Returns what is to be called
        after a grace period."""
        column = self._columns.backing
        rows = np.flatnonzero(column).tolist()
        if not rows:
            self.taken_over.set()
            return []
        column[rows] = -np.abs(column[rows])
        self._registered += len(rows)
        return [*(partial(self.grace_passed, row) for row in rows), self.taken_over.set]

    def grace_passed(self, row: int) -> None:
        """Let the row's withdrawn number be closed."""
        self._withdrawn.append(row)
        self._poke()

    # ---- in the disk thread -------------------------------------------------------------------------------

    def register(self, tier: Disk, row: int, check: int | None) -> int:
        """The number of the row's copy, to be published; 0 where there is none to be. `check`: xxh3 of what it must
        hold; None: it was read and written out just now. Raises OSError when the copy cannot be written or read, EIO
        when it holds something else."""
        if not self.is_wanted(tier, row):
            return 0
        with closing_fd(tier.open_copy(row)) as fd:
            if check is not None:
                _verify(fd, check)
            number = self._register(tier, fd)
        self._registered += number > 0
        return number

    def _register(self, tier: Disk, fd: int) -> int:
        try:
            return passthrough.register(self._fd, fd)
        except OSError as e:
            self._refused(tier, e)
            return 0

    def is_large(self, row: int) -> bool:
        """True for a row that the supervisor counts among those that may be registered."""
        return bool(self._from and self._sizes[row] >= self._from)

    def is_wanted(self, tier: Disk, row: int) -> bool:
        """True when the row's copy is to be registered."""
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

    def _takes_direct(self, tier: Disk, row: int) -> bool:
        """True where O_DIRECT works; elsewhere opens of the mount with O_DIRECT would fail."""
        try:
            os.close(tier.open_copy(row, os.O_DIRECT))
        except OSError as e:
            self._refused(tier, e)
            return False
        return True

    def _refused(self, tier: Disk, error: OSError) -> None:
        if error.errno == errno.EPERM:
            self._permitted = False
            log.warning("passthrough is off: the right to register files (CAP_SYS_ADMIN) is missing")
        elif error.errno in _OF_THE_TIER:
            self._unusable.add(tier.path)
            log.warning("passthrough is off for disk tier %s: its file system does not allow it (%s)", tier.path, error)
        else:
            log.info("a copy in %s is not passed through: %s", tier.path, error)

    def close(self, number: int) -> None:
        """Withdraw a number that no open uses from the kernel."""
        self._registered -= 1
        try:
            passthrough.withdraw(self._fd, number)
        except OSError as e:
            if e.errno != errno.ENOENT:
                log.info("a registered file cannot be withdrawn: %s", e)  # the connection has ended, or the right

    def sweep(self) -> bool:
        """Close the withdrawn numbers that no open uses; True when others are left."""
        rows, self._withdrawn = self._withdrawn, []
        for row in rows:
            if self._modes is not None and self._modes.passing(row):
                self._withdrawn.append(row)
            else:
                self.close(-int(self._columns.backing[row]))
                self._columns.backing[row] = 0
        return bool(self._withdrawn)


def _verify(fd: int, check: int) -> None:
    """Check that a copy is on disk, where errors of writing show, and holds what was written: after its registration
    nobody checks it again. Raises OSError."""
    write_out(fd)
    found, at = xxhash.xxh3_64(), 0
    while piece := os.pread(fd, _PIECE, at):
        found.update(piece)
        at += len(piece)
    if found.intdigest() != check:
        raise OSError(errno.EIO, "it does not hold what was written")


def write_out(fd: int, start: int = 0, length: int = 0) -> None:
    """Wait for a file's bytes to be written, `length` of them, 0: all from `start` on; not for those of other files, as
    fdatasync would. Raises OSError."""
    if _libc.sync_file_range(fd, start, length, _WRITE_AND_WAIT) == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        raise OSError(ctypes.get_errno(), "writing it out failed")
    os.fdatasync(fd)
