"""FUSE requests answered by the adapter, called directly, with a real stager in threads behind its socket."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from nopfsfs.protocol.columns import SUPERVISOR, Metric, MetricBlock, Tier
from nopfsfs.protocol.inode_numbers import HANDLE_ROW, inode_of
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Order
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.operations import FOREVER_S, FuseOperations
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source
from nopfsfs.vfs.tree import Tree
from tests.asynchronous import in_trio
from tests.conftest import wait_until
from tests.stager.rig import PAGE, content, open_files_below, write_files
from tests.stager.running import Running, Shared

READER = SimpleNamespace(pid=4711, uid=0, gid=0, umask=0)
SIZE = 3 * PAGE + 100
COUNT = 12


@dataclass
class Mounted:
    """An adapter and its stager."""

    base: Shared
    stager: Running
    adapter: FuseOperations
    gauge: memoryview
    ring: Ring
    supervisor: memoryview

    def row(self, number: int) -> int:
        return self.base.row(f"f{number:02}")

    def inode(self, number: int) -> int:
        row = self.row(number)
        return inode_of(row, int(self.base.columns.version[row]))

    async def open(self, number: int) -> int:
        return int((await self.adapter.open(self.inode(number), os.O_RDONLY, READER)).fh)

    async def read(self, number: int, piece: int = PAGE) -> bytes:
        """The whole file as a reader gets it: open, READs of some size, release."""
        fh, data = await self.open(number), b""
        while part := bytes(await self.adapter.read(fh, len(data), piece)):
            data += part
        await self.adapter.release(fh)
        return data

    def events(self) -> list[tuple[Event, int, int]]:
        return [(Event(k), r, v) for k, r, v in zip(*(x.tolist() for x in self.ring.take()), strict=True)]


@asynccontextmanager
async def mounted(
    root: Path, budget: int, io_timeout: float = 20.0, *, known: bool = True, tripwires: bool = False
) -> AsyncIterator[Mounted]:
    """`known`: the stager knows of this server. `tripwires`: there are some, and OPEN is refused."""
    base = Shared(root, budget)
    stager = Running(base)
    fds = [MetricBlock.create(), Ring.create("server")]
    at_source = Source(os.fsencode(root), base.index, base.columns)
    gauges = MetricBlock(fds[0], writable=True)
    overrides = ColumnOverrides(base.columns, base.index)
    adapter = FuseOperations(
        tree=Tree(base.index, at_source, overrides, overrides.own_attributes), columns=base.columns, arena=base.arena,
        gauges=gauges, stager_gauges=MetricBlock(base.fds["gauges"], writable=False), ring=Ring(fds[1], writable=True),
        source=at_source, stager=None, io_timeout=io_timeout,
        tripwires=Tripwires(base.index.n_dirs, base.index.n) if tripwires else None,
        supervisor_gauges=MetricBlock(fds[0], SUPERVISOR, writable=False),
        modes=OpenModes(base.fds["modes"], base.columns.backing.data), pass_from=SIZE,
    )  # fmt: skip
    supervisor = MetricBlock(fds[0], SUPERVISOR, writable=True).block
    supervisor[Metric.SHOWN] = tripwires
    try:
        async with trio.open_nursery() as nursery:
            if known:
                adapter.stager = StagerClient(stager.server, adapter.use_arena)
                nursery.start_soon(adapter.stager.run)
                await trio.testing.wait_all_tasks_blocked()  # the stager has said so
            yield Mounted(base, stager, adapter, gauges.block, Ring(fds[1], writable=False), supervisor)
            nursery.cancel_scope.cancel()
    finally:
        stager.end()
        base.close()
        for fd in fds:
            os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "source"
    write_files(path, [SIZE] * COUNT)
    yield path
    assert open_files_below(path) == []


def errno_of(caught: pytest.ExceptionInfo[pyfuse3.FUSEError]) -> int:
    return int(caught.value.errno)


def at_once(coroutine: Any) -> Any:
    """What a coroutine returns; fails if it waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise AssertionError("it waits")


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
        assert m.base.gauge[Metric.SOURCE_OPENS] == COUNT
        assert m.gauge[Metric.OPENS] == m.gauge[Metric.RELEASES] == 3 * COUNT


@pytest.mark.parametrize("pages", [0, 1, 5, 9])
@in_trio
async def test_so_they_do_with_hardly_any_memory(root: Path, pages: int) -> None:
    async with mounted(root, budget=pages * PAGE) as m:

        async def read(number: int) -> None:
            assert await m.read(number) == content(number + 1, SIZE)

        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                nursery.start_soon(read, number)
        assert m.base.gauge[Metric.ARENA_USED] <= pages * PAGE


@in_trio
async def test_a_hit_waits_for_nothing(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        row = m.row(3)
        m.stager.order(Order.FETCH, [row])
        m.stager.wait_for(Event.STAGED, row)
        fh = at_once(m.adapter.open(m.inode(3), os.O_RDONLY, READER)).fh
        data = at_once(m.adapter.read(fh, PAGE, 100))
        assert isinstance(data, memoryview), "copied"
        assert data == content(4, SIZE)[PAGE : PAGE + 100]
        assert at_once(m.adapter.read(fh, SIZE, 100)) == b""
        at_once(m.adapter.release(fh))
        assert m.gauge[Metric.RAM_BYTES] == 100
        assert m.events() == [
            (Event.OPEN, row, READER.pid), (Event.READ, row, PAGE + 100), (Event.READ, row, SIZE),
            (Event.RELEASE, row, 0),
        ]  # fmt: skip
        at_once(m.adapter.lookup(1, b"f00", READER))
        at_once(m.adapter.getattr(m.inode(0), READER))
        at_once(m.adapter.statfs(READER))


@in_trio
async def test_nothing_is_read_from_the_arena_before_the_stager_knows_of_the_server(root: Path) -> None:
    """It would not be asked before those bytes are used again."""
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        row, expected = m.row(3), content(4, SIZE)
        m.stager.order(Order.FETCH, [row])
        m.stager.wait_for(Event.STAGED, row)
        fh = await m.open(3)
        assert m.adapter.hit(fh, 0, SIZE) is None
        assert await m.adapter.read(fh, 0, SIZE) == expected
        assert (m.gauge[Metric.DIRECT_READS], m.gauge[Metric.RAM_FILES]) == (1, 0)
        m.adapter.use_arena()
        assert m.adapter.hit(fh, 0, SIZE) == expected
        assert m.gauge[Metric.RAM_FILES] == 1
        await m.adapter.release(fh)


@in_trio
async def test_without_a_stager_a_changed_file_is_stale(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        fh = await m.open(0)
        (root / "f00").write_bytes(b"new")
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.adapter.read(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        await m.adapter.release(fh)


@in_trio
async def test_the_pusher_s_own_opens_are_not_counted(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        assert await trio.to_thread.run_sync(wait_until, lambda: m.base.gauge[Metric.PUSHER_THREAD])
        pusher = SimpleNamespace(pid=m.base.gauge[Metric.PUSHER_THREAD])
        fh = (await m.adapter.open(m.inode(0), os.O_RDONLY, pusher)).fh
        await m.adapter.release(fh)
        assert m.events() == []
        assert m.gauge[Metric.OPENS] == m.gauge[Metric.RELEASES] == 0


@in_trio
async def test_an_open_of_a_registered_file_is_passed_through_and_counted_as_served_from_disk(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        alive = OpenModes(m.base.fds["modes"], m.base.columns.backing.data).alive
        row = m.row(0)
        m.base.columns.backing[row] = 7
        fh, number = m.adapter.opened(m.inode(0), 4711, os.O_RDONLY)
        assert (number, alive[row], fh >> HANDLE_ROW) == (7, -1, row)
        assert (m.gauge[Metric.DISK_FILES], m.gauge[Metric.DISK_BYTES]) == (1, SIZE)
        assert bytes(await m.adapter.read(fh, 0, PAGE)) == content(1, PAGE), "readahead may ask all the same"
        m.base.columns.backing[row] = -7
        other, number = m.adapter.opened(m.inode(0), 4711, os.O_DIRECT)
        assert (number, alive[row]) == (7, -2), "as the one that is open"
        m.adapter.closed(other)
        assert alive[row] == -2, "until the answer was accepted"
        for handle in (fh, other):
            m.adapter.over(handle)
        assert alive[row] == 0
        fh, number = m.adapter.opened(m.inode(0), 4711, os.O_RDONLY)
        assert (number, alive[row]) == (0, 1), "withdrawn"
        await m.adapter.release(fh)
        assert alive[row] == 0


@in_trio
async def test_one_that_was_not_asked_for_is_not_passed_through(root: Path) -> None:
    """Asked for with O_DIRECT, of a changed file, by a server that the stager does not know of, or too small."""
    async with mounted(root, budget=64 * PAGE, known=False) as m:
        alive = OpenModes(m.base.fds["modes"], m.base.columns.backing.data).alive
        m.base.columns.backing[:] = 7
        assert m.adapter.opened(m.inode(0), 4711, os.O_RDONLY)[1] == 0
        m.adapter.use_arena()
        assert m.adapter.opened(m.inode(1), 4711, os.O_DIRECT)[1] == 0
        assert (alive[m.row(0)], alive[m.row(1)]) == (1, 1)
        assert m.adapter.opened(m.inode(0), 4711, os.O_RDONLY)[1] == 0, "open through the page cache"
        m.base.columns.version[m.row(2)] = 1
        m.base.columns.new_size[m.row(2)] = SIZE
        assert m.adapter.opened(m.inode(2), 4711, os.O_RDONLY)[1] == 0
        m.adapter._pass_from = SIZE + 1
        assert m.adapter.opened(m.inode(3), 4711, os.O_RDONLY)[1] == 0
        assert (alive[m.row(2)], alive[m.row(3)]) == (0, 0), "not counted"


@in_trio
async def test_names(root: Path) -> None:
    async with mounted(root, budget=PAGE) as m:
        entry = await m.adapter.lookup(1, b"f02", READER)
        assert entry.st_ino == m.inode(2)
        assert (await m.adapter.getattr(entry.st_ino, READER)).st_size == SIZE
        missing = await m.adapter.lookup(1, b"none", READER)
        assert missing.st_ino == 0
        assert missing.entry_timeout > 1e6
        for call, code in (
            (m.adapter.lookup(entry.st_ino, b"x", READER), errno.ENOTDIR),
            (m.adapter.getattr(10**6, READER), errno.ENOENT),
            (m.adapter.readlink(entry.st_ino, READER), errno.EINVAL),
            (m.adapter.getxattr(entry.st_ino, b"user.none", READER), pyfuse3.ENOATTR),
        ):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await call
            assert errno_of(caught) == code
        assert await m.adapter.getxattr(entry.st_ino, b"user.nopfs.tiers", READER) == b"source"


@in_trio
async def test_old_handles_of_a_changed_file_are_stale_and_new_ones_see_the_new_bytes(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        fh = await m.open(0)
        assert bytes(await m.adapter.read(fh, 0, PAGE)) == content(1, PAGE)
        old = m.inode(0)
        m.stager.wait_for(Event.STAGED, m.row(0))
        m.stager.order(Order.EVICT, [m.row(0)])
        m.stager.wait_for(Event.EVICTED, m.row(0))
        (root / "f00").write_bytes(b"new bytes")
        for _ in range(2):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await m.adapter.read(fh, PAGE, PAGE)
            assert errno_of(caught) == errno.ESTALE
        await trio.to_thread.run_sync(m.stager.wait_for, Event.CHANGED, m.row(0))
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.adapter.read(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.adapter.open(old, os.O_RDONLY, READER)
        assert errno_of(caught) == errno.ESTALE
        entry = await m.adapter.lookup(1, b"f00", READER)
        assert (entry.st_ino, entry.st_size) == (m.inode(0), 9)
        assert entry.st_ino != old
        assert await m.read(0) == b"new bytes"
        await m.adapter.release(fh)


@pytest.mark.parametrize("budget", [64 * PAGE, 0])
@in_trio
async def test_a_file_that_vanished_is_stale(root: Path, budget: int) -> None:
    async with mounted(root, budget=budget) as m:
        (root / "f05").unlink()
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.read(5)
        assert errno_of(caught) == errno.ESTALE
        assert m.gauge[Metric.READ_ERRORS] == 1


@in_trio
async def test_without_a_stager_the_source_is_read(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        m.adapter.stager._socket.shutdown(2)  # as the kernel does it when the stager dies
        await m.adapter.stager.drained.wait()
        for number in range(COUNT):
            assert await m.read(number) == content(number + 1, SIZE)
        assert m.gauge[Metric.SOURCE_FILES] == COUNT
        assert open_files_below(root) == []


def test_a_source_that_never_answers_is_an_error_in_time(root: Path) -> None:
    """The clock is the test's: nobody waits."""

    async def read() -> None:
        async with mounted(root, budget=64 * PAGE, io_timeout=300) as m:

            async def ask(row: int, offset: int, length: int) -> None:
                await trio.sleep_forever()

            m.adapter.stager.ask = ask  # type: ignore[assignment,method-assign]
            fh = await m.open(0)
            began = trio.current_time()
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await m.adapter.read(fh, 0, 10)
            assert errno_of(caught) == errno.EIO
            assert trio.current_time() - began == pytest.approx(300, abs=1)
            assert m.gauge[Metric.READ_ERRORS] == 1
            assert m.gauge[Metric.WAITS] == 1

    trio.run(read, clock=trio.testing.MockClock(autojump_threshold=0.05))


@in_trio
async def test_an_error_that_nobody_foresaw_is_eio_and_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        m.base.columns.tier[m.row(0)] = Tier.NONE
        fh = await m.open(0)

        async def ask(row: int, offset: int, length: int) -> None:
            raise ZeroDivisionError

        m.adapter.stager.ask = ask  # type: ignore[assignment,method-assign]
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.adapter.read(fh, 0, 10)
        assert errno_of(caught) == errno.EIO
        assert "ZeroDivisionError" in caplog.text


ENTRY = struct.Struct("<QQQQIIQQQqqqIIIIIIIIII")  # struct fuse_entry_out


@in_trio
async def test_a_name_is_looked_up_alike_with_and_without_pyfuse3(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        for number in range(COUNT):
            name = f"f{number:02}".encode()
            entry = await m.adapter.lookup(1, name, READER)
            found = m.adapter.looked_up(1, name, READER.pid)
            assert found is not None
            inode, generation, known, attributes, _, _, ino, size, blocks, *rest = ENTRY.unpack(found)
            assert (inode, ino, generation) == (entry.st_ino, entry.st_ino, entry.generation)
            assert (known, attributes) == (entry.entry_timeout, entry.attr_timeout)
            assert (size, blocks) == (entry.st_size, entry.st_blocks)
            times = [entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns]
            assert rest[:6] == [t // 10**9 for t in times] + [t % 10**9 for t in times]
            assert rest[6:12] == [
                entry.st_mode, entry.st_nlink, entry.st_uid, entry.st_gid, entry.st_rdev, entry.st_blksize
            ]  # fmt: skip
        assert m.adapter.looked_up(1, b"nothing", READER.pid) is None
        assert m.adapter.looked_up(m.inode(0), b"f00", READER.pid) is None
        assert m.adapter.looked_up(1 << 62, b"f00", READER.pid) is None
        assert m.events() == []


@in_trio
async def test_lookups_of_tripwires_tell_what_is_opened_when_open_is_refused(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, tripwires=True) as m:
        MetricBlock(m.base.fds["gauges"], writable=True).block[Metric.PUSHER_THREAD] = 17
        assert m.adapter.refusing
        for pid in (READER.pid, 17):  # the mount's own do not count
            for number in range(COUNT):
                entry = ENTRY.unpack(m.adapter.looked_up(1, f"f{number:02}".encode(), pid) or b"")
                assert entry[2] == 0, "so few files are all tripwires"
                assert (await m.adapter.lookup(1, f"f{number:02}".encode(), READER)).entry_timeout == 0
        assert m.events() == [(Event.OPEN, m.row(number), READER.pid) for number in range(COUNT)]
        assert m.gauge[Metric.TRIPWIRES] == COUNT
        assert m.gauge[Metric.TRIPWIRE_BYTES] == COUNT * SIZE
        m.adapter.refused(m.inode(5), READER.pid)  # it was looked up before
        assert m.events() == [(Event.OPEN, m.row(5), READER.pid)]
        fh = m.adapter.handle(m.inode(3))
        assert bytes(await m.adapter.read(fh, 10, 100)) == (root / "f03").read_bytes()[10:110]


@in_trio
async def test_the_supervisor_says_how_many_files_are_tripwires(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, tripwires=True) as m:
        few = Tripwires(1, 1 + COUNT, apart=4)
        m.supervisor[Metric.TRIPWIRES_APART] = 4
        for number in range(COUNT):
            entry = ENTRY.unpack(m.adapter.looked_up(1, f"f{number:02}".encode(), 4711) or b"")
            assert entry[2] == (0 if m.row(number) in few else FOREVER_S)
        shown = [m.row(number) for number in range(COUNT) if m.row(number) in few]
        assert m.events() == [(Event.OPEN, row, 4711) for row in shown]
        assert 0 < len(shown) < COUNT


ATTRIBUTES = struct.Struct("<QIIQQQqqqIIIIIIIIII")  # struct fuse_attr_out


@in_trio
async def test_all_opens_show_by_attributes_that_the_kernel_may_not_remember(root: Path) -> None:
    """OPEN cannot be answered again once it was refused."""
    async with mounted(root, budget=64 * PAGE) as m:
        m.supervisor[Metric.SHOWN] = Shown.TRIPWIRES
        MetricBlock(m.base.fds["gauges"], writable=True).block[Metric.PUSHER_THREAD] = 17
        m.adapter._tripwires = Tripwires(1, 1 << 20)  # so many that few of these are
        name, inode, row = b"f03", m.inode(3), m.row(3)
        assert row not in m.adapter._tripwires

        def known_for(pid: int = 4711, *, is_open: bool = False) -> tuple[float, float]:
            """For how many seconds the kernel may know attributes after a LOOKUP, and after a GETATTR."""
            entry = ENTRY.unpack(m.adapter.looked_up(1, name, pid) or b"")
            assert entry[2] == FOREVER_S, "the name stays"
            found = ATTRIBUTES.unpack(m.adapter.looked_at(inode, pid, is_open=is_open) or b"")
            assert (found[3], found[4]) == (inode, SIZE)
            return entry[3] + entry[5] / 1e9, found[0] + found[1] / 1e9

        assert known_for() == (FOREVER_S, FOREVER_S)
        m.supervisor[Metric.SHOWN] = Shown.FORGETTING
        assert all(0 < seconds < 0.1 for seconds in known_for())
        assert m.events() == [], "not before all show"
        m.supervisor[Metric.SHOWN] = Shown.ALL
        assert all(0 < seconds < 0.1 for seconds in known_for())
        assert m.events() == [(Event.OPEN, row, 4711)], "an fstat that comes late is none"
        for number, pid in ((3, 4711), (3, 4712), (4, 4711), (3, 4711)):
            m.adapter.looked_at(m.inode(number), pid, is_open=False)
        assert m.events() == [(Event.OPEN, row, 4712), (Event.OPEN, m.row(4), 4711), (Event.OPEN, row, 4711)]
        assert all(0 < seconds < 0.1 for seconds in known_for(is_open=True)), "asked for at a read"
        assert m.events() == [(Event.OPEN, row, 4711)], "the look-up"
        assert known_for(17) == (0, 0), "a reader that comes after the mount's own is seen"
        assert m.events() == []
        assert (m.gauge[Metric.OPENS], m.gauge[Metric.OPENED_BYTES], m.gauge[Metric.TRIPWIRES]) == (5, 5 * SIZE, 0)
        assert (await m.adapter.lookup(1, name, READER)).attr_timeout == 0, "as a listing has it"
        assert (await m.adapter.getattr(1, READER)).attr_timeout == FOREVER_S, "directories show nothing"
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.adapter.looked_at(inode_of(row, 1), 4711, is_open=False)
        assert errno_of(caught) == errno.ESTALE


@in_trio
async def test_a_handle_of_255_changes_ago_is_none_of_now(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        row = m.row(0)
        m.base.columns.new_size[row] = SIZE
        m.base.columns.version[row] = 1
        inode, fh = m.inode(0), await m.open(0)
        m.base.columns.version[row] = 256
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.adapter.hit(fh, 0, PAGE)
        assert errno_of(caught) == errno.ESTALE
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.adapter.opened(inode, 4711, os.O_RDONLY)
        assert errno_of(caught) == errno.ESTALE
        assert m.adapter.opened(m.inode(0), 4711, os.O_RDONLY)[0] != fh
