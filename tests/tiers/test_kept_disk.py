"""Kept copies: what the next mount finds, what is refused, who writes, what makes room."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import xxhash

from nopfsfs.fuse.mounting import may_mount
from nopfsfs.tiers import disk as disk_module
from nopfsfs.tiers import kept_directory
from nopfsfs.tiers.disk import DiskBusy, DiskFull, TierGone
from nopfsfs.tiers.kept_directory import KeptCache, begin_copy, cache_name, locked
from nopfsfs.tiers.kept_disk import USED_S, KeptDisk
from nopfsfs.tiers.kept_names import YOUNG, CopyName, FoundCopies, KeptRows, key_of, parsed_name
from nopfsfs.tiers.source import Changed, Identity
from tests.conftest import tmpfs
from tests.tiers.kept import BLOCK, Rows, copies

OWN = cache_name(os.geteuid())


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "source")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    return made


# ---- names ------------------------------------------------------------------------------------------------


def test_a_name_says_key_and_sum_and_nothing_else_is_one() -> None:
    name = CopyName(bytes(range(20)), 7, YOUNG)
    assert name.path == f"00/{bytes(range(20)).hex()}-0000000000000007.young"
    assert parsed_name(os.path.basename(name.path)) == name
    for strange in ("x", name.path, "0" * 40, "0" * 40 + "-" + "0" * 16 + ".tmp", "0" * 40 + "-" + "0" * 15):
        assert parsed_name(strange) is None


def test_each_part_of_the_identity_makes_another_key() -> None:
    first = Identity(1, 2, 3, 4)
    others = [first._replace(**{part: 9}) for part in first._fields]
    keys = {key_of("a" * 32, b"x", one) for one in (first, *others)}
    keys |= {key_of("b" * 32, b"x", first), key_of("a" * 32, b"y", first)}
    assert len(keys) == 7


def test_copies_of_one_key_that_differ_are_none() -> None:
    found = FoundCopies()
    found.sort()
    assert found.check_of(bytes(20)) is None
    for key, check in ((1, 5), (2, 6), (2, 7), (3, 8)):
        found.add(CopyName(bytes(19) + bytes([key]), check))
    found.sort()
    assert [found.check_of(bytes(19) + bytes([key])) for key in range(5)] == [None, 5, None, 8, None]


# ---- the next mount ---------------------------------------------------------------------------------------


def test_the_next_mount_finds_what_was_kept(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    for number in range(4):
        rows.write(disk, number)
    assert disk.used == 4 * BLOCK
    disk.close()
    rows.scan()
    disk = rows.disk(place)
    assert disk.used == 4 * BLOCK
    sums = [xxhash.xxh3_64_intdigest(rows.content(number, rows.size)) for number in range(4)]
    assert rows.found(disk) == {rows.row(number): sums[number] for number in range(4)}
    assert [rows.read(disk, number) for number in range(4)] == [rows.content(n, rows.size) for n in range(4)]
    with pytest.raises(FileNotFoundError):
        rows.read(disk, 4)


def test_a_changed_file_has_another_key_and_an_old_index_shows_at_the_source(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    rows.write(disk, 0)
    rows.write(disk, 1)
    disk.close()
    kept = KeptRows(os.fsencode(rows.root), rows.index, rows.columns, rows.source, None)
    (rows.root / "f0").write_bytes(b"x" * rows.size)  # in place: the index is old now
    with pytest.raises(Changed):
        kept.confirm(rows.row(0))
    kept.unconfirmed[rows.row(1)] = 1
    kept.confirm(rows.row(1))
    assert not kept.unconfirmed.any()
    os.unlink(rows.root / "f1")
    os.symlink("f0", rows.root / "f1")
    with pytest.raises(Changed):
        kept.confirm(rows.row(1))
    rows.scan()
    assert rows.found(rows.disk(place)) == {}


def test_a_young_copy_serves_its_mount_alone_until_it_is_sure(rows: Rows, place: Path) -> None:
    disk = rows.disk(place, sure=lambda row, version: False)
    for number in range(3):
        rows.write(disk, number)
    assert [path.suffix for path in copies(place)] == [".young"] * 3
    assert rows.read(disk, 0) == rows.content(0, rows.size)
    disk.settle(rows.row(0), 0)
    disk.settle(rows.row(1), 1)  # of another version
    assert rows.read(disk, 0) == rows.content(0, rows.size)
    disk.close()
    assert [path.suffix for path in copies(place)] == [""]
    again = rows.disk(place, sure=lambda row, version: False)
    rows.write(again, 0)
    assert [path.suffix for path in copies(place)] == [""], "what is kept is sure"


def test_bytes_of_another_version_are_not_kept_under_the_present_one(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    row = rows.row(0)
    data = memoryview(rows.content(0, rows.size))
    with pytest.raises(DiskBusy):
        disk.write(row, data, 0)  # no such bytes were staged
    rows.columns.check[row] = xxhash.xxh3_64_intdigest(data)
    rows.columns.stale[row] = 1
    with pytest.raises(DiskBusy):
        disk.write(row, data, 0)
    rows.columns.stale[row] = 0
    rows.columns.version[row] = 1
    with pytest.raises(DiskBusy):
        disk.write(row, data, 0)
    assert copies(place) == []


def test_what_a_dead_writer_left_is_cleared_at_any_length(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    rows.write(disk, 0)
    (whole,) = copies(place)
    for length in (0, 1, BLOCK, rows.size):
        part = whole.with_name(whole.name + ".part")
        part.write_bytes(bytes(length))
        whole.unlink()
        disk.close()
        del disk
        disk = rows.disk(place)
        assert copies(place) == []
        assert disk.used == 0
        rows.write(disk, 0)
        assert copies(place) == [whole]


def test_a_copy_that_is_cut_is_written_anew(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    rows.write(disk, 0)
    (whole,) = copies(place)
    os.truncate(whole, 100)
    with pytest.raises(OSError, match="too short"):
        rows.read(disk, 0)
    rows.write(disk, 0)
    assert rows.read(disk, 0) == rows.content(0, rows.size)
    assert disk.used == BLOCK


# ---- several mounts ---------------------------------------------------------------------------------------


def test_two_mounts_share_copies_and_count_them_once(rows: Rows, place: Path) -> None:
    first, second = rows.disk(place), rows.disk(place)
    rows.write(first, 0)
    rows.write(second, 0)
    rows.write(second, 1)
    assert len(copies(place)) == 2
    assert second.used == 2 * BLOCK
    first.remove(rows.row(0))
    assert second._shared().total() == BLOCK
    with pytest.raises(FileNotFoundError):
        rows.read(second, 0)
    first.close()
    assert rows.read(second, 1) == rows.content(1, rows.size)


def test_each_copy_has_one_writer(rows: Rows, place: Path) -> None:
    first, second = rows.disk(place), rows.disk(place)
    rows.write(first, 0)
    (whole,) = copies(place)
    first.remove(rows.row(0))
    part = f"{whole.parent.name}/{whole.name}.part"
    fd = begin_copy(part, first._shared().copies, 100)
    assert fd is not None
    assert begin_copy(part, second._shared().copies, 100) is None
    with pytest.raises(DiskBusy, match="another mount writes"):
        rows.write(second, 0)
    os.close(fd)  # it died
    rows.write(second, 0)
    assert copies(place) == [whole]


def test_a_mount_that_begins_while_another_counts_writes_later(rows: Rows, place: Path) -> None:
    kept = KeptRows(os.fsencode(rows.root), rows.index, rows.columns, rows.source, None)
    first = KeptDisk(str(place), 1 << 20, kept, lambda row, version: True)
    first.open()
    second = rows.disk(place)
    with pytest.raises(DiskBusy, match="being counted"):
        rows.write(second, 0)
    rows.count_all(first)
    rows.write(second, 0)
    with open(place / OWN / "v1/opening") as file:
        assert locked(file.fileno())
        with pytest.raises(OSError, match="another mount begins"):
            rows.disk(place)


# ---- room -------------------------------------------------------------------------------------------------


def make_room(disk: KeptDisk) -> None:
    assert disk.wants_room()
    for _ in disk.make_room():
        pass


def test_what_was_not_used_for_longest_makes_room_and_what_is_in_use_does_not(tmp_path: Path, place: Path) -> None:
    old, new = Rows(tmp_path / "old"), Rows(tmp_path / "new")
    disk = old.disk(place, 6 * BLOCK)
    for number in range(4):
        old.write(disk, number)
    for age, path in enumerate(copies(place)):
        os.utime(path, (time.time() - 100 + age,) * 2)
    oldest = copies(place)[0]
    living = new.disk(place, 6 * BLOCK)
    new.write(living, 0)
    new.write(living, 1)
    with pytest.raises(DiskBusy):
        new.write(living, 2)
    make_room(living)
    assert oldest.exists(), "its source is mounted, and it was used within the hour"
    with pytest.raises(DiskFull):
        new.write(living, 2)
    disk.close()
    living._look_at = 0.0
    del disk
    with pytest.raises(DiskBusy):
        new.write(living, 2)
    make_room(living)
    assert not oldest.exists()
    assert len(copies(place)) == 5
    new.write(living, 2)
    assert living.used == 6 * BLOCK


def test_copies_that_this_mount_uses_never_make_room(rows: Rows, place: Path) -> None:
    disk = rows.disk(place, 2 * BLOCK)
    rows.write(disk, 0)
    rows.write(disk, 1)
    for path in copies(place):
        os.utime(path, (time.time() - 3 * USED_S,) * 2)
    with pytest.raises(DiskBusy):
        rows.write(disk, 2)
    make_room(disk)
    assert len(copies(place)) == 2
    assert rows.read(disk, 0) == rows.content(0, rows.size)
    assert max(path.stat().st_mtime for path in copies(place)) > time.time() - 60, "a read is a use"


# ---- what is refused --------------------------------------------------------------------------------------


def test_a_cache_of_another_a_link_and_a_wrong_mode_are_refused(rows: Rows, place: Path, tmp_path: Path) -> None:
    own = place / OWN
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own.symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a link or a file; remove it"):
        rows.disk(place)
    assert list(elsewhere.iterdir()) == []
    own.unlink()
    own.mkdir(mode=0o755)
    with pytest.raises(OSError, match="chmod 700"):
        rows.disk(place)
    own.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(own, 65534, 65534)
        with pytest.raises(OSError, match="belongs to user 65534"):
            rows.disk(place)
        os.chown(own, 0, 0)
    assert list(own.iterdir()) == []
    rows.disk(place)


def test_other_versions_and_what_people_keep_there_stay(rows: Rows, place: Path) -> None:
    disk = rows.disk(place, 2 * BLOCK)
    disk.close()
    (source,) = (place / OWN / "v1/sources").iterdir()
    strange = [place / OWN / "v2/sources/x", source / "notes", source / "ab/thesis.tex", place / "mine/x"]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    disk = rows.disk(place, 2 * BLOCK)
    assert disk.used == 0
    assert rows.found(disk) == {}
    disk._wants_room = True
    make_room(disk)
    assert all(path.read_text() == "mine" for path in strange)


def test_a_link_in_the_place_of_copies_leads_nowhere(rows: Rows, place: Path, tmp_path: Path) -> None:
    disk = rows.disk(place)
    rows.write(disk, 0)
    (whole,) = copies(place)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / whole.name).write_bytes(b"precious")
    whole.unlink()
    whole.symlink_to(victim / whole.name)
    with pytest.raises(OSError, match="symbolic links"):
        rows.read(disk, 0)
    whole.unlink()
    whole.parent.rmdir()
    whole.parent.symlink_to(victim)
    disk._wants_room = True
    make_room(disk)
    disk.remove(rows.row(0))
    assert (victim / whole.name).read_bytes() == b"precious"


def test_a_directory_that_is_removed_under_a_mount_is_said(rows: Rows, place: Path) -> None:
    disk = rows.disk(place)
    rows.write(disk, 0)
    assert not disk.is_gone()
    shutil.rmtree(place / OWN)
    assert disk.is_gone()
    with pytest.raises(TierGone):
        rows.write(disk, 1)
    disk.close()
    disk.open()
    rows.count_all(disk)
    rows.write(disk, 1)


def test_where_there_are_no_locks_nothing_is_kept(rows: Rows, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(kept_directory.fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="--disk-keep no"):
        rows.disk(place)


@pytest.mark.skipif(not may_mount(), reason="needs the right to call mount(2)")
def test_without_a_size_there_is_spare_room_while_the_source_fits_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(tmp_path / "source", count=3, size=3 * BLOCK)
    with tmpfs(tmp_path / "small", "96k") as small:
        monkeypatch.setattr(disk_module, "FLOOR_BYTES", 0)
        disk = rows.disk(small, None)
        for number in range(3):
            assert disk.takes(rows.row(number), disk.spare_room())
            rows.write(disk, number)
        (small / "other").write_bytes(bytes(48_000))
        assert not disk.takes(rows.row(0), disk.spare_room()), "what others take is not free"
        (small / "other").unlink()
        with monkeypatch.context() as patch:
            patch.setattr(disk_module, "FLOOR_INODES", 1 << 60)
            assert disk.spare_room() == 0, "no inodes are free"
        assert disk.spare_room() > 0
        monkeypatch.setattr(disk_module, "FLOOR_BYTES", 64 << 10)
        assert disk.spare_room() == 0
        disk.close()
        assert disk.spare_room() == -1
        del disk


@pytest.mark.skipif(not may_mount(), reason="needs the right to call mount(2)")
def test_a_full_disk_keeps_nothing_of_a_copy(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "source", count=3, size=40_000)
    with tmpfs(tmp_path / "tiny", "64k") as tiny:
        disk = rows.disk(tiny)
        rows.write(disk, 0)
        with pytest.raises(OSError, match="No space left"):
            rows.write(disk, 1)
        assert len(copies(tiny)) == 1
        assert disk._shared().total() == disk.used == 10 * BLOCK
        assert rows.read(disk, 0) == rows.content(0, rows.size)
        without_limit = rows.disk(tiny, None)
        without_limit._look_at = time.monotonic() + 60
        with pytest.raises(DiskFull):
            rows.write(without_limit, 2)
        disk.close()
        without_limit.close()
        del disk, without_limit


def test_a_cache_that_is_not_there_is_not_made_to_look_at_it(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KeptCache(str(place), make=False)
    assert list(place.iterdir()) == []
