"""The fast path: it stands before pyfuse3, reads the FUSE descriptor, and answers what every hit needs.

OPEN, RELEASE, IOCTL and READ are answered here, without a scheduler in between; a READ that misses becomes a task, so
that a hit never waits behind it, and ends at once with EINTR when its reader is killed. Everything else goes to
pyfuse3, as it came, through a socket pair, and its reply comes back that way. FORGET means nothing here (inode numbers
are rows).
Message layouts: linux/fuse.h, protocol 7.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Protocol

import pyfuse3
import trio

log = logging.getLogger(__name__)
_FORGET, _OPEN, _READ, _RELEASE, _INTERRUPT, _IOCTL, _BATCH_FORGET = 2, 14, 15, 18, 36, 39, 42
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_READ_IN = struct.Struct("<QQI")
_HANDLE = _UNIQUE = struct.Struct("<Q")
_OUT_HEADER = struct.Struct("<IiQ")
_OPEN_OUT = struct.Struct("<IiQQIi")
_OPEN_OUT_BYTES = 32
_READ_IN_BYTES = 40
_RELEASE_IN_BYTES = 24
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; elsewhere it fails, and the fast path is left out
_KEEP_CACHE = 1 << 1  # FOPEN_KEEP_CACHE
_NOTTY = -errno.ENOTTY
REQUEST_BYTES = (1 << 20) + (1 << 16)  # the kernel refuses a reader whose buffer is smaller than max_write and headers
SLEEP_MS = 1000  # a limit, as every wait has one
AT_ONCE = 64  # requests answered before other tasks get their turn
Bytes = bytes | bytearray | memoryview


class Handlers(Protocol):
    """What the fast path answers with; `fuse/adapter.py` has it."""

    def is_file(self, inode: int) -> bool: ...
    def opened(self, inode: int, pid: int) -> int: ...
    def hit(self, fh: int, off: int, size: int) -> memoryview | None: ...
    async def missed(self, fh: int, off: int, size: int) -> Bytes: ...
    def closed(self, fh: int) -> bool: ...
    async def let_go(self, fh: int) -> None: ...


def make_pair() -> tuple[socket.socket, socket.socket] | None:
    """(ours, pyfuse3's) ends; None where the system allows no messages as long as the longest reply."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for end in pair:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * REQUEST_BYTES)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * REQUEST_BYTES:
            pair[0].close()
            pair[1].close()
            return None
    return pair


class FastPath:
    """Owns the reading of the FUSE descriptor and our end of the pair. `run` ends when the connection does."""

    def __init__(self, fuse_fd: int, pair: socket.socket, handlers: Handlers, others: Callable[[], list[int]]) -> None:
        """`others()`: descriptors beside the FUSE one on which something may come that the event loop must see to."""
        self._fd = fuse_fd
        self._others = others
        self._forwarded: set[int] = set()  # requests that pyfuse3 has not answered yet
        self._letting_go = 0
        self._polled: list[int] = []
        self._poll = select.poll()
        os.set_blocking(fuse_fd, False)
        self._pair = trio.socket.from_stdlib_socket(pair)
        self._handlers = handlers
        self._buffer = bytearray(REQUEST_BYTES)
        self._view = memoryview(self._buffer)
        self._waiting: dict[int, trio.CancelScope] = {}  # READs that wait for the source, by request

    async def run(self) -> None:
        """Serve until the connection is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bring_back)
            while await self._drain(nursery):
                if not self._sleep_here():
                    await trio.lowlevel.wait_readable(self._fd)
            nursery.cancel_scope.cancel()

    def _sleep_here(self) -> bool:
        """While nothing but new requests can need this process, wait for them here: that costs a tenth of a turn of
        the event loop. False when the event loop has something to wait for, or to do."""
        if self._waiting or self._forwarded or self._letting_go:
            return False
        others = self._others()
        if others != self._polled or not others:
            self._polled, self._poll = others, select.poll()
            for fd in (self._fd, *others):
                self._poll.register(fd, select.POLLIN)
        ready = self._poll.poll(SLEEP_MS)
        return bool(ready) and all(fd == self._fd for fd, _ in ready)

    async def _drain(self, nursery: trio.Nursery) -> bool:
        """Take requests until there are none; False when the connection has ended."""
        while True:
            for _ in range(AT_ONCE):
                try:
                    length = os.readv(self._fd, [self._buffer])
                except BlockingIOError:
                    return True
                except OSError as e:
                    if e.errno in (errno.ENOENT, errno.EINTR):
                        continue  # the request was withdrawn while it was being taken
                    if e.errno != errno.ENODEV:
                        log.error("reading /dev/fuse: %s", e)
                    return False
                if length < _IN_HEADER.size:
                    log.error("/dev/fuse gave %d bytes", length)  # the kernel never does
                    return False
                if not self._answer(nursery, length):
                    self._forwarded.add(_UNIQUE.unpack_from(self._buffer, 8)[0])
                    # A copy: the buffer is used again before the message is gone.
                    await self._forward(bytes(self._view[:length]))
            await trio.lowlevel.checkpoint()

    def _answer(self, nursery: trio.Nursery, length: int) -> bool:
        """Answer one request here; False when it is pyfuse3's."""
        said, opcode, unique, inode, _, _, pid, extra, _ = _IN_HEADER.unpack_from(self._buffer)
        if opcode in (_FORGET, _BATCH_FORGET):
            return True
        if opcode == _INTERRUPT and length >= _IN_HEADER.size + _HANDLE.size:
            self._interrupt(_HANDLE.unpack_from(self._buffer, _IN_HEADER.size)[0])
            return True
        if said != length or extra or not self._handlers.is_file(inode):
            return False
        body = length - _IN_HEADER.size
        try:
            if opcode == _OPEN:
                fh = self._handlers.opened(inode, pid)
                self._write(_OPEN_OUT.pack(_OPEN_OUT_BYTES, 0, unique, fh, _KEEP_CACHE, 0))
            elif opcode == _IOCTL:
                self._fail(unique, errno.ENOTTY)
            elif opcode == _READ and body >= _READ_IN_BYTES:
                self._read(nursery, unique, inode)
            elif opcode == _RELEASE and body >= _RELEASE_IN_BYTES:
                self._release(nursery, unique)
            else:
                return False
        except pyfuse3.FUSEError as e:
            self._fail(unique, e.errno)
        except Exception:
            log.exception("request %d failed", opcode)
            self._fail(unique, errno.EIO)
        return True

    def _read(self, nursery: trio.Nursery, unique: int, inode: int) -> None:
        fh, offset, size = _READ_IN.unpack_from(self._buffer, _IN_HEADER.size)
        hit = self._handlers.hit(fh, offset, size)
        if hit is not None:
            self._reply(unique, hit)
        else:
            scope = self._waiting[unique] = trio.CancelScope()
            nursery.start_soon(self._read_later, scope, unique, fh, offset, size)

    def _release(self, nursery: trio.Nursery, unique: int) -> None:
        (fh,) = _HANDLE.unpack_from(self._buffer, _IN_HEADER.size)
        if self._handlers.closed(fh):
            nursery.start_soon(self._let_go, fh)
        self._fail(unique, 0)

    async def _let_go(self, fh: int) -> None:
        self._letting_go += 1
        try:
            await self._handlers.let_go(fh)
        finally:
            self._letting_go -= 1

    async def _read_later(self, scope: trio.CancelScope, unique: int, fh: int, offset: int, size: int) -> None:
        """Answer a READ that has to wait. An interrupt cancels the scope: its reader is being killed."""
        error = 0
        with scope:
            try:
                self._reply(unique, await self._handlers.missed(fh, offset, size))
            except pyfuse3.FUSEError as e:
                error = e.errno
            except Exception:
                log.exception("a read failed")
                error = errno.EIO
        del self._waiting[unique]
        if scope.cancelled_caught or error:
            self._fail(unique, error or errno.EINTR)

    def _interrupt(self, unique: int) -> None:
        scope = self._waiting.get(unique)
        if scope is not None:
            scope.cancel()

    # ---- replies ------------------------------------------------------------------------------------------

    def _reply(self, unique: int, data: Bytes) -> None:
        self._write(_OUT_HEADER.pack(_OUT_HEADER.size + len(data), 0, unique), data)

    def _fail(self, unique: int, code: int) -> None:
        self._write(_OUT_HEADER.pack(_OUT_HEADER.size, -code, unique))

    def _write(self, *parts: Bytes) -> None:
        try:
            os.writev(self._fd, parts)
        except OSError as e:
            # ENOENT: the reader was killed meanwhile; ENODEV: the mount is gone.
            if e.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM):
                log.error("answering: %s", e)

    # ---- pyfuse3 ------------------------------------------------------------------------------------------

    async def _forward(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # pyfuse3 has ended: so does the mount
            await self._pair.send(message)

    async def _bring_back(self) -> None:
        """Replies of pyfuse3, one message each, to the kernel."""
        while message := await self._pair.recv(REQUEST_BYTES + _OUT_HEADER.size):
            self._forwarded.discard(_UNIQUE.unpack_from(message, 8)[0])
            self._write(message)
