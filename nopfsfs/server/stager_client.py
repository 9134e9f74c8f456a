"""The server's side of a miss: ask the stager and wait for the range; without stager or room, read the source.

Arena bytes are handed out in the very step in which an answer is taken up, so the grace rule of `stager/extents.py`
holds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import trio

from nopfsfs.protocol import server_stager
from nopfsfs.protocol.outbox import Outbox
from nopfsfs.protocol.server_stager import Answer, Demand
from nopfsfs.system.elastic_limiter import ElasticLimiter
from nopfsfs.system.patience import Patience
from nopfsfs.tiers.source import IDLE_S, Changed, Identity, Source, close, read_exactly

log = logging.getLogger(__name__)
DIRECT_FILES = 32  # source files that direct reads keep open
DIRECT_THREADS = 64
LOOK_S = 0.25  # between looks at whether the stager lives, while somebody waits for it
SILENT_S = 1.5  # of silence after a ping, after which the stager is passed by: with both looks within 2 s
BEHIND_MOST = 4096  # messages that wait for room in the stager's socket
DIRECT_THREADS_MOST = 320  # while reads are stuck at a source that does not answer
CLOSING_THREADS, CLOSING_THREADS_MOST = 16, 64


class StagerGone(Exception):
    """There is no stager to ask."""


class StagerClient:
    """Demands and answers over one socket to one stager. `run` is its task; it returns when the stager is gone, or is
    left (`leave`).

    Until the stager says that it knows of this server, nothing is asked of it, and no arena bytes may be read: it would
    not wait for that. Then `welcomed` is called. A stager that gives no sign of life while it is waited for is passed
    by: whoever waits is told that it is gone, and nobody asks it until it answers again.
    """

    def __init__(self, sock: socket.socket, welcomed: Callable[[], None], io_timeout: float = math.inf) -> None:
        """`io_timeout`, seconds: how long a reader may wait in all; a third of it at most for a stager that hangs."""
        self._look_s, self._silent_s = min(LOOK_S, io_timeout / 20), min(SILENT_S, io_timeout / 5)
        self._end = sock
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._out = Outbox(sock, BEHIND_MOST)
        self._welcomed = welcomed
        self._next = 1
        self._waiting: dict[int, _WaitingDemand] = {}
        self._asked, self._full, self._left = trio.Event(), trio.Event(), trio.Event()
        self._patience = Patience()
        self._pinged = False  # a ping is not answered yet
        self._known = False  # the stager knows of this server, and lives
        self.silent = False  # it is passed by
        self.drained = trio.Event()  # dead, and no handler holds arena bytes that it was told of here

    @property
    def alive(self) -> bool:
        """Whether the stager may be asked."""
        return self._known and not self.silent

    async def ask(self, row: int, offset: int, length: int) -> Answer:
        """The stager's answer. Raises StagerGone. No checkpoint lies between the answer and the return."""
        if not self.alive:
            raise StagerGone
        wait = _WaitingDemand()
        number = self._next
        self._next += 1
        self._waiting[number] = wait
        try:
            self._send(Demand(number, row, offset, length))
            self._asked.set()
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
            self._send(Demand(0, row, 0, 0))

    def leave(self) -> None:
        """The stager will never run again, though its socket may stay open: take no more answers."""
        self._left.set()

    def _send(self, demand: Demand) -> None:
        """Send now, or when there is room in the socket. Raises StagerGone."""
        try:
            sent = self._socket.fileno() >= 0 and self._out.send(server_stager.pack_demand(demand))
        except OSError:
            sent = False
        if not sent:
            raise StagerGone
        if len(self._out):
            self._full.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._see_it_left, nursery.cancel_scope)
            try:
                while message := await self._socket.recv(256):
                    self._take(message, nursery)
            except OSError as e:
                log.warning("stager: %s", e)
            finally:
                self._known = False
                self._give_up()
                nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()  # as in _pass_grace
        await trio.lowlevel.checkpoint()
        self._socket.close()  # not before: to the stager that is the end of this server's reading
        self.drained.set()

    async def _see_it_left(self, scope: trio.CancelScope) -> None:
        await self._left.wait()
        scope.cancel()

    def _give_up(self) -> None:
        """Whoever waits has no answer. One that comes later is not taken: nobody is there to ask for it."""
        waiting, self._waiting = self._waiting, {}
        for wait in waiting.values():
            wait.event.set()

    async def _flush(self) -> None:
        while True:
            await self._full.wait()
            self._full = trio.Event()
            with contextlib.suppress(OSError):  # gone: that is noticed where it is read
                while not self._out.flush():
                    await trio.lowlevel.wait_writable(self._end)

    async def _watch(self) -> None:
        """While anybody waits, see that the stager lives: its loop answers a ping at once, however slow the source."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._waiting:
                await trio.sleep(self._look_s)
                silent_s = self._patience.look(trio.current_time())
                if not self._waiting:
                    break
                if not self._pinged:
                    self._patience.answered()
                    self._ping()
                elif silent_s >= self._silent_s:
                    self._pass_by()

    def _ping(self) -> None:
        self._pinged = True
        with contextlib.suppress(StagerGone):
            self._send(server_stager.PING)

    def _pass_by(self) -> None:
        log.warning("the stager does not answer; reading the source until it does")
        self.silent = True
        self._out.keep(lambda message: server_stager.unpack_demand(message).id == 0)
        self._give_up()

    def _take(self, message: bytes, nursery: trio.Nursery) -> None:
        try:
            answer = server_stager.unpack_answer(message)
        except ValueError as e:
            log.error("answer refused: %s", e)
            return
        if answer.id:
            wait = self._waiting.get(answer.id)
            if wait is not None:
                wait.answer = answer
                wait.event.set()
        elif answer == server_stager.PONG:
            self._hear_it_lives()
        elif answer.arena == 0:
            self._known = True
            self._welcomed()
        else:
            # In a task of its own: answers must be taken even while the stager takes no demands, or both would wait.
            nursery.start_soon(self._pass_grace, answer.arena)

    def _hear_it_lives(self) -> None:
        self._pinged = False
        self._patience.answered()
        if self.silent:
            log.info("the stager answers again")
            self.silent = False

    async def _pass_grace(self, number: int) -> None:
        """Every handler that was woken by an earlier answer is in the run queue already: it runs in the next batch of
        the event loop at the latest, and this task after it in the one thereafter."""
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(StagerGone):
            self._send(Demand(0, 0, -number, 0))


class _WaitingDemand:
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
        self._done: deque[int] = deque()  # descriptors to be closed
        # Two limits: a source where closing hangs must not keep others from reading.
        self._readers = ElasticLimiter(DIRECT_THREADS, DIRECT_THREADS_MOST)
        self._closers = ElasticLimiter(CLOSING_THREADS, CLOSING_THREADS_MOST)
        self._idle: threading.Timer | None = None  # closes files that nobody reads

    async def read(self, row: int, offset: int, length: int) -> bytearray:
        """Bytes of the indexed version. Raises OSError (ESTALE when the file changed)."""
        try:
            return await self._readers.run(self._read, row, offset, length)
        finally:
            self._close_done()

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
            await self._closers.run(close, done.fd)

    def _close_done(self) -> None:
        """Close what is out of use, while nobody waits for that: it may be on another target than what is read."""
        while self._done:
            trio.lowlevel.spawn_system_task(self._closers.run, close, self._done.popleft())

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
                self._done.append(file.fd)
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
        self._done.extend(old.fd for old in surplus if old is not None)
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
        """Keep the row's file no longer (lock held); the file if it is to be closed now."""
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
