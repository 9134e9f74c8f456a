"""A file is replaced whole, or stays as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nopfsfs.system.atomic_file import whole_file


def test_it_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with whole_file(str(path), 0o640) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_finished_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def interrupted() -> None:
        with whole_file(str(path), 0o600) as file:
            file.write(b"af")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_names_is_not(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_text("mine")
    path.symlink_to(other)
    with whole_file(str(path), 0o600) as file:
        file.write(b"new")
    assert (path.read_text(), other.read_text(), path.is_symlink()) == ("new", "mine", False)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(str(tmp_path / "none" / "file"), 0o600):
        pass


def test_a_name_alone_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with whole_file("file", 0o600) as file:
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
