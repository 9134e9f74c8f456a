"""The stager as a whole, in threads: orders, pushes, changes, disks, and its restart."""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import msgpack

from nopfsfs.config import MAX_CONCURRENCY, DiskSpec
from nopfsfs.fuse import passthrough
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.server_stager import (
    TO_SERVER_MAX,
    Answer,
    AskGrace,
    Demand,
    FileChanged,
    GracePassed,
    Welcome,
    YoungFilesRead,
    YoungRead,
    to_server,
)
from nopfsfs.protocol.source_metrics import read_ended
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager import demands
from tests.conftest import no_more_threads
from tests.stager.rig import PAGE, content, write_files
from tests.stager.running import Running, Shared, running
from tests.waiting import wait_until

INVAL_ENTRY, STORE = 3, 4  # enum fuse_notify_code


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Shared]:
    """Eight files of two pages, and a budget for all of them, of which no file's memory is kept when it is evicted."""
    root = tmp_path / "source"
    write_files(root, [2 * PAGE] * 8)
    made = Shared(root, 24 * PAGE)
    yield made
    made.close()


def test_files_are_staged_pushed_dropped_and_evicted_as_ordered(base: Shared) -> None:
    a, b = base.row("f00"), base.row("f01")
    with running(base) as s:
        s.command(StagerCommand.FETCH, [a, b])
        s.wait_for(Event.STAGED, a)
        s.wait_for(Event.STAGED, b)
        s.command(StagerCommand.PUSH, [b])
        s.wait_for(Event.PUSHED, b)
        ((code, inode, rest),) = base.pushed()
        assert (code, inode) == (STORE, inode_of(b, 0))
        assert rest[16:] == content(2, 2 * PAGE)
        s.command(StagerCommand.DROP, [b])
        s.wait_for(Event.DROPPED, b)
        s.command(StagerCommand.EVICT, [a])
        s.wait_for(Event.EVICTED, a)
        assert s.read(b) == (0, content(2, 2 * PAGE))
        assert wait_until(lambda: base.metrics[Metric.ARENA_USED] == 2 * PAGE)


def test_a_limit_holds_for_the_next_stager_too_and_is_kept_within_bounds(base: Shared) -> None:
    with running(base) as s:
        assert base.metrics[Metric.SOURCE_LIMIT] == 2, "as it was configured"
        s.command(StagerCommand.LIMITS, [0], 5)
        assert wait_until(lambda: base.metrics[Metric.SOURCE_LIMIT] == 5)
        s.command(StagerCommand.FETCH, [base.row(f"f0{number}") for number in range(8)])
        assert wait_until(lambda: base.metrics[Metric.STAGED_FILES] == 8)
    with running(base) as s:
        assert base.metrics[Metric.SOURCE_LIMIT] == 5
        assert (base.metrics[Metric.UNDER_WAY], base.metrics[Metric.DEMANDS_UNDER_WAY]) == (0, 0)
        s.command(StagerCommand.LIMITS, [], 1 << 40)
        assert wait_until(lambda: base.metrics[Metric.SOURCE_LIMIT] == MAX_CONCURRENCY)
        s.command(StagerCommand.LIMITS, [1], -3)
        assert wait_until(lambda: base.metrics[Metric.SOURCE_LIMIT] == 1)
        assert s.read(base.row("f00")) == (0, content(1, 2 * PAGE))


def test_requests_at_the_source_are_counted_also_those_of_demands(base: Shared) -> None:
    with running(base) as s:
        s.command(StagerCommand.FETCH, [base.row("f00"), base.row("f01")])
        assert wait_until(lambda: base.metrics[Metric.STAGED_FILES] == 2)
        s.read(base.row("f03"))
        found = read_ended(base.metrics)
        assert found is not None
        assert (found.ended[1], sum(found.ended)) == (3, 3)
        assert 10 < found.log2_ns[1] / 3 < 34, "between a microsecond and sixteen seconds"
        assert wait_until(lambda: base.metrics[Metric.UNDER_WAY] == 0)
        assert base.metrics[Metric.UNDER_WAY_NS] > 0


def test_a_push_of_what_is_not_staged_fails_and_says_so(base: Shared) -> None:
    with running(base) as s:
        s.command(StagerCommand.PUSH, [base.row("f00")])
        s.wait_for(Event.PUSH_FAILED, base.row("f00"))


def test_a_drop_that_cannot_be_done_is_reported_too(base: Shared) -> None:
    """Whoever waits for the room would wait for ever."""
    row = base.row("f00")
    os.unlink(base.root / "f00")
    with running(base) as s:
        s.command(StagerCommand.DROP, [row])
        s.wait_for(Event.DROPPED, row)


def test_a_report_for_which_the_system_has_no_thread_ends_nothing(
    base: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, other = base.row("f03"), base.row("f04")
    (base.root / "f03").write_bytes(b"new")
    with running(base) as s:
        assert s.read(other)[0] == 0  # so it has begun
        report = encode(FileChanged(row))
        with no_more_threads(monkeypatch) as refused:
            s.server.send(report)
            assert s.read(other) == (0, content(5, 2 * PAGE))
        assert refused
        s.server.send(report)
        s.wait_for(Event.CHANGED, row)


def test_a_changed_file_is_refreshed_and_its_name_forgotten(base: Shared) -> None:
    row = base.row("f03")
    with running(base) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        (base.root / "f03").write_bytes(b"new")
        assert s.read(row)[0] == errno.ESTALE
        s.wait_for(Event.CHANGED, row)
        assert (base.columns.version[row], base.columns.stale[row], base.size(row)) == (1, 0, 3)
        assert [code for code, _, _ in base.pushed()] == [INVAL_ENTRY]
        assert s.read(row) == (0, b"new")
        s.wait_for(Event.STAGED, row)  # the read was answered as soon as its bytes had come
        s.command(StagerCommand.PUSH, [row])
        s.wait_for(Event.PUSHED, row)
        assert base.pushed()[-1][:2] == (STORE, inode_of(row, 1))


def test_garbage_does_not_end_it(base: Shared) -> None:
    with running(base) as s:
        s.orders.send(b"x")
        s.orders.send(b"\xff" * 16)
        s.server.send(b"y")
        for fields in ((1, 0, 5, 0, 9), (1, 1, -1, 0, 9), (1, 1, 5, -1, 9), (2, 1 << 40), (3, -1), (5, [(1, 2)]), (6,)):
            s.server.send(msgpack.encode(fields))  # messages, but for their numbers
        s.server.send(encode(FileChanged(1 << 39)))
        s.server.send(encode(YoungFilesRead([YoungRead(1 << 39, 0, 0, 1, 2)])))
        assert s.read(base.row("f00"))[1] == content(1, 2 * PAGE)


def test_it_goes_on_when_the_server_is_gone(base: Shared) -> None:
    row = base.row("f00")
    with running(base) as s:
        s.server.close()
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)


def test_one_more_server_is_served_and_asked_before_anything_is_used_again(base: Shared) -> None:
    row = base.row("f00")
    with running(base) as s, s.another_server() as other:
        assert s.read(row) == (0, content(1, 2 * PAGE))
        s.wait_for(Event.STAGED, row)
        assert to_server.decode(other.recv(TO_SERVER_MAX)) == Welcome()
        s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        assert s.read(base.row("f01")) == (0, content(2, 2 * PAGE)), "and the first passes the grace"
        grace = to_server.decode(other.recv(TO_SERVER_MAX))
        assert isinstance(grace, AskGrace)
        assert base.metrics[Metric.ARENA_USED] == 4 * PAGE
        other.send(encode(Demand(1, row, 0, PAGE)))
        answer = to_server.decode(other.recv(TO_SERVER_MAX))
        assert isinstance(answer, Answer)
        assert (answer.id, answer.errno) == (1, 0)
        assert base.arena[answer.arena : answer.arena + PAGE] == content(1, PAGE)
        assert base.metrics[Metric.ARENA_USED] == 6 * PAGE
        other.send(encode(GracePassed(grace.number)))
        assert wait_until(lambda: base.metrics[Metric.ARENA_USED] == 4 * PAGE)


def test_a_server_that_is_gone_is_not_waited_for(base: Shared) -> None:
    row = base.row("f00")
    with running(base) as s, s.another_server() as other:
        assert s.read(row) == (0, content(1, 2 * PAGE))
        s.wait_for(Event.STAGED, row)
        other.close()
        s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        assert s.read(base.row("f01")) == (0, content(2, 2 * PAGE))
        assert wait_until(lambda: base.metrics[Metric.ARENA_USED] == 2 * PAGE)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Shared, DiskSpec]]:
    """A budget of four files of eight, and a disk."""
    root, disk = tmp_path / "source", tmp_path / "disk"
    write_files(root, [2 * PAGE] * 8)
    disk.mkdir()
    made = Shared(root, 8 * PAGE)
    yield made, DiskSpec(str(disk), 1 << 20)
    made.close()


def leave_on_disk(s: Running, row: int) -> None:
    """Leave a copy of the row on disk tier 1, and none in memory."""
    s.command(StagerCommand.FETCH, [row])
    s.wait_for(Event.STAGED, row)
    s.command(StagerCommand.TO_DISK, [row], 1)
    s.wait_for(Event.ON_DISK, row)
    s.command(StagerCommand.EVICT, [row])
    s.wait_for(Event.EVICTED, row)


@contextmanager
def crowded(full: tuple[Shared, DiskSpec]) -> Iterator[tuple[Running, int, list[int]]]:
    """A stager with a copy of one row on disk alone, and with other rows in memory, where there is no room."""
    base, disk = full
    row, *others = (base.row(f"f0{number}") for number in range(5))
    with running(base, (disk,)) as s:
        leave_on_disk(s, row)
        assert s.read(others[0])[0] == 0, "so that the grace passes"
        for other in others:
            s.command(StagerCommand.FETCH, [other])
            s.wait_for(Event.STAGED, other)
        yield s, row, others


def test_a_reader_of_a_copy_on_disk_waits_for_room_and_not_for_the_source(
    full: tuple[Shared, DiskSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = full
    monkeypatch.setattr(demands, "COPY_DELAY_S", 20.0)
    with crowded(full) as (s, row, others):
        opens, found = base.metrics[Metric.SOURCE_OPENS], list[tuple[int, bytes]]()
        reader = threading.Thread(target=lambda: found.append(s.read(row)))
        reader.start()
        assert wait_until(lambda: bool(s.stager._state._demands._delayed))
        s.command(StagerCommand.EVICT, [others[1]])
        reader.join(20)
        assert found == [(0, content(1, 2 * PAGE))]
        assert base.metrics[Metric.SOURCE_OPENS] == opens


def test_where_no_room_comes_readers_of_copies_on_disk_do_not_wait_for_it_again(
    full: tuple[Shared, DiskSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demands, "COPY_DELAY_S", 0.2)
    with crowded(full) as (s, row, _):
        began = time.monotonic()
        assert s.read(row)[0] == errno.ENOSPC, "the server reads by itself"
        assert time.monotonic() - began >= 0.2
        rest = s.stager._state._demands._copy_waits_from
        assert rest > began + demands.REST_S
        monkeypatch.setattr(s.stager._state._demands, "_copy_waits_from", math.inf)
        monkeypatch.setattr(demands, "COPY_DELAY_S", 60.0)
        assert s.read(row)[0] == errno.ENOSPC, "at once"
        assert s.stager._state._demands._copy_waits_from == math.inf, "it has not waited"
        monkeypatch.setattr(s.stager._state._demands, "_copy_waits_from", 0.0)
        assert s.read(full[0].row("f07"))[0] == errno.ENOSPC, "which has no copy"


# ---- restart ------------------------------------------------------------------------------------------------


def test_the_next_stager_keeps_what_was_published_and_nothing_else(base: Shared) -> None:
    rows = [base.row(f"f0{number}") for number in range(4)]
    with running(base) as s:
        s.command(StagerCommand.FETCH, rows)
        for row in rows:
            s.wait_for(Event.STAGED, row)
    # The one before had begun to stage another, and to withdraw the last.
    base.columns.tier[rows[3]] = Tier.NONE
    with running(base) as s:
        assert base.metrics[Metric.ARENA_USED] == 3 * 2 * PAGE
        assert [base.staged(row) for row in rows] == [*(content(n + 1, 2 * PAGE) for n in range(3)), None]
        s.command(StagerCommand.FETCH, [rows[0]])  # the supervisor may not know
        s.wait_for(Event.STAGED, rows[0])
        s.command(StagerCommand.FETCH, [rows[3]])
        s.wait_for(Event.STAGED, rows[3])
        assert base.staged(rows[3]) == content(4, 2 * PAGE)


def test_a_change_that_the_stager_before_had_begun_is_completed(base: Shared) -> None:
    row = base.row("f00")
    with running(base) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
    (base.root / "f00").write_bytes(b"new")
    base.columns.stale[row] = 1  # as far as it came
    with running(base) as s:
        s.wait_for(Event.CHANGED, row)
        assert base.columns.stale[row] == 0
        assert s.read(row) == (0, b"new")


# ---- disks --------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> DiskSpec:
    path = tmp_path / "disk"
    path.mkdir()
    return DiskSpec(str(path), 16 * PAGE)


def test_a_copy_on_disk_serves_after_the_arena_let_it_go_and_is_removed_at_the_end(
    base: Shared, disk: DiskSpec
) -> None:
    row = base.row("f00")
    with running(base, (disk,)) as s:
        leave_on_disk(s, row)
        opens = base.metrics[Metric.SOURCE_OPENS]
        assert s.read(row) == (0, content(1, 2 * PAGE))
        assert base.metrics[Metric.SOURCE_OPENS] == opens
        s.command(StagerCommand.OFF_DISK, [row])
        s.wait_for(Event.OFF_DISK, row)
        assert wait_until(lambda: base.metrics[Metric.DISK_USED] == 0)
    assert os.listdir(disk.path) == []


def test_a_corrupt_copy_on_disk_is_noticed_and_the_source_used(base: Shared, disk: DiskSpec) -> None:
    row = base.row("f00")
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, [row], 1)
        s.wait_for(Event.ON_DISK, row)
        (copy,) = Path(disk.path).glob(f".nopfs-tier-*/copies/*/{row}")
        copy.write_bytes(b"\0" * 2 * PAGE)
        s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        assert s.read(row) == (0, content(1, 2 * PAGE))
        assert base.metrics[Metric.CORRUPT_COPIES] == 1


def to_disk(s: Running, rows: list[int], *, evict: bool = True) -> None:
    s.command(StagerCommand.FETCH, rows)
    for row in rows:
        s.wait_for(Event.STAGED, row)
    s.command(StagerCommand.TO_DISK, rows, 1)
    for row in rows:
        s.wait_for(Event.ON_DISK, row)
    if evict:
        s.command(StagerCommand.EVICT, rows)
        for row in rows:
            s.wait_for(Event.EVICTED, row)


def copies(disk: DiskSpec) -> dict[int, Path]:
    return {int(copy.name): copy for copy in Path(disk.path).glob(".nopfs-tier-*/copies/*/*")}


@pytest.mark.parametrize("harm", ["rotten", "too short", "gone", "unreadable"])
def test_a_copy_on_disk_that_is_of_no_use_is_withdrawn_when_it_is_found(
    base: Shared, disk: DiskSpec, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [base.row(f"f0{number}") for number in range(3)]
    with running(base, (disk,)) as s:
        to_disk(s, rows)
        for copy in copies(disk).values():
            match harm:
                case "rotten":
                    copy.write_bytes(b"\0" * 2 * PAGE)
                case "too short":
                    copy.write_bytes(content(1, PAGE))
                case "gone":
                    copy.unlink()
        if harm == "unreadable":
            fail_on(monkeypatch, "preadv", errno.EIO, disk)
        for _ in range(2):
            for number, row in enumerate(rows):
                assert s.read(row) == (0, content(number + 1, 2 * PAGE))
        for row in rows:
            s.wait_for(Event.OFF_DISK, row)
            assert s.values[Event.OFF_DISK, row] == 1, "it may be written again"
        monkeypatch.undo()
        assert copies(disk) == {}
        assert not base.columns.disk.any()
        assert wait_until(lambda: base.metrics[Metric.DISK_USED] == 0)
        counted = (base.metrics[Metric.CORRUPT_COPIES], base.metrics[Metric.DISK_ERRORS])
        assert counted == ((3, 0) if harm == "rotten" else (0, 3)), "each once"
        assert len([r for r in caplog.records if "on disk tier 1" in r.message]) == 1
        to_disk(s, rows[:1])
        opens = base.metrics[Metric.SOURCE_OPENS]
        assert s.read(rows[0]) == (0, content(1, 2 * PAGE))
        assert base.metrics[Metric.SOURCE_OPENS] == opens


def fail_on(monkeypatch: pytest.MonkeyPatch, call: str, error: int, disk: DiskSpec) -> None:
    """Let a call fail, for descriptors of files on that disk."""
    real = getattr(os, call)

    def fail(fd: int, *args: object) -> object:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(disk.path):
            raise OSError(error, os.strerror(error))
        return real(fd, *args)

    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_tier_that_fails_in_mid_write_is_bypassed_and_tried_again(
    base: Shared, disk: DiskSpec, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [base.row(f"f0{number}") for number in range(4)]
    with running(base, (disk,)) as s:
        to_disk(s, rows[:1])
        s.command(StagerCommand.FETCH, rows[1:])
        for row in rows[1:]:
            s.wait_for(Event.STAGED, row)
        with monkeypatch.context() as patch:
            fail_on(patch, "write", error, disk)
            s.command(StagerCommand.TO_DISK, rows[1:2], 1)
            s.wait_for(Event.OFF_DISK, rows[1])
        s.command(StagerCommand.TO_DISK, rows[2:3], 1)
        s.wait_for(Event.OFF_DISK, rows[2])
        assert [s.values[Event.OFF_DISK, row] for row in rows[1:3]] == [1, 1]
        assert list(copies(disk)) == rows[:1]
        assert base.metrics[Metric.DISK_USED] == 2 * PAGE
        assert base.metrics[Metric.DISK_ERRORS] == 1, "a bypassed tier is not asked"
        assert [s.read(row)[1] for row in rows[:3]] == [content(n + 1, 2 * PAGE) for n in range(3)]
        s.end_rests()
        to_disk(s, rows[1:4])
        assert sorted(copies(disk)) == rows
        assert [s.read(row)[1] for row in rows] == [content(n + 1, 2 * PAGE) for n in range(4)]


def test_a_tier_whose_directory_is_removed_is_made_anew(
    base: Shared, disk: DiskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [base.row(f"f0{number}") for number in range(4)]
    with running(base, (disk,)) as s:
        to_disk(s, rows[:3])
        (home,) = Path(disk.path).iterdir()
        shutil.rmtree(home)
        assert s.read(rows[0]) == (0, content(1, 2 * PAGE))
        s.wait_for(Event.STAGED, rows[0])
        for row in rows[:3]:  # those that nobody has read, too
            s.wait_for(Event.OFF_DISK, row)
        assert base.metrics[Metric.DISK_USED] == 0 or wait_until(lambda: base.metrics[Metric.DISK_USED] == 0)
        s.command(StagerCommand.TO_DISK, rows[:1], 1)
        s.wait_for(Event.OFF_DISK, rows[0])
        assert os.listdir(disk.path) == []
        s.end_rests()
        to_disk(s, rows)
        assert sorted(copies(disk)) == rows
        shutil.rmtree(disk.path)
        os.mkdir(disk.path)
        s.command(StagerCommand.OFF_DISK, rows[:1])
        s.wait_for(Event.OFF_DISK, rows[0])
        s.command(StagerCommand.FETCH, rows[:1])
        s.wait_for(Event.STAGED, rows[0])
        s.command(StagerCommand.TO_DISK, rows[:1], 1)  # the write finds it
        s.wait_for(Event.OFF_DISK, rows[1])
        to_disk(s, rows[1:2])
        assert list(copies(disk)) == rows[1:2]
    assert os.listdir(disk.path) == []


def test_a_tier_that_could_not_be_opened_is_tried_again(
    base: Shared, disk: DiskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = base.row("f00")
    os.rmdir(disk.path)
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, [row], 1)
        s.wait_for(Event.OFF_DISK, row)
        assert s.values[Event.OFF_DISK, row] == 1
        os.mkdir(disk.path)
        s.end_rests()
        to_disk(s, [row])
        assert s.read(row) == (0, content(1, 2 * PAGE))


def test_a_disk_that_is_full_or_missing_is_said_to_have_nothing(base: Shared, disk: DiskSpec) -> None:
    rows = [base.row(f"f0{number}") for number in range(3)]
    small = DiskSpec(disk.path, 3 * PAGE)
    with running(base, (small, DiskSpec(disk.path + "/missing"))) as s:
        s.command(StagerCommand.FETCH, rows)
        for row in rows:
            s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, rows[:2], 1)
        s.wait_for(Event.ON_DISK, rows[0])
        s.wait_for(Event.OFF_DISK, rows[1])
        s.command(StagerCommand.TO_DISK, [rows[2]], 2)
        s.wait_for(Event.OFF_DISK, rows[2])
        assert base.metrics[Metric.DISK_USED] == 2 * PAGE
        assert [s.values[Event.OFF_DISK, row] for row in rows[1:]] == [0, 1], "a full tier is not to be asked again"


def test_a_copy_that_is_asked_for_again_is_said_to_be_where_it_is(base: Shared, tmp_path: Path, disk: DiskSpec) -> None:
    """By a supervisor that had lost what was said, and may ask another tier; staged it need not be any more."""
    other = tmp_path / "other"
    other.mkdir()
    row = base.row("f00")
    with running(base, (disk, DiskSpec(str(other), 16 * PAGE))) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        for tier in (2, 1, 2):
            s.command(StagerCommand.TO_DISK, [row], tier)
            s.wait_for(Event.ON_DISK, row)
            assert s.values[Event.ON_DISK, row] == base.columns.disk[row] == 2
            s.command(StagerCommand.EVICT, [row])
        s.wait_for(Event.EVICTED, row)
        assert s.read(row) == (0, content(1, 2 * PAGE))
        assert len(list(other.glob(f".nopfs-tier-*/copies/*/{row}"))) == 1
        assert not list(Path(disk.path).glob(f".nopfs-tier-*/copies/*/{row}"))
        assert base.metrics[Metric.DISK_WRITES] == 1


def test_a_copy_is_registered_and_closed_again_when_the_file_changes_or_the_stager_is_another(
    base: Shared, disk: DiskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: dict[int, bytes] = {}

    def register(fuse_fd: int, fd: int) -> int:
        number = 40 + len(registered)
        registered[number] = os.pread(fd, 1 << 20, 0)
        return number

    monkeypatch.setattr(passthrough, "register", register)
    monkeypatch.setattr(passthrough, "withdraw", lambda fuse_fd, number: registered.pop(number))
    rows = [base.row("f00"), base.row("f01")]
    column = base.columns.backing
    with running(base, (disk,), 1) as s:
        for number, row in enumerate(rows):
            s.command(StagerCommand.FETCH, [row])
            s.wait_for(Event.STAGED, row)
            s.command(StagerCommand.TO_DISK, [row], 1)
            s.wait_for(Event.ON_DISK, row)
            s.wait_for(Event.BACKED, row)
            assert column[row] == 40 + number
            assert registered[40 + number] == content(number + 1, 2 * PAGE)
        (base.root / "f00").write_bytes(b"new")
        s.command(StagerCommand.EVICT, [rows[0]])
        s.wait_for(Event.EVICTED, rows[0])
        s.server.send(encode(FileChanged(rows[0])))
        assert wait_until(lambda: column[rows[0]] == -40)
        assert set(registered) == {40, 41}, "until the server has passed a grace"
        while column[rows[0]]:
            s.pass_grace()
            wait_until(lambda: not column[rows[0]], 0.1)
        assert set(registered) == {41}
    with running(base, (disk,), 1) as s:
        assert column[rows[1]] == -41
        while column[rows[1]]:
            s.pass_grace()
            wait_until(lambda: not column[rows[1]], 0.1)
        assert registered == {}


def test_a_changed_file_s_copy_on_disk_is_removed(base: Shared, disk: DiskSpec) -> None:
    row = base.row("f00")
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, [row], 1)
        s.wait_for(Event.ON_DISK, row)
        (base.root / "f00").write_bytes(b"new")
        s.server.send(encode(FileChanged(row)))
        s.wait_for(Event.CHANGED, row)
        s.wait_for(Event.OFF_DISK, row)
        assert list(Path(disk.path).glob(f".nopfs-tier-*/copies/*/{row}")) == []
        assert s.read(row) == (0, b"new")
