"""How many servers a mount has; what a server that is started anew gets to know."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from nopfsfs.config import MountConfig
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.supervisor_server import MESSAGE_MAX, Drained, MeetStager, to_server
from nopfsfs.supervisor.processes.servers import NO_BLOCK, ServerHandle, number_of_servers
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.system.outages import Outages
from tests.asynchronous import in_trio


def config(**more: object) -> MountConfig:
    return MountConfig(source="/s", mountpoint="/m", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (4, 1), (7, 1), (8, 2), (16, 4), (256, 4)])
def test_there_is_one_for_each_four_cores(cores: int, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert number_of_servers(config()) == servers
    assert number_of_servers(config(servers=3)) == 3


def test_without_the_fast_path_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a pyfuse3 on the one descriptor then, and one of them would get INIT."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert number_of_servers(config(fast_path=False)) == 1
    assert number_of_servers(config(fast_path=False, servers=3)) == 1


@in_trio
async def test_a_server_gets_to_know_the_stager_though_the_one_before_was_dead_when_that_began() -> None:
    """The stager was replaced while the server waited to be started again."""
    known: list[socket.socket] = []

    async def tell_stager(end: socket.socket) -> bool:
        known.append(end.dup())
        return True

    child = cast(Any, SimpleNamespace(kill=None))
    pool = SimpleNamespace(
        starting=trio.Lock(), changed=lambda: None, tell_stager=tell_stager, arena_number=3,
        spawn=lambda number, control, block: child, assign_block=lambda: NO_BLOCK,
    )  # fmt: skip
    handle = ServerHandle(cast(Any, pool), 0, lambda: 0, Outages())
    await handle.start()
    assert handle._control is not None
    handle._control.close()  # it has died
    theirs, ours = sequenced_pair()
    with theirs, ours:
        assert not handle.know_stager(ours, 2)
    await handle.start()
    await handle.introduce(child)
    assert len(known) == 1
    for end in known:
        end.close()
    handle._forget_link()
    handle._control.close()


@in_trio
async def test_a_server_that_is_behind_is_drained_when_it_has_met_the_stager_that_is_asked_about() -> None:
    """Its answer to the stager before comes late."""
    control: list[socket.socket] = []

    async def within(event: trio.Event, limit_s: float) -> bool:
        await event.wait()
        return True

    def spawn(number: int, fd: int, block: int) -> Any:
        control.append(socket.socket(fileno=os.dup(fd)))
        return SimpleNamespace(within=within)

    pool = SimpleNamespace(starting=None, changed=None, spawn=spawn, assign_block=lambda: NO_BLOCK)
    handle = ServerHandle(cast(Any, pool), 0, lambda: 0, Outages())
    handle.process.child = await handle.start()
    (server,) = control

    def met() -> MeetStager:
        message = to_server.decode(server.recv(MESSAGE_MAX))
        assert isinstance(message, MeetStager)
        return message

    theirs, ours = sequenced_pair()
    drained: list[bool] = []

    async def drain() -> None:
        drained.append(await handle.drain(ours, 4, None))

    with theirs, ours, server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.listen, lambda: None)
            assert handle.know_stager(ours, 3)
            nursery.start_soon(drain)
            await trio.testing.wait_all_tasks_blocked()
            for answered in (met(), met()):
                assert drained == []
                server.send(encode(Drained(answered.serial)))
                await trio.testing.wait_all_tasks_blocked()
            assert drained == [True]
            nursery.cancel_scope.cancel()
    handle._forget_link()
    handle.abandon()
