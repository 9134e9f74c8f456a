"""The supervisor's side of the control socket: one JSON object a line, both ways (the other side:
`control/client.py`).

Nothing that a client sends or leaves undone ends more than its own connection. The number of connections, the length of
lines and answers, and the time of each step are bounded. So is the processor time that all connections take. Whoever
asks ten thousand times a second is answered less often. docs/control-socket.md describes the messages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from nopfsfs.control.client import MAX_ANSWER, VERSION, peer_credentials, socket_address
from nopfsfs.supervisor.caller_budget import CONNECTION_S, CallerBudget
from nopfsfs.supervisor.processes.supervised import first_of

log = logging.getLogger(__name__)
LINE_MAX = 1 << 16
CONNECTIONS_MOST = 64
WAITING_MOST = 48  # of these, for what comes when the mount ends: others are answered meanwhile
BACKLOG = 64  # connections that wait to be accepted; where descriptors are short, trio accepts them later
IDLE_S = 60.0  # without a request
LINE_S = 10.0  # for a line to arrive whole that has begun
SEND_S = 10.0  # for an answer to be taken
_BUG = "the daemon could not do that: {}; its log says more"


class Feed(Protocol):
    """Records that follow an answer, one a line, until the caller hangs up."""

    async def wait(self) -> None:
        """Return when there is a record to be sent: after a second at most, so that the caller sees life."""

    def next(self) -> dict[str, Any]:
        """Make the next record. Its time counts as the caller's."""


class Caller:
    """The other end of one connection. `gone` is set when it has hung up. What is in `at_end` is called when the
    connection has ended. A caller for whom there is something in `at_end` may say nothing for as long as it likes.
    `feed`: what follows the answer; the connection then answers nothing else."""

    def __init__(self, waiting: trio.CapacityLimiter) -> None:
        self.gone = trio.Event()
        self.at_end: list[Callable[[], None]] = []
        self.scope = trio.CancelScope()
        self.feed: Feed | None = None
        self.idle = False
        self._waiting = waiting

    async def unless_gone(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Return when `wait` has, or when the caller has hung up. Raises ValueError where too many wait."""
        try:
            self._waiting.acquire_on_behalf_of_nowait(self)
        except trio.WouldBlock:
            raise ValueError(f"{WAITING_MOST} commands wait for this mount already; end some") from None
        try:
            await first_of(wait, self.gone.wait)
        finally:
            self._waiting.release_on_behalf_of(self)


Answer = Callable[[dict[str, Any], Caller], Awaitable[dict[str, Any]]]


class _Room:
    """Callers that are answered, in the order in which they came."""

    def __init__(self) -> None:
        self._callers: dict[Caller, None] = {}
        self._waiting = trio.CapacityLimiter(WAITING_MOST)

    def admit(self) -> Caller | None:
        """Return a further caller; None where all that there is room for are being answered."""
        if len(self._callers) >= CONNECTIONS_MOST:
            idle = next((caller for caller in self._callers if caller.idle), None)
            if idle is None:
                return None
            idle.scope.cancel()
            self.leave(idle)
        caller = Caller(self._waiting)
        self._callers[caller] = None
        return caller

    def leave(self, caller: Caller) -> None:
        self._callers.pop(caller, None)


class _Lines:
    """Lines that a caller sends. `run` is a task that also sees the caller hang up while it is answered."""

    def __init__(self, stream: trio.SocketStream, caller: Caller) -> None:
        self._stream, self._caller = stream, caller
        self._buffer = bytearray()
        self._changed = trio.Event()

    async def run(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while len(self._buffer) < LINE_MAX and (part := await self._stream.receive_some(4096)):
                self._buffer += part
                self._changed.set()
        self._caller.gone.set()
        self._changed.set()

    async def next(self) -> bytes | None:
        """Return the next line; None where there is none: the caller is gone, too slow, or talks nonsense."""
        began, deadline = None, trio.current_time() + (math.inf if self._caller.at_end else IDLE_S)
        while b"\n" not in self._buffer:
            if self._buffer and began is None:
                began = trio.current_time()
                deadline = min(deadline, began + LINE_S)
            if self._caller.gone.is_set() or trio.current_time() >= deadline:
                return None
            self._changed = trio.Event()
            self._caller.idle = not self._caller.at_end
            with trio.move_on_at(deadline):
                await self._changed.wait()
            self._caller.idle = False
            if self._caller.scope.cancel_called:  # in the moment in which it spoke: nothing is begun for it any more
                return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line


class _PacedListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts a connection when there is processor time for callers; until then it waits in the kernel."""

    def __init__(self, listener: trio.SocketListener, budget: CallerBudget) -> None:
        self._listener, self._budget = listener, budget

    async def accept(self) -> trio.SocketStream:
        await self._budget.wait()
        stream = await self._listener.accept()
        self._budget.take(CONNECTION_S)
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()


async def serve(
    state_dir: str, answer: Answer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer requests until cancelled. `answer` returns the record, or raises ValueError with what is wrong."""
    room, budget = _Room(), CallerBudget()
    listener = _PacedListener(trio.SocketListener(await _listen(state_dir)), budget)

    async def converse(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await _admit(stream, room, answer, budget)
            except Exception:  # of this connection alone
                log.exception("a connection to the control socket failed")

    async with listener:
        task_status.started()
        await trio.serve_listeners(converse, [listener])


async def _listen(state_dir: str) -> trio.socket.SocketType:
    with contextlib.ExitStack() as failed, socket_address(state_dir) as path:
        listener = failed.enter_context(trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM))
        # Of a daemon that was killed; that no other lives is what the claim on the state directory says.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        await listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        failed.pop_all()
    return listener


async def _admit(stream: trio.SocketStream, room: _Room, answer: Answer, budget: CallerBudget) -> None:
    """Converse with who may, and for whom there is room."""
    if peer_credentials(stream.socket.getsockopt)[1] not in (0, os.geteuid()):
        await _send(stream, _refusal("only root and the user who mounted are answered"))
        return
    caller = room.admit()
    if caller is None:
        await _send(stream, _refusal(f"{CONNECTIONS_MOST} commands are talking to this mount already; try again"))
        return
    try:
        with caller.scope:
            await _converse(stream, caller, answer, budget)
    finally:
        room.leave(caller)
        for take_back in caller.at_end:
            take_back()


async def _converse(stream: trio.SocketStream, caller: Caller, answer: Answer, budget: CallerBudget) -> None:
    """Requests one after the other, until the connection ends."""
    lines = _Lines(stream, caller)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lines.run)
        while (line := await lines.next()) is not None:
            await budget.wait()
            began = time.thread_time()
            data = _encoded(await _reply(line, caller, answer))
            budget.take(time.thread_time() - began)
            if not await _send(stream, data):
                break
            if caller.feed is not None:
                await _send_feed(stream, caller, caller.feed, budget)
                break
        nursery.cancel_scope.cancel()


async def _send_feed(stream: trio.SocketStream, caller: Caller, feed: Feed, budget: CallerBudget) -> None:
    """Send record after record, until the caller hangs up or takes none for SEND_S."""
    while not caller.gone.is_set():
        await feed.wait()
        await budget.wait()
        began = time.perf_counter()
        data = _encoded({"ok": True, "version": VERSION, "record": feed.next()})
        budget.take(time.perf_counter() - began)
        if not await _send(stream, data):
            return


def _refusal(error: str) -> bytes:
    return _encoded({"ok": False, "version": VERSION, "error": error})


def _encoded(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode() + b"\n"
    return data if len(data) <= MAX_ANSWER else _refusal(f"the answer has {len(data)} bytes; ask for less")


async def _send(stream: trio.SocketStream, data: bytes) -> bool:
    """Send an answer; return True when the caller has taken it."""
    with trio.move_on_after(SEND_S), contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(data)
        return True
    return False


async def _reply(line: bytes, caller: Caller, answer: Answer) -> dict[str, Any]:
    said = {"ok": False, "version": VERSION}
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a request is an object")
        if (version := request.get("version", VERSION)) != VERSION:
            raise ValueError(f"version {version!r} of the messages is not known; this daemon knows {VERSION}")
        return {**said, "ok": True, "record": await answer(request, caller)}
    except (ValueError, RecursionError) as e:
        return {**said, "error": str(e)}
    except Exception as e:
        log.exception("a command failed")
        return {**said, "error": _BUG.format(type(e).__name__)}
