"""The supervisor's side of the control socket: one JSON object a line, both ways (the other side: `client.py`).

Nothing that a client sends or leaves undone ends more than its own connection. The number of connections, the length of
lines, and the time of each step are bounded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from nopfsfs.control.client import SOCKET_NAME, peer_uid

log = logging.getLogger(__name__)
LINE_MAX = 1 << 16
CONNECTIONS_MOST = 64
BACKLOG = 64  # connections that wait to be accepted; where descriptors are short, trio accepts them later
IDLE_S = 60.0  # for a line to arrive whole
SEND_S = 10.0  # for an answer to be taken
END_S = 5.0  # for what a client had asked for to be taken back
_BUG = "the daemon could not do that: {}; its log says more"


class Caller:
    """The other end of one connection. `gone` is set when it has hung up; what is in `at_end` is called then."""

    def __init__(self) -> None:
        self.gone = trio.Event()
        self.at_end: list[Callable[[], Awaitable[None]]] = []

    async def unless_gone(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Return when `wait` has, or when the caller has hung up."""
        async with trio.open_nursery() as nursery:

            async def until(step: Callable[[], Awaitable[object]]) -> None:
                await step()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, wait)
            nursery.start_soon(until, self.gone.wait)


Answer = Callable[[dict[str, Any], Caller], Awaitable[dict[str, Any]]]


async def serve(
    state_dir: str, answer: Answer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer requests until cancelled. `answer` returns the record, or raises ValueError with what is wrong."""
    listener = trio.SocketListener(await _listen(state_dir))
    connections = trio.CapacityLimiter(CONNECTIONS_MOST)

    async def converse(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await _admit(stream, connections, answer)
            except Exception:  # of this connection alone
                log.exception("a connection to the control socket failed")

    async with listener:
        task_status.started()
        await trio.serve_listeners(converse, [listener])


async def _listen(state_dir: str) -> trio.socket.SocketType:
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    fd = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # By way of the descriptor: a socket's address must be shorter than many a path.
        path = f"/proc/self/fd/{fd}/{SOCKET_NAME}"
        # Of a daemon that was killed; that no other lives is what the claim on the state directory says.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        await listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener


async def _admit(stream: trio.SocketStream, connections: trio.CapacityLimiter, answer: Answer) -> None:
    """Converse with who may, and for whom there is room."""
    if peer_uid(stream.socket.getsockopt) not in (0, os.geteuid()):
        await _send(stream, {"ok": False, "error": "only root and the user who mounted are answered"})
        return
    try:
        connections.acquire_nowait()
    except trio.WouldBlock:
        error = f"{CONNECTIONS_MOST} commands are talking to this mount already; try again"
        await _send(stream, {"ok": False, "error": error})
        return
    caller = Caller()
    try:
        await _converse(stream, caller, answer)
    finally:
        connections.release()
        with trio.move_on_after(END_S):
            for take_back in caller.at_end:
                await take_back()


async def _converse(stream: trio.SocketStream, caller: Caller, answer: Answer) -> None:
    """Requests one after the other, until the connection is closed or talks nonsense."""
    lines, received = trio.open_memory_channel[bytes](0)
    async with trio.open_nursery() as nursery, received:
        nursery.start_soon(_receive, stream, caller, lines)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for line in received:
                if not await _send(stream, await _reply(line, caller, answer)):
                    break
        nursery.cancel_scope.cancel()


async def _receive(stream: trio.SocketStream, caller: Caller, lines: trio.MemorySendChannel[bytes]) -> None:
    """Take lines as they come; while one is being answered, see whether the caller hangs up."""
    buffer = bytearray()
    async with lines:
        while len(buffer) < LINE_MAX:
            try:
                # A caller that waits for a long answer says nothing meanwhile; one in mid-line is to go on.
                with trio.fail_after(IDLE_S) if buffer else contextlib.nullcontext():
                    part = await stream.receive_some(4096)
            except (trio.BrokenResourceError, trio.TooSlowError):
                part = b""
            if not part:
                break
            buffer += part
            *whole, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
            for line in whole:
                await lines.send(line)
        caller.gone.set()


async def _send(stream: trio.SocketStream, message: dict[str, Any]) -> bool:
    """Whether it was taken."""
    with trio.move_on_after(SEND_S), contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(json.dumps(message).encode() + b"\n")
        return True
    return False


async def _reply(line: bytes, caller: Caller, answer: Answer) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a request is an object")
        return {"ok": True, "record": await answer(request, caller)}
    except (ValueError, RecursionError) as e:
        return {"ok": False, "error": str(e)}
    except Exception as e:
        log.exception("a command failed")
        return {"ok": False, "error": _BUG.format(type(e).__name__)}
