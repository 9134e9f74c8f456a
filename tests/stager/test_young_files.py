"""Files that are written to without a trace, just after they were read."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash
from msgspec import msgpack
from msgspec.structs import replace

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.inode_numbers import VERSION_LAST
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.server_stager import YoungFilesRead, YoungRead
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager import young_files
from nopfsfs.stager.young_files import LOCAL_S, NETWORK_S, YoungFiles
from nopfsfs.system import elastic_threads
from nopfsfs.system.file_system import FileSystem
from tests.conftest import long
from tests.stager.rig import PAGE, Rig, content, write_files
from tests.stager.running import Shared, running
from tests.waiting import wait_until

NFS, EXT4 = FileSystem(0x6969, 0), FileSystem(0xEF53, 0)


class Clock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> int:
        return time.time_ns() + int(self.ahead_s * 1e9)


@pytest.fixture
def memory() -> Iterator[Path]:
    """On a tmpfs: a store into a mapping never changes the times there."""
    try:
        path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    except OSError:
        pytest.skip("there is no /dev/shm")
    yield path
    shutil.rmtree(path)


@contextmanager
def writing(path: Path) -> Iterator[mmap.mmap]:
    """A mapping of the file; what is written there leaves its times as they are."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        before = path.stat()
        yield mapped
        after = path.stat()
        assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def ahead(path: Path) -> None:
    """Let a file be young for as long as the test takes: a time ahead of the clock counts as now."""
    later = time.time() + 1e6
    os.utime(path, (later, later))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is compared before this is set, however long it is due."""
    event, read = threading.Event(), YoungFiles._read
    monkeypatch.setattr(YoungFiles, "_read", lambda young, part: event.wait(30) and read(young, part))
    return event


class Bench:
    def __init__(self, root: Path, sizes: list[int], budget: int = 16 * PAGE, whole_limit: int | None = None) -> None:
        write_files(root, sizes)
        self.clock = Clock()
        self.rig = Rig(root, budget=budget, whole_limit=whole_limit, range_budget=budget, clock_ns=self.clock)

    def read(self, row: int, size: int) -> None:
        for offset in range(0, size, PAGE):
            assert self.rig.read(row, offset, PAGE).errno == 0

    def compared(self) -> int:
        """Compare what is due now, as the thread does; the number of parts."""
        young = self.rig.young
        done = 0
        while young._parts and young._parts[0].due_ns <= self.clock():
            young._compare(young._pop(), self.rig.changed.append, self.rig.renewed.append)
            done += 1
        return done


@pytest.fixture(params=["whole", "in several blocks", "by ranges"])
def bench(request: pytest.FixtureRequest, memory: Path) -> Iterator[tuple[Bench, int, int]]:
    size = PAGE if request.param == "whole" else 3 * PAGE
    made = Bench(memory, [size, size], whole_limit=PAGE if request.param == "by ranges" else None)
    yield made, made.rig.files[0], size
    made.rig.close()


def test_what_was_written_without_a_trace_is_found_when_the_file_is_older(bench: tuple[Bench, int, int]) -> None:
    made, row, size = bench
    with writing(made.rig.path(row)) as mapped:
        made.read(row, size)
        mapped[size - 1] ^= 0xFF
    assert made.compared() == 0  # not before it is old enough
    assert made.rig.metric(Metric.YOUNG_PARTS) == size // PAGE
    made.clock.ahead_s = LOCAL_S + 1
    assert made.compared() == size // PAGE
    assert made.rig.renewed == [row]
    assert made.rig.metric(Metric.YOUNG_CHANGED) == 1


def test_a_file_that_stayed_the_same_is_read_once_more_and_that_is_all(bench: tuple[Bench, int, int]) -> None:
    made, row, size = bench
    made.read(row, size)
    made.clock.ahead_s = LOCAL_S + 1
    opens, read = (made.rig.metric(metric) for metric in (Metric.SOURCE_OPENS, Metric.SOURCE_READ_BYTES))
    assert made.compared() == size // PAGE
    assert (made.rig.renewed, made.rig.changed) == ([], [])
    assert made.rig.metric(Metric.YOUNG_OPENS) == size // PAGE
    assert made.rig.metric(Metric.YOUNG_READ_BYTES) == size
    assert [made.rig.metric(metric) for metric in (Metric.SOURCE_OPENS, Metric.SOURCE_READ_BYTES)] == [opens, read]
    made.rig.state.forget(row)
    made.read(row, size)
    made.clock.ahead_s += LOCAL_S
    assert made.compared() == 0


def test_an_old_file_is_not_noted(memory: Path) -> None:
    made = Bench(memory, [PAGE])
    made.clock.ahead_s = LOCAL_S + 1
    made.read(made.rig.files[0], PAGE)
    assert made.rig.metric(Metric.YOUNG_PARTS) == 0
    made.rig.close()


def test_a_change_that_shows_is_one_like_any_other(memory: Path) -> None:
    made = Bench(memory, [PAGE])
    row = made.rig.files[0]
    made.read(row, PAGE)
    made.rig.path(row).write_bytes(content(9, PAGE))
    made.clock.ahead_s = LOCAL_S + 1
    made.compared()
    assert (made.rig.renewed, made.rig.changed) == ([], [row])
    made.rig.close()


def test_a_source_that_fails_is_asked_again(memory: Path) -> None:
    made = Bench(memory, [PAGE])
    row = made.rig.files[0]
    made.read(row, PAGE)
    made.rig.source.errors[row] = errno.EIO
    made.clock.ahead_s = LOCAL_S + 1
    assert made.compared() == 1
    assert made.rig.metric(Metric.YOUNG_PARTS) == 1
    made.rig.source.errors.clear()
    made.clock.ahead_s += young_files.RETRY_S + 1
    assert made.compared() == 1
    assert made.rig.metric(Metric.YOUNG_COMPARED) == 1
    made.rig.close()


def test_a_young_file_that_the_source_does_not_give_holds_up_no_other(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_threads, "STUCK_S", 0.05)
    made = Bench(memory, [3 * PAGE, PAGE], whole_limit=PAGE)
    r, gate = made.rig, threading.Event()
    sick, healthy = r.files
    with writing(r.path(healthy)) as mapped:
        made.read(sick, 3 * PAGE)
        made.read(healthy, PAGE)
        mapped[0] ^= 0xFF
    made.clock.ahead_s = LOCAL_S + 1
    r.source.opens.clear()
    r.source.while_opening = lambda row: row == sick and gate.wait(20)  # type: ignore[assignment, return-value]
    thread = threading.Thread(target=r.young.run, args=(r.changed.append, r.renewed.append))
    thread.start()
    try:
        assert wait_until(lambda: r.renewed == [healthy])
        assert r.source.opens[sick] == 1, "one thread for a file, of however many parts"
        assert r.metric(Metric.YOUNG_PARTS) == 2, "which come later"
    finally:
        gate.set()
        r.young.stop()
        thread.join(20)
    made.rig.close()


def test_times_ahead_of_the_clock_cost_one_more_reading_in_all(memory: Path) -> None:
    made = Bench(memory, [PAGE])
    row = made.rig.files[0]
    made.clock.ahead_s = -1e6
    made.read(row, PAGE)
    made.clock.ahead_s += LOCAL_S + 1
    assert made.compared() == 1
    made.rig.state.forget(row)
    made.read(row, PAGE)
    made.clock.ahead_s += LOCAL_S + 1
    assert made.compared() == 0
    made.rig.close()


@pytest.mark.parametrize("version", [255, 511, VERSION_LAST])
def test_bytes_of_each_version_are_compared(memory: Path, version: int) -> None:
    made = Bench(memory, [PAGE])
    row = made.rig.files[0]
    made.rig.columns.version[row] = version - 1
    made.rig.path(row).write_bytes(content(9, PAGE))
    made.rig.refresh(row)
    made.read(row, PAGE)
    made.clock.ahead_s = LOCAL_S + 1
    assert made.compared() == 1
    made.rig.close()


def test_memory_is_bounded(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(young_files, "PARTS_MOST", 2)
    made = Bench(memory, [PAGE] * 5)
    for row in made.rig.files:
        made.read(row, PAGE)
    assert made.rig.metric(Metric.YOUNG_PARTS) == 2
    made.rig.close()


@pytest.mark.parametrize(("kind", "age_s"), [(None, LOCAL_S), (EXT4, LOCAL_S), (NFS, NETWORK_S)])
def test_the_age_is_that_of_the_file_system(memory: Path, kind: FileSystem | None, age_s: float) -> None:
    made = Bench(memory, [PAGE])
    young = YoungFiles(
        source=made.rig.source, columns=made.rig.columns, metrics=made.rig.metrics, n=made.rig.index.n,
        file_system=kind,
    )  # fmt: skip
    assert young.age_ns == age_s * 1e9
    made.rig.close()


@pytest.mark.long
def test_a_stager_withdraws_it_and_takes_up_what_is_there(
    memory: Path, monkeypatch: pytest.MonkeyPatch, written: threading.Event
) -> None:
    monkeypatch.setattr(young_files, "LOCAL_S", 1.0)
    write_files(memory, [PAGE])
    ahead(memory / "f00")
    base = Shared(memory, 16 * PAGE)
    row = base.row("f00")
    with running(base) as stager:
        with writing(memory / "f00") as mapped:
            stager.command(StagerCommand.FETCH, [row])
            stager.wait_for(Event.STAGED, row)
            assert base.staged(row) == content(1, PAGE)
            mapped[7] ^= 0xFF
            written.set()
        stager.wait_for(Event.CHANGED, row)
        assert base.staged(row) is None
        assert base.columns.version[row] == 1
        assert stager.read(row) == (0, (memory / "f00").read_bytes())
    base.close()


def test_a_stager_compares_what_a_server_has_read_by_itself(
    memory: Path, monkeypatch: pytest.MonkeyPatch, written: threading.Event
) -> None:
    monkeypatch.setattr(young_files, "LOCAL_S", 1.0)
    write_files(memory, [PAGE])
    ahead(memory / "f00")
    base = Shared(memory, 16 * PAGE)
    row = base.row("f00")
    read = YoungRead(row, 0, 8, 100, xxhash.xxh3_64_intdigest(content(1, PAGE)[8:108]))
    refused = [replace(read, row=2**63), replace(read, start=-1)]  # by the type
    others = [replace(read, row=2**40 - 1), replace(read, start=2**64 - 1), replace(read, length=2**40),
              replace(read, version=1)]  # fmt: skip
    with running(base) as stager, writing(memory / "f00") as mapped:
        for bad in refused:
            stager.server.send(msgpack.encode((5, [bad, read])))
        stager.server.send(encode(YoungFilesRead([*others, read])))
        mapped[9] ^= 0xFF
        written.set()
        stager.wait_for(Event.CHANGED, row)
        assert base.metrics[Metric.YOUNG_COMPARED] == 1
        assert stager.read(row) == (0, (memory / "f00").read_bytes())
    base.close()


def test_a_checksum_of_the_version_before_is_not_compared_by_the_next_stager(memory: Path) -> None:
    write_files(memory, [PAGE, PAGE])
    base = Shared(memory, 16 * PAGE)
    row, other = base.row("f00"), base.row("f01")
    with running(base) as stager:
        stager.command(StagerCommand.FETCH, [row])
        stager.wait_for(Event.STAGED, row)
        stager.command(StagerCommand.EVICT, [row])
        stager.wait_for(Event.EVICTED, row)
        (memory / "f00").write_bytes(b"new")
        assert stager.read(row)[0] == errno.ESTALE
        stager.wait_for(Event.CHANGED, row)
    with running(base) as stager:
        assert stager.read(other)[0] == 0
        assert base.metrics[Metric.YOUNG_PARTS] == 1, "the other one"
    base.close()


@pytest.mark.parametrize("evicted", [False, long(True)], ids=["staged", "evicted"])  # but maybe in the page cache
def test_a_stager_compares_what_the_one_before_it_had_read(
    memory: Path, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    write_files(memory, [PAGE])
    ahead(memory / "f00")
    base = Shared(memory, 16 * PAGE)
    row = base.row("f00")
    with writing(memory / "f00") as mapped:
        with running(base) as stager:
            stager.command(StagerCommand.FETCH, [row])
            stager.wait_for(Event.STAGED, row)
            if evicted:
                stager.command(StagerCommand.EVICT, [row])
                stager.wait_for(Event.EVICTED, row)
        mapped[7] ^= 0xFF
    assert base.columns.version[row] == 0
    monkeypatch.setattr(young_files, "LOCAL_S", 1.0)
    with running(base) as stager:
        stager.wait_for(Event.CHANGED, row)
        assert base.columns.version[row] == 1
        assert stager.read(row) == (0, (memory / "f00").read_bytes())
    base.close()
