"""A stager over a directory that keeps its copies: what the next one reads of the source, and what it does not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from nopfsfs.config import DiskSpec
from nopfsfs.policy import choice
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager import process, young_files
from nopfsfs.tiers.source import Source
from tests.stager.rig import PAGE, content, write_files
from tests.stager.running import Running, Shared, running
from tests.waiting import wait_until

FILES = 8


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    write_files(made, [2 * PAGE] * FILES)
    return made


@pytest.fixture
def disks(tmp_path: Path) -> tuple[DiskSpec, ...]:
    (tmp_path / "disk").mkdir()
    return (DiskSpec(str(tmp_path / "disk"), 1 << 20),)


@pytest.fixture
def mount(root: Path) -> Iterator[Callable[[], Shared]]:
    """What a new mount of the source has."""
    made: list[Shared] = []

    def new() -> Shared:
        made.append(Shared(root, 24 * PAGE))
        return made[-1]

    yield new
    for base in made:
        base.close()


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept is known before anything is read, and no disk is left for being slow, however long all takes."""
    monkeypatch.setattr(process, "KEPT_S", 60.0)
    monkeypatch.setattr(choice, "SURE_S", 60.0)


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old."""
    monkeypatch.setattr(young_files, "LOCAL_S", -1.0)


def copies(disks: tuple[DiskSpec, ...]) -> list[Path]:
    return sorted(Path(disks[0].path).glob("nopfs-cache-*/v1/sources/*/??/*"))


def has_its_sum(copy: Path) -> bool:
    return xxhash.xxh3_64_hexdigest(copy.read_bytes()) == copy.name.partition("-")[2]


def rows(base: Shared) -> list[int]:
    return [base.row(f"f{number:02}") for number in range(FILES)]


def keep_all(base: Shared, s: Running) -> None:
    s.command(StagerCommand.FETCH, rows(base))
    for row in rows(base):
        s.wait_for(Event.STAGED, row)
    s.command(StagerCommand.TO_DISK, rows(base), 1)
    for row in rows(base):
        s.wait_for(Event.ON_DISK, row)


def read_all(base: Shared, s: Running) -> None:
    for number, row in enumerate(rows(base)):
        assert s.read(row) == (0, content(number + 1, 2 * PAGE))


@pytest.mark.usefixtures("old_files")
def test_the_next_mount_reads_nothing_that_is_kept(mount: Callable[[], Shared], disks: tuple[DiskSpec, ...]) -> None:
    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
        assert first.metrics[Metric.SOURCE_OPENS] == FILES
    assert len(copies(disks)) == FILES
    second = mount()
    with running(second, disks, keep=True) as s:
        for row in rows(second):
            s.wait_for(Event.ON_DISK, row)
        read_all(second, s)
        assert second.metrics[Metric.SOURCE_OPENS] == 0
        assert second.metrics[Metric.SOURCE_READ_BYTES] == 0
        assert (first.metrics[Metric.KEPT_FILES], second.metrics[Metric.KEPT_FILES]) == (1, 1 + FILES)
        assert wait_until(lambda: second.metrics[Metric.STAGED_DISK_FILES] == FILES)
        assert wait_until(lambda: second.metrics[Metric.DISK_USED] == FILES * 2 * PAGE)
    with running(second, disks, keep=True) as s:  # a stager that takes its place
        s.command(StagerCommand.EVICT, rows(second))
        read_all(second, s)
        assert second.metrics[Metric.SOURCE_OPENS] == 0


@pytest.mark.usefixtures("old_files")
def test_a_file_that_changed_under_an_old_index_is_never_shown_from_its_copy(
    root: Path, mount: Callable[[], Shared], disks: tuple[DiskSpec, ...]
) -> None:
    """The index of the second mount is older than the change, as a kept index may be."""
    first, second = mount(), mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
    new = b"n" * 2 * PAGE
    (root / "f03").write_bytes(new)
    os.utime(root / "f03", ns=(0, int(first.index.mtime_ns[first.row("f03")])))
    with running(second, disks, keep=True) as s:
        row = second.row("f03")
        assert s.read(row)[0] != 0, "ESTALE, until the new version has settled"
        s.wait_for(Event.CHANGED, row)
        assert s.read(row) == (0, new)
        assert s.read(second.row("f04")) == (0, content(5, 2 * PAGE))
        assert wait_until(lambda: second.metrics[Metric.STAGED_DISK_FILES] == 1)


@pytest.mark.usefixtures("old_files")
def test_rotten_cut_and_lost_copies_are_read_anew(mount: Callable[[], Shared], disks: tuple[DiskSpec, ...]) -> None:
    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
    for length, path in zip((0, 1, PAGE, 2 * PAGE - 1), copies(disks), strict=False):
        os.truncate(path, length)
    rotten = copies(disks)[4]
    data = bytearray(rotten.read_bytes())
    data[-1] ^= 1
    rotten.write_bytes(data)
    copies(disks)[5].unlink()
    second = mount()
    with running(second, disks, keep=True) as s:
        read_all(second, s)
        assert wait_until(lambda: second.metrics[Metric.SOURCE_OPENS] == 6)
        assert second.metrics[Metric.CORRUPT_COPIES] == 1
        assert wait_until(lambda: len(copies(disks)) == FILES), "there is room for copies of what is in memory"
        assert all(has_its_sum(path) for path in copies(disks))


def test_copies_of_young_files_go_with_the_mount_until_they_were_compared(
    mount: Callable[[], Shared], disks: tuple[DiskSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(young_files, "LOCAL_S", 1000.0)
    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
        assert {path.suffix for path in copies(disks)} == {".young"}
    assert copies(disks) == []
    monkeypatch.setattr(young_files, "LOCAL_S", time.time() - float(first.index.mtime_ns.max()) / 1e9 + 2.0)
    second = mount()
    with running(second, disks, keep=True) as s:
        keep_all(second, s)
        assert wait_until(lambda: [path.suffix for path in copies(disks)] == [""] * FILES)
    assert len(copies(disks)) == FILES


@pytest.mark.usefixtures("old_files")
def test_a_source_that_hangs_holds_up_no_copy_that_was_confirmed(
    mount: Callable[[], Shared], disks: tuple[DiskSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
    second = mount()
    confirmed, hung = rows(second)[0], rows(second)[1:]
    gate, confirm = threading.Event(), Source.confirm
    with running(second, disks, keep=True) as s:
        assert s.read(confirmed) == (0, content(1, 2 * PAGE))
        s.command(StagerCommand.EVICT, [confirmed])
        s.wait_for(Event.EVICTED, confirmed)
        monkeypatch.setattr(Source, "confirm", lambda self, row: gate.wait(30) and confirm(self, row))
        s.command(StagerCommand.FETCH, hung)
        for row in hung:
            s.wait_for(Event.STUCK, row)
        assert s.read(confirmed) == (0, content(1, 2 * PAGE))
        assert second.metrics[Metric.DISKS_BYPASSED] == 0, "the disk is not to blame"
        gate.set()
        for row in hung:
            s.wait_for(Event.STAGED, row)
        # A first read of the disk that a busy machine made slow may send the others to the source by choice.
        assert second.metrics[Metric.SOURCE_OPENS] == second.metrics[Metric.REROUTED_SLOW]


@pytest.mark.usefixtures("old_files")
def test_a_source_that_fails_is_not_hidden_by_a_copy_of_another_mount(
    mount: Callable[[], Shared], disks: tuple[DiskSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Source, row: int) -> None:
        raise PermissionError(13, "withdrawn")

    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
    second = mount()
    monkeypatch.setattr(Source, "confirm", refuse)
    with running(second, disks, keep=True) as s:
        assert s.read(rows(second)[0])[0] == 13


@pytest.mark.usefixtures("old_files")
def test_bytes_that_this_mount_has_shown_win_over_a_copy(
    mount: Callable[[], Shared], disks: tuple[DiskSpec, ...]
) -> None:
    first = mount()
    with running(first, disks, keep=True) as s:
        keep_all(first, s)
    second = mount()
    second.columns.check[np.array(rows(second))] = 5
    with running(second, disks, keep=True) as s:
        read_all(second, s)
        assert wait_until(lambda: second.metrics[Metric.SOURCE_OPENS] == FILES)


@pytest.mark.usefixtures("old_files")
def test_a_cache_that_is_refused_costs_speed_only(
    mount: Callable[[], Shared], disks: tuple[DiskSpec, ...], caplog: pytest.LogCaptureFixture
) -> None:
    os.makedirs(os.path.join(disks[0].path, f"nopfs-cache-{os.geteuid()}"), mode=0o755)
    base = mount()
    with running(base, disks, keep=True) as s:
        s.command(StagerCommand.FETCH, rows(base))
        for row in rows(base):
            s.wait_for(Event.STAGED, row)
        s.command(StagerCommand.TO_DISK, rows(base), 1)
        for row in rows(base):
            s.wait_for(Event.OFF_DISK, row)
        read_all(base, s)
    assert "chmod 700" in caplog.text
