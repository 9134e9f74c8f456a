"""Requests that are answered before pyfuse3: the fast path reads the FUSE descriptor, and answers what each hit needs.

These are LOOKUP of a name that exists, OPEN, RELEASE, IOCTL, READ, GETXATTR of an ACL, and GETATTR of a file while OPEN
is refused. They are answered without a scheduler in between. A READ that misses becomes a task, so that no hit waits
behind it; it ends with EINTR as soon as its reader is killed. The other requests go to pyfuse3 through a socket pair,
unchanged, and its replies come back that way. FORGET means nothing here: inode numbers are rows.

Several processes may read one descriptor: each request goes to one of them. Nothing is remembered between requests,
so that any of them can die: the kernel delivers again what it had taken. Where the kernel cannot, what was taken is
kept in shared memory (`fuse/taken_requests.py`), and another server takes it over.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable

import pyfuse3
import trio

try:  # it is documented in trio.testing, which imports pytest where that is installed: 0.1 s of each start of a server
    from trio._core import wait_all_tasks_blocked  # type: ignore[attr-defined]
except ImportError:
    from trio.testing import wait_all_tasks_blocked

from nopfsfs.fuse import kernel
from nopfsfs.fuse.connection import REQUEST_BYTES
from nopfsfs.fuse.kernel import IN_HEADER, OUT_HEADER, READ_IN
from nopfsfs.fuse.pyfuse3_pair import LISTING_BYTES
from nopfsfs.fuse.taken_requests import LANDING, LONGEST, LeftBlock, OwnBlock
from nopfsfs.server.interrupted_reads import WaitingRead, WaitingReads
from nopfsfs.server.kernel_answers import KernelAnswers
from nopfsfs.server.operations import FuseOperations

log = logging.getLogger(__name__)
_ACL_NAME = kernel.ACL_NAME + b"\0"
_FORGETS, _LISTINGS = (kernel.FORGET, kernel.BATCH_FORGET), (kernel.READDIR, kernel.READDIRPLUS)
_HEADER = IN_HEADER.size  # where a request's own part begins
_SIZE, _SIZE_AT = struct.Struct("<I"), _HEADER + kernel.READ_IN_SIZE_AT
_UNIQUE, _UNIQUE_AT = struct.Struct("<Q"), 8  # of IN_HEADER and OUT_HEADER
SLEEP_MS = 1000  # a limit, as every wait has one
SETTLE_S = 0.01  # for all tasks to come to where they wait: a grace period takes several turns of the event loop
ONE_BY_ONE = 16  # requests after one that came alone, each looked for by poll(2): a read that finds none costs more
AT_ONCE = 64  # requests answered before other tasks get their turn
# What is said of a message that is longer than those that are kept.
_TOO_LONG = {kernel.IOCTL: errno.ENOTTY, kernel.LOOKUP: errno.ENAMETOOLONG}


class FastPath:
    """Reads the FUSE descriptor, and owns our end of the pair. `run` ends when the connection does."""

    def __init__(
        self, fuse_fd: int, pair: socket.socket, operations: FuseOperations, others: Callable[[], list[int]],
        init: bytes = b"", interrupted: Callable[[int], None] = lambda unique: None, own: OwnBlock | None = None,
    ) -> None:  # fmt: skip
        """`others()`: further descriptors for whose messages the event loop must run. `init`: the INIT request for
        pyfuse3; the kernel has its answer. `interrupted`: called with a request that was interrupted and is not known
        here; another server may have it. `own`: keeps what is taken; None where the kernel delivers it again."""
        self._fd, self._own = fuse_fd, own
        self._others = others
        self._init, self._interrupted = init, interrupted
        self._forwarded: set[int] = set()  # requests that pyfuse3 has not answered yet
        self._closing = 0  # tasks that close files of direct reads, or take requests over
        self._settled = False  # all tasks wait for descriptors, and the event loop is not running
        self._stopping, self._one_by_one = False, 0  # and how many requests are looked for one at a time from now on
        self._pause = trio.CancelScope()
        self._answered, self._begun = trio.Event(), trio.Event()
        self._new = select.epoll()
        self._new_fd = self._new.fileno()
        # One of the servers that wait is woken by a request, not all.
        self._new.register(fuse_fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll = select.poll()
        os.set_blocking(fuse_fd, False)
        self._pair = trio.socket.from_stdlib_socket(pair)
        # Bound here: a request asks them as often as its operations.
        self._operations, self._files, self._shown_opens = operations, operations.files, operations.shown_opens
        # The kernel refuses less room than for the longest message; only FORGETs are longer than a landing.
        self._buffer: bytearray | memoryview = bytearray(REQUEST_BYTES) if own is None else own.landing
        self._view = memoryview(self._buffer)
        self._into = [self._buffer] if own is None else [self._buffer, bytearray(REQUEST_BYTES - LANDING)]
        self._waiting = WaitingReads()
        self._answers = KernelAnswers(fuse_fd)
        self._reply, self._fail, self._write = self._answers.reply, self._answers.fail, self._answers.write

    async def run(self) -> None:
        """Serve until the connection is gone, or `stop`."""
        with self._new:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._init:
                    await self._pair.send(self._init)
                    await self._pair.recv(REQUEST_BYTES)
                nursery.start_soon(self._bring_back)
                self._begun.set()
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
            await self._next_answer()

    async def _next_answer(self) -> None:
        if self._answered.is_set():
            self._answered = trio.Event()
        await self._answered.wait()

    def stop(self) -> None:
        """Take no further requests; `run` ends when those that were taken are answered."""
        self._stopping = True
        self._pause.cancel()

    @property
    def _awaits(self) -> bool:
        """True while the event loop waits for something that is no message on a descriptor of `_others`."""
        return bool(self._waiting or self._forwarded or self._closing)

    async def _settle(self) -> None:
        """Let all tasks come to where they wait. Else a task about to act, as to pass a grace period, would wait until
        the event loop is entered again. While hits are answered outside of the loop, it is not entered."""
        self._settled = False
        if not self._awaits:
            with trio.move_on_after(SETTLE_S):
                await wait_all_tasks_blocked()
                self._settled = True
                self._poll = select.poll()  # of descriptors that are others only after the event loop has run
                for fd in (self._new_fd, *self._others()):
                    self._poll.register(fd, select.POLLIN)

    def _sleep_here(self) -> bool:
        """Wait here while only new requests can need this process: that costs a tenth of a turn of the event loop.
        Return False when the event loop has something to wait for, or to do."""
        if not self._settled or self._awaits:
            return False
        ready = self._poll.poll(SLEEP_MS)
        return len(ready) == 1 and ready[0][0] == self._new_fd

    async def _drain(self, nursery: trio.Nursery) -> bool:
        """Take requests until there are none, or `stop`. Return False when the connection has ended."""
        own, into = self._own, self._into
        while True:
            while own is not None and own.room < 2 * AT_ONCE:  # what is not taken is safe in the kernel
                self._settled = False
                await self._next_answer()
            for taken in range(AT_ONCE):
                if taken and self._one_by_one and self._settled:
                    self._one_by_one -= 1
                    return True
                try:
                    if own is not None:
                        own.landed[0] = 0
                    length = os.readv(self._fd, into)
                except BlockingIOError:
                    self._one_by_one = ONE_BY_ONE if taken == 1 else 0
                    return True
                except OSError as e:
                    if e.errno in (errno.ENOENT, errno.EINTR):
                        continue  # the request was withdrawn while it was being taken
                    if e.errno not in (errno.ENODEV, errno.ECONNABORTED):  # unmounted, or aborted
                        log.error("reading /dev/fuse: %s", e)
                    return False
                if not length:
                    return False
                if length < _HEADER:
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
        """Answer one request here. Return False when it is for pyfuse3."""
        said, opcode, unique, inode, _, _, pid, extra, _ = IN_HEADER.unpack_from(self._buffer)
        if opcode in _FORGETS:
            return True
        if opcode == kernel.INTERRUPT and length >= _HEADER + kernel.INTERRUPT_IN.size:
            (interrupted,) = kernel.INTERRUPT_IN.unpack_from(self._buffer, _HEADER)
            if not self.interrupt(interrupted):
                self._interrupted(interrupted)
            return True
        body = length - _HEADER
        if opcode in _LISTINGS and body >= READ_IN.size:
            size = min(_SIZE.unpack_from(self._buffer, _SIZE_AT)[0], LISTING_BYTES)
            _SIZE.pack_into(self._buffer, _SIZE_AT, size)
        try:
            if said != length or extra:
                return False
            if opcode == kernel.LOOKUP:
                return self._look_up(unique, inode, bytes(self._view[_HEADER : length - 1]), pid)
            if opcode == kernel.GETXATTR:
                return self._get_acl(unique, inode, body)
            if not self._files.is_file(inode):
                return False
            if opcode == kernel.GETATTR and self._shown_opens.refusing and body >= kernel.GETATTR_IN.size:
                return self._get_attributes(unique, inode, pid)
            if opcode == kernel.OPEN and self._shown_opens.refusing:
                self._operations.refused(inode, pid)
                self._fail(unique, errno.ENOSYS)
            elif opcode == kernel.OPEN and body >= kernel.OPEN_IN.size:
                self._open(unique, inode, pid)
            elif opcode == kernel.IOCTL:
                self._fail(unique, errno.ENOTTY)
            elif opcode == kernel.READ and body >= READ_IN.size:
                self._read(nursery, unique, inode, pid)
            elif opcode == kernel.RELEASE and body >= kernel.RELEASE_IN.size:
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
        """Answer a LOOKUP of a name that exists. Return False for others."""
        try:
            found = self._operations.looked_up(parent, name, pid)
        except Exception:
            log.exception("looking up %r failed", name)
            return False
        if found is None:
            return False
        self._reply(unique, found)
        return True

    def _get_attributes(self, unique: int, inode: int, pid: int) -> bool:
        """Answer a GETATTR while OPEN is refused: the kernel then asks for attributes at opens that are to show."""
        (flags,) = kernel.GETATTR_IN.unpack_from(self._buffer, _HEADER)
        found = self._operations.looked_at(inode, pid, is_open=bool(flags & kernel.GETATTR_FH))
        if found is not None:
            self._reply(unique, found)
        return found is not None

    def _get_acl(self, unique: int, inode: int, body: int) -> bool:
        """Answer a GETXATTR of the ACL, which the kernel sends at its first check of a right. Return False for other
        attributes."""
        at = _HEADER + kernel.GETXATTR_IN.size
        if self._view[at : _HEADER + body] != _ACL_NAME:
            return False
        (room,) = kernel.GETXATTR_IN.unpack_from(self._buffer, _HEADER)
        try:
            acl = self._operations.acl(inode)
        except Exception:
            return False
        if not acl:
            self._fail(unique, errno.ENODATA)
        elif not room:
            self._reply(unique, kernel.GETXATTR_OUT.pack(len(acl)))
        elif len(acl) > room:
            self._fail(unique, errno.ERANGE)
        else:
            self._reply(unique, acl)
        return True

    def _open(self, unique: int, inode: int, pid: int) -> None:
        (flags,) = kernel.OPEN_IN.unpack_from(self._buffer, _HEADER)
        fh, number = self._files.open(inode, pid, flags)
        if self._own is not None:
            self._own.mark_counted(unique, fh, number)
        if not self._answers.opened(unique, fh, number):
            self._files.uncount_open(fh)  # another server has answered, or nobody waits: no RELEASE will come for it

    def _read(self, nursery: trio.Nursery, unique: int, inode: int, pid: int) -> None:
        _, offset, size = READ_IN.unpack_from(self._buffer, _HEADER)
        fh = self._files.handle(inode)  # the request has none where the kernel has opened the file by itself
        hit = self._files.hit(fh, offset, size)
        if hit is not None:
            self._reply(unique, hit)
        else:
            if self._own is not None:
                self._own.keep(unique, _HEADER + READ_IN.size)
            nursery.start_soon(self._read_later, self._waiting.begin(unique, pid), unique, fh, offset, size)

    def _release(self, nursery: trio.Nursery, unique: int) -> None:
        (fh,) = kernel.RELEASE_IN.unpack_from(self._buffer, _HEADER)
        held = self._files.close(fh)
        if self._own is not None:
            self._own.mark_counted(unique, fh, 0)
        if held:
            self._closing += 1
            nursery.start_soon(self._close_direct, fh)
        if self._fail(unique, 0):  # else another server has answered, and counted it
            self._files.uncount_open(fh)

    async def _close_direct(self, fh: int) -> None:
        try:
            await self._files.close_direct(fh)
        except Exception:
            log.exception("closing a source file failed")
        finally:
            self._closing -= 1

    async def _read_later(self, read: WaitingRead, unique: int, fh: int, offset: int, size: int) -> None:
        """Answer a READ that has to wait. Its scope is cancelled when its reader is being killed."""
        error = 0
        with read.scope:
            try:
                self._reply(unique, await self._files.miss(fh, offset, size))
            except pyfuse3.FUSEError as e:
                error = e.errno
            except Exception:
                log.exception("a read failed")
                error = errno.EIO
        if read.scope.cancelled_caught or error:
            self._fail(unique, error or errno.EINTR)
        if self._waiting.end(unique, read):
            self._no_longer_kept(unique)
            self._answered.set()

    def interrupt(self, unique: int) -> bool:
        """Take note that the reader of a request got a signal. Return True where the request waits here."""
        return self._waiting.interrupt(unique, self._nursery)

    # ---- what another server left -------------------------------------------------------------------------

    async def take_over(self, left: LeftBlock) -> None:
        """Answer what another server has left, as if the kernel had just delivered it. On return each request is
        answered, or kept here. `own` must be given."""
        await self._begun.wait()
        self._closing += 1  # the event loop is to run
        self._settled = False
        try:
            for number, message in enumerate(left.unanswered(), 1):
                await self._take_over_one(left, message)
                if number % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        finally:
            self._closing -= 1

    async def _take_over_one(self, left: LeftBlock, message: bytes) -> None:
        own = self._own
        assert own is not None
        while own.room <= AT_ONCE:  # the left ones stay where they are
            await self._next_answer()
        (unique,) = _UNIQUE.unpack_from(message, _UNIQUE_AT)
        if (counted := left.counted(unique)) is not None:
            self._answer_counted(message, unique, *counted)
            return
        own.land(message)  # it is free whenever this task runs: what it held is answered or kept
        if not self._answer(self._nursery, len(message)):
            await self._forward(message)
        if unique in self._waiting:
            self._answers.ask_for_interrupt(unique)

    def _answer_counted(self, message: bytes, unique: int, fh: int, registered: int) -> None:
        """Answer an OPEN or RELEASE that a server counted which died before, or just after, it had answered."""
        _, opcode, *_ = IN_HEADER.unpack_from(message)
        if opcode == kernel.OPEN:  # refused: the dead server's answer was accepted, so nothing is taken back
            self._answers.opened(unique, fh, registered)
        elif self._fail(unique, 0):
            self._files.uncount_open(fh)

    def _no_longer_kept(self, unique: int) -> None:
        if self._own is not None:
            self._own.answered(unique)

    # ---- pyfuse3 ------------------------------------------------------------------------------------------

    async def _forward(self, message: bytes) -> None:
        _, opcode, unique, *_ = IN_HEADER.unpack_from(message)
        if self._own is not None:
            if len(message) > LONGEST:
                self._fail(unique, _TOO_LONG.get(opcode, errno.EIO))
                return
            self._own.keep(unique, len(message))
        self._forwarded.add(unique)
        try:
            await self._pair.send(message)
        except OSError:  # too long for the system's sockets; or pyfuse3 has ended, and so does the mount
            self._forwarded.discard(unique)
            self._fail(unique, errno.EIO)
            self._no_longer_kept(unique)

    async def _bring_back(self) -> None:
        """Write the replies of pyfuse3, one message each, to the kernel."""
        while message := await self._pair.recv(REQUEST_BYTES + OUT_HEADER.size):
            (unique,) = _UNIQUE.unpack_from(message, _UNIQUE_AT)
            self._write(message)
            self._forwarded.discard(unique)
            self._no_longer_kept(unique)
            self._answered.set()
