"""The slow source as a file system: a read-only pass-through over a backing directory, by pyfuse3.

Owns the FUSE session and the control socket; `slow_source_load` decides how long each request waits. It
stands in for a parallel file system, so it keeps no data in the kernel over opens: every epoch that reads it
directly pays again. The backing directory is one local file system: its inode numbers are the mount's, and
reading it inline costs little.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import FileInfo, FUSEError
from slow_source_clock import Timer
from slow_source_load import Change, Counters, Fault, Faults, Limits, Load

log = logging.getLogger("slow_source")

# Directories hardly change under a test, and looking up each one again for each file would only burn CPU.
DIRECTORY_ENTRY_TIMEOUT_S = 1.0
# Requests beyond the concurrent ones that may wait (stalled or queued) while metadata is still answered.
SPARE_TASKS = 1024
PRIORITY = -10  # of a source with a curve, as of the servers of a mount
CURVE_TASKS = 1024  # served at once by a source with a curve
MAX_READ_BYTES = 1 << 20  # the kernel asks for at most 256 pages at once
CONNECTIONS = Path("/sys/fs/fuse/connections")

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


def answers_errno(handler: Handler) -> Handler:
    """Turn OSError into its errno, and what nobody expected into EIO: pyfuse3 would end the mount."""

    @functools.wraps(handler)
    async def wrapper(*args: Any) -> Any:
        try:
            return await handler(*args)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        except FUSEError:
            raise
        except Exception:
            log.exception("%s failed", handler.__name__)
            raise FUSEError(errno.EIO) from None

    return cast(Handler, wrapper)


@dataclass
class Listing:
    """An open directory: its names when it was opened."""

    inode: int
    names: list[bytes]


@dataclass
class SlowFs(pyfuse3.Operations):
    """The request handlers."""

    backing: bytes
    load: Load
    faults: Faults
    counters: Counters
    timeout: float  # seconds that the kernel may keep entries and attributes of files
    root_squash: bool
    supports_dot_lookup = False
    enable_writeback_cache = False
    _paths: dict[int, bytes] = field(default_factory=dict)  # inode -> relative path, where it was seen last
    _handles: dict[int, tuple[int, str]] = field(default_factory=dict)  # fd -> inode, name in the counters
    _listings: dict[int, Listing] = field(default_factory=dict)
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(MAX_READ_BYTES)))

    def __post_init__(self) -> None:
        self._paths[pyfuse3.ROOT_INODE] = b""
        self._root_ino = os.lstat(self.backing).st_ino
        self._next_listing = 1

    @answers_errno
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        path = os.path.join(self._path(parent_inode), name)
        self.counters.looks[os.fsdecode(path)] += 1
        if self.faults:
            await self.faults.strike("lookup", os.fsdecode(path))
        if self.root_squash:
            self._squash(ctx, parent_inode, stat.S_IXOTH)
        return self._entry(path, os.lstat(os.path.join(self.backing, path)))

    @answers_errno
    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        self.counters.looks[os.fsdecode(self._path(inode))] += 1
        if self.faults:
            await self.faults.strike("getattr", os.fsdecode(self._path(inode)))
        return self._attributes(self._stat(inode))

    @answers_errno
    async def readlink(self, inode: int, ctx: Any) -> bytes:
        return os.readlink(self._backing(inode))

    @answers_errno
    async def open(self, inode: int, flags: int, ctx: Any) -> FileInfo:
        name = os.fsdecode(self._path(inode))
        self.counters.opens[name] += 1
        if self.faults:
            await self.faults.strike("open", name)
        if self.root_squash:
            self._squash(ctx, inode, stat.S_IROTH)
        await self.load.open()
        fd = os.open(self._backing(inode), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._handles[fd] = (inode, name)
        return FileInfo(fh=fd, keep_cache=False)

    @answers_errno
    async def read(self, fh: int, off: int, size: int) -> bytes:
        name = self._handles[fh][1]
        self.counters.reads[name] += 1
        if self.faults:
            await self.faults.strike("read", name)
        await self.load.read(size)
        # One buffer serves all: pyfuse3 copies it into the reply before it runs another task.
        count = os.preadv(fh, [self._buffer[:size]], off)
        self.counters.bytes[name] += count
        return cast(bytes, self._buffer[:count])  # any contiguous buffer will do

    async def release(self, fh: int) -> None:
        if self._handles.pop(fh, None) is not None:
            os.close(fh)

    @answers_errno
    async def opendir(self, inode: int, ctx: Any) -> int:
        if self.root_squash:
            self._squash(ctx, inode, stat.S_IROTH)
        self.counters.listings[os.fsdecode(self._path(inode))] += 1
        names = sorted(os.listdir(self._backing(inode)))
        handle, self._next_listing = self._next_listing, self._next_listing + 1
        self._listings[handle] = Listing(inode, names)
        return handle

    @answers_errno
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        directory = self._path(listing.inode)
        if self.faults:
            await self.faults.strike("readdir", os.fsdecode(directory))
        for position in range(start_id, len(listing.names)):
            path = os.path.join(directory, listing.names[position])
            try:
                entry = self._entry(path, os.lstat(os.path.join(self.backing, path)))
            except FileNotFoundError:
                continue  # removed since the directory was opened
            if not pyfuse3.readdir_reply(token, listing.names[position], entry, position + 1):
                return

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    @answers_errno
    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        theirs, ours = os.statvfs(self.backing), pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
            setattr(ours, f"f_{name}", getattr(theirs, f"f_{name}"))
        return ours

    @answers_errno
    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        return os.getxattr(self._backing(inode), name, follow_symlinks=False)

    @answers_errno
    async def listxattr(self, inode: int, ctx: Any) -> list[bytes]:
        return [os.fsencode(name) for name in os.listxattr(self._backing(inode), follow_symlinks=False)]

    async def forget(self, inode_list: Any) -> None:
        """Paths are kept: the tree is small, and a map entry is cheaper than counting lookups."""

    def _path(self, inode: int) -> bytes:
        try:
            return self._paths[inode]
        except KeyError:
            raise OSError(errno.ESTALE, "inode never looked up") from None

    def _backing(self, inode: int) -> bytes:
        return os.path.join(self.backing, self._path(inode))

    def _stat(self, inode: int) -> os.stat_result:
        """The inode's attributes; those of the open file where the path was removed or replaced."""
        missing: OSError = OSError(errno.ESTALE, "replaced")
        try:
            found = os.lstat(self._backing(inode))
            if found.st_ino == inode or inode == pyfuse3.ROOT_INODE:
                return found
        except FileNotFoundError as error:
            missing = error
        for fd, (opened, _) in self._handles.items():
            if opened == inode:
                return os.fstat(fd)
        raise missing

    def _squash(self, ctx: Any, inode: int, needed: int) -> None:
        """Treat root as a stranger, as many a PFS does."""
        if ctx.uid == 0 and not self._stat(inode).st_mode & needed:
            raise OSError(errno.EACCES, "root is squashed")

    def _entry(self, path: bytes, st: os.stat_result) -> pyfuse3.EntryAttributes:
        self._paths[st.st_ino] = path
        return self._attributes(st)

    def _attributes(self, st: os.stat_result) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.ROOT_INODE if st.st_ino == self._root_ino else st.st_ino
        entry.st_mode = st.st_mode
        entry.st_nlink = st.st_nlink
        entry.st_uid = st.st_uid
        entry.st_gid = st.st_gid
        entry.st_rdev = st.st_rdev
        entry.st_size = st.st_size
        entry.st_blksize = st.st_blksize
        entry.st_blocks = st.st_blocks
        entry.st_atime_ns = st.st_atime_ns
        entry.st_mtime_ns = st.st_mtime_ns
        entry.st_ctime_ns = st.st_ctime_ns
        entry.attr_timeout = self.timeout
        directory = stat.S_ISDIR(st.st_mode)
        entry.entry_timeout = max(self.timeout, DIRECTORY_ENTRY_TIMEOUT_S) if directory else self.timeout
        return entry


class Control:
    """Answers the control socket: one JSON object per line, one per line back."""

    def __init__(self, fs: SlowFs, stop: Callable[[], None]) -> None:
        self._fs = fs
        self._stop = stop

    async def serve(self, path: Path) -> None:
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listener:
            await listener.bind(os.fspath(path))
            listener.listen(16)
            await trio.serve_listeners(self._talk, [trio.SocketListener(listener)])

    async def _talk(self, stream: trio.SocketStream) -> None:
        pending = b""
        try:
            async for chunk in stream:
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    await stream.send_all(json.dumps(self._answer(line)).encode() + b"\n")
        except trio.BrokenResourceError:
            pass  # the client went away

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            handler = getattr(self, f"_do_{request.pop('do')}", None)
            if handler is None:
                raise ValueError("unknown request")
            return {"ok": True, **(handler(**request) or {})}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"ok": False, "error": str(error)}

    def _do_ping(self) -> None:
        """Only the answer counts."""

    def _do_counters(self, files: bool = False, series: bool = False) -> dict[str, Any]:
        fs = self._fs
        return {"stalled": fs.faults.stalled, **fs.load.record(series), **fs.counters.record(files)}

    def _do_reset(self) -> None:
        self._fs.load.record(series=False)  # what has ended by now is not counted afterwards
        self._fs.counters.reset()
        self._fs.load.under_way.reset()

    def _do_fault(self, operation: str, pattern: str, errno: int | None, count: int | None) -> None:
        self._fs.faults.add(Fault(operation, pattern, errno, count))

    def _do_release(self) -> None:
        self._fs.faults.release()

    def _do_limits(self, **limits: Any) -> None:
        self._fs.load.set_limits(Limits.from_fields(limits))

    def _do_schedule(self, changes: Sequence[Mapping[str, Any]]) -> None:
        self._fs.load.schedule([Change(**change) for change in changes])

    def _do_stop(self) -> None:
        self._stop()


@dataclass(frozen=True)
class Setup:
    """What the command line says."""

    backing: Path
    mountpoint: Path
    control: Path | None
    limits: Limits
    timeout: float
    root_squash: bool
    exit_with_stdin: bool
    changes: Sequence[Change] = ()


def serve(setup: Setup) -> None:
    """Mount, answer until told to stop (SIGINT, SIGTERM, control socket, umount), unmount."""
    if setup.limits.curve is not None:
        raise_priority()
    load = Load(setup.limits, Timer())
    backing = os.fsencode(setup.backing.resolve())
    fs = SlowFs(backing, load, Faults(), Counters(), setup.timeout, setup.root_squash)
    options = {"fsname=slow_source", "subtype=slow", "ro", "default_permissions"}
    if os.geteuid() == 0:
        options.add("allow_other")  # jobs run as users
    pyfuse3.init(fs, os.fspath(setup.mountpoint), options)
    try:
        raise_background_limit(setup.mountpoint, most_at_once(setup.limits))
        trio.run(run_until_stopped, setup, fs)
    finally:
        pyfuse3.close(unmount=True)
        if setup.control is not None:
            setup.control.unlink(missing_ok=True)


def raise_priority() -> None:
    """Come before what is measured, where that is allowed: a real source is another machine, so that its reads take no
    longer when the processors of this one are busy."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


def most_at_once(limits: Limits) -> int:
    """Requests that are served at once."""
    return limits.concurrent if limits.curve is None else max(limits.concurrent, CURVE_TASKS)


def raise_background_limit(mountpoint: Path, concurrent: int) -> None:
    """Let as many reads reach the daemon as it serves at once, and as many again queue in it.

    Reads that readahead starts count as background requests, of which the kernel sends 12 by default; above
    the congestion threshold (9) it gives up readahead, and reads page by page what it had meant to read
    ahead.
    """
    minor = next(f[2] for f in mounts() if f[4] == os.fspath(mountpoint)).partition(":")[2]
    try:
        with connections() as directory:
            for limit in ("max_background", "congestion_threshold"):
                (directory / minor / limit).write_text(str(max(12, 2 * concurrent)))
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("the limits of background requests stay at their defaults: %s", error)


@contextlib.contextmanager
def connections() -> Iterator[Path]:
    """The kernel's files about FUSE connections; where they are not mounted, for a moment in a place of our
    own."""
    if any(CONNECTIONS.iterdir()):
        yield CONNECTIONS
        return
    with tempfile.TemporaryDirectory(prefix="fusectl-") as directory:
        subprocess.run(["mount", "-t", "fusectl", "fusectl", directory], check=True, capture_output=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True, capture_output=True)


def mounts() -> list[list[str]]:
    """The fields of the lines of mountinfo, the latest mount first; names are unescaped."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return [[f.replace("\\040", " ") for f in line.split()] for line in reversed(lines)]


async def run_until_stopped(setup: Setup, fs: SlowFs) -> None:
    async with trio.open_nursery() as nursery:
        stop = nursery.cancel_scope.cancel
        nursery.start_soon(fs.load.run)
        if setup.changes:
            fs.load.schedule(setup.changes)
        nursery.start_soon(stop_on_signal, stop)
        if setup.control is not None:
            nursery.start_soon(Control(fs, stop).serve, setup.control)
        if setup.exit_with_stdin:
            nursery.start_soon(stop_on_eof, stop)
        await pyfuse3.main(max_tasks=most_at_once(setup.limits) + SPARE_TASKS)
        stop()


async def stop_on_signal(stop: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            stop()


async def stop_on_eof(stop: Callable[[], None]) -> None:
    """End with the process that holds the other end of stdin, even if that is killed."""
    while True:
        await trio.lowlevel.wait_readable(0)
        if not os.read(0, 4096):
            stop()
            return
