"""The server's side of a miss, with a stager made of a socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from msgspec import msgpack

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.server_stager import (
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
    to_stager,
)
from nopfsfs.server.stager_client import BEHIND_MOST, StagerClient, StagerGone
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from tests.asynchronous import in_trio


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(server's end, stager's end)."""
    ours, theirs = sequenced_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


Pair = tuple[socket.socket, socket.socket]
HELLO = encode(Welcome())


def demand_in(data: bytes) -> Demand:
    """The demand that a message is."""
    message = to_stager.decode(data)
    assert isinstance(message, Demand)
    return message


def known(sock: socket.socket, stager: socket.socket) -> StagerClient:
    """A link that finds the hello of a stager as soon as it runs."""
    stager.send(HELLO)
    return StagerClient(sock, lambda: None)


@in_trio
async def test_nothing_is_asked_of_a_stager_that_has_not_said_that_it_knows_us(pair: Pair) -> None:
    welcomed: list[str] = []
    link, stager = StagerClient(pair[0], lambda: welcomed.append("now")), pair[1]
    stager.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StagerGone):
            await link.ask(1, 0, 10)
        with pytest.raises(BlockingIOError):
            stager.recv(256)
        assert welcomed == []
        stager.send(HELLO)
        await trio.testing.wait_all_tasks_blocked()
        assert welcomed == ["now"]
        nursery.start_soon(link.ask, 1, 0, 10)
        await trio.testing.wait_all_tasks_blocked()
        demand = demand_in(stager.recv(256))
        assert (demand.row, demand.offset, demand.length) == (1, 0, 10)
        stager.send(encode(Answer(demand.id, 0, 0, 10)))
        await trio.testing.wait_all_tasks_blocked()
        stager.close()
    with pytest.raises(StagerGone):
        await link.ask(1, 0, 10)


@in_trio
async def test_a_stager_that_dies_before_it_knows_us_welcomes_nobody(pair: Pair) -> None:
    welcomed: list[str] = []
    link = StagerClient(pair[0], lambda: welcomed.append("now"))
    pair[1].close()
    await link.run()
    assert link.drained.is_set()
    assert welcomed == []


@in_trio
async def test_the_welcome_of_a_stager_that_was_left_is_none(pair: Pair) -> None:
    """A server that was behind reads it after it has heard of the next stager, whose arena is another one."""
    welcomed: list[str] = []
    link = StagerClient(pair[0], lambda: welcomed.append("now"))
    pair[1].send(HELLO)
    link.leave()
    await link.run()
    assert welcomed == []
    assert link.drained.is_set()


@in_trio
async def test_answers_find_who_asked_in_whatever_order(pair: Pair) -> None:
    link, stager = known(*pair), trio.socket.from_stdlib_socket(pair[1])
    got: dict[int, Answer] = {}

    async def ask(row: int) -> None:
        got[row] = await link.ask(row, 0, 10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()
        for row in range(20):
            nursery.start_soon(ask, row)
        demands = [demand_in(await stager.recv(256)) for _ in range(20)]
        for demand in reversed(demands):
            await stager.send(encode(Answer(demand.id, 0, demand.row * 100, 10)))
        while len(got) < 20:
            await trio.testing.wait_all_tasks_blocked()
        stager.close()
    assert {row: answer.arena for row, answer in got.items()} == {row: row * 100 for row in range(20)}


@in_trio
async def test_a_stager_that_takes_nothing_for_a_while_is_waited_for_by_all(pair: Pair) -> None:
    """More asks than its socket holds, graces in between, and its answers more than ours holds."""
    link, stager = known(*pair), pair[1]
    stager.setblocking(False)
    count, got, passed = 1500, [], 0

    async def ask(row: int) -> None:
        got.append(await link.ask(row, 0, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()
        for row in range(count):
            nursery.start_soon(ask, row)
        await trio.testing.wait_all_tasks_blocked()
        unsent = [encode(AskGrace(1))]
        while len(got) < count or not passed:
            try:
                while True:
                    match to_stager.decode(stager.recv(256)):
                        case Demand(number):
                            unsent.append(encode(Answer(number, 0, 0, 10)))
                        case StagerPing():  # this took longer than a second
                            unsent.append(encode(StagerPong()))
                        case other:
                            assert other == GracePassed(1)
                            passed += 1
            except BlockingIOError:
                pass
            try:
                while unsent:
                    stager.send(unsent[0])
                    del unsent[0]
            except BlockingIOError:
                pass
            await trio.testing.wait_all_tasks_blocked()
        stager.close()
    assert (len(got), passed) == (count, 1)


@in_trio
async def test_a_grace_passes_after_all_who_were_answered_before_have_run(pair: Pair) -> None:
    link, stager = known(*pair), pair[1]
    ran: list[int] = []

    async def ask(row: int) -> None:
        await link.ask(row, 0, 10)
        ran.append(row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()
        for repeat in range(20):
            for row in range(5):
                nursery.start_soon(ask, row)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                demand = demand_in(stager.recv(256))
                stager.send(encode(Answer(demand.id, 0, 0, 10)))
            stager.send(encode(AskGrace(repeat + 1)))
            readable = trio.socket.from_stdlib_socket(stager.dup())
            with readable:
                message = to_stager.decode(await readable.recv(256))
            stager.setblocking(True)
            assert message == GracePassed(repeat + 1)
            assert sorted(ran) == list(range(5))
            ran.clear()
        stager.close()


@in_trio
async def test_who_waits_for_a_stager_that_dies_is_told(pair: Pair) -> None:
    link = known(*pair)
    told: list[int] = []

    async def ask(row: int) -> None:
        with pytest.raises(StagerGone):
            await link.ask(row, 0, 10)
        told.append(row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()
        for row in range(5):
            nursery.start_soon(ask, row)
        await trio.testing.wait_all_tasks_blocked()
        assert not link.drained.is_set()
        pair[1].close()
        await link.drained.wait()
        assert sorted(told) == list(range(5)), "they have run when it is said to be drained"
    with pytest.raises(StagerGone):
        await link.ask(1, 0, 1)
    await link.report_changed(1)


async def stopped(link: StagerClient, asked: int) -> list[int]:
    """Ask so often of a stager that says nothing; who was told that it is gone, in virtual time within two seconds."""
    told: list[int] = []

    async def ask(row: int) -> None:
        with pytest.raises(StagerGone):
            await link.ask(row, 0, 10)
        told.append(row)

    with trio.fail_after(2.0):
        async with trio.open_nursery() as nursery:
            for row in range(asked):
                nursery.start_soon(ask, row)
    return told


@pytest.mark.parametrize("asked", [1, 200, 3000, BEHIND_MOST + 2000])
def test_a_stager_that_hangs_is_passed_by_until_it_answers_again(pair: Pair, asked: int) -> None:
    """Whoever waits already, too; also when its socket is full, and when no more demands may wait for it."""

    async def test() -> None:
        link, stager = known(*pair), pair[1]
        stager.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(await stopped(link, asked)) == list(range(asked))
            with pytest.raises(StagerGone):
                await link.ask(1, 0, 10)
            # It goes on, with all that it has found in its socket.
            found: list[ToStager] = []
            answers = [encode(AskGrace(1))]
            while StagerPing() not in found or found[-1] != GracePassed(1):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        found.append(to_stager.decode(stager.recv(256)))
                        match found[-1]:
                            case StagerPing():
                                answers.append(encode(StagerPong()))
                            case Demand(number):  # late: nobody may take this for an answer of his own
                                answers.append(encode(Answer(number, 0, 4096, 10)))
                with contextlib.suppress(BlockingIOError):
                    while answers:
                        stager.send(answers[0])
                        del answers[0]
                await trio.testing.wait_all_tasks_blocked()
            got: list[Answer] = []

            async def ask() -> None:
                got.append(await link.ask(7, 0, 10))

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            demand = demand_in(stager.recv(256))
            assert (demand.row, demand.offset, demand.length) == (7, 0, 10)
            stager.send(encode(Answer(demand.id, 0, 0, 10)))
            await trio.testing.wait_all_tasks_blocked()
            assert got == [Answer(demand.id, 0, 0, 10)]
            stager.close()

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.02))


def everything(stager: socket.socket) -> list[bytes]:
    """The messages in its socket."""
    found: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(stager.recv(256))
    return found


def test_of_what_waits_for_a_stager_that_hangs_only_demands_are_dropped(pair: Pair) -> None:
    """Nobody reports the rest again."""

    async def test() -> None:
        link, stager = known(*pair), pair[1]
        stager.setblocking(False)
        rest: list[ToStager] = [YoungFilesRead([YoungRead(7, 1, 0, 10, 2**64 - 1)]), FileChanged(9), GracePassed(1)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await trio.testing.wait_all_tasks_blocked()
            while not len(link._out):
                link._send(Demand(1, 7, 0, 10))
            for message in rest:
                link._send(message)
            link._send(Demand(2, 7, 0, 10))
            assert await stopped(link, 1) == [0]
            assert [to_stager.decode(data) for data in link._out._waiting] == [*rest, StagerPing()]
            nursery.cancel_scope.cancel()

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.02))


def test_a_grace_passes_though_no_more_demands_may_wait(pair: Pair) -> None:
    """The stager would wait for it for ever, and use nothing again that it had retired."""

    async def test() -> None:
        link, stager = known(*pair), pair[1]
        stager.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await trio.testing.wait_all_tasks_blocked()
            with contextlib.suppress(StagerGone):
                while True:
                    link._send(Demand(1, 7, 0, 10))
            stager.send(encode(AskGrace(1)))
            await trio.testing.wait_all_tasks_blocked()
            last = b""
            while more := everything(stager):
                last = more[-1]
                await trio.testing.wait_all_tasks_blocked()
            assert to_stager.decode(last) == GracePassed(1)
            nursery.cancel_scope.cancel()

    trio.run(test, clock=trio.testing.MockClock())


@pytest.mark.long
def test_a_slow_source_is_no_hanging_stager(pair: Pair) -> None:
    """It answers pings, and is waited for."""

    async def test() -> None:
        link, stager = known(*pair), trio.socket.from_stdlib_socket(pair[1])
        heard: list[ToStager] = []

        async def live() -> None:
            while message := await stager.recv(256):
                heard.append(to_stager.decode(message))
                if heard[-1] == StagerPing():
                    await stager.send(encode(StagerPong()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(live)
            got: list[Answer] = []

            async def ask() -> None:
                got.append(await link.ask(7, 0, 10))

            nursery.start_soon(ask)
            await trio.sleep(100)
            assert (got, link.silent) == ([], False)
            assert 50 < heard.count(StagerPing()) <= 400
            assert isinstance(heard[0], Demand)
            await stager.send(encode(Answer(heard[0].id, 0, 0, 10)))
            await trio.testing.wait_all_tasks_blocked()
            assert len(got) == 1
            pings = len(heard)
            await trio.sleep(10)
            assert len(heard) == pings, "nobody waits, nobody asks"
            nursery.cancel_scope.cancel()

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.02))


@in_trio
async def test_a_stager_that_is_left_is_drained_though_its_socket_stays_open(pair: Pair) -> None:
    """Killed, and asleep in the kernel."""
    link = known(*pair)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await trio.testing.wait_all_tasks_blocked()

        async def ask() -> None:
            with pytest.raises(StagerGone):
                await link.ask(1, 0, 10)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        link.leave()
        await link.drained.wait()
    assert link.fileno() < 0


@in_trio
async def test_garbage_and_answers_nobody_asked_for_are_ignored(pair: Pair) -> None:
    link, stager = known(*pair), pair[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        stager.send(b"garbage")
        stager.send(msgpack.encode((11, -1, 0, 0, 0, 0)))  # an answer, but for its number
        stager.send(encode(Answer(99, 0, 0, 0)))
        await trio.testing.wait_all_tasks_blocked()
        await link.report_changed(7)
        assert to_stager.decode(stager.recv(256)) == FileChanged(7)
        stager.close()
