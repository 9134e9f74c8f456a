"""Reading the source without a tier."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nopfsfs.server import direct_reads
from nopfsfs.server.direct_reads import DIRECT_FILES, DirectReader
from tests.asynchronous import in_trio
from tests.conftest import no_more_threads
from tests.stager.rig import PAGE, Rig, content, open_files_below, rig, write_files
from tests.waiting import wait_until


async def stay_open(root: Path, count: int) -> None:
    """Files are closed by nobody who reads."""
    with trio.fail_after(20):
        while len(open_files_below(root)) != count:  # noqa: ASYNC110
            await trio.sleep(0.01)


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

    monkeypatch.setattr(direct_reads, "close", close)
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
    monkeypatch.setattr(direct_reads, "IDLE_S", 0.05)
    write_files(tmp_path, [PAGE, PAGE])
    with rig(tmp_path, budget=PAGE) as r:
        direct = DirectReader(r.source)
        for row in r.files:
            assert await direct.read(row, 0, PAGE) == content(r.files.index(row) + 1, PAGE)
        assert wait_until(lambda: open_files_below(tmp_path) == [])
        assert not direct.holds(r.files[0])
        assert await direct.read(r.files[0], 0, 10) == content(1, PAGE)[:10]
        await direct.release(r.files[0])


@in_trio
async def test_a_file_is_read_and_closed_later_though_the_system_has_no_thread_for_a_timer(
    files: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_reads, "IDLE_S", 0.05)
    direct = DirectReader(files.source)
    with no_more_threads(monkeypatch) as refused:  # trio keeps the thread of the read
        assert direct._read(files.files[0], 0, 10, lambda data, identity: None) == content(1, 10)
        assert len(refused) == 1
    assert await direct.read(files.files[1], 0, 10) == content(2, 10)
    assert wait_until(lambda: open_files_below(files.root) == [])
