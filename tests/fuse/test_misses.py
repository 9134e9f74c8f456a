"""The server's side of a miss, with a stager made of a socket, and the reader of last resort."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from nopfsfs.control.children import sequenced_pair
from nopfsfs.fetch import wire
from nopfsfs.fetch.wire import Answer, Demand
from nopfsfs.fuse import misses
from nopfsfs.fuse.misses import DIRECT_FILES, DirectReader, StagerGone, StagerLink
from tests.asynchronous import in_trio
from tests.conftest import wait_until
from tests.fetch.rig import PAGE, Rig, content, open_files_below, rig, write_files


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(server's end, stager's end)."""
    ours, theirs = sequenced_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


Pair = tuple[socket.socket, socket.socket]
HELLO = wire.pack_answer(Answer(0, 0, 0, 0))


def known(sock: socket.socket, stager: socket.socket) -> StagerLink:
    """A link that finds the hello of a stager as soon as it runs."""
    stager.send(HELLO)
    return StagerLink(sock, lambda: None)


@in_trio
async def test_nothing_is_asked_of_a_stager_that_has_not_said_that_it_knows_us(pair: Pair) -> None:
    welcomed: list[str] = []
    link, stager = StagerLink(pair[0], lambda: welcomed.append("now")), pair[1]
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
        demand = wire.unpack_demand(stager.recv(256))
        assert demand[1:] == (1, 0, 10)
        stager.send(wire.pack_answer(Answer(demand.id, 0, 0, 10)))
        await trio.testing.wait_all_tasks_blocked()
        stager.close()
    with pytest.raises(StagerGone):
        await link.ask(1, 0, 10)


@in_trio
async def test_a_stager_that_dies_before_it_knows_us_welcomes_nobody(pair: Pair) -> None:
    welcomed: list[str] = []
    link = StagerLink(pair[0], lambda: welcomed.append("now"))
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
        demands = [wire.unpack_demand(await stager.recv(256)) for _ in range(20)]
        for demand in reversed(demands):
            await stager.send(wire.pack_answer(Answer(demand.id, 0, demand.row * 100, 10)))
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
        unsent = [wire.pack_answer(Answer(0, 0, 1, 0))]
        while len(got) < count or not passed:
            try:
                while True:
                    demand = wire.unpack_demand(stager.recv(256))
                    if demand.id:
                        unsent.append(wire.pack_answer(Answer(demand.id, 0, 0, 10)))
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
                demand = wire.unpack_demand(stager.recv(256))
                stager.send(wire.pack_answer(Answer(demand.id, 0, 0, 10)))
            stager.send(wire.pack_answer(Answer(0, 0, repeat + 1, 0)))
            readable = trio.socket.from_stdlib_socket(stager.dup())
            with readable:
                message = wire.unpack_demand(await readable.recv(256))
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


@in_trio
async def test_garbage_and_answers_nobody_asked_for_are_ignored(pair: Pair) -> None:
    link, stager = known(*pair), pair[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        stager.send(b"garbage")
        stager.send(wire.pack_answer(Answer(99, 0, 0, 0)))
        await trio.testing.wait_all_tasks_blocked()
        await link.report_changed(7)
        assert wire.unpack_demand(stager.recv(256)) == Demand(0, 7, 0, 0)
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
    assert open_files_below(files.root) == []


@in_trio
async def test_few_files_are_kept_open(files: Rig) -> None:
    reader = DirectReader(files.source)
    async with trio.open_nursery() as nursery:
        for row in files.files:
            nursery.start_soon(reader.read, row, 0, 10)
    assert len(open_files_below(files.root)) == DIRECT_FILES
    for row in files.files:
        await reader.release(row)
    assert open_files_below(files.root) == []


@in_trio
async def test_many_readers_of_one_file_leave_nothing_open(files: Rig) -> None:
    reader, row = DirectReader(files.source), files.files[0]
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(reader.read, row, 0, PAGE)
            nursery.start_soon(reader.release, row)
    await reader.release(row)
    assert open_files_below(files.root) == []


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
    assert open_files_below(files.root) == []
    files.refresh(row)
    assert await reader.read(row, 0, 100) == files.path(row).read_bytes()[:100]
    await reader.release(row)


@in_trio
async def test_a_file_that_is_gone_is_an_error(files: Rig) -> None:
    files.path(files.files[0]).unlink()
    with pytest.raises(FileNotFoundError):
        await DirectReader(files.source).read(files.files[0], 0, 10)


@in_trio
async def test_a_file_that_nobody_reads_is_closed_though_its_handle_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misses, "IDLE_S", 0.05)
    write_files(tmp_path, [PAGE, PAGE])
    with rig(tmp_path, budget=PAGE) as r:
        direct = DirectReader(r.source)
        for row in r.files:
            assert await direct.read(row, 0, PAGE) == content(r.files.index(row) + 1, PAGE)
        assert wait_until(lambda: open_files_below(tmp_path) == [])
        assert not direct.holds(r.files[0])
        assert await direct.read(r.files[0], 0, 10) == content(1, PAGE)[:10]
        await direct.release(r.files[0])
