"""The server's side of a miss: ask the stager and wait for the range; without stager or room, read the source.

Arena bytes are handed out in the very step in which an answer is taken up, so the grace rule of `fetch/grace.py` holds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import trio

from nopfsfs.fetch import wire
from nopfsfs.fetch.loads import IDLE_S
from nopfsfs.fetch.source import Changed, Identity, Source, close, read_exactly
from nopfsfs.fetch.wire import Answer, Demand

log = logging.getLogger(__name__)
DIRECT_FILES = 32  # source files that direct reads keep open
DIRECT_THREADS = 64


class StagerGone(Exception):
    """There is no stager to ask."""


class StagerLink:
    """Demands and answers over one socket to one stager. `run` is its task; it returns when the stager is gone.

    Until the stager says that it knows of this server, nothing is asked of it, and no arena bytes may be read: it would
    not wait for that. Then `welcomed` is called.
    """

    def __init__(self, sock: socket.socket, welcomed: Callable[[], None]) -> None:
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._welcomed = welcomed
        self._next = 1
        self._waiting: dict[int, _Wait] = {}
        self._sending = trio.StrictFIFOLock()  # only one task may wait for room in a socket
        self.alive = False
        self.drained = trio.Event()  # dead, and no handler holds arena bytes that it was told of here

    async def ask(self, row: int, offset: int, length: int) -> Answer:
        """The stager's answer. Raises StagerGone. No checkpoint lies between the answer and the return."""
        if not self.alive:
            raise StagerGone
        wait = _Wait()
        number = self._next
        self._next += 1
        self._waiting[number] = wait
        try:
            await self._send(Demand(number, row, offset, length))
            await wait.event.wait()
        finally:
            self._waiting.pop(number, None)
        if wait.answer is None:
            raise StagerGone
        return wait.answer

    def fileno(self) -> int:
        """The socket's descriptor; -1 when it is closed."""
        return self._socket.fileno()

    async def report_changed(self, row: int) -> None:
        """Tell the stager that a row's file is not the indexed one any more."""
        with contextlib.suppress(StagerGone):
            await self._send(Demand(0, row, 0, 0))

    async def _send(self, demand: Demand) -> None:
        """Raises StagerGone."""
        try:
            async with self._sending:
                await self._socket.send(wire.pack_demand(demand))
        except (OSError, trio.ClosedResourceError):
            raise StagerGone from None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            try:
                while message := await self._socket.recv(256):
                    self._take(message, nursery)
            except OSError as e:
                log.warning("stager: %s", e)
            finally:
                self.alive = False
                for wait in self._waiting.values():
                    wait.event.set()
                self._socket.close()
                nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()  # as in _pass_grace
        await trio.lowlevel.checkpoint()
        self.drained.set()

    def _take(self, message: bytes, nursery: trio.Nursery) -> None:
        try:
            answer = wire.unpack_answer(message)
        except ValueError as e:
            log.error("answer refused: %s", e)
            return
        if answer.id:
            wait = self._waiting.get(answer.id)
            if wait is not None:
                wait.answer = answer
                wait.event.set()
            return
        if answer.arena == 0:
            self.alive = True
            self._welcomed()
            return
        # In a task of its own: answers must be taken even while the stager takes no demands, or both would wait.
        nursery.start_soon(self._pass_grace, answer.arena)

    async def _pass_grace(self, number: int) -> None:
        """Every handler that was woken by an earlier answer is in the run queue already: it runs in the next batch of
        the event loop at the latest, and this task after it in the one thereafter."""
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(StagerGone):
            await self._send(Demand(0, 0, -number, 0))


class _Wait:
    __slots__ = ("answer", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Answer | None = None


class DirectReader:
    """Reads the source without a tier: pass-through, for when nothing better is there. Thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._limiter = trio.CapacityLimiter(DIRECT_THREADS)
        self._idle: threading.Timer | None = None  # closes files that nobody reads

    async def read(self, row: int, offset: int, length: int) -> bytearray:
        """Bytes of the indexed version. Raises OSError (ESTALE when the file changed)."""
        return await trio.to_thread.run_sync(
            self._read, row, offset, length, abandon_on_cancel=True, limiter=self._limiter
        )

    def holds(self, row: int) -> bool:
        """Whether the row's source file is kept open."""
        return row in self._open

    async def release(self, row: int) -> None:
        """A handle of the row was closed: do not keep its source file open."""
        if row not in self._open:
            return
        with self._lock:
            done = self._retire(row)
        if done is not None:
            # In a thread, and in no hurry: closing may wait for the source.
            await trio.to_thread.run_sync(close, done.fd, abandon_on_cancel=True, limiter=self._limiter)

    def _read(self, row: int, offset: int, length: int) -> bytearray:
        file = self._acquire(row)
        try:
            # Where the file ends by its identity; to find less is a change.
            data = bytearray(max(0, min(length, file.identity.size - offset)))
            read_exactly(file.fd, file.identity, memoryview(data), offset)
        except Changed:
            with self._lock:
                if self._open.get(row) is file:
                    self._retire(row)  # in use, by this thread: it is closed below
            raise OSError(errno.ESTALE, "changed at the source") from None
        finally:
            with self._lock:
                file.users -= 1
                file.used_s = time.monotonic()
                done = file.done
                self._close_idle_later()
            if done:
                close(file.fd)
        return data

    def _acquire(self, row: int) -> _OpenFile:
        with self._lock:
            file = self._open.get(row)
            if file is not None and file.identity == self._source.identity(row):
                file.users += 1
                return file
        try:
            file = _OpenFile(*self._source.open(row))
        except Changed:
            raise OSError(errno.ESTALE, "changed at the source") from None
        file.users = 1
        with self._lock:
            surplus = [self._retire(row)]
            self._open[row] = file
            while len(self._open) > DIRECT_FILES:
                surplus.append(self._retire(next(iter(self._open))))
        for old in surplus:
            if old is not None:
                close(old.fd)
        return file

    def _close_idle_later(self) -> None:
        """See to it that files are closed that nobody reads, though nobody closed the last handle (lock held)."""
        if self._idle is None and self._open:
            self._idle = threading.Timer(IDLE_S, self._close_idle)
            self._idle.daemon = True
            self._idle.start()

    def _close_idle(self) -> None:
        before_s = time.monotonic() - IDLE_S
        with self._lock:
            idle = [row for row, file in self._open.items() if not file.users and file.used_s < before_s]
            closing = [self._retire(row) for row in idle]
            self._idle = None
            self._close_idle_later()
        for file in closing:
            if file is not None:
                close(file.fd)

    def _retire(self, row: int) -> _OpenFile | None:
        """Keep the row's file no longer (lock held); the file if it is to be closed now, by the caller."""
        file = self._open.pop(row, None)
        if file is None:
            return None
        file.retired = True
        return file if file.done else None


class _OpenFile:
    """A source file kept open between direct reads; whoever finds it done, under the lock, closes it."""

    def __init__(self, fd: int, identity: Identity) -> None:
        self.fd = fd
        self.identity = identity
        self.users = 0
        self.used_s = 0.0  # when it was last used, by time.monotonic()
        self.retired = False

    @property
    def done(self) -> bool:
        """Retired and out of use."""
        return self.retired and not self.users
