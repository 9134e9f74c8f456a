"""The pyfuse3 handlers of a server, and what the fast path answers of names and attributes.

Where there is a fast path, OPEN, READ and RELEASE of files come here only as far as `fast_path` leaves them.

Each pyfuse3 handler goes through one wrapper, `guarded`, where errors become errno; `file_access` does so for READ.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyfuse3
import trio

from nopfsfs.fuse.kernel import ACL_NAME, ATTR_OUT, ENTRY_OUT, valid_errno
from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.inode_numbers import inode_of, row_of, version_of
from nopfsfs.server.file_access import Bytes, FileAccess
from nopfsfs.server.shown_opens import FOREVER_S, ShownOpens, Timeout
from nopfsfs.system.elastic_limiter import ElasticLimiter
from nopfsfs.vfs import tree_errors as vfs
from nopfsfs.vfs.tree import OWN_PREFIX, Attributes, Tree

log = logging.getLogger(__name__)
_BLOCK = 4096  # st_blksize, as local file systems have it: Python makes a buffer of that size at each open
_NS = 1_000_000_000
ASKING_THREADS, ASKING_THREADS_MOST = 40, 320  # for extended attributes; the second while the source does not answer

_ERRNO = {
    vfs.NotFound: errno.ENOENT, vfs.NameTooLong: errno.ENAMETOOLONG, vfs.NotADirectory: errno.ENOTDIR,
    vfs.NotALink: errno.EINVAL, vfs.NoSuchAttribute: pyfuse3.ENOATTR, vfs.StaleFile: errno.ESTALE,
}  # fmt: skip


def _errno_of(error: vfs.TreeError) -> int:
    if isinstance(error, vfs.SourceFailed):
        return valid_errno(error.errno)
    return _ERRNO.get(type(error), errno.EIO)


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
            raise pyfuse3.FUSEError(valid_errno(e.errno)) from None
        except Exception:
            log.exception("%s%r failed", handler.__name__, args[1:])
            raise pyfuse3.FUSEError(errno.EIO) from None

    return call  # type: ignore[return-value]


class FuseOperations(pyfuse3.Operations):
    """Request handlers of one server. Single-threaded: all run in the event loop of `server/process.py`.

    The fast path calls `files`, `shown_opens`, and the handlers here that are no coroutines."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, tree: Tree, columns: Columns, files: FileAccess, shown_opens: ShownOpens, io_timeout: float
    ) -> None:
        """`io_timeout`: seconds."""
        super().__init__()
        self.enable_acl = tree.index.any_acl  # an ACL costs a request at each open by others than the owner
        self.files, self.shown_opens = files, shown_opens
        self._tree, self._version = tree, columns.version.data
        self._asking = ElasticLimiter(ASKING_THREADS, ASKING_THREADS_MOST)
        self._io_timeout = io_timeout

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
        return self._entry(row, *self._present(row))

    def _present(self, row: int) -> tuple[int, Attributes]:
        """(inode, attributes) of the present version of a row that there is. Both are of one version: the kernel would
        give an older inode the size of a newer one. A version stays for a second at least. Raises vfs.TreeError."""
        while True:
            version = self._version[row]
            attributes = self._tree.attributes(row)
            if self._version[row] == version:
                return inode_of(row, version), attributes

    def _attributes(self, inode: int) -> Attributes:
        """The attributes of this very version. Raises vfs.TreeError, FUSEError."""
        row = row_of(inode)
        attributes = self._tree.attributes(row)
        if self._version[row] != version_of(inode):  # after these were read: they belong to this version then
            raise pyfuse3.FUSEError(errno.ESTALE)
        return attributes

    def _entry(self, row: int, inode: int, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = _entry(attributes, inode)
        entry.entry_timeout, entry.attr_timeout = self.shown_opens.known_for_s(row, is_file=self.files.is_file(inode))
        return entry

    def looked_up(self, parent: int, name: bytes, pid: int) -> bytes | None:
        """A struct fuse_entry_out for a name that exists, as `lookup` answers it; None for others."""
        try:
            row = self._tree.lookup(row_of(parent), name)
            inode, attributes = self._present(row)
        except (vfs.TreeError, OSError):
            return None
        return pack_entry(attributes, inode, *self.shown_opens.looked_up(row, attributes, pid))

    def looked_at(self, inode: int, pid: int, *, is_open: bool) -> bytes | None:
        """A struct fuse_attr_out of a file, while OPEN is refused; None where `getattr` is to answer. `is_open`: the
        GETATTR is about a descriptor. Raises FUSEError."""
        try:
            attributes = self._attributes(inode)
        except (vfs.TreeError, OSError):
            return None
        known_for = self.shown_opens.looked_at(row_of(inode), attributes, pid, is_open=is_open)
        return pack_attributes(attributes, inode, known_for)

    def refused(self, inode: int, pid: int) -> None:
        """Show an OPEN that is refused."""
        row = row_of(inode)
        self.shown_opens.refused(row, self.files.size(row), pid)

    @guarded
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(row_of(inode), inode, self._attributes(inode))

    @guarded
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._tree.readlink(row_of(inode))

    @guarded
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    @guarded
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for position, name, row in self._tree.entries(fh - 1, start_id):
            if not pyfuse3.readdir_reply(token, name, self._entry(row, *self._present(row)), position + 1):
                return

    async def releasedir(self, fh: int) -> None:
        pass

    async def forget(self, inode_list: Any) -> None:
        """Inode numbers are rows and never change: there is nothing to forget."""

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found = self._tree.file_system
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
        """The POSIX access ACL, b"" for none. Raises vfs.TreeError where the ACL is not known."""
        return self._tree.acl(row_of(inode))

    @guarded
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Any:
        return await self._in_thread(self._tree.listxattr, row_of(inode))

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        with trio.move_on_after(self._io_timeout):
            return await self._asking.run(work, *args)
        raise pyfuse3.FUSEError(errno.EIO)

    # ---- files --------------------------------------------------------------------------------------------

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if not self.files.is_file(inode):
            raise pyfuse3.FUSEError(errno.ESTALE)
        fh, number = self.files.open(inode, ctx.pid, flags)
        if number:  # never: where files are passed through, the fast path answers
            self.files.uncount_open(fh)
            raise pyfuse3.FUSEError(errno.EIO)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(fh), keep_cache=True)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> Bytes:  # type: ignore[override]
        return await self.files.read(fh, off, size)

    @guarded
    async def release(self, fh: int) -> None:
        self.files.uncount_open(fh)
        if self.files.close(fh):
            await self.files.close_direct(fh)


def pack_entry(a: Attributes, inode: int, name: Timeout, attributes: Timeout) -> bytes:
    """A struct fuse_entry_out, the answer to LOOKUP. `name`, `attributes`: how long the kernel may know them."""
    return ENTRY_OUT.pack(inode, 0, name[0], attributes[0], name[1], attributes[1], *_fields(a, inode))


def pack_attributes(a: Attributes, inode: int, known_for: Timeout) -> bytes:
    """A struct fuse_attr_out, the answer to GETATTR."""
    return ATTR_OUT.pack(*known_for, 0, *_fields(a, inode))


def _fields(a: Attributes, inode: int) -> tuple[int, ...]:
    """The fields of struct fuse_attr."""
    _, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime = a
    return (
        inode, size, blocks, atime // _NS, mtime // _NS, ctime // _NS, atime % _NS, mtime % _NS, ctime % _NS,
        mode, nlink, uid, gid, rdev, _BLOCK, 0,
    )  # fmt: skip


def _entry(a: Attributes, inode: int) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(inode)
    entry.generation = 0
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
