"""OPEN, READ and RELEASE of files: a hit from the arena at once, a miss from the stager or the source.

Handles hold no state: fh = row | passed | counted | internal | version (`protocol/inode_numbers.py`).
"""

from __future__ import annotations

import errno
import logging
import os
import time
from functools import partial

import numpy as np
import pyfuse3
import trio

from nopfsfs.dataset.index import Index
from nopfsfs.fuse.kernel import valid_errno
from nopfsfs.protocol.columns import READER_WAITS, Columns, Metric, MetricBlock, Tier
from nopfsfs.protocol.durations import bucket_of
from nopfsfs.protocol.inode_numbers import HANDLE_FLAGS, HANDLE_ROW, HANDLE_VERSION, row_of, version_of
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.server.direct_reads import DirectReader
from nopfsfs.server.stager_client import StagerClient, StagerGone
from nopfsfs.server.young_reads import YoungReads
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
_VERSION, _ROW = HANDLE_VERSION, HANDLE_ROW  # of a handle
_INTERNAL, _COUNTED, _PASSED = 1 << HANDLE_FLAGS, 2 << HANDLE_FLAGS, 4 << HANDLE_FLAGS
# Bound once: looking a member of an enumeration up costs as much as counting.
_OPEN, _READ, _RELEASE = int(Event.OPEN), int(Event.READ), int(Event.RELEASE)
_PUSHER_THREAD = int(Metric.PUSHER_THREAD)
_OPENS, _OPENED_BYTES, _RELEASES = int(Metric.OPENS), int(Metric.OPENED_BYTES), int(Metric.RELEASES)
_RAM, _FROM_RAM = int(Tier.RAM), Origin.RAM
_FILES = {Origin.RAM: int(Metric.RAM_FILES), Origin.DISK: int(Metric.DISK_FILES), Origin.PEER: int(Metric.PEER_FILES),
          Origin.SOURCE: int(Metric.SOURCE_FILES)}  # fmt: skip
_BYTES = {Origin.RAM: int(Metric.RAM_BYTES), Origin.DISK: int(Metric.DISK_BYTES), Origin.PEER: int(Metric.PEER_BYTES),
          Origin.SOURCE: int(Metric.SOURCE_BYTES)}  # fmt: skip
Bytes = bytes | bytearray | memoryview


class FileAccess:
    """Opens, reads and closes files. Single-threaded: all runs in the event loop of `server/process.py`.

    `stager`: the link to the stager, None where there is none. The methods raise FUSEError."""

    def __init__(
        self, *, index: Index, columns: Columns, arena: memoryview, source: Source, metrics: MetricBlock,
        stager_metrics: MetricBlock, ring: Ring, io_timeout: float, modes: OpenModes | None = None, pass_from: int = 0,
    ) -> None:  # fmt: skip
        """`io_timeout`: seconds. `modes`, and `pass_from`, bytes: files of that size or more may be passed through."""
        self.stager: StagerClient | None = None
        self._first_file, self._n = index.n_dirs, index.n
        self._source, self._ring, self._arena = source, ring, arena
        self._metrics, self._stager_metrics = metrics.block, stager_metrics.block
        self._columns = columns
        self.leave_arena()
        self._slot, self._version, self._stale = columns.slot.data, columns.version.data, columns.stale.data
        self._modes, self._pass_from, self._known = modes, pass_from, False
        self._indexed_size = index.size.data
        self._direct = DirectReader(source)
        self.young = YoungReads()
        self._io_timeout = io_timeout

    def use_stager(self, stager: StagerClient) -> None:
        """Send demands to another stager from now on."""
        self.stager = stager

    def use_arena(self) -> None:
        """Read the arena from now on: the stager knows of this server, or is gone."""
        self._tier = self._columns.tier.data
        self._known = True

    def leave_arena(self) -> None:
        """Read nothing that is staged until the stager of the arena knows of this server."""
        self._tier = np.broadcast_to(np.uint8(Tier.NONE), self._n).data

    def take_arena(self, arena: memoryview) -> None:
        """Take another arena, while no answer of a stager is being taken up."""
        self._arena = arena

    # ---- open and close -----------------------------------------------------------------------------------

    def is_file(self, inode: int) -> bool:
        """True for an inode number that this tree has given to something that can be opened and read."""
        return self._first_file <= row_of(inode) < self._n

    def size(self, row: int) -> int:
        """Bytes of the file, as of its present version."""
        return self._source.size(row)

    def handle(self, inode: int) -> int:
        """The handle that a file was, or would be, opened with. Raises FUSEError where the version is impossible."""
        version = version_of(inode)
        if version > _VERSION:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return row_of(inode) << _ROW | version

    def open(self, inode: int, pid: int, flags: int) -> tuple[int, int]:
        """(handle, registered file to pass the open through to or 0) of an open by `pid`. Raises FUSEError."""
        row = row_of(inode)
        if self._stale[row] or self._version[row] != version_of(inode):
            raise pyfuse3.FUSEError(errno.ESTALE)  # the kernel then looks the path up anew and tries again
        internal = pid == self._stager_metrics[_PUSHER_THREAD] != 0
        mode, number = self._count_open(row, inode, flags) if self._modes is not None else (0, 0)
        if not internal:
            metrics = self._metrics
            metrics[_OPENS] += 1
            metrics[_OPENED_BYTES] += self._source.size(row)
            self._ring.put(_OPEN, row, pid)
            if number:  # no READ will come
                metrics[Metric.DISK_FILES] += 1
                metrics[Metric.DISK_BYTES] += self._source.size(row)
        return row << _ROW | mode | internal << HANDLE_FLAGS | version_of(inode), number

    def _count_open(self, row: int, inode: int, flags: int) -> tuple[int, int]:
        """Count an open of a file that may be passed through: (flags of its handle, the file it is passed through to).

        An inode may be passed through always or never. A new version may not: the version that was indexed is counted,
        and registered."""
        if version_of(inode) or self._indexed_size[row] < self._pass_from or self._modes is None:
            return 0, 0
        number = self._modes.enter(row, may_pass=self._known and not flags & os.O_DIRECT)
        return _COUNTED | (_PASSED if number else 0), number

    def uncount_open(self, fh: int) -> None:
        """Count an open no more: the kernel has closed its handle, or has never taken it."""
        if fh & _COUNTED and self._modes is not None and fh >> _ROW < self._n:
            self._modes.leave(fh >> _ROW, passed=bool(fh & _PASSED))

    def close(self, fh: int) -> bool:
        """Count the close of a handle. Return True where `close_direct` is to follow."""
        row = fh >> _ROW
        if row >= self._n:
            return False  # no handle of ours, and the supervisor takes every row in the ring for one of the index
        if not fh & _INTERNAL:
            self._metrics[_RELEASES] += 1
            self._ring.put(_RELEASE, row)
        return self._direct.holds(row)

    async def close_direct(self, fh: int) -> None:
        """Close what direct reads keep open of the handle's file."""
        with trio.move_on_after(self._io_timeout):
            await self._direct.release(fh >> _ROW)

    # ---- read ---------------------------------------------------------------------------------------------

    async def read(self, fh: int, off: int, size: int) -> Bytes:
        """The bytes at `off`, hit or miss. Raises FUSEError."""
        if fh >> _ROW >= self._n:
            raise pyfuse3.FUSEError(errno.ESTALE)  # no handle of ours
        hit = self.hit(fh, off, size)
        return hit if hit is not None else await self.miss(fh, off, size)

    def hit(self, fh: int, off: int, size: int) -> memoryview | None:
        """The bytes where they are staged, to be given to the kernel before anything else runs. Raises FUSEError."""
        row = fh >> _ROW
        end = min(off + size, self._source.size(row))
        tier, slot = self._tier[row], self._slot[row]
        if self._stale[row] or self._version[row] != fh & _VERSION:  # as `_check_version`, without the cost of a call
            raise pyfuse3.FUSEError(errno.ESTALE)
        if tier != _RAM:
            return None
        self._count(row, off, end, _FROM_RAM)
        return self._arena[slot + off : slot + end]

    def _check_version(self, row: int, version: int) -> None:
        """Raises FUSEError unless the row still has this version. Where the version is the same, what was read from the
        columns before belongs to it. The stager marks a changed row as stale before it touches anything else of it."""
        if self._stale[row] or self._version[row] != version:
            raise pyfuse3.FUSEError(errno.ESTALE)

    def _count(self, row: int, off: int, end: int, origin: Origin) -> None:
        metrics = self._metrics
        metrics[_BYTES[origin]] += max(0, end - off)
        if off == 0:
            metrics[_FILES[origin]] += 1
        self._ring.put(_READ, row, max(0, end))

    async def miss(self, fh: int, off: int, size: int) -> Bytes:
        """The bytes from the stager or the source. Raises FUSEError. Nothing else runs between answer and return."""
        row = fh >> _ROW
        end = min(off + size, self._source.size(row))
        if off >= end:
            self._check_version(row, fh & _VERSION)  # `hit` did so, but another version may have come since
            return b""
        log.debug("miss: row %d [%d, %d) of %d", row, off, end, self._source.size(row))
        began = time.monotonic_ns()
        self._metrics[Metric.WAITS] += 1
        try:
            with trio.move_on_after(self._io_timeout):
                return await self._gather(row, fh & _VERSION, off, end)
        except BaseException:
            self._metrics[Metric.READ_ERRORS] += 1
            raise
        finally:
            took_ns = time.monotonic_ns() - began
            self._metrics[Metric.WAIT_NS] += took_ns
            self._metrics[READER_WAITS + bucket_of(took_ns)] += 1
        log.error("no answer from the source for %r in %g s", self._source.path(row), self._io_timeout)
        self._metrics[Metric.READ_ERRORS] += 1
        raise pyfuse3.FUSEError(errno.EIO)

    async def _gather(self, row: int, version: int, off: int, end: int) -> Bytes:
        """Bytes [off, end) of a row. One piece is returned as it is; several (a file read by ranges) are joined, each
        copied in the step that brought it."""
        parts: list[bytes] = []
        at = off
        while at < end:
            try:
                if self.stager is None:
                    raise StagerGone
                answer = await self.stager.ask(row, at, end - at)
            except StagerGone:
                return await self._read_directly(row, version, off, end)
            if answer.errno == errno.ENOSPC:
                return await self._read_directly(row, version, off, end)
            if answer.errno:
                raise pyfuse3.FUSEError(_reader_errno(answer.errno))
            self._check_version(row, version)
            if answer.length == 0:
                raise pyfuse3.FUSEError(errno.ESTALE)
            view = self._arena[answer.arena : answer.arena + answer.length]
            if not parts and answer.length == end - off:
                self._count(row, off, end, answer.origin)
                return view
            parts.append(bytes(view))
            at += answer.length
        self._count(row, off, end, answer.origin)
        return b"".join(parts)

    async def _read_directly(self, row: int, version: int, off: int, end: int) -> Bytes:
        self._metrics[Metric.DIRECT_READS] += 1
        try:
            data = await self._direct.read(row, off, end - off, partial(self.young.note, row, version, off))
        except OSError as e:
            if e.errno == errno.ESTALE and self.stager is not None:
                await self.stager.report_changed(row)
            raise pyfuse3.FUSEError(_reader_errno(e.errno)) from None
        self.young.send(self.stager)
        self._check_version(row, version)
        self._count(row, off, end, Origin.SOURCE)
        return data


def _reader_errno(code: int | None) -> int:
    """The errno of a READ for one of the source. read(2) has no ENOENT: a file that vanished is a stale handle."""
    return errno.ESTALE if code in (errno.ENOENT, errno.ENOTDIR) else valid_errno(code)
