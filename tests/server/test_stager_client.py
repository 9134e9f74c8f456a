"""The server's side of a miss, with a stager made of a socket, and the reader of last resort."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from nopfsfs.protocol import server_stager
from nopfsfs.protocol.server_stager import Answer, Demand
from nopfsfs.server import stager_client
from nopfsfs.server.stager_client import DIRECT_FILES, DirectReader, StagerClient, StagerGone
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from tests.asynchronous import in_trio
from tests.conftest import wait_until
from tests.stager.rig import PAGE, Rig, content, open_files_below, rig, write_files


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(server's end, stager's end)."""
    ours, theirs = sequenced_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


async def stay_open(root: Path, count: int) -> None:
    """Files are closed by nobody who reads."""
    with trio.fail_after(20):
        while len(open_files_below(root)) != count:  # noqa: ASYNC110
            await trio.sleep(0.01)


Pair = tuple[socket.socket, socket.socket]
HELLO = server_stager.pack_answer(Answer(0, 0, 0, 0))


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
        demand = server_stager.unpack_demand(stager.recv(256))
        assert demand[1:] == (1, 0, 10)
        stager.send(server_stager.pack_answer(Answer(demand.id, 0, 0, 10)))
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
        demands = [server_stager.unpack_demand(await stager.recv(256)) for _ in range(20)]
        for demand in reversed(demands):
            await stager.send(server_stager.pack_answer(Answer(demand.id, 0, demand.row * 100, 10)))
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
        unsent = [server_stager.pack_answer(Answer(0, 0, 1, 0))]
        while len(got) < count or not passed:
            try:
                while True:
                    demand = server_stager.unpack_demand(stager.recv(256))
                    if demand.id:
                        unsent.append(server_stager.pack_answer(Answer(demand.id, 0, 0, 10)))
                    passed += demand.id == 0
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
                demand = server_stager.unpack_demand(stager.recv(256))
                stager.send(server_stager.pack_answer(Answer(demand.id, 0, 0, 10)))
            stager.send(server_stager.pack_answer(Answer(0, 0, repeat + 1, 0)))
            readable = trio.socket.from_stdlib_socket(stager.dup())
            with readable:
                message = server_stager.unpack_demand(await readable.recv(256))
            stager.setblocking(True)
            assert (message.id, message.offset) == (0, -(repeat + 1))
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


@pytest.mark.parametrize("asked", [1, 200, 3000])
def test_a_stager_that_hangs_is_passed_by_until_it_answers_again(pair: Pair, asked: int) -> None:
    """Whoever waits already, too; also when its socket is full."""

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
            found, answers = [], [server_stager.pack_answer(Answer(0, 0, 1, 0))]
            while server_stager.PING not in found or found[-1] != Demand(0, 0, -1, 0):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        found.append(server_stager.unpack_demand(stager.recv(256)))
                        if found[-1] == server_stager.PING:
                            answers.append(server_stager.pack_answer(server_stager.PONG))
                        elif found[-1].id:  # late: nobody may take this for an answer of his own
                            answers.append(server_stager.pack_answer(Answer(found[-1].id, 0, 4096, 10)))
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
            demand = server_stager.unpack_demand(stager.recv(256))
            assert demand[1:] == (7, 0, 10)
            stager.send(server_stager.pack_answer(Answer(demand.id, 0, 0, 10)))
            await trio.testing.wait_all_tasks_blocked()
            assert got == [Answer(demand.id, 0, 0, 10)]
            stager.close()

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.02))


def test_a_slow_source_is_no_hanging_stager(pair: Pair) -> None:
    """It answers pings, and is waited for."""

    async def test() -> None:
        link, stager = known(*pair), trio.socket.from_stdlib_socket(pair[1])
        demands: list[Demand] = []

        async def live() -> None:
            while message := await stager.recv(256):
                demand = server_stager.unpack_demand(message)
                demands.append(demand)
                if demand == server_stager.PING:
                    await stager.send(server_stager.pack_answer(server_stager.PONG))

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
            assert 50 < demands.count(server_stager.PING) <= 400
            await stager.send(server_stager.pack_answer(Answer(demands[0].id, 0, 0, 10)))
            await trio.testing.wait_all_tasks_blocked()
            assert len(got) == 1
            pings = len(demands)
            await trio.sleep(10)
            assert len(demands) == pings, "nobody waits, nobody asks"
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
        stager.send(server_stager.pack_answer(Answer(99, 0, 0, 0)))
        await trio.testing.wait_all_tasks_blocked()
        await link.report_changed(7)
        assert server_stager.unpack_demand(stager.recv(256)) == Demand(0, 7, 0, 0)
        stager.close()


# ---- reading directly ---------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Rig]:
    write_files(tmp_path, [3 * PAGE + 5] * (DIRECT_FILES + 8))
    with rig(tmp_path, budget=PAGE) as made:
        yield made


@in_trio
async def test_ranges_are_read_from_one_open_until_release(files: Rig) -> None:
    reader, row = DirectReader(files.source), files.files[0]
    data = content(1, 3 * PAGE + 5)
    for offset, length in [(0, 10), (PAGE, 2 * PAGE), (3 * PAGE, PAGE), (3 * PAGE + 5, 10), (5 * PAGE, 1)]:
        assert await reader.read(row, offset, length) == data[offset : offset + length]
    assert files.source.opens == {row: 1}
    await reader.release(row)
    await reader.release(row)
    await stay_open(files.root, 0)


@in_trio
async def test_few_files_are_kept_open(files: Rig) -> None:
    reader = DirectReader(files.source)
    async with trio.open_nursery() as nursery:
        for row in files.files:
            nursery.start_soon(reader.read, row, 0, 10)
    await stay_open(files.root, DIRECT_FILES)
    for row in files.files:
        await reader.release(row)
    await stay_open(files.root, 0)


@in_trio
async def test_many_readers_of_one_file_leave_nothing_open(files: Rig) -> None:
    reader, row = DirectReader(files.source), files.files[0]
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(reader.read, row, 0, PAGE)
            nursery.start_soon(reader.release, row)
    await reader.release(row)
    await stay_open(files.root, 0)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("size", [0, 10, 10 * PAGE])
@in_trio
async def test_a_file_that_changed_is_stale(files: Rig, opened: bool, size: int) -> None:
    reader, row = DirectReader(files.source), files.files[0]
    if opened:
        await reader.read(row, 0, 10)
    os.truncate(files.path(row), size)
    with pytest.raises(OSError, match="changed") as caught:
        await reader.read(row, 0, 10)
    assert caught.value.errno == errno.ESTALE
    await stay_open(files.root, 0)
    files.refresh(row)
    assert await reader.read(row, 0, 100) == files.path(row).read_bytes()[:100]
    await reader.release(row)


@in_trio
async def test_a_file_that_is_gone_is_an_error(files: Rig) -> None:
    files.path(files.files[0]).unlink()
    with pytest.raises(FileNotFoundError):
        await DirectReader(files.source).read(files.files[0], 0, 10)


@in_trio
async def test_direct_reads_that_hang_leave_others_theirs(tmp_path: Path) -> None:
    count = 80
    write_files(tmp_path, [PAGE] * (count + 2))
    with rig(tmp_path, budget=PAGE) as r:
        gate, opened = threading.Event(), []

        def hang(row: int) -> None:
            if row in r.files[:count]:
                opened.append(row)
                gate.wait(30)

        r.source.while_opening = hang
        reader = DirectReader(r.source)
        got: dict[int, bytes] = {}

        async def read(row: int) -> None:
            got[row] = bytes(await reader.read(row, 0, PAGE))

        async with trio.open_nursery() as nursery:
            for row in r.files[:count]:
                nursery.start_soon(read, row)
            for row in r.files[count:]:
                with trio.fail_after(20):
                    await read(row)
            assert sorted(got) == r.files[count:]
            gate.set()
        assert got == {row: r.path(row).read_bytes() for row in r.files}
        assert sorted(opened) == r.files[:count]


@in_trio
async def test_closing_a_file_at_a_sick_target_keeps_nobody_from_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = DIRECT_FILES + 20
    write_files(tmp_path, [PAGE] * count)
    gate, closing = threading.Event(), []

    def close(fd: int) -> None:
        closing.append(fd)
        gate.wait(30)
        os.close(fd)

    monkeypatch.setattr(stager_client, "close", close)
    with rig(tmp_path, budget=PAGE) as r:
        reader = DirectReader(r.source)
        for row in r.files:
            with trio.fail_after(20):
                assert bytes(await reader.read(row, 0, PAGE)) == r.path(row).read_bytes()
        gate.set()
        for row in r.files:
            await reader.release(row)
        await stay_open(r.root, 0)
        assert len(closing) == count


@in_trio
async def test_a_file_that_nobody_reads_is_closed_though_its_handle_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager_client, "IDLE_S", 0.05)
    write_files(tmp_path, [PAGE, PAGE])
    with rig(tmp_path, budget=PAGE) as r:
        direct = DirectReader(r.source)
        for row in r.files:
            assert await direct.read(row, 0, PAGE) == content(r.files.index(row) + 1, PAGE)
        assert wait_until(lambda: open_files_below(tmp_path) == [])
        assert not direct.holds(r.files[0])
        assert await direct.read(r.files[0], 0, 10) == content(1, PAGE)[:10]
        await direct.release(r.files[0])
