"""The fast path: it stands before pyfuse3, reads the FUSE descriptor, and answers what every hit needs.

LOOKUP of what is there, OPEN, RELEASE, IOCTL, READ and GETXATTR of an ACL are answered here, without a scheduler in
between, and so is GETATTR of a file while OPEN is refused; a READ that misses becomes a task, so that a hit never waits
behind it, and ends at once with EINTR when its reader is killed. Everything else goes to pyfuse3, as it came, through
a socket pair, and its reply comes back that way. FORGET means nothing here (inode numbers are rows).

Several processes may do this on one descriptor: each request goes to one of them. Nothing is remembered between
requests, so that any of them can die: what it had taken, the kernel delivers again.
Message layouts: linux/fuse.h, protocol 7.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import Protocol

import pyfuse3
import trio
from trio.testing import wait_all_tasks_blocked

from nopfsfs.fuse.connection import REQUEST_BYTES
from nopfsfs.fuse.pyfuse3_pair import LISTING_BYTES

log = logging.getLogger(__name__)
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _INTERRUPT, _IOCTL, _BATCH_FORGET = 1, 2, 3, 14, 15, 18, 36, 39, 42
_GETXATTR = 22
_ACL_NAME = b"system.posix_acl_access\0"
_GETXATTR_IN_BYTES = 8
_GETATTR_IN_BYTES = 16
_GETATTR_FH = 1 << 0  # FUSE_GETATTR_FH: of a file that is open
_READDIR, _READDIRPLUS = 28, 44
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_READ_IN = struct.Struct("<QQI")
_HANDLE = _UNIQUE = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
_OUT_HEADER = struct.Struct("<IiQ")
_OPEN_OUT = struct.Struct("<IiQQIi")
_OPEN_OUT_BYTES = 32
_OPEN_IN_BYTES = 8
_READ_IN_BYTES = 40
_RELEASE_IN_BYTES = 24
_KEEP_CACHE = 1 << 1  # FOPEN_KEEP_CACHE
_PASSTHROUGH = 1 << 7  # FOPEN_PASSTHROUGH
_SIGKILL = 1 << (signal.SIGKILL - 1)
_SIZE_AT = _IN_HEADER.size + 16  # of fuse_read_in.size
DYING_S = 0.05  # between two looks at a reader that got a signal while it waits
SLEEP_MS = 1000  # a limit, as every wait has one
SETTLE_S = 0.01  # for all tasks to come to where they wait: a grace takes several turns of the event loop
AT_ONCE = 64  # requests answered before other tasks get their turn
Bytes = bytes | bytearray | memoryview


class FastHandlers(Protocol):
    """What the fast path answers with; `server/operations.py` has it."""

    @property
    def refusing(self) -> bool: ...

    def is_file(self, inode: int) -> bool: ...
    def handle(self, inode: int) -> int: ...
    def acl(self, inode: int) -> bytes: ...
    def looked_up(self, parent: int, name: bytes, pid: int) -> bytes | None: ...
    def looked_at(self, inode: int, pid: int, *, is_open: bool) -> bytes | None: ...
    def opened(self, inode: int, pid: int, flags: int) -> tuple[int, int]: ...
    def refused(self, inode: int, pid: int) -> None: ...
    def hit(self, fh: int, off: int, size: int) -> memoryview | None: ...
    async def missed(self, fh: int, off: int, size: int) -> Bytes: ...
    def closed(self, fh: int) -> bool: ...
    def over(self, fh: int) -> None: ...
    async def let_go(self, fh: int) -> None: ...


class _WaitingRead:
    """A READ that waits: its scope, and who reads."""

    __slots__ = ("pid", "scope")

    def __init__(self, scope: trio.CancelScope, pid: int) -> None:
        self.scope, self.pid = scope, pid


def is_dying(pid: int) -> bool:
    """Whether a thread is gone or has been told to end: SIGKILL is pending, as it is of any signal that ends it. Not of
    one that cannot be seen: 0 for another pid namespace, or hidden from the user whom we serve as."""
    if pid == 0:
        return False
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file if line.startswith((b"SigPnd", b"ShdPnd")))
    except OSError:
        return _is_gone(pid)
    return any(int(mask, 16) & _SIGKILL for mask in fields.values())


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # no number of a process: nobody who could be seen
        pass
    return False


class FastPath:
    """Owns the reading of the FUSE descriptor and our end of the pair. `run` ends when the connection does."""

    def __init__(
        self, fuse_fd: int, pair: socket.socket, handlers: FastHandlers, others: Callable[[], list[int]],
        init: bytes = b"", tell: Callable[[int], None] = lambda unique: None,
    ) -> None:  # fmt: skip
        """`others()`: descriptors beside the FUSE one on which something may come that the event loop must see to.
        `init`: the INIT request for pyfuse3, which the kernel has had answered. `tell`: a request was interrupted that
        is not known here; another server may have it."""
        self._fd = fuse_fd
        self._others = others
        self._init, self._tell = init, tell
        self._forwarded: set[int] = set()  # requests that pyfuse3 has not answered yet
        self._letting_go = 0
        self._settled = False  # no task has anything to do but what descriptors tell, and we are not in the event loop
        self._stopping = False
        self._pause = trio.CancelScope()
        self._answered = trio.Event()
        self._polled: list[int] = []
        self._new = select.epoll()
        # One of the servers that wait is woken by a request, not all.
        self._new.register(fuse_fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll = select.poll()
        os.set_blocking(fuse_fd, False)
        self._pair = trio.socket.from_stdlib_socket(pair)
        self._handlers = handlers
        self._buffer = bytearray(REQUEST_BYTES)
        self._view = memoryview(self._buffer)
        self._waiting: dict[int, _WaitingRead] = {}  # READs that wait for the source, by request

    async def run(self) -> None:
        """Serve until the connection is gone, or `stop`."""
        with self._new:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._init:
                    await self._pair.send(self._init)
                    await self._pair.recv(REQUEST_BYTES)
                nursery.start_soon(self._bring_back)
                while not self._stopping and await self._drain(nursery):
                    if not self._sleep_here():
                        # A limit: another server may have been woken for a request, and be stopped.
                        with trio.move_on_after(SLEEP_MS / 1000) as self._pause:
                            await trio.lowlevel.wait_readable(self._new)
                        await self._settle()
                if self._stopping:
                    await self._end_all()
                nursery.cancel_scope.cancel()

    async def _end_all(self) -> None:
        """Wait for the answers to what was taken."""
        while self._waiting or self._forwarded:
            self._answered = trio.Event()
            await self._answered.wait()

    def stop(self) -> None:
        """Take no further requests; `run` ends when those that were taken are answered."""
        self._stopping = True
        self._pause.cancel()

    @property
    def _awaits(self) -> bool:
        """Whether the event loop has something to wait for, of which no descriptor of ours tells."""
        return bool(self._waiting or self._forwarded or self._letting_go)

    async def _settle(self) -> None:
        """Let all tasks come to where they wait: else one that was about to do something, such as to pass a grace,
        would have to wait until the event loop is entered again, for as long as others' hits are answered outside."""
        self._settled = False
        if not self._awaits:
            with trio.move_on_after(SETTLE_S):
                await wait_all_tasks_blocked()
                self._settled = True

    def _sleep_here(self) -> bool:
        """While nothing but new requests can need this process, wait for them here: that costs a tenth of a turn of
        the event loop. False when the event loop has something to wait for, or to do."""
        if not self._settled or self._awaits:
            return False
        others = self._others()
        if others != self._polled or not others:
            self._polled, self._poll = others, select.poll()
            for fd in (self._new.fileno(), *others):
                self._poll.register(fd, select.POLLIN)
        ready = self._poll.poll(SLEEP_MS)
        return bool(ready) and all(fd == self._new.fileno() for fd, _ in ready)

    async def _drain(self, nursery: trio.Nursery) -> bool:
        """Take requests until there are none, or `stop`; False when the connection has ended."""
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
                if not length:
                    return False
                if length < _IN_HEADER.size:
                    log.error("/dev/fuse gave %d bytes", length)  # the kernel never does; nobody waits for an answer
                    continue
                if not self._answer(nursery, length):
                    self._settled = False
                    # A copy: the buffer is used again before the message is gone.
                    await self._forward(bytes(self._view[:length]))
            self._settled = False
            await trio.lowlevel.checkpoint()
            if self._stopping:
                return True

    def _answer(self, nursery: trio.Nursery, length: int) -> bool:
        """Answer one request here; False when it is pyfuse3's."""
        said, opcode, unique, inode, _, _, pid, extra, _ = _IN_HEADER.unpack_from(self._buffer)
        if opcode in (_FORGET, _BATCH_FORGET):
            return True
        if opcode == _INTERRUPT and length >= _IN_HEADER.size + _HANDLE.size:
            (interrupted,) = _HANDLE.unpack_from(self._buffer, _IN_HEADER.size)
            if not self.interrupt(interrupted):
                self._tell(interrupted)
            return True
        body = length - _IN_HEADER.size
        if opcode in (_READDIR, _READDIRPLUS) and body >= _READ_IN_BYTES:
            size = min(_SIZE.unpack_from(self._buffer, _SIZE_AT)[0], LISTING_BYTES)
            _SIZE.pack_into(self._buffer, _SIZE_AT, size)
        try:
            if said != length or extra:
                return False
            if opcode == _LOOKUP:
                return self._look_up(unique, inode, bytes(self._view[_IN_HEADER.size : length - 1]), pid)
            if opcode == _GETXATTR:
                return self._get_acl(unique, inode, body)
            if not self._handlers.is_file(inode):
                return False
            if opcode == _GETATTR and self._handlers.refusing and body >= _GETATTR_IN_BYTES:
                return self._get_attributes(unique, inode, pid)
            if opcode == _OPEN and self._handlers.refusing:
                self._handlers.refused(inode, pid)
                self._fail(unique, errno.ENOSYS)
            elif opcode == _OPEN and body >= _OPEN_IN_BYTES:
                self._open(unique, inode, pid)
            elif opcode == _IOCTL:
                self._fail(unique, errno.ENOTTY)
            elif opcode == _READ and body >= _READ_IN_BYTES:
                self._read(nursery, unique, inode, pid)
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

    def _look_up(self, unique: int, parent: int, name: bytes, pid: int) -> bool:
        """What is not found, or should not be looked for here, is pyfuse3's."""
        try:
            found = self._handlers.looked_up(parent, name, pid)
        except Exception:
            log.exception("looking up %r failed", name)
            return False
        if found is None:
            return False
        self._reply(unique, found)
        return True

    def _get_attributes(self, unique: int, inode: int, pid: int) -> bool:
        """While OPEN is refused, the kernel asks for attributes at opens that are to show."""
        (flags,) = _SIZE.unpack_from(self._buffer, _IN_HEADER.size)
        found = self._handlers.looked_at(inode, pid, is_open=bool(flags & _GETATTR_FH))
        if found is not None:
            self._reply(unique, found)
        return found is not None

    def _get_acl(self, unique: int, inode: int, body: int) -> bool:
        """The ACL, which the kernel asks for at the first check of a right; other attributes are pyfuse3's."""
        at = _IN_HEADER.size + _GETXATTR_IN_BYTES
        if self._view[at : _IN_HEADER.size + body] != _ACL_NAME:
            return False
        (room,) = _SIZE.unpack_from(self._buffer, _IN_HEADER.size)
        try:
            acl = self._handlers.acl(inode)
        except Exception:
            return False
        if not acl:
            self._fail(unique, errno.ENODATA)
        elif not room:
            self._reply(unique, _SIZE.pack(len(acl)) + bytes(4))
        elif len(acl) > room:
            self._fail(unique, errno.ERANGE)
        else:
            self._reply(unique, acl)
        return True

    def _open(self, unique: int, inode: int, pid: int) -> None:
        (flags,) = _SIZE.unpack_from(self._buffer, _IN_HEADER.size)
        fh, number = self._handlers.opened(inode, pid, flags)
        how = _PASSTHROUGH if number else _KEEP_CACHE
        if not self._write(_OPEN_OUT.pack(_OPEN_OUT_BYTES, 0, unique, fh, how, number)):
            self._handlers.over(fh)  # another server has answered, or nobody waits: no RELEASE will come for this

    def _read(self, nursery: trio.Nursery, unique: int, inode: int, pid: int) -> None:
        _, offset, size = _READ_IN.unpack_from(self._buffer, _IN_HEADER.size)
        fh = self._handlers.handle(inode)  # there is none where the kernel has opened the file by itself
        hit = self._handlers.hit(fh, offset, size)
        if hit is not None:
            self._reply(unique, hit)
        else:
            wait = self._waiting[unique] = _WaitingRead(trio.CancelScope(), pid)
            nursery.start_soon(self._read_later, wait.scope, unique, fh, offset, size)

    def _release(self, nursery: trio.Nursery, unique: int) -> None:
        (fh,) = _HANDLE.unpack_from(self._buffer, _IN_HEADER.size)
        if self._handlers.closed(fh):
            self._letting_go += 1
            nursery.start_soon(self._let_go, fh)
        if self._fail(unique, 0):  # else another server has answered, and said so
            self._handlers.over(fh)

    async def _let_go(self, fh: int) -> None:
        try:
            await self._handlers.let_go(fh)
        except Exception:
            log.exception("a file was not let go")
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
        wait = self._waiting.get(unique)
        if wait is not None and wait.scope is scope:  # not the same request, delivered again
            del self._waiting[unique]
            self._answered.set()
        if scope.cancelled_caught or error:
            self._fail(unique, error or errno.EINTR)

    def interrupt(self, unique: int) -> bool:
        """The reader of a request got a signal; whether the request waits here.

        Only one that is dying is let go: to all others a read of a file is not to be interrupted.
        """
        wait = self._waiting.get(unique)
        if wait is None:
            return False
        if not is_dying(wait.pid):
            self._nursery.start_soon(self._watch, unique, wait)
            return True
        wait.scope.cancel()
        return True

    async def _watch(self, unique: int, wait: _WaitingRead) -> None:
        """The kernel tells of the first signal only; one that kills may follow."""
        while self._waiting.get(unique) is wait:
            if is_dying(wait.pid):
                wait.scope.cancel()
                return
            await trio.sleep(DYING_S)

    # ---- replies ------------------------------------------------------------------------------------------

    def _reply(self, unique: int, data: Bytes) -> None:
        self._write(_OUT_HEADER.pack(_OUT_HEADER.size + len(data), 0, unique), data)

    def _fail(self, unique: int, code: int) -> bool:
        return self._write(_OUT_HEADER.pack(_OUT_HEADER.size, -code, unique))

    def _write(self, *parts: Bytes) -> bool:
        """Whether the answer was accepted."""
        try:
            os.writev(self._fd, parts)
        except OSError as e:
            # ENOENT: the reader was killed meanwhile; ENODEV: the mount is gone.
            if e.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM):
                log.error("answering: %s", e)
            return False
        return True

    # ---- pyfuse3 ------------------------------------------------------------------------------------------

    async def _forward(self, message: bytes) -> None:
        (unique,) = _UNIQUE.unpack_from(message, 8)
        self._forwarded.add(unique)
        try:
            await self._pair.send(message)
        except OSError:  # too long for the system's sockets; or pyfuse3 has ended, and so does the mount
            self._forwarded.discard(unique)
            self._fail(unique, errno.EIO)

    async def _bring_back(self) -> None:
        """Replies of pyfuse3, one message each, to the kernel."""
        while message := await self._pair.recv(REQUEST_BYTES + _OUT_HEADER.size):
            self._forwarded.discard(_UNIQUE.unpack_from(message, 8)[0])
            self._answered.set()
            self._write(message)
