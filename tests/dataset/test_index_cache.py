"""The kept index: used, renewed, ignored when damaged, absent without harm."""

import os
import threading
import time
from pathlib import Path

import pytest

from nopfsfs.dataset import directory_scan, index_file
from nopfsfs.dataset.index_cache import LEFTOVER_S, OpenedIndex, open_or_scan
from nopfsfs.errors import NopfsError


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(directory_scan, "RACY_NS", 0)  # directories made just now count as settled
    for name in ("a/x", "a/y", "b/z"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "source"


def opened(source: Path, index_dir: Path | str, **options: bool) -> OpenedIndex:
    """Opened, with the descriptor checked and closed."""
    found = open_or_scan(str(source), str(index_dir), **options)
    assert index_file.load_fd(found.fd).fingerprint == found.index.fingerprint
    os.close(found.fd)
    return found


def test_the_second_time_nothing_is_listed(source, tmp_path) -> None:
    first = opened(source, tmp_path / "kept")
    again = opened(source, tmp_path / "kept")
    assert (first.result.dirs_reused, again.result.dirs_reused) == (0, 3)
    assert first.path == again.path
    assert again.index.fingerprint == first.index.fingerprint
    assert [os.path.join(tmp_path / "kept", name) for name in os.listdir(tmp_path / "kept")] == [first.path]
    assert os.stat(tmp_path / "kept").st_mode & 0o777 == 0o700


def test_a_change_is_found_and_kept(source, tmp_path) -> None:
    opened(source, tmp_path / "kept")
    (source / "a/new").write_bytes(b"")
    changed = opened(source, tmp_path / "kept")
    assert changed.result.dirs_reused == 2
    assert changed.index.lookup(1, b"new") > 0
    assert opened(source, tmp_path / "kept").result.dirs_reused == 3


def test_rescan_lists_everything_and_sees_files_overwritten_in_place(source, tmp_path) -> None:
    opened(source, tmp_path / "kept")
    (source / "a/x").write_bytes(b"longer")
    stale = opened(source, tmp_path / "kept").index
    fresh = opened(source, tmp_path / "kept", rescan=True)
    assert (stale.size[stale.lookup(1, b"x")], fresh.index.size[fresh.index.lookup(1, b"x")]) == (1, 6)
    assert fresh.result.dirs_reused == 0


def test_options_and_other_paths_have_files_of_their_own(source, tmp_path) -> None:
    os.symlink(source, tmp_path / "link")
    kept = tmp_path / "kept"
    paths = {opened(source, kept).path, opened(tmp_path / "link", kept).path}
    assert len(paths) == 1
    assert opened(source, kept, follow_symlinks=True).path not in paths
    assert opened(source / "a", kept).path not in paths


@pytest.mark.parametrize("damage", [b"", b"junk" * 2000, None])
def test_a_damaged_file_is_replaced(source, tmp_path, damage: bytes | None, caplog) -> None:
    caplog.set_level("INFO")
    path = Path(opened(source, tmp_path / "kept").path or "")
    whole = path.read_bytes()
    other = bytes([whole[300] ^ 0xAA])
    path.write_bytes(whole[:300] + other + whole[301:] if damage is None else damage)
    again = opened(source, tmp_path / "kept")
    assert again.result.dirs_reused == 0
    assert path.read_bytes() == whole
    assert "is not used" in caplog.text


def test_another_users_file_is_not_used(source, tmp_path, monkeypatch) -> None:
    opened(source, tmp_path / "kept")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert opened(source, tmp_path / "kept").result.dirs_reused == 0


def test_a_directory_that_cannot_be_written_is_a_warning(source, tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found = opened(source, tmp_path / "file/kept")
    assert found.path is None
    assert "not kept" in found.result.warnings[0]
    assert found.index.n == 6


def test_without_a_directory_nothing_is_kept(source) -> None:
    found = opened(source, "")
    assert (found.path, found.result.warnings, found.index.n) == (None, (), 6)


def test_a_missing_source(tmp_path) -> None:
    with pytest.raises(NopfsError):
        open_or_scan(str(tmp_path / "missing"), str(tmp_path / "kept"))
    assert not (tmp_path / "kept").exists()


def test_leftovers_of_killed_scans_are_removed(source, tmp_path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    old, young = kept / ".nopfs-old.tmp", kept / ".nopfs-young.tmp"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (time.time() - 2 * LEFTOVER_S,) * 2)
    found = opened(source, kept)
    assert sorted(os.listdir(kept)) == sorted([young.name, os.path.basename(found.path or "")])


def test_mounts_at_one_time(source, tmp_path) -> None:
    found: list[OpenedIndex] = []
    threads = [
        threading.Thread(target=lambda: found.append(open_or_scan(str(source), str(tmp_path / "kept"), rescan=True)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {o.index.fingerprint for o in found} == {opened(source, tmp_path / "kept").index.fingerprint}
    for o in found:
        os.close(o.fd)
    assert len(os.listdir(tmp_path / "kept")) == 1


def test_a_file_that_is_cut_short_or_replaced_later_disturbs_nobody(source, tmp_path) -> None:
    """Where the file were mapped, this process would end here."""
    for _ in range(2):  # scanned, then kept
        found = open_or_scan(str(source), str(tmp_path / "kept"))
        assert found.path is not None
        whole = Path(found.path).read_bytes()
        os.truncate(found.path, 0)
        other = index_file.load_fd(found.fd, verify=True)  # as another process of the mount does
        assert other.fingerprint == found.index.fingerprint
        assert [other.path(row) for row in range(other.n)] == [found.index.path(row) for row in range(other.n)]
        Path(found.path).write_bytes(whole)
        os.close(found.fd)


def test_the_memory_that_is_shared_cannot_be_changed(source, tmp_path) -> None:
    for _ in range(2):
        fd = open_or_scan(str(source), str(tmp_path / "kept")).fd
        for change in (lambda fd=fd: os.ftruncate(fd, 0), lambda fd=fd: os.pwrite(fd, b"x", 0)):
            with pytest.raises(PermissionError):
                change()
        os.close(fd)


@pytest.mark.parametrize("change", ["cut", "overwritten"])
def test_a_file_that_changes_while_it_is_copied_is_not_used(source, tmp_path, monkeypatch, change: str) -> None:
    first = opened(source, tmp_path / "kept")
    path, real, sent = str(first.path), os.sendfile, []

    def sendfile(out: int, file: int, at: int, count: int) -> int:
        if sent:
            with open(path, "r+b") as other:
                if change == "cut":
                    other.truncate(sent[0])
                else:
                    other.seek(sent[0])
                    other.write(b"\xff" * 64)
        sent.append(real(out, file, at, 1024))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", sendfile)
    again = opened(source, tmp_path / "kept")
    assert again.result.dirs_reused == 0
    assert again.index.fingerprint == first.index.fingerprint
