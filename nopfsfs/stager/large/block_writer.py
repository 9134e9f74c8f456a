"""The steps of the disk thread for copies of large files: make the file, write blocks, read the whole back once.

Each step is short, so that `DiskWatch` sees a disk that hangs, and other copies are written in between. A copy that
fails is removed; its blocks are read from the source again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

import xxhash

from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.stager.large.block_copies import BlockCopy
from nopfsfs.stager.large.large_copies import LargeCopies
from nopfsfs.stager.passthrough_copies import write_out
from nopfsfs.system.descriptors import fill
from nopfsfs.tiers.disk import Disks

PIECE = 8 << 20  # bytes that one step reads back, and waits for to be written out


class BlockWriter:
    """`usable(tier)`: the tier may be written to. `publish(event, row, value)` puts an event. `failed(row, tier,
    error)` takes up an error of the disk. `unusable(row, tier)` withdraws a copy that is corrupt. `done(row, tier)` is
    told of a copy that is on disk and good; `by_kernel(row)`: the kernel is to read it by itself."""

    def __init__(
        self, large: LargeCopies, disks: Disks, columns: Columns, metrics: memoryview, *, usable: Callable[[int], bool],
        publish: Callable[[Event, int, int], None], failed: Callable[[int, int, OSError], None],
        unusable: Callable[[int, int], object], done: Callable[[int, int], None], by_kernel: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self._large, self._disks, self._columns, self._metrics = large, disks, columns, metrics
        self._usable, self._publish, self._failed, self._unusable = usable, publish, failed, unusable
        self._done, self._by_kernel = done, by_kernel
        self._buffer = memoryview(bytearray(0))

    def attend(self, row: int) -> bool:
        """Do the next thing for the copy of a row; False where it needs nothing, or there is none."""
        self.remove_gone()
        copy = self._large.of(row)
        if copy is None or copy.is_settled:
            return False
        try:
            self._step(copy)
        except OSError as e:
            self._large.drop_failed(copy)
            self.remove_gone(untold=copy)
            if copy.published:
                self._metrics[Metric.DISK_ERRORS] += 1
                self._unusable(row, copy.tier)
            else:
                self._failed(row, copy.tier, e)
        return True

    def remove_gone(self, *, untold: BlockCopy | None = None) -> None:
        """Remove the files of copies that were given up before they were whole, and put events, but for `untold`."""
        for copy in self._large.take_gone():
            disk = self._disks[copy.tier]
            if copy.fd >= 0:
                self._close(copy)
                (disk.remove if copy.ended else disk.drop_sparse)(copy.row)
            if copy is not untold:
                self._publish(Event.OFF_DISK, copy.row, 1)

    def close(self) -> None:
        """Let go of all files."""
        for tier in range(1, len(self._disks) + 1):
            for row in self._large.on_tier(tier):
                self._large.drop(row)
        self.remove_gone()

    def _close(self, copy: BlockCopy) -> None:
        fd, copy.fd = copy.fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)

    def _step(self, copy: BlockCopy) -> None:
        """Raises OSError."""
        if copy.published:
            self._sum_up(copy)
        elif copy.fd < 0:
            if not self._usable(copy.tier):
                self._large.drop(copy.row, refuse=True)
                self.remove_gone()
                return
            copy.fd = self._disks[copy.tier].begin_sparse(copy.row, copy.version, copy.size)
        elif copy.left:
            self._write(copy)
        else:
            self._sum_up(copy)

    def _write(self, copy: BlockCopy) -> None:
        write, check = self._large.take_write(copy), None
        if write is None:
            return
        try:
            check = xxhash.xxh3_64_intdigest(write.data)
            at = write.load.start
            while at < write.load.start + write.load.length:
                at += os.pwrite(copy.fd, write.data[at - write.load.start :], at)
        except OSError:
            check = None
            raise
        finally:
            self._large.written(write, check)

    def _sum_up(self, copy: BlockCopy) -> None:
        """Read a piece of a copy back. Each block of a copy that was made here is compared, so that the copy is on disk
        as it was read from the source. The blocks of another's copy get their checksums."""
        end = min(copy.size, copy.summed + PIECE)
        fd = copy.fd if copy.fd >= 0 else self._disks[copy.tier].open_copy(copy.row)
        try:
            if copy.summed == 0 and os.fstat(fd).st_size != copy.size:
                raise OSError(errno.EIO, "it has another size")
            if self._by_kernel(copy.row):
                write_out(fd, copy.summed, end - copy.summed)
            for at in range(copy.summed, end, copy.block):
                self._sum_block(copy, fd, at // copy.block)
            os.posix_fadvise(fd, copy.summed, end - copy.summed, os.POSIX_FADV_DONTNEED)
        finally:
            if fd != copy.fd:
                os.close(fd)
        copy.summed = end
        if end < copy.size:
            self._large.attend(copy)
        elif copy.published:
            self._end_adopted(copy)
        else:
            self._end_own(copy)

    def _sum_block(self, copy: BlockCopy, fd: int, number: int) -> None:
        if len(self._buffer) < copy.block:
            self._buffer = memoryview(bytearray(copy.block))
        view = self._buffer[: copy.length(number)]
        if not fill(fd, view, number * copy.block):
            raise OSError(errno.EIO, "it is too short")
        copy.digest.update(view)
        check = xxhash.xxh3_64_intdigest(view)
        if copy.published:
            copy.sums[number] = check
        elif check != copy.sums[number]:
            raise OSError(errno.EIO, "it does not hold what was written")

    def _end_own(self, copy: BlockCopy) -> None:
        check = copy.digest.intdigest()
        self._disks[copy.tier].end_sparse(copy.row, copy.version, check)
        copy.ended = True
        self._disks[copy.tier].worked()
        if self._large.publish(copy, check):
            self._close(copy)
            self._metrics[Metric.DISK_WRITES] += 1
            self._done(copy.row, copy.tier)
        # else it was given up, and is removed with what is gone

    def _end_adopted(self, copy: BlockCopy) -> None:
        if copy.digest.intdigest() != int(self._columns.check[copy.row]):
            self._large.drop(copy.row)
            self._metrics[Metric.CORRUPT_COPIES] += 1
            self._unusable(copy.row, copy.tier)
            return
        self._large.summed_up(copy)
        self._done(copy.row, copy.tier)
