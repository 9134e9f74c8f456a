"""The pyfuse3 adapter: FUSE requests to the vfs tree and the tiers. Thin: the tree knows what, the tiers know where.

Handles hold no state: fh = row | passed | counted | internal | version (`protocol/inode_numbers.py`). A hit is answered
without an await. Every handler goes through one wrapper, `guarded`, which is the only place where errors become errno.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pyfuse3
import trio

from nopfsfs.protocol.columns import Columns, Metric, MetricBlock, Tier
from nopfsfs.protocol.inode_numbers import HANDLE_FLAGS, HANDLE_ROW, HANDLE_VERSION, inode_of, row_of, version_of
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.server.stager_client import DirectReader, StagerClient, StagerGone
from nopfsfs.system.elastic_limiter import ElasticLimiter
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source
from nopfsfs.vfs import errors as vfs
from nopfsfs.vfs.tree import OWN_PREFIX, Attributes, Tree

log = logging.getLogger(__name__)
ACL_NAME = b"system.posix_acl_access"
_VERSION, _ROW = HANDLE_VERSION, HANDLE_ROW  # of a handle
_INTERNAL, _COUNTED, _PASSED = 1 << HANDLE_FLAGS, 2 << HANDLE_FLAGS, 4 << HANDLE_FLAGS
_BLOCK = 4096  # st_blksize, as local file systems have it: Python makes a buffer of that size at each open
_NS = 1_000_000_000
_NAME_OUT = struct.Struct("<QQQQII")  # of struct fuse_entry_out, what comes before the attributes
_ATTRIBUTES_HEAD = struct.Struct("<QII")  # the same of struct fuse_attr_out
_ATTRIBUTES = struct.Struct("<QQQqqqIIIIIIIIII")  # struct fuse_attr
# Bound once: looking a member of an enumeration up costs as much as counting.
_OPEN, _READ, _RELEASE = int(Event.OPEN), int(Event.READ), int(Event.RELEASE)
_PUSHER_THREAD, _SHOWN = int(Metric.PUSHER_THREAD), int(Metric.SHOWN)
_TRIPWIRES_APART = int(Metric.TRIPWIRES_APART)
_OPENS, _OPENED_BYTES, _RELEASES = int(Metric.OPENS), int(Metric.OPENED_BYTES), int(Metric.RELEASES)
_RAM, _FROM_RAM = int(Tier.RAM), Origin.RAM
_TRIPWIRES, _TRIPWIRE_BYTES = int(Metric.TRIPWIRES), int(Metric.TRIPWIRE_BYTES)
ASKING_THREADS, ASKING_THREADS_MOST = 40, 320  # for extended attributes; the second while the source does not answer
FOREVER_S = 1e9  # timeouts of names and attributes: the tree does not change while mounted
_FOREVER = (int(FOREVER_S), 0)  # seconds, nanoseconds
# Attributes, where each open is to show by the kernel's asking for them: it asks at each read, too. Who opens the file
# again within that time is not seen.
_FOR_A_MOMENT = (0, 20_000_000)
_NOT_AT_ALL = (0, 0)
_THREADS_MOST = 4096  # whose last open is kept
_ALL_SHOW, _TRIPWIRES_SHOW = int(Shown.ALL), int(Shown.TRIPWIRES)
_FILES = {Origin.RAM: int(Metric.RAM_FILES), Origin.DISK: int(Metric.DISK_FILES), Origin.PEER: int(Metric.PEER_FILES),
          Origin.SOURCE: int(Metric.SOURCE_FILES)}  # fmt: skip
_BYTES = {Origin.RAM: int(Metric.RAM_BYTES), Origin.DISK: int(Metric.DISK_BYTES), Origin.PEER: int(Metric.PEER_BYTES),
          Origin.SOURCE: int(Metric.SOURCE_BYTES)}  # fmt: skip

_ERRNO = {
    vfs.NotFound: errno.ENOENT, vfs.NameTooLong: errno.ENAMETOOLONG, vfs.NotADirectory: errno.ENOTDIR,
    vfs.IsADirectory: errno.EISDIR,
    vfs.NotALink: errno.EINVAL, vfs.ReadOnly: errno.EROFS, vfs.NoSuchAttribute: pyfuse3.ENOATTR,
    vfs.StaleFile: errno.ESTALE,
}  # fmt: skip


def _errno_of(error: vfs.TreeError) -> int:
    if isinstance(error, vfs.SourceFailed):
        return _sayable(error.errno)
    return _ERRNO.get(type(error), errno.EIO)


def _sayable(code: int | None) -> int:
    """An errno that the kernel takes. It refuses an answer with one of those that are not for programs (512 and above),
    which some file systems let out, and who had asked would wait for ever."""
    return code if code is not None and 0 < code < 512 else errno.EIO


Bytes = bytes | bytearray | memoryview
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


def guarded(handler: Handler) -> Handler:
    """Turn errors into errno: domain errors and OSError into theirs, anything else into EIO, logged."""

    @functools.wraps(handler)
    async def call(*args: Any) -> Any:
        try:
            return await handler(*args)
        except pyfuse3.FUSEError:
            raise
        except vfs.TreeError as e:
            raise pyfuse3.FUSEError(_errno_of(e)) from None
        except OSError as e:
            raise pyfuse3.FUSEError(_sayable(e.errno)) from None
        except Exception:
            log.exception("%s%r failed", handler.__name__, args[1:])
            raise pyfuse3.FUSEError(errno.EIO) from None

    return call  # type: ignore[return-value]


class FuseOperations(pyfuse3.Operations):
    """One server's request handlers. Single-threaded: all run in the event loop of `server/process.py`."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, *, tree: Tree, columns: Columns, arena: memoryview, gauges: MetricBlock, stager_gauges: MetricBlock,
        ring: Ring, source: Source, stager: StagerClient | None, io_timeout: float, tripwires: Tripwires | None = None,
        supervisor_gauges: MetricBlock | None = None, modes: OpenModes | None = None, pass_from: int = 0,
    ) -> None:  # fmt: skip
        """`tripwires`: whose names the kernel is not to remember; then `supervisor_gauges` says when to refuse OPEN.
        `modes`, and `pass_from`, bytes: files of that size or more may be passed through."""
        super().__init__()
        self.enable_acl = tree.index.any_acl  # it costs a request at each open of one who is not the owner
        self._first_file = tree.index.n_dirs
        self._tree, self._source, self._ring = tree, source, ring
        self._arena = arena
        self._gauge, self._stager_gauge = gauges.block, stager_gauges.block
        self._columns = columns
        # nothing is staged, for this server, until the stager knows of it
        self._tier, self._slot = np.broadcast_to(np.uint8(Tier.NONE), len(columns.tier)).data, columns.slot.data
        self._version, self._stale = columns.version.data, columns.stale.data
        self._modes, self._pass_from, self._known = modes, pass_from, False
        self._indexed_size = tree.index.size.data
        self.stager = stager
        self._direct = DirectReader(source)
        self._asking = ElasticLimiter(ASKING_THREADS, ASKING_THREADS_MOST)
        self._io_timeout = io_timeout
        self._tripwires = tripwires
        self._supervisor_gauge = supervisor_gauges.block if supervisor_gauges is not None else None
        self._shown_last: dict[int, int] = {}  # by thread: the row of its open that was shown last

    def use_arena(self) -> None:
        """The stager knows of this server, or is gone: the arena may be read."""
        self._tier = self._columns.tier.data
        self._known = True

    def leave_arena(self) -> None:
        """Another arena comes: nothing that is staged may be read until its stager knows of this server."""
        self._tier = np.broadcast_to(np.uint8(Tier.NONE), len(self._columns.tier)).data

    def take_arena(self, arena: memoryview) -> None:
        """What is staged lies there from now on. While no answer of a stager is being taken up."""
        self._arena = arena

    # ---- names and attributes -----------------------------------------------------------------------------

    @guarded
    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        try:
            row = self._tree.lookup(row_of(parent), name)
        except vfs.NotFound:
            # The tree is immutable, so the kernel may remember that there is no such name.
            missing = pyfuse3.EntryAttributes()
            missing.st_ino = pyfuse3.InodeT(0)
            missing.entry_timeout = FOREVER_S
            return missing
        return self._entry(row)

    def _entry(self, row: int) -> pyfuse3.EntryAttributes:
        # First: a newer inode must never have older attributes.
        version = self._version[row] if row < len(self._version) else 0
        entry = _entry(self._tree.attributes(row), inode_of(row, version))
        if self._is_tripwire(row):
            entry.entry_timeout = 0
        if self._shown > _TRIPWIRES_SHOW and row >= self._first_file:
            entry.attr_timeout = 0
        return entry

    def looked_up(self, parent: int, name: bytes, pid: int) -> bytes | None:
        """A struct fuse_entry_out for what is there, as `lookup` answers it; None for all else."""
        try:
            row = self._tree.lookup(row_of(parent), name)
            version = self._version[row]  # first: a newer inode must never have older attributes
            attributes = self._tree.attributes(row)
        except (vfs.TreeError, OSError):
            return None
        tripwire = self._is_tripwire(row)
        named_for, known_for = _NOT_AT_ALL if tripwire else _FOREVER, _FOREVER
        shown = self._shown
        if shown and stat.S_ISREG(attributes.mode):
            known_for = self._show(row, attributes.size, pid, shown, tripwire=tripwire)
        return pack_entry(attributes, inode_of(row, version), named_for, known_for)

    def looked_at(self, inode: int, pid: int, *, is_open: bool) -> bytes | None:
        """A struct fuse_attr_out of a file, while OPEN is refused; None: `getattr` knows better. `is_open`: of a
        descriptor. Raises FUSEError."""
        row = row_of(inode)
        try:
            attributes = self._tree.attributes(row)
        except (vfs.TreeError, OSError):
            return None
        if self._version[row] != version_of(inode):  # after these were read: they belong to this version then
            raise pyfuse3.FUSEError(errno.ESTALE)
        known_for, shown = _FOREVER, self._shown
        if shown > _TRIPWIRES_SHOW and stat.S_ISREG(attributes.mode):
            # an fstat does not say that the file is open: one that comes late looks like an open
            of_open = is_open or self._shown_last.get(pid) == row
            known_for = _FOR_A_MOMENT if of_open else self._show(row, attributes.size, pid, shown, tripwire=False)
        return pack_attributes(attributes, inode, known_for)

    def refused(self, inode: int, pid: int) -> None:
        """An OPEN is not answered: the first, after which the kernel asks no more. Its LOOKUP may have come while OPEN
        was answered, and not have been told."""
        row = row_of(inode)
        if self._is_tripwire(row):
            self._show(row, self._source.size(row), pid, self._shown, tripwire=True)

    def _show(self, row: int, size: int, pid: int, shown: int, *, tripwire: bool) -> tuple[int, int]:
        """What may be an open while OPEN is refused, told if it is to show; how long the kernel may know the
        attributes: (seconds, nanoseconds)."""
        if pid == self._stager_gauge[_PUSHER_THREAD] != 0:
            return _NOT_AT_ALL if shown > _TRIPWIRES_SHOW else _FOREVER  # or a reader right after it would not show
        if shown == _ALL_SHOW or tripwire:
            files, size_of = (_OPENS, _OPENED_BYTES) if shown == _ALL_SHOW else (_TRIPWIRES, _TRIPWIRE_BYTES)
            self._gauge[files] += 1
            self._gauge[size_of] += size
            self._ring.put(_OPEN, row, pid)
            if shown == _ALL_SHOW:
                if len(self._shown_last) >= _THREADS_MOST:
                    self._shown_last.clear()
                self._shown_last[pid] = row
        return _FOR_A_MOMENT if shown > _TRIPWIRES_SHOW else _FOREVER

    def _is_tripwire(self, row: int) -> bool:
        tripwires = self._tripwires
        if tripwires is None:
            return False
        apart = self._supervisor_gauge[_TRIPWIRES_APART] if self._supervisor_gauge is not None else 0
        if apart and apart != tripwires.apart:
            self._tripwires = tripwires = Tripwires(tripwires.first, tripwires.n, apart=apart)
        return row in tripwires

    @property
    def _shown(self) -> int:
        """Which opens are seen, as `Shown`."""
        return self._supervisor_gauge[_SHOWN] if self._supervisor_gauge is not None else 0

    @property
    def refusing(self) -> bool:
        """Whether OPEN is refused, so that the kernel opens files by itself."""
        return self._shown != 0

    def handle(self, inode: int) -> int:
        """The handle that a file was, or would be, opened with. Raises FUSEError: there can be no such version."""
        version = version_of(inode)
        if version > _VERSION:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return row_of(inode) << _ROW | version

    @guarded
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        row = row_of(inode)
        if row < len(self._version) and self._version[row] != version_of(inode):
            raise pyfuse3.FUSEError(errno.ESTALE)
        return self._entry(row)

    @guarded
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._tree.readlink(row_of(inode))

    @guarded
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    @guarded
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for position, name, row in self._tree.entries(fh - 1, start_id):
            if not pyfuse3.readdir_reply(token, name, self._entry(row), position + 1):
                return

    async def releasedir(self, fh: int) -> None:
        pass

    async def forget(self, inode_list: Any) -> None:
        """Inode numbers are rows and never change: there is nothing to forget."""

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found = self._tree.statfs()
        result = pyfuse3.StatvfsData()
        result.f_bsize = result.f_frsize = found.block_size
        result.f_blocks, result.f_bfree, result.f_bavail = found.blocks, found.free_blocks, found.free_blocks
        result.f_files, result.f_ffree, result.f_favail = found.files, found.free_files, found.free_files
        result.f_namemax = found.name_max
        return result

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if name == ACL_NAME:  # permission checks must not wait for the source
            acl = self.acl(inode)
            if not acl:
                raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
            return acl
        row = row_of(inode)
        if name.startswith(OWN_PREFIX):
            return self._tree.getxattr(row, name)
        value: bytes = await self._in_thread(self._tree.getxattr, row, name)
        return value

    def acl(self, inode: int) -> bytes:
        """The POSIX access ACL, b"" for none. Raises vfs.TreeError where that cannot be said."""
        return self._tree.acl(row_of(inode))

    @guarded
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Any:
        return await self._in_thread(self._tree.listxattr, row_of(inode))

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        with trio.move_on_after(self._io_timeout):
            return await self._asking.run(work, *args)
        raise pyfuse3.FUSEError(errno.EIO)

    # ---- bytes --------------------------------------------------------------------------------------------

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if not self.is_file(inode):
            raise pyfuse3.FUSEError(errno.ESTALE)
        fh, number = self.opened(inode, ctx.pid, flags)
        if number:  # never: where files are passed through, the fast path answers
            self.over(fh)
            raise pyfuse3.FUSEError(errno.EIO)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(fh), keep_cache=True)

    def opened(self, inode: int, pid: int, flags: int) -> tuple[int, int]:
        """(the handle, the registered file to pass it through to or 0) for an open by `pid`. Raises FUSEError."""
        row = row_of(inode)
        if self._stale[row] or self._version[row] != version_of(inode):
            raise pyfuse3.FUSEError(errno.ESTALE)  # the kernel then looks the path up anew and tries again
        internal = pid == self._stager_gauge[_PUSHER_THREAD] != 0
        mode, number = self._enter(row, inode, flags) if self._modes is not None else (0, 0)
        if not internal:
            gauge = self._gauge
            gauge[_OPENS] += 1
            gauge[_OPENED_BYTES] += self._source.size(row)
            self._ring.put(_OPEN, row, pid)
            if number:  # no READ will tell
                gauge[Metric.DISK_FILES] += 1
                gauge[Metric.DISK_BYTES] += self._source.size(row)
        return row << _ROW | mode | internal << HANDLE_FLAGS | version_of(inode), number

    def _enter(self, row: int, inode: int, flags: int) -> tuple[int, int]:
        """Count an open of a file that may be passed through: (what its handle says, the file it is passed through to).
        Whether it may be never changes for an inode. A new version may not: what is counted, and registered, is the
        version that was indexed."""
        if version_of(inode) or self._indexed_size[row] < self._pass_from or self._modes is None:
            return 0, 0
        number = self._modes.enter(row, may_pass=self._known and not flags & os.O_DIRECT)
        return _COUNTED | (_PASSED if number else 0), number

    def is_file(self, inode: int) -> bool:
        """Whether the inode number is one that this tree has given to something that can be opened and read."""
        return self._first_file <= row_of(inode) < len(self._version)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> Bytes:  # type: ignore[override]
        if fh >> _ROW >= len(self._version):
            raise pyfuse3.FUSEError(errno.ESTALE)  # no handle of ours
        hit = self.hit(fh, off, size)
        return hit if hit is not None else await self.missed(fh, off, size)

    def hit(self, fh: int, off: int, size: int) -> memoryview | None:
        """The bytes, when they are staged: to be handed to the kernel before anything else runs. Raises FUSEError."""
        row = fh >> _ROW
        end = min(off + size, self._source.size(row))
        tier, slot = self._tier[row], self._slot[row]
        self._check_version(row, fh & _VERSION)  # after these were read: they belong to this version then
        if tier != _RAM:
            return None
        self._count(row, off, end, _FROM_RAM)
        return self._arena[slot + off : slot + end]

    async def missed(self, fh: int, off: int, size: int) -> Bytes:
        """The bytes, from the stager or the source. Raises FUSEError. Nothing else runs between answer and return."""
        row = fh >> _ROW
        return await self._miss(row, fh & _VERSION, off, min(off + size, self._source.size(row)))

    def _check_version(self, row: int, version: int) -> None:
        """Raises FUSEError unless this is the row's version still. What the columns said before belongs to it then: the
        stager marks a changed row as stale before it touches anything else of it."""
        if self._stale[row] or self._version[row] != version:
            raise pyfuse3.FUSEError(errno.ESTALE)

    @guarded
    async def release(self, fh: int) -> None:
        self.over(fh)
        if self.closed(fh):
            await self.let_go(fh)

    def over(self, fh: int) -> None:
        """The kernel has let go of a handle, or has never had it."""
        if fh & _COUNTED and self._modes is not None and fh >> _ROW < len(self._version):
            self._modes.leave(fh >> _ROW, passed=bool(fh & _PASSED))

    def closed(self, fh: int) -> bool:
        """A handle was closed; whether its file may have to be let go at the source."""
        row = fh >> _ROW
        if row >= len(self._version):
            return False  # no handle of ours; who follows the ring takes every row for one of the index
        if not fh & _INTERNAL:
            self._gauge[_RELEASES] += 1
            self._ring.put(_RELEASE, row)
        return self._direct.holds(row)

    async def let_go(self, fh: int) -> None:
        """Close what direct reads keep open of the handle's file."""
        with trio.move_on_after(self._io_timeout):
            await self._direct.release(fh >> _ROW)

    def _count(self, row: int, off: int, end: int, origin: Origin) -> None:
        gauge = self._gauge
        gauge[_BYTES[origin]] += max(0, end - off)
        if off == 0:
            gauge[_FILES[origin]] += 1
        self._ring.put(_READ, row, max(0, end))

    async def _miss(self, row: int, version: int, off: int, end: int) -> Bytes:
        """Bytes [off, end) of a row that is not in the arena. Raises FUSEError."""
        if off >= end:
            return b""
        log.debug("miss: row %d [%d, %d) of %d", row, off, end, self._source.size(row))
        began = time.monotonic_ns()
        self._gauge[Metric.WAITS] += 1
        try:
            with trio.move_on_after(self._io_timeout):
                return await self._gather(row, version, off, end)
        except BaseException:
            self._gauge[Metric.READ_ERRORS] += 1
            raise
        finally:
            self._gauge[Metric.WAIT_NS] += time.monotonic_ns() - began
        log.error("no answer from the source for %r in %g s", self._source.path(row), self._io_timeout)
        self._gauge[Metric.READ_ERRORS] += 1
        raise pyfuse3.FUSEError(errno.EIO)

    async def _gather(self, row: int, version: int, off: int, end: int) -> Bytes:
        """One piece as it is; several (a file read by ranges) joined, each copied in the step that brought it."""
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
                self._count(row, off, end, Origin(answer.origin))
                return view
            parts.append(bytes(view))
            at += answer.length
        self._count(row, off, end, Origin(answer.origin))
        return b"".join(parts)

    async def _read_directly(self, row: int, version: int, off: int, end: int) -> Bytes:
        self._gauge[Metric.DIRECT_READS] += 1
        try:
            data = await self._direct.read(row, off, end - off)
        except OSError as e:
            if e.errno == errno.ESTALE and self.stager is not None:
                await self.stager.report_changed(row)
            raise pyfuse3.FUSEError(_reader_errno(e.errno)) from None
        self._check_version(row, version)
        self._count(row, off, end, Origin.SOURCE)
        return data


def pack_entry(a: Attributes, inode: int, name: tuple[int, int], attributes: tuple[int, int]) -> bytes:
    """struct fuse_entry_out: what `lookup` answers, with how long name and attributes are known for: (seconds,
    nanoseconds)."""
    return _NAME_OUT.pack(inode, 0, name[0], attributes[0], name[1], attributes[1]) + _pack(a, inode)


def pack_attributes(a: Attributes, inode: int, known_for: tuple[int, int]) -> bytes:
    """struct fuse_attr_out: what `getattr` answers, with how long that is known for."""
    return _ATTRIBUTES_HEAD.pack(*known_for, 0) + _pack(a, inode)


def _pack(a: Attributes, inode: int) -> bytes:
    return _ATTRIBUTES.pack(
        inode, a.size, a.blocks, *(t // _NS for t in (a.atime_ns, a.mtime_ns, a.ctime_ns)),
        *(t % _NS for t in (a.atime_ns, a.mtime_ns, a.ctime_ns)), a.mode, a.nlink, a.uid, a.gid, a.rdev, _BLOCK, 0,
    )  # fmt: skip


def _reader_errno(code: int | None) -> int:
    """read(2) has no ENOENT: a file that vanished at the source is a stale handle."""
    return errno.ESTALE if code in (errno.ENOENT, errno.ENOTDIR) else _sayable(code)


def _entry(a: Attributes, inode: int) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(inode)
    entry.generation = 0
    entry.entry_timeout = FOREVER_S
    entry.attr_timeout = FOREVER_S
    entry.st_mode = pyfuse3.ModeT(a.mode)
    entry.st_nlink = a.nlink
    entry.st_uid = a.uid
    entry.st_gid = a.gid
    entry.st_rdev = a.rdev
    entry.st_size = a.size
    entry.st_blksize = _BLOCK
    entry.st_blocks = a.blocks
    entry.st_atime_ns = a.atime_ns
    entry.st_mtime_ns = a.mtime_ns
    entry.st_ctime_ns = a.ctime_ns
    return entry
