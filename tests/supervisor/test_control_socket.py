"""The supervisor's end of the control socket: whatever a client does costs its own connection at most."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nopfsfs.control.client import MAX_ANSWER
from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.supervisor import caller_budget
from nopfsfs.supervisor import control_socket as control
from nopfsfs.supervisor.quiet import Quiet
from tests.supervisor.talking import answer_of, say, served


def run(body: Callable[[], Awaitable[None]]) -> None:
    trio.run(body)


def ok(record: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"ok": True, "version": 1, "record": record or {}}


def no(error: str) -> dict[str, Any]:
    return {"ok": False, "version": 1, "error": error}


def test_another_version_is_refused_and_further_keys_are_not(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            answers = await say(path, b'{"version": 1}', b'{"version": 2, "command": "no"}', b'{"version": "1"}')
            assert answers[0] == ok({"version": 1})
            assert answers[1] == no("version 2 of the messages is not known; this daemon knows 1")
            assert not answers[2]["ok"]

    run(body)


def test_who_asks_without_end_gets_a_tenth_of_a_processor_and_others_are_answered(tmp_path: Path) -> None:
    """Connections that ask as fast as they can, each answer of a millisecond. What is answered follows from the time
    that was taken, so that a slow machine answers less."""
    asked: list[float] = []

    async def answer(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        began = time.thread_time()
        while time.thread_time() - began < 0.001:
            pass
        asked.append(time.thread_time() - began)
        return {}

    async def ask_without_end(path: str) -> None:
        async with await trio.open_unix_socket(path) as stream:
            while True:
                await stream.send_all(b"{}\n")
                assert (await answer_of(stream))["ok"]

    async def connect_without_end(path: str) -> None:
        while True:
            assert (await say(path, b"{}"))[0]["ok"]

    async def body() -> None:
        async with served(tmp_path, answer) as path, trio.open_nursery() as nursery:
            began = trio.current_time()
            for _ in range(8):
                nursery.start_soon(ask_without_end, path)
                nursery.start_soon(connect_without_end, path)
            await trio.sleep(caller_budget.STORE_S)
            for _ in range(5):  # who asks beside them waits for his turn, not for the end
                assert (await say(path, b"{}"))[0]["ok"]
            nursery.cancel_scope.cancel()
        elapsed = trio.current_time() - began
        one_each = 17 * caller_budget.ANSWER_MOST_S
        assert sum(asked) <= caller_budget.STORE_S + caller_budget.SHARE * elapsed + one_each

    run(body)


def test_requests_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            assert await say(path, b'{"a": 1}', b'{"command": "no"}', b"[]", b"nonsense", b'{"a": 2}') == [
                ok({"a": 1}),
                no("not now"),
                no("a request is an object"),
                no("Expecting value: line 1 column 1 (char 0)"),
                ok({"a": 2}),
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
            assert await say(path, b"{}") == [ok()]

    run(body)


async def came_true(condition: Callable[[], bool]) -> bool:
    """Whether it did, within 5 s."""
    for _ in range(500):
        if condition():
            return True
        await trio.sleep(0.01)
    return False


async def open_many(path: str, count: int, line: bytes = b"") -> list[trio.SocketStream]:
    streams = [await trio.open_unix_socket(path) for _ in range(count)]
    for stream in streams:
        await stream.send_all(line)
    await trio.testing.wait_all_tasks_blocked(0.01)  # all lines have been read: nobody is taken for idle
    return streams


def test_when_all_places_are_taken_the_longest_idle_is_hung_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            idle = await open_many(path, control.CONNECTIONS_MOST)
            assert await say(path, b"{}") == [ok()]
            assert await idle[0].receive_some() == b""
            await idle[1].send_all(b"{}\n")
            assert (await answer_of(idle[1]))["ok"]
            for stream in idle:
                await stream.aclose()

    run(body)


def test_more_requests_than_are_answered_at_a_time(tmp_path: Path) -> None:
    go_on = trio.Event()

    async def busy(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        await go_on.wait()
        return {}

    async def body() -> None:
        async with served(tmp_path, busy) as path:
            streams = await open_many(path, control.CONNECTIONS_MOST, b"{}\n")
            await trio.testing.wait_all_tasks_blocked(0.01)  # or one that has not spoken yet is hung up
            (refused,) = await say(path, b"{}")
            assert refused["error"] == "64 commands are talking to this mount already; try again"
            go_on.set()
            assert [await answer_of(stream) for stream in streams] == [ok()] * 64
            for stream in streams:
                await stream.aclose()

    run(body)


@pytest.mark.parametrize("further", [b"", b'{"command": "more"}\n'], ids=["", "with more to say"])
def test_who_waits_for_the_end_keeps_nobody_from_being_answered(further: bytes, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as path:
            wait = b'{"command": "wait"}\n'
            waiting = await open_many(path, control.WAITING_MOST, wait + further)
            await trio.testing.wait_all_tasks_blocked(0.01)
            refused, answered = await say(path, wait.strip(), b"{}")
            assert "wait for this mount already" in refused["error"]
            assert answered["ok"]
            for stream in waiting:  # who hangs up leaves the place at once
                await stream.aclose()
            await trio.testing.wait_all_tasks_blocked(0.01)
            for stream in await open_many(path, control.WAITING_MOST, wait):
                with trio.move_on_after(0.02) as nothing:
                    assert await stream.receive_some() == b""
                assert nothing.cancelled_caught  # it waits
                await stream.aclose()

    run(body)


def test_who_says_nothing_is_hung_up_but_for_whom_something_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        caller.at_end.append(lambda: None)
        return {}

    async def body() -> None:
        async with served(tmp_path, keep) as path:
            (kept,) = await open_many(path, 1)
            for limit_s in (control.IDLE_S, 0.1):  # short only from where on nothing is to be said in time
                monkeypatch.setattr(control, "IDLE_S", limit_s)
                await kept.send_all(b"{}\n")
                assert (await answer_of(kept))["ok"]
            (silent,) = await open_many(path, 1)
            assert await silent.receive_some() == b""
            await trio.sleep(0.2)  # longer than the limit
            await kept.send_all(b"{}\n")
            assert (await answer_of(kept))["ok"]
            for stream in kept, silent:
                await stream.aclose()

    run(body)


def test_a_line_that_comes_a_byte_at_a_time_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LINE_S", 0.2)

    async def body() -> None:
        async with served(tmp_path) as path:
            slow = await trio.open_unix_socket(path)
            sent = 0
            with suppress(trio.BrokenResourceError):
                while sent < 200:  # 4 s
                    await slow.send_all(b"x")
                    await trio.sleep(0.02)
                    sent += 1
            assert sent < 200
            await slow.aclose()

    run(body)


def test_who_takes_no_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.1)
    cut_off = trio.Event()

    async def large(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        caller.at_end.append(cut_off.set)
        return {"much": "x" * (8 << 20)}

    async def body() -> None:
        async with served(tmp_path, large) as path:
            deaf = await trio.open_unix_socket(path)
            await deaf.send_all(b"{}\n" * 100)
            await cut_off.wait()
            received = b""
            while part := await deaf.receive_some():
                received += part
            assert received.startswith(b'{"ok": true')
            assert b"\n" not in received
            await deaf.aclose()

    run(body)


def test_an_answer_is_no_longer_than_the_commands_take(tmp_path: Path) -> None:
    async def larger(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        return {"much": "x" * MAX_ANSWER}

    async def body() -> None:
        async with served(tmp_path, larger) as path:
            ((answer),) = await say(path, b"{}")
            assert answer["error"].endswith("ask for less")

    run(body)


def test_a_thousand_connections_leave_nothing(tmp_path: Path) -> None:
    chance = random.Random(15)
    commands = (b'{"command": "wait"}\n', b'{"command": "bug"}\n', b"{}\n{}\n")
    rubbish = (*commands, b"", b"half", bytes(range(256)), b"[" * 9999)

    async def one(path: str) -> None:
        stream = await trio.open_unix_socket(path)
        try:
            await stream.send_all(chance.choice(rubbish))
            if chance.random() < 0.5:
                with trio.move_on_after(0.001):
                    await stream.receive_some()
        except trio.BrokenResourceError:
            pass
        await stream.aclose()

    async def body() -> None:
        async with served(tmp_path) as path:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(one, path)
            assert await say(path, b'{"a": 1}') == [ok({"a": 1})]
            assert await came_true(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(body)


def test_no_descriptor_left_is_waited_for(tmp_path: Path) -> None:
    """EMFILE in accept ends nothing: the connection is accepted when there is a descriptor again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def body() -> None:
        async with served(tmp_path) as path:
            assert await say(path, b"{}") == [ok()]
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


def test_a_mount_is_quiet_until_the_last_who_asked_for_it_hangs_up(tmp_path: Path) -> None:
    metrics = memoryview(bytearray(METRICS * 8)).cast("q")
    metrics[Metric.QUIET] = 1  # of a supervisor that died
    quiet = Quiet(metrics)
    found = [metrics[Metric.QUIET]]

    async def answer(request: dict[str, Any], caller: control.Caller) -> dict[str, Any]:
        if request:
            quiet.keep(caller)
        return {"quiet": metrics[Metric.QUIET]}

    async def body() -> None:
        async with served(tmp_path, answer) as path:
            one, other = await open_many(path, 2, b'{"command": "be quiet"}\n')
            for stream in one, other:
                assert (await answer_of(stream))["record"] == {"quiet": 1}
            await one.aclose()
            await trio.testing.wait_all_tasks_blocked(0.01)
            found.append((await say(path, b"{}"))[0]["record"]["quiet"])
            await other.aclose()
            assert await came_true(lambda: metrics[Metric.QUIET] == 0)

    run(body)
    assert found == [0, 1]


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
            assert answer == no("only root and the user who mounted are answered")
            await stream.aclose()

    run(body)
