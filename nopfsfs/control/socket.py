"""The supervisor's side of the control socket: one JSON object a line, both ways (the other side: `client.py`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from nopfsfs.control.client import SOCKET_NAME

log = logging.getLogger(__name__)
LINE_MAX = 1 << 16
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def serve(
    state_dir: str, answer: Answer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer requests until cancelled. `answer` returns the record, or raises ValueError with what is wrong."""
    path = os.path.join(state_dir, SOCKET_NAME)
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listener:
        # Of a daemon that was killed; that no other lives is what the claim on the state directory says.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By way of the descriptor: a socket's address must be shorter than many a path.
            await listener.bind(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
        finally:
            os.close(fd)
        os.chmod(path, 0o600)
        listener.listen(16)
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                connection, _ = await listener.accept()
                nursery.start_soon(_converse, trio.SocketStream(connection), answer)


async def _converse(stream: trio.SocketStream, answer: Answer) -> None:
    """One connection: requests one after the other, until it is closed or talks nonsense."""
    buffer = bytearray()
    async with stream:
        try:
            while len(buffer) < LINE_MAX:
                line, newline, rest = bytes(buffer).partition(b"\n")
                if newline:
                    buffer[:] = rest
                    await stream.send_all(json.dumps(await _reply(line, answer)).encode() + b"\n")
                    continue
                part = await stream.receive_some(4096)
                if not part:
                    return
                buffer += part
        except trio.BrokenResourceError:
            pass


async def _reply(line: bytes, answer: Answer) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ValueError("a request is an object")
        return {"ok": True, "record": await answer(request)}
    except (ValueError, RecursionError) as e:
        return {"ok": False, "error": str(e)}
