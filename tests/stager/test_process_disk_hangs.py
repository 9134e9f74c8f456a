"""A whole stager with a disk tier that does not answer: readers have the source's bytes, and nobody waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.config import DiskSpec
from nopfsfs.policy import left_alone
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.tiers.disk import Disk
from tests.stager.rig import PAGE, content, write_files
from tests.stager.running import Shared, running
from tests.waiting import wait_until

COUNT = 6
LIMIT_S = 2.0  # that a disk costs a reader; with what this machine may be late by
MARGIN_S = 3.0


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Shared]:
    write_files(tmp_path / "source", [2 * PAGE] * COUNT)
    made = Shared(tmp_path / "source", 64 * PAGE)
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> DiskSpec:
    (tmp_path / "disk").mkdir()
    return DiskSpec(str(tmp_path / "disk"), 64 * PAGE)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is clear, reads and writes of a disk tier do not end."""
    opened = threading.Event()
    opened.set()
    for name in ("write", "open_copy"):
        real = getattr(Disk, name)

        def late(self: Disk, *words: object, real=real) -> object:  # type: ignore[no-untyped-def]
            assert opened.wait(30)
            return real(self, *words)

        monkeypatch.setattr(Disk, name, late)
    yield opened
    opened.set()


def test_a_read_of_a_disk_that_hangs_is_answered_from_the_source(
    base: Shared, disk: DiskSpec, gate: threading.Event
) -> None:
    rows = [base.row(f"f{number:02}") for number in range(COUNT)]
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, rows)
        s.command(StagerCommand.TO_DISK, rows, 1)
        for row in rows:
            s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, rows, 1)
        for row in rows:
            s.wait_for(Event.ON_DISK, row)
        s.command(StagerCommand.EVICT, rows)
        for row in rows:
            s.wait_for(Event.EVICTED, row)
        gate.clear()
        began = time.monotonic()
        assert s.read(rows[0]) == (0, content(1, 2 * PAGE))
        assert time.monotonic() - began < LIMIT_S + MARGIN_S
        began = time.monotonic()
        assert s.read(rows[1]) == (0, content(2, 2 * PAGE))
        assert time.monotonic() - began < MARGIN_S, "it is known by now"
        assert (base.metrics[Metric.DISK_LATE], base.metrics[Metric.DISKS_BYPASSED]) == (1, 1)
        gate.set()
        assert wait_until(lambda: base.metrics[Metric.DISKS_BYPASSED] == 0)
        before = base.metrics[Metric.DISK_FETCHES]
        assert s.read(rows[2]) == (0, content(3, 2 * PAGE))
        assert wait_until(lambda: base.metrics[Metric.DISK_FETCHES] == before + 1), "it is read again"


def test_what_is_to_be_written_to_a_disk_that_hangs_is_not_held_for_it(
    base: Shared, disk: DiskSpec, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_alone, "TIER_FIRST_S", 60.0)  # longer than the test takes
    rows = [base.row(f"f{number:02}") for number in range(COUNT)]
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, rows)
        for row in rows:
            s.wait_for(Event.STAGED, row)
        gate.clear()
        s.command(StagerCommand.TO_DISK, rows[:4], 1)
        for row in rows[:4]:
            s.wait_for(Event.OFF_DISK, row)
        s.command(StagerCommand.EVICT, [rows[0]])
        s.wait_for(Event.EVICTED, rows[0])
        assert wait_until(lambda: base.metrics[Metric.DISKS_BYPASSED] == 1), "it is counted after the events"
        gate.set()
        s.command(StagerCommand.TO_DISK, [rows[4]], 1)
        s.wait_for(Event.OFF_DISK, rows[4])  # it is left alone for a while
        late = f".nopfs-tier-*/copies/*/{rows[0]}"
        assert wait_until(lambda: not any(Path(disk.path).glob(late))), "the copy that came too late"
        assert base.columns.disk[rows[0]] == 0
        assert s.read(rows[0]) == (0, content(1, 2 * PAGE))


def test_a_write_that_comes_too_late_does_not_end_the_rest_of_its_disk(
    base: Shared, disk: DiskSpec, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_alone, "TIER_FIRST_S", 0.01)
    first, second = base.row("f00"), base.row("f01")
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, [first, second])
        s.wait_for(Event.STAGED, first)
        s.wait_for(Event.STAGED, second)
        gate.clear()
        s.command(StagerCommand.TO_DISK, [first], 1)
        s.wait_for(Event.OFF_DISK, first)
        gate.set()
        assert wait_until(lambda: any(Path(disk.path).glob(f".nopfs-tier-*/copies/{first & 255:02x}")))
        s.command(StagerCommand.TO_DISK, [second], 1)
        s.wait_for(Event.OFF_DISK, second)
        assert wait_until(lambda: base.metrics[Metric.DISKS_BYPASSED] == 0), "it hangs no more, and yet rests"
        assert not s.stager._disks[1].is_rested()
        assert base.metrics[Metric.DISK_WRITES] == 0


def test_a_file_that_changes_while_it_is_written_is_said_to_be_not_there(
    base: Shared, disk: DiskSpec, gate: threading.Event
) -> None:
    row = base.row("f00")
    with running(base, (disk,)) as s:
        s.command(StagerCommand.FETCH, [row])
        s.wait_for(Event.STAGED, row)
        gate.clear()
        s.command(StagerCommand.TO_DISK, [row], 1)
        (base.root / "f00").write_bytes(b"new")
        s.stager.changes.noticed(row)
        s.wait_for(Event.EVICTED, row)
        gate.set()
        s.wait_for(Event.OFF_DISK, row)
        assert base.columns.disk[row] == 0
