"""What is held is compared with the source byte for byte, in the slots of the source that are free."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.ring import IN_MEMORY, NOT_HELD, ON_TIER, Event
from nopfsfs.stager import copy_check
from nopfsfs.stager.copy_check import CopyCheck
from tests.stager.rig import Rig, open_files_below, rig, write_files
from tests.waiting import wait_until

SIZES = [5000, 70_000, 1, 4096]


class Bench:
    """A check over a real state. `copy` puts a copy on the one disk tier, which is a directory."""

    def __init__(self, r: Rig, disk: Path) -> None:
        self.r, self.disk = r, disk
        tier = SimpleNamespace(open_copy=lambda row: os.open(disk / str(row), os.O_RDONLY))
        self.noticed: list[int] = []
        disks = {1: tier}
        self.check = CopyCheck(r.state, r.columns, r.source, disks, self.noticed.append)  # type: ignore[arg-type]

    def copy(self, row: int) -> Path:
        path = self.disk / str(row)
        path.write_bytes(self.r.path(row).read_bytes())
        self.r.columns.disk[row] = 1
        return path

    def stage(self, *rows: int) -> None:
        self.r.state.fetch(list(rows))
        self.r.run()
        self.found()

    def found(self) -> list[tuple[int, int, int]]:
        """(event, row, value) of what was put since the last call."""
        kinds, rows, values = self.r.events.take()
        return list(zip(kinds.tolist(), rows.tolist(), values.tolist(), strict=True))

    def checked(self, *rows: int) -> dict[int, int]:
        """Values by row, of errors less than 0."""
        self.check.check(list(rows))
        assert wait_until(lambda: not self.check.look())
        return {row: value if event == Event.CHECKED else -value for event, row, value in self.found()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    write_files(tmp_path / "tree", SIZES)
    (tmp_path / "disk").mkdir()
    with rig(tmp_path / "tree", budget=1 << 20, concurrency=2) as r:
        made = Bench(r, tmp_path / "disk")
        yield made
        made.check.stop()
        assert wait_until(lambda: open_files_below(tmp_path) == [])


def flip(view: memoryview | bytearray, at: int) -> None:
    view[at] ^= 1


def test_what_is_as_at_the_source(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "BLOCK", 4096)
    rows = bench.r.files
    bench.stage(*rows[:3])
    bench.copy(rows[1])
    bench.copy(rows[3])
    before = bench.r.metric(Metric.SOURCE_READ_BYTES), bench.r.metric(Metric.SOURCE_OPENS)
    assert bench.checked(*rows) == dict.fromkeys(rows, 0)
    after = bench.r.metric(Metric.SOURCE_READ_BYTES), bench.r.metric(Metric.SOURCE_OPENS)
    assert (after[0] - before[0], after[1] - before[1]) == (sum(SIZES), len(SIZES)), "each was read once"
    assert bench.r.metric(Metric.UNDER_WAY) == 0


@pytest.mark.parametrize("at", [0, 4095, 4096, 69_999])
def test_one_bit_is_found(at: int, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "BLOCK", 4096)
    row = bench.r.files[1]
    bench.stage(row)
    path = bench.copy(row)
    flip(bench.r.arena.view, int(bench.r.columns.slot[row]) + at)
    assert bench.checked(row) == {row: IN_MEMORY}
    rotten = bytearray(path.read_bytes())
    flip(rotten, at)
    path.write_bytes(rotten)
    assert bench.checked(row) == {row: IN_MEMORY | ON_TIER}
    flip(bench.r.arena.view, int(bench.r.columns.slot[row]) + at)
    assert bench.checked(row) == {row: ON_TIER}


def test_a_copy_that_is_short_or_gone(bench: Bench) -> None:
    one, two = bench.r.files[:2]
    bench.copy(one).write_bytes(b"x")
    bench.copy(two).unlink()
    assert bench.checked(one, two) == {one: ON_TIER, two: ON_TIER}


def test_what_is_not_held_any_more(bench: Bench) -> None:
    row = bench.r.files[0]
    assert bench.checked(row) == {row: NOT_HELD}
    assert bench.r.source.opens == {}


def test_a_file_that_changed_or_cannot_be_read(bench: Bench) -> None:
    one, two = bench.r.files[:2]
    bench.stage(one, two)
    bench.r.path(one).write_bytes(b"other")
    bench.r.source.errors[two] = errno.EIO
    assert bench.checked(one, two) == {one: -errno.ESTALE, two: -errno.EIO}
    assert bench.noticed == [one]
    assert bench.r.metric(Metric.UNDER_WAY) == 0


def test_it_waits_for_a_free_slot_and_ends_when_nobody_wants_it(bench: Bench) -> None:
    rows = bench.r.files
    bench.stage(*rows)
    taken = [bench.r.state.beside.begin(1) for _ in range(3)]
    assert taken == [True, True, False]
    bench.check.check(rows)
    assert bench.check.look()
    assert not bench.found()
    bench.check.forget()
    assert wait_until(lambda: not bench.check.look())
    assert not bench.found()
    bench.r.state.beside.end(0)
    assert bench.checked(*rows) == dict.fromkeys(rows, 0)
    bench.r.state.beside.end(0)


def test_a_read_that_hangs_gives_its_slot_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_check, "GIVEN_UP_S", 0.05)
    (row,) = bench.r.files[:1]
    bench.stage(row)
    go_on = hanging(bench)
    bench.check.check([row])
    assert wait_until(lambda: bench.r.metric(Metric.UNDER_WAY) == 1)
    assert wait_until(lambda: bench.check.look() and bench.r.metric(Metric.UNDER_WAY) == 0)
    go_on()
    assert wait_until(lambda: not bench.check.look())
    assert [(event, value) for event, _, value in bench.found()] == [(Event.CHECKED, 0)]
    assert bench.r.metric(Metric.UNDER_WAY) == 0, "no slot is given back twice"


def hanging(bench: Bench) -> Callable[[], None]:
    """Let opens hang until the function is called that is returned."""
    there: list[bool] = []

    def open_late(row: int) -> None:
        wait_until(lambda: bool(there), 20)

    bench.r.source.while_opening = open_late
    return lambda: there.append(True)
