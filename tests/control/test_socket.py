"""The supervisor's end of the control socket: whatever a client does costs its own connection at most."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nopfsfs.control import socket as control
from nopfsfs.control.client import SOCKET_NAME
from nopfsfs.control.quiet import Quiet

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
    received = b""
    while not received.endswith(b"\n"):
        part = await stream.receive_some()
        if not part:
            return None
        received += part
    return json.loads(received)


def run(body: Callable[[], Awaitable[None]]) -> None:
    trio.run(body)


def test_requests_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            assert await say(path, b'{"a": 1}', b'{"command": "no"}', b"[]", b"nonsense", b'{"a": 2}') == [
                {"ok": True, "record": {"a": 1}},
                {"ok": False, "error": "not now"},
                {"ok": False, "error": "a request is an object"},
                {"ok": False, "error": "Expecting value: line 1 column 1 (char 0)"},
                {"ok": True, "record": {"a": 2}},
            ]
            assert os.stat(path).st_mode & 0o777 == 0o600

    run(body)


@pytest.mark.parametrize("command", ["memory", "bug"])
def test_a_command_that_fails_ends_nothing(command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            failed, after = await say(path, json.dumps({"command": command}).encode(), b'{"a": 1}')
            assert not failed["ok"]
            assert "its log says more" in failed["error"]
            assert after["ok"]

    run(body)
    assert "a command failed" in caplog.text


@pytest.mark.parametrize(
    "sent", [b"", b"half", b"\0\xff" * 1000, b"[" * 60000 + b"\n", b"9" * 9999 + b"\n", b"x" * 99999]
)
def test_a_connection_that_talks_nonsense(sent: bytes, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            stream = await trio.open_unix_socket(path)
            try:
                await stream.send_all(sent)
            except trio.BrokenResourceError:
                pass
            await stream.aclose()
            assert await say(path, b"{}") == [{"ok": True, "record": {}}]

    run(body)


def test_more_connections_than_are_served(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            idle = [await trio.open_unix_socket(path) for _ in range(control.CONNECTIONS_MOST)]
            for stream in idle:
                await stream.send_all(b'{"command": "wait"}\n')
            further = await trio.open_unix_socket(path)
            refused = await answer_of(further)
            assert not refused["ok"]
            assert "talking to this mount already" in refused["error"]
            await further.aclose()
            for stream in idle:  # who waits for an answer and hangs up leaves its place at once
                await stream.aclose()
            for _ in range(100):
                if (await say(path, b"{}"))[0] is not None:
                    break
                await trio.testing.wait_all_tasks_blocked()
            assert (await say(path, b"{}"))[0]["ok"]

    run(body)


def test_who_takes_no_answer_or_ends_no_line_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.1)
    monkeypatch.setattr(control, "IDLE_S", 0.1)

    async def large(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        return {"much": "x" * (8 << 20)}

    async def body() -> None:
        async with served(tmp_path, large) as path:
            deaf = await trio.open_unix_socket(path)
            await deaf.send_all(b"{}\n")
            slow = await trio.open_unix_socket(path)
            await slow.send_all(b'{"comm')
            assert await slow.receive_some() == b""  # hung up
            await trio.sleep(0.3)  # longer than the limit allows
            received = b""
            while part := await deaf.receive_some():
                received += part
            assert received.startswith(b'{"ok": true')
            assert not received.endswith(b"\n")
            await slow.aclose()
            await deaf.aclose()

    run(body)


def test_no_descriptor_left_is_waited_for(tmp_path: Path) -> None:
    """EMFILE in accept ends nothing: the connection is accepted when there is a descriptor again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def body() -> None:
        async with served(tmp_path) as path:
            assert await say(path, b"{}") == [{"ok": True, "record": {}}]
            sock = socket.socket(socket.AF_UNIX)
            used = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
            held = []
            try:
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
            try:
                sock.connect(path)
                await trio.sleep(0.3)  # the accept fails meanwhile
            finally:
                for fd in held:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            sock.sendall(b"{}\n")
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            assert (await answer_of(stream))["ok"]
            await stream.aclose()

    try:
        run(body)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_a_caller_had_asked_for_is_taken_back_when_it_hangs_up(tmp_path: Path) -> None:
    events: list[str] = []
    ended = trio.Event()

    async def begin() -> None:
        events.append("begin")

    async def end() -> None:
        events.append("end")
        ended.set()

    quiet = Quiet(begin, end)

    async def answer(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        await quiet.keep(caller)
        return {}

    async def body() -> None:
        async with served(tmp_path, answer) as path:
            one, other = [await trio.open_unix_socket(path) for _ in range(2)]
            for stream in (one, other):
                await stream.send_all(b"{}\n")
                assert (await answer_of(stream))["ok"]
            await one.aclose()
            await say(path, b"{}")  # a third comes and goes
            assert "end" not in events
            await other.aclose()
            with trio.fail_after(5):
                await ended.wait()

    run(body)
    assert events == ["begin", "begin", "begin", "end"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_is_not_answered(open_to_all: Path) -> None:
    async def body() -> None:
        async with served(open_to_all) as path:
            os.chmod(path, 0o666)
            os.seteuid(12345)
            try:
                stream = await trio.open_unix_socket(path)
            finally:
                os.seteuid(0)
            answer = await answer_of(stream)
            assert answer == {"ok": False, "error": "only root and the user who mounted are answered"}
            await stream.aclose()

    run(body)
