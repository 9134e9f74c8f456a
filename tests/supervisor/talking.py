"""A control socket that is served, and talked to, for tests."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

from nopfsfs.control.client import SOCKET_NAME
from nopfsfs.supervisor import control_socket as control

Answering = Callable[[dict[str, Any], control.Caller], Awaitable[dict[str, Any]]]


async def echo(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
    match request.get("command"):
        case "memory":
            raise MemoryError
        case "bug":
            raise RuntimeError("no such thing")
        case "no":
            raise ValueError("not now")
        case "wait":
            await caller.unless_gone(trio.sleep_forever)
    return request


@asynccontextmanager
async def served(tmp_path: Path, answer: Answering = echo) -> AsyncIterator[str]:
    """The path of a control socket that is being served."""
    async with trio.open_nursery() as nursery:
        await nursery.start(control.serve, str(tmp_path), answer)
        with trio.fail_after(20):
            yield str(tmp_path / SOCKET_NAME)
        nursery.cancel_scope.cancel()


async def say(path: str, *lines: bytes) -> list[Any]:
    """What is answered to some lines, on one connection."""
    async with await trio.open_unix_socket(path) as stream:
        answers = []
        for line in lines:
            await stream.send_all(line + b"\n")
            answers.append(await answer_of(stream))
        return answers


async def answer_of(stream: trio.SocketStream) -> Any:
    """The next line, and no byte of the one after it; None at the end."""
    received = b""
    while not received.endswith(b"\n"):
        seen = await stream.socket.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            return None
        received += bytes(await stream.receive_some(seen.find(b"\n") + 1 or len(seen)))
    return json.loads(received)
