"""A whole stager and files that are too large to be staged whole: what it reads of the source, and how often, what a
reader gets meanwhile, and what is on disk after a fault."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.config import DiskSpec
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager import demands, disk_watch, load, process, young_files
from nopfsfs.stager.demands import DELAY_S
from nopfsfs.stager.large import block_writer, large_copies
from nopfsfs.tiers.source import Identity
from tests.conftest import long
from tests.stager.rig import content, write_files
from tests.stager.running import LIMIT_S, Running, Shared, running
from tests.waiting import wait_until

MIB = 1 << 20
SIZE = 10 * MIB + 12_345  # of a file, by blocks of 1 MiB
BUDGET = 16 * MIB  # of memory, half of it for one whole file, a quarter for blocks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    write_files(made, [SIZE, SIZE + MIB])
    return made


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def base(root: Path) -> Iterator[Shared]:
    made = Shared(root, BUDGET)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old. What was kept is known before anything is read, however long that
    takes."""
    monkeypatch.setattr(young_files, "LOCAL_S", -1.0)
    monkeypatch.setattr(process, "KEPT_S", 60.0)


def spec(disk: Path, size: int | None = 64 * MIB) -> tuple[DiskSpec, ...]:
    return (DiskSpec(str(disk), size),)


def copies(disk: Path) -> list[bytes]:
    found = [*disk.glob(".nopfs-tier-*/copies/*/*"), *disk.glob("nopfs-cache-*/v1/sources/*/??/*")]
    return [path.read_bytes() for path in found]


def read_from(base: Shared) -> tuple[int, int]:
    """How often the source was opened, and the bytes that were read."""
    return int(base.metrics[Metric.SOURCE_OPENS]), int(base.metrics[Metric.SOURCE_READ_BYTES])


def wait_for(stager: Running, event: Event, row: int) -> None:
    """As `Running.wait_for`, while the server answers what it is asked."""
    stager.server.settimeout(0.01)

    def came() -> bool:
        with contextlib.suppress(TimeoutError):
            stager.pass_grace()
        return stager._look(event, row)

    assert wait_until(came, LIMIT_S), f"{event!r} of row {row}: {stager.events}"
    stager.events.remove((event, row))
    stager.server.settimeout(LIMIT_S)


def read_range(stager: Running, row: int, start: int, end: int) -> bytes:
    """As a server reads: the pieces of blocks one after the other."""
    got = b""
    while start + len(got) < end:
        error, data = stager.read(row, start + len(got), min(131_072, end - start - len(got)))
        assert error == 0
        assert data
        got += data
    return got


def read_all(stager: Running, base: Shared, row: int) -> None:
    assert read_range(stager, row, 0, base.size(row)) == (base.root / f"f{row - 1:02}").read_bytes()


def test_a_file_is_copied_by_command_and_read_once(base: Shared, disk: Path) -> None:
    rows = [base.row("f01"), base.row("f00")]
    with running(base, spec(disk)) as stager:
        stager.command(StagerCommand.COPY_LARGE, rows, 1)
        for row in rows:
            wait_for(stager, Event.COPYING, row)
            wait_for(stager, Event.ON_DISK, row)
        assert stager.values[Event.ON_DISK, rows[0]] == 1
        assert sorted(copies(disk)) == sorted([content(1, SIZE), content(2, SIZE + MIB)])
        assert read_from(base) == (2, 2 * SIZE + MIB)
        for row in rows:
            read_all(stager, base, row)
        assert read_from(base) == (2, 2 * SIZE + MIB)
        assert base.metrics[Metric.DISK_WRITES] == 2
        assert base.metrics[Metric.DISK_USED] >= 2 * SIZE + MIB
        stager.command(StagerCommand.COPY_LARGE, rows, 1)
        wait_for(stager, Event.ON_DISK, rows[0])
        stager.command(StagerCommand.OFF_DISK, rows)
        wait_for(stager, Event.OFF_DISK, rows[0])
        wait_for(stager, Event.OFF_DISK, rows[1])
        assert copies(disk) == []
        assert base.metrics[Metric.DISK_USED] == 0


@pytest.mark.parametrize("commanded", [True, False])
def test_a_reader_at_the_same_time_makes_no_byte_be_read_twice(base: Shared, disk: Path, commanded: bool) -> None:
    """The reader begins where nothing is there yet; with a command, the copy comes before it and behind it."""
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        if commanded:
            stager.command(StagerCommand.COPY_LARGE, [row], 1)
        half = SIZE // 2
        assert read_range(stager, row, half, SIZE) == content(1, SIZE)[half:]
        assert read_range(stager, row, 0, half) == content(1, SIZE)[:half]
        wait_for(stager, Event.COPYING, row)
        wait_for(stager, Event.ON_DISK, row)
        read_all(stager, base, row)
        assert read_from(base)[1] == SIZE
        assert copies(disk) == [content(1, SIZE)]


def test_a_slow_disk_holds_a_reader_up_and_costs_no_second_read(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks stay in memory until they are on disk; a reader that is faster waits for room."""
    write = os.pwrite

    def slow(fd: int, data: memoryview, at: int) -> int:
        time.sleep(0.05)
        return write(fd, data, at)

    monkeypatch.setattr(block_writer.os, "pwrite", slow)
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        read_all(stager, base, row)
        wait_for(stager, Event.ON_DISK, row)
        assert read_from(base) == (1, SIZE)


def test_blocks_that_a_reader_has_read_are_not_read_again(base: Shared, disk: Path) -> None:
    """A copy that nobody has asked for is as far there as readers went; a command brings the rest."""
    row, chance = base.row("f01"), random.Random(1)
    with running(base, spec(disk)) as stager:
        for _ in range(30):
            at = chance.randrange(SIZE // 2)
            assert read_range(stager, row, at, at + 1000) == content(2, SIZE + MIB)[at : at + 1000]
        wait_for(stager, Event.COPYING, row)
        assert wait_until(lambda: copies(disk) != [])
        assert read_from(base)[1] <= SIZE // 2 + 6 * MIB, "what was read, and some read ahead"
        stager.command(StagerCommand.COPY_LARGE, [row], 1)
        wait_for(stager, Event.ON_DISK, row)
        assert read_from(base)[1] == SIZE + MIB
        assert copies(disk) == [content(2, SIZE + MIB)]


def test_no_block_stays_in_memory_that_is_to_go_while_it_is_written(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, goes_on = os.pwrite, threading.Event()

    def late(fd: int, data: memoryview, at: int) -> int:
        goes_on.wait(LIMIT_S)
        return write(fd, data, at)

    monkeypatch.setattr(block_writer.os, "pwrite", late)
    row = base.row("f00")
    try:
        with running(base, spec(disk)) as stager:
            assert read_range(stager, row, 0, MIB) == content(1, SIZE)[:MIB]
            wait_for(stager, Event.COPYING, row)
            stager.command(StagerCommand.OFF_DISK, [row], 1)
            stager.command(StagerCommand.EVICT, [row], 1)
            assert wait_until(lambda: not stager.stager._state._ranges.used, LIMIT_S)
            goes_on.set()
            wait_for(stager, Event.OFF_DISK, row)
            before = read_from(base)[1]
            read_all(stager, base, row)
            assert read_from(base)[1] == before + SIZE
            assert not stager.stager._state._pool._pins
    finally:
        goes_on.set()


def test_a_file_that_changes_meanwhile_leaves_nothing(base: Shared, disk: Path) -> None:
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        read_range(stager, row, 0, 2 * MIB)
        wait_for(stager, Event.COPYING, row)
        new = content(9, SIZE)
        (base.root / "f00").write_bytes(new)
        assert stager.read(row, 9 * MIB, 1000)[0] == errno.ESTALE
        wait_for(stager, Event.OFF_DISK, row)
        wait_for(stager, Event.CHANGED, row)
        assert wait_until(lambda: copies(disk) == [])
        assert read_range(stager, row, 0, SIZE) == new
        wait_for(stager, Event.ON_DISK, row)
        assert copies(disk) == [new]


def test_a_file_without_room_on_disk_is_read_as_without_a_disk(base: Shared, disk: Path) -> None:
    row = base.row("f00")
    with running(base, spec(disk, 4 * MIB)) as stager:
        read_all(stager, base, row)
        stager.command(StagerCommand.COPY_LARGE, [row], 1)
        wait_for(stager, Event.OFF_DISK, row)
        assert stager.values[Event.OFF_DISK, row] == 0, "full"
        assert copies(disk) == []
        read_all(stager, base, row)


def test_where_memory_has_no_room_for_a_block_nobody_waits(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is told to read by itself; when there is room, the copy comes."""
    monkeypatch.setattr(demands, "DELAY_S", 3 * LIMIT_S)  # whoever waited would have no answer within LIMIT_S
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        stager.command(StagerCommand.BUDGET, [8 * MIB, MIB // 2], BUDGET)
        stager.command(StagerCommand.COPY_LARGE, [row], 1)
        assert wait_until(lambda: stager.read(row, 9 * MIB, 1000)[0] == errno.ENOSPC), "the command has come"
        assert {stager.read(row, at, 1000)[0] for at in range(0, SIZE, MIB // 2)} <= {errno.ENOSPC, 0}
        stager.command(StagerCommand.BUDGET, [8 * MIB, 4 * MIB], BUDGET)
        wait_for(stager, Event.ON_DISK, row)
        read_all(stager, base, row)


def test_a_disk_that_hangs_holds_no_reader_up_for_long(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, hangs = os.pwrite, threading.Event()

    def hung(fd: int, data: memoryview, at: int) -> int:
        if at >= 2 * MIB:
            hangs.wait(20)
        return write(fd, data, at)

    monkeypatch.setattr(block_writer.os, "pwrite", hung)
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        try:
            began = time.monotonic()
            for at in range(0, SIZE, MIB // 2):
                error, data = stager.read(row, at, 1000)
                assert error in (0, errno.ENOSPC)
                assert error or data == content(1, SIZE)[at : at + 1000]
            assert time.monotonic() - began < 10 * DELAY_S, "not a second for each"
            assert wait_until(lambda: base.metrics[Metric.DISKS_BYPASSED] == 1)
        finally:
            hangs.set()
        wait_for(stager, Event.OFF_DISK, row)
        assert wait_until(lambda: copies(disk) == [])
        read_all(stager, base, row)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_a_disk_that_fails_in_the_midst_costs_that_copy_only(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str
) -> None:
    """While it is written; or when it is read back."""
    count, original = 0, getattr(block_writer.os, call, None)

    def fails(fd: int, data: memoryview, at: int) -> int:
        nonlocal count
        count += 1
        if count > 3:
            raise OSError(error, os.strerror(error))
        return original(fd, data, at)  # type: ignore[misc]

    def filled(fd: int, data: memoryview, at: int) -> bool:
        raise OSError(error, os.strerror(error))

    if call == "pwrite":
        monkeypatch.setattr(block_writer.os, "pwrite", fails)
    else:
        monkeypatch.setattr(block_writer, "fill", filled)
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        stager.command(StagerCommand.COPY_LARGE, [row], 1)
        wait_for(stager, Event.OFF_DISK, row)
        read_all(stager, base, row)
        assert copies(disk) == []
        assert base.metrics[Metric.DISK_ERRORS] >= 1
        assert base.metrics[Metric.DISK_USED] == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_block_that_rots_is_never_shown(base: Shared, disk: Path, whole: bool) -> None:
    row = base.row("f00")
    with running(base, spec(disk)) as stager:
        if whole:
            stager.command(StagerCommand.COPY_LARGE, [row], 1)
            wait_for(stager, Event.ON_DISK, row)
        else:
            read_range(stager, row, 0, 5 * MIB)
            there = slice(4 * MIB, 5 * MIB)
            assert wait_until(lambda: [copy[there] for copy in copies(disk)] == [content(1, SIZE)[there]])
        (path,) = disk.glob(".nopfs-tier-*/copies/*/*")
        with open(path, "r+b") as file:
            file.seek(MIB + 5)
            file.write(b"rotten")
        read_range(stager, row, 2 * MIB, 5 * MIB)  # what memory holds of the second block makes room
        assert read_range(stager, row, MIB, 2 * MIB) == content(1, SIZE)[MIB : 2 * MIB]
        wait_for(stager, Event.OFF_DISK, row)
        assert base.metrics[Metric.CORRUPT_COPIES] == 1
        read_all(stager, base, row)


def test_a_source_that_fails_for_a_while_costs_time_only(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_copies, "RETRY_S", 0.3)
    row, failing = base.row("f00"), threading.Event()
    failing.set()
    with running(base, spec(disk)) as stager:
        source, original = stager.stager._source, stager.stager._source.open

        def fails(row: int) -> object:
            if failing.is_set():
                raise OSError(errno.EIO, "told to fail")
            return original(row)

        monkeypatch.setattr(source, "open", fails)
        stager.command(StagerCommand.COPY_LARGE, [row], 1)
        assert wait_until(lambda: base.metrics[Metric.SOURCE_ERRORS] > 0)
        failing.clear()
        wait_for(stager, Event.ON_DISK, row)
        assert copies(disk) == [content(1, SIZE)]


def test_what_is_asked_for_anew_comes_first(base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, order, goes_on = os.pwrite, list[int](), threading.Event()

    def noted(fd: int, data: memoryview, at: int) -> int:
        order.append(os.fstat(fd).st_size)
        if len(order) == 3:
            goes_on.wait(LIMIT_S)  # until the orders have come: else the first one may be whole by then
        return write(fd, data, at)

    monkeypatch.setattr(block_writer.os, "pwrite", noted)
    monkeypatch.setattr(disk_watch, "LIMIT_S", 3 * LIMIT_S)  # a disk that hangs is none of this
    first, second = base.row("f00"), base.row("f01")
    with running(base, spec(disk)) as stager:
        stager.command(StagerCommand.COPY_LARGE, [first, second], 1)
        assert wait_until(lambda: len(order) > 2)
        stager.command(StagerCommand.CANCEL)
        stager.command(StagerCommand.COPY_LARGE, [second], 1)
        stager.command(StagerCommand.EVICT, [second])
        wait_for(stager, Event.EVICTED, second)  # so the stager has taken the orders before
        goes_on.set()
        wait_for(stager, Event.ON_DISK, second)
        wait_for(stager, Event.ON_DISK, first)
    there = [size for size in order if size == SIZE]
    assert order[-1] == SIZE, "the first one was put off"
    assert len(there) == 11


def test_what_is_asked_for_and_not_begun_is_given_up_at_once(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def held(fd: int, data: memoryview, at: int) -> int:
        goes_on.wait(LIMIT_S)  # the second one begins when the first one is nearly whole
        return len(data)

    monkeypatch.setattr(block_writer.os, "pwrite", held)
    monkeypatch.setattr(disk_watch, "LIMIT_S", 3 * LIMIT_S)  # a disk that hangs is none of this
    first, second = base.row("f00"), base.row("f01")
    with running(base, spec(disk)) as stager:
        stager.command(StagerCommand.COPY_LARGE, [first, second], 1)
        wait_for(stager, Event.COPYING, first)
        stager.command(StagerCommand.OFF_DISK, [second, first])
        wait_for(stager, Event.OFF_DISK, second)
        goes_on.set()
        wait_for(stager, Event.OFF_DISK, first)
        assert (Event.COPYING, second) not in stager.events
        assert wait_until(lambda: copies(disk) == [])


def test_a_block_on_its_way_begins_no_copy_that_was_given_up(
    base: Shared, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source answers when the copy is gone for which the block was read ahead."""
    read, reading, goes_on = load.read_exactly, threading.Event(), threading.Event()

    def late(fd: int, identity: Identity, into: memoryview, at: int) -> None:
        reading.set()
        goes_on.wait(LIMIT_S)
        read(fd, identity, into, at)

    monkeypatch.setattr(load, "read_exactly", late)
    row = base.row("f00")
    try:
        with running(base, spec(disk)) as stager:
            stager.command(StagerCommand.COPY_LARGE, [row], 1)
            wait_for(stager, Event.COPYING, row)
            assert reading.wait(LIMIT_S)
            stager.command(StagerCommand.OFF_DISK, [row])
            wait_for(stager, Event.OFF_DISK, row)
            goes_on.set()
            assert wait_until(lambda: read_from(base)[1] >= MIB), "the block came"
            assert read_range(stager, base.row("f01"), 0, MIB) == content(2, SIZE + MIB)[:MIB]
            wait_for(stager, Event.COPYING, base.row("f01"))  # the stager has gone on
            assert (Event.COPYING, row) not in stager.events
    finally:
        goes_on.set()


class Random:
    """Random orders, reads and faults, one after the other; each read is compared with what the file held."""

    def __init__(self, stager: Running, base: Shared, disk: Path, seed: int) -> None:
        self.stager, self.base, self.disk, self.chance = stager, base, disk, random.Random(seed)
        self.rows = [base.row("f00"), base.row("f01")]
        self.held = {row: [(base.root / f"f{row - 1:02}").read_bytes()] for row in self.rows}

    def step(self) -> None:
        row, value = self.chance.choice(self.rows), self.chance.random()
        if value < 0.7:
            self.read(row)
        elif value < 0.8:
            self.stager.command(StagerCommand.COPY_LARGE, self.chance.sample(self.rows, self.chance.randint(1, 2)), 1)
        elif value < 0.83:
            self.stager.command(StagerCommand.CANCEL)
        elif value < 0.87:
            self.stager.command(StagerCommand.OFF_DISK, [row], self.chance.randint(0, 1))
        elif value < 0.9:
            self.stager.command(StagerCommand.EVICT, [row], 1)
        elif value < 0.94:
            limit = self.chance.choice([4 * MIB, 8 * MIB])
            self.stager.command(StagerCommand.BUDGET, [limit, self.chance.randint(1, 4) * MIB], BUDGET)
        elif value < 0.97:
            self.rot()
        else:
            self.change(row)

    def read(self, row: int) -> None:
        size = self.base.size(row)
        start = self.chance.randrange(size)
        end = min(size, start + self.chance.choice([1000, 131_072, MIB, 3 * MIB]))
        while start < end:
            error, data = self.stager.read(row, start, min(131_072, end - start))
            if error:
                assert error in (errno.ESTALE, errno.ENOSPC)  # changed; read by the server itself
                return
            assert data in [held[start : start + len(data)] for held in self.held[row]]
            if not data:
                return
            start += len(data)

    def rot(self) -> None:
        for path in self.disk.glob(".nopfs-tier-*/copies/*/*"):
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                file.seek(self.chance.randrange(SIZE))
                file.write(b"rotten")

    def change(self, row: int) -> None:
        data = content(self.chance.randrange(1 << 20), SIZE + self.chance.randrange(MIB))
        self.held[row].append(data)
        (self.base.root / f"f{row - 1:02}").write_bytes(data)


@pytest.mark.parametrize("seed", [0, *map(long, range(1, int(os.environ.get("NOPFSFS_LARGE_SEEDS", "4"))))])
def test_whatever_happens_no_byte_is_wrong(base: Shared, disk: Path, seed: int) -> None:
    with running(base, spec(disk, 24 * MIB)) as stager:
        steps = Random(stager, base, disk, seed)
        for _ in range(150):
            steps.step()
        stager.command(StagerCommand.BUDGET, [8 * MIB, 4 * MIB], BUDGET)
        for row in steps.rows:  # and it works on

            def seen(row: int = row) -> bool:
                error, data = stager.read(row, 0, 1000)
                return not error and data == steps.held[row][-1][:1000]

            assert wait_until(seen)
            assert read_range(stager, row, 0, base.size(row)) == steps.held[row][-1]


def test_the_end_leaves_no_file(base: Shared, disk: Path) -> None:
    with running(base, spec(disk)) as stager:
        read_range(stager, base.row("f00"), 0, MIB)
        wait_for(stager, Event.COPYING, base.row("f00"))
    assert list(disk.iterdir()) == []


def test_a_kept_copy_is_read_by_the_next_mount(root: Path, disk: Path) -> None:
    """Also where no command came before the reader; what was not whole is gone."""
    for number, commanded in enumerate((True, True, False)):
        base = Shared(root, BUDGET)
        row, other = base.row("f00"), base.row("f01")
        with running(base, spec(disk), keep=True) as stager:
            if commanded:
                stager.command(StagerCommand.COPY_LARGE, [row], 1)
                wait_for(stager, Event.ON_DISK, row)
            if number:
                read_all(stager, base, row)
                assert read_from(base) == (0, 0)
            read_range(stager, other, 0, 1000)
            wait_for(stager, Event.COPYING, other)
        base.close()
        assert copies(disk) == [content(1, SIZE)]


def test_a_kept_copy_that_rots_is_never_shown(root: Path, disk: Path) -> None:
    for number in range(2):
        base = Shared(root, BUDGET)
        row = base.row("f00")
        with running(base, spec(disk), keep=True) as stager:
            if number == 0:
                stager.command(StagerCommand.COPY_LARGE, [row], 1)
                wait_for(stager, Event.ON_DISK, row)
            read_all(stager, base, row)
            assert base.metrics[Metric.CORRUPT_COPIES] == number
        base.close()
        for path in disk.glob("nopfs-cache-*/v1/sources/*/??/*") if number == 0 else ():
            with open(path, "r+b") as file:
                file.seek(3 * MIB)
                file.write(b"rotten")
