"""Demands of a server to the stager, and their answers.

A handler reads arena bytes in the step in which it takes up an answer, so that the grace periods of
`stager/extents.py` hold.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Callable, Sequence

import trio

from nopfsfs.protocol.codec import ProtocolError, encode
from nopfsfs.protocol.outbox import Outbox
from nopfsfs.protocol.server_stager import (
    TO_SERVER_MAX,
    Answer,
    AskGrace,
    Demand,
    FileChanged,
    GracePassed,
    StagerPing,
    StagerPong,
    ToStager,
    Welcome,
    YoungFilesRead,
    YoungRead,
    to_server,
    to_stager,
)
from nopfsfs.system.patience import Patience

log = logging.getLogger(__name__)
LOOK_S = 0.25  # between checks of whether the stager lives, while a READ waits for it
SILENT_S = 1.5  # of silence after a ping, after which the stager is passed by: with both checks within 2 s
BEHIND_MOST = 4096  # messages that wait for room in the stager's socket


class StagerGone(Exception):
    """No stager can be asked."""


class StagerClient:
    """Sends demands to one stager, and takes its answers. `run` is its task, which returns when the stager is gone, or
    after `leave`.

    No demand is sent until the stager sends that it knows this server. Nor may arena bytes be read before: the stager
    would reuse them at once. `welcomed` is called when the stager has sent that. A stager that gives no sign of life
    while a READ waits for it is passed by: `ask` raises StagerGone until the stager answers again.
    """

    def __init__(self, sock: socket.socket, welcomed: Callable[[], None], io_timeout: float = math.inf) -> None:
        """`io_timeout`, seconds: a READ may wait so long in all, and a third of it at most for a stager that hangs."""
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
        self._known = False  # the stager knows this server, and lives
        self.silent = False  # the stager is passed by
        self.drained = trio.Event()  # the stager is gone, and no handler holds arena bytes of its answers

    @property
    def alive(self) -> bool:
        """True while `ask` sends demands."""
        return self._known and not self.silent

    async def ask(self, row: int, offset: int, length: int) -> Answer:
        """Return the stager's answer to a demand. Raises StagerGone. No checkpoint lies between answer and return."""
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
        """Report to the stager that a row's file is not the indexed one any more."""
        with contextlib.suppress(StagerGone):
            self._send(FileChanged(row))

    def report_young(self, reads: Sequence[YoungRead]) -> bool:
        """Report bytes of young files that this server has read by itself; False while the stager takes nothing."""
        if not self.alive or len(self._out):
            return False
        return self._put(YoungFilesRead(list(reads)))

    def leave(self) -> None:
        """Take no more answers: the stager has stopped for good, though its socket may stay open."""
        self._left.set()

    def _send(self, message: ToStager, *, always: bool = False) -> None:
        """Send now, or when there is room in the socket. Raises StagerGone, also where too many messages wait, unless
        `always`."""
        if not self._put(message, always=always):
            raise StagerGone

    def _put(self, message: ToStager, *, always: bool = False) -> bool:
        """Send now, or when there is room in the socket. False: the stager is gone, or too many messages wait."""
        try:
            sent = self._socket.fileno() >= 0 and self._out.send(encode(message), always=always)
        except OSError:
            return False
        if sent and len(self._out):
            self._full.set()
        return sent

    async def run(self) -> None:
        """Take answers until the stager is gone or left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._cancel_when_left, nursery.cancel_scope)
            try:
                while message := await self._socket.recv(TO_SERVER_MAX):
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

    async def _cancel_when_left(self, scope: trio.CancelScope) -> None:
        await self._left.wait()
        scope.cancel()

    def _give_up(self) -> None:
        """Wake all that wait, without an answer. An answer that comes later finds nobody, and is dropped."""
        waiting, self._waiting = self._waiting, {}
        for wait in waiting.values():
            wait.event.set()

    async def _flush(self) -> None:
        while True:
            await self._full.wait()
            self._full = trio.Event()
            with contextlib.suppress(OSError):  # `run` notices that the stager is gone
                while not self._out.flush():
                    await trio.lowlevel.wait_writable(self._end)

    async def _watch(self) -> None:
        """Check that the stager lives while a READ waits: its loop answers a ping at once, however slow the source."""
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
            self._send(StagerPing(), always=True)  # without an answer to it nothing would be asked ever again

    def _pass_by(self) -> None:
        log.warning("the stager does not answer; reading the source until it does")
        self.silent = True
        self._out.keep(_asks_for_no_bytes)
        self._give_up()

    def _take(self, data: bytes, nursery: trio.Nursery) -> None:
        try:
            message = to_server.decode(data)
        except ProtocolError as e:
            log.error("message of the stager refused: %s", e)
            return
        match message:
            case Answer():
                wait = self._waiting.get(message.id)
                if wait is not None:
                    wait.answer = message
                    wait.event.set()
            case StagerPong():
                self._pong_received()
            case Welcome() if not self._left.is_set():  # else the arena may be that of another stager already
                self._known = True
                self._welcomed()
            case AskGrace(number):
                # In a task of its own: answers must be taken even while the stager takes no demands, or both would
                # wait.
                nursery.start_soon(self._pass_grace, number)

    def _pong_received(self) -> None:
        self._pinged = False
        self._patience.answered()
        if self.silent:
            log.info("the stager answers again")
            self.silent = False

    async def _pass_grace(self, number: int) -> None:
        """Answer a grace request when no handler reads bytes of an earlier answer any more.

        Each handler that an earlier answer has woken is in the run queue already. It runs in the next batch of the
        event loop at the latest, and this task in the batch after that."""
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(StagerGone):
            self._send(GracePassed(number), always=True)  # the stager asks for one at a time, and waits for it


def _asks_for_no_bytes(message: bytes) -> bool:
    """True for a message to the stager that is no demand."""
    return not isinstance(to_stager.decode(message), Demand)


class _WaitingDemand:
    __slots__ = ("answer", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Answer | None = None
