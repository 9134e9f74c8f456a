"""OPEN, READ and RELEASE of files, hit and miss, with a real stager in threads behind its socket."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pyfuse3
import pytest
import trio
import trio.testing

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.inode_numbers import HANDLE_ROW
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.tiers.open_modes import OpenModes
from tests.asynchronous import in_trio
from tests.conftest import long
from tests.server.rig import COUNT, READER, SIZE, at_once, errno_of, mounted
from tests.stager.rig import PAGE, content, open_files_below
from tests.waiting import wait_until


@in_trio
async def test_readers_get_the_bytes_and_each_file_is_opened_once(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        got: dict[tuple[int, int], bytes] = {}

        async def read(number: int, reader: int) -> None:
            got[number, reader] = await m.read(number, 1000 + 700 * reader)

        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                for reader in range(3):
                    nursery.start_soon(read, number, reader)
        assert all(data == content(number + 1, SIZE) for (number, _), data in got.items())
        assert len(got) == 3 * COUNT
        assert m.base.metrics[Metric.SOURCE_OPENS] == COUNT
        assert m.metrics[Metric.OPENS] == m.metrics[Metric.RELEASES] == 3 * COUNT


@pytest.mark.parametrize("pages", [0, long(1), long(5), long(9)])
@in_trio
async def test_so_they_do_with_hardly_any_memory(root: Path, pages: int) -> None:
    async with mounted(root, budget=pages * PAGE) as m:

        async def read(number: int) -> None:
            assert await m.read(number) == content(number + 1, SIZE)

        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                nursery.start_soon(read, number)
        assert m.base.metrics[Metric.ARENA_USED] <= pages * PAGE


@in_trio
async def test_a_hit_waits_for_nothing(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        row = m.row(3)
        m.stager.command(StagerCommand.FETCH, [row])
        m.stager.wait_for(Event.STAGED, row)
        fh = at_once(m.operations.open(m.inode(3), os.O_RDONLY, READER)).fh
        data = at_once(m.operations.read(fh, PAGE, 100))
        assert isinstance(data, memoryview), "copied"
        assert data == content(4, SIZE)[PAGE : PAGE + 100]
        assert at_once(m.operations.read(fh, SIZE, 100)) == b""
        at_once(m.operations.release(fh))
        assert m.metrics[Metric.RAM_BYTES] == 100
        assert m.events() == [
            (Event.OPEN, row, READER.pid), (Event.READ, row, PAGE + 100), (Event.READ, row, SIZE),
            (Event.RELEASE, row, 0),
        ]  # fmt: skip
        at_once(m.operations.lookup(1, b"f00", READER))
        at_once(m.operations.getattr(m.inode(0), READER))
        at_once(m.operations.statfs(READER))


@in_trio
async def test_nothing_is_read_from_the_arena_before_the_stager_knows_of_the_server(root: Path) -> None:
    """It would not be asked before those bytes are used again."""
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        row, expected = m.row(3), content(4, SIZE)
        m.stager.command(StagerCommand.FETCH, [row])
        m.stager.wait_for(Event.STAGED, row)
        fh = await m.open(3)
        assert m.files.hit(fh, 0, SIZE) is None
        assert await m.operations.read(fh, 0, SIZE) == expected
        assert (m.metrics[Metric.DIRECT_READS], m.metrics[Metric.RAM_FILES]) == (1, 0)
        m.files.use_arena()
        assert m.files.hit(fh, 0, SIZE) == expected
        assert m.metrics[Metric.RAM_FILES] == 1
        await m.operations.release(fh)


@in_trio
async def test_without_a_stager_a_changed_file_is_stale(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        fh = await m.open(0)
        (root / "f00").write_bytes(b"new")
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.operations.read(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        await m.operations.release(fh)


@in_trio
async def test_the_pusher_s_own_opens_are_not_counted(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        assert await trio.to_thread.run_sync(wait_until, lambda: m.base.metrics[Metric.PUSHER_THREAD])
        pusher = SimpleNamespace(pid=m.base.metrics[Metric.PUSHER_THREAD])
        fh = (await m.operations.open(m.inode(0), os.O_RDONLY, pusher)).fh
        await m.operations.release(fh)
        assert m.events() == []
        assert m.metrics[Metric.OPENS] == m.metrics[Metric.RELEASES] == 0


@in_trio
async def test_an_open_of_a_registered_file_is_passed_through_and_counted_as_served_from_disk(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        alive = OpenModes(m.base.fds["modes"], m.base.columns.backing.data).alive
        row = m.row(0)
        m.base.columns.backing[row] = 7
        fh, number = m.files.open(m.inode(0), 4711, os.O_RDONLY)
        assert (number, alive[row], fh >> HANDLE_ROW) == (7, -1, row)
        assert (m.metrics[Metric.DISK_FILES], m.metrics[Metric.DISK_BYTES]) == (1, SIZE)
        assert bytes(await m.operations.read(fh, 0, PAGE)) == content(1, PAGE), "readahead may ask all the same"
        m.base.columns.backing[row] = -7
        other, number = m.files.open(m.inode(0), 4711, os.O_DIRECT)
        assert (number, alive[row]) == (7, -2), "as the one that is open"
        m.files.close(other)
        assert alive[row] == -2, "until the answer was accepted"
        for handle in (fh, other):
            m.files.uncount_open(handle)
        assert alive[row] == 0
        fh, number = m.files.open(m.inode(0), 4711, os.O_RDONLY)
        assert (number, alive[row]) == (0, 1), "withdrawn"
        await m.operations.release(fh)
        assert alive[row] == 0


@in_trio
async def test_one_that_was_not_asked_for_is_not_passed_through(root: Path) -> None:
    """Asked for with O_DIRECT, of a changed file, by a server that the stager does not know of, or too small."""
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        alive = OpenModes(m.base.fds["modes"], m.base.columns.backing.data).alive
        m.base.columns.backing[:] = 7
        assert m.files.open(m.inode(0), 4711, os.O_RDONLY)[1] == 0
        m.files.use_arena()
        assert m.files.open(m.inode(1), 4711, os.O_DIRECT)[1] == 0
        assert (alive[m.row(0)], alive[m.row(1)]) == (1, 1)
        assert m.files.open(m.inode(0), 4711, os.O_RDONLY)[1] == 0, "open through the page cache"
        m.base.new_version(m.row(2), SIZE)
        assert m.files.open(m.inode(2), 4711, os.O_RDONLY)[1] == 0
        m.files._pass_from = SIZE + 1
        assert m.files.open(m.inode(3), 4711, os.O_RDONLY)[1] == 0
        assert (alive[m.row(2)], alive[m.row(3)]) == (0, 0), "not counted"


@in_trio
async def test_old_handles_of_a_changed_file_are_stale_and_new_ones_see_the_new_bytes(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        fh = await m.open(0)
        assert bytes(await m.operations.read(fh, 0, PAGE)) == content(1, PAGE)
        old = m.inode(0)
        m.stager.wait_for(Event.STAGED, m.row(0))
        m.stager.command(StagerCommand.EVICT, [m.row(0)])
        m.stager.wait_for(Event.EVICTED, m.row(0))
        (root / "f00").write_bytes(b"new bytes")
        for _ in range(2):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await m.operations.read(fh, PAGE, PAGE)
            assert errno_of(caught) == errno.ESTALE
        await trio.to_thread.run_sync(m.stager.wait_for, Event.CHANGED, m.row(0))
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.operations.read(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.operations.open(old, os.O_RDONLY, READER)
        assert errno_of(caught) == errno.ESTALE
        entry = await m.operations.lookup(1, b"f00", READER)
        assert (entry.st_ino, entry.st_size) == (m.inode(0), 9)
        assert entry.st_ino != old
        assert await m.read(0) == b"new bytes"
        await m.operations.release(fh)


@in_trio
async def test_a_miss_has_no_end_of_file_of_a_later_version(root: Path) -> None:
    """A server that was stopped between looking for the bytes and asking for them."""
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        row, fh = m.row(0), await m.open(0)
        assert m.files.hit(fh, PAGE, PAGE) is None
        m.base.new_version(row, 9)
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.files.miss(fh, PAGE, PAGE)
        assert errno_of(caught) == errno.ESTALE
        assert await m.files.miss(await m.open(0), PAGE, PAGE) == b""


@pytest.mark.parametrize("budget", [64 * PAGE, 0])
@in_trio
async def test_a_file_that_vanished_is_stale(root: Path, budget: int) -> None:
    async with mounted(root, budget=budget) as m:
        (root / "f05").unlink()
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.read(5)
        assert errno_of(caught) == errno.ESTALE
        assert m.metrics[Metric.READ_ERRORS] == 1


@in_trio
async def test_without_a_stager_the_source_is_read(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        m.files.stager._socket.shutdown(2)  # as the kernel does it when the stager dies
        await m.files.stager.drained.wait()
        for number in range(COUNT):
            assert await m.read(number) == content(number + 1, SIZE)
        assert m.metrics[Metric.SOURCE_FILES] == COUNT
        assert open_files_below(root) == []


def test_a_source_that_never_answers_is_an_error_in_time(root: Path) -> None:
    """The clock is the test's: nobody waits."""

    async def read() -> None:
        async with mounted(root, budget=64 * PAGE, io_timeout=300) as m:

            async def ask(row: int, offset: int, length: int) -> None:
                await trio.sleep_forever()

            m.files.stager.ask = ask  # type: ignore[assignment,method-assign]
            fh = await m.open(0)
            began = trio.current_time()
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await m.operations.read(fh, 0, 10)
            assert errno_of(caught) == errno.EIO
            assert trio.current_time() - began == pytest.approx(300, abs=1)
            assert m.metrics[Metric.READ_ERRORS] == 1
            assert m.metrics[Metric.WAITS] == 1

    trio.run(read, clock=trio.testing.MockClock(autojump_threshold=0.05))


@in_trio
async def test_a_handle_of_255_changes_ago_is_none_of_now(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        row = m.row(0)
        m.base.new_version(row, SIZE)
        inode, fh = m.inode(0), await m.open(0)
        m.base.columns.version[row] = 256
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.files.hit(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.files.open(inode, 4711, os.O_RDONLY)
        assert errno_of(caught) == errno.ESTALE
        assert m.files.open(m.inode(0), 4711, os.O_RDONLY)[0] != fh
