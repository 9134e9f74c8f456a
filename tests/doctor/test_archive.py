"""The archive is new, this user's alone, and led nowhere."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from nopfsfs.doctor.archive import files_of, write_archive

FILES = {"report.txt": b"all is well\n", "log.txt": b""}


def test_it_holds_its_files_for_this_user_alone(tmp_path: Path) -> None:
    os.umask(before := os.umask(0))
    write_archive(str(tmp_path / "a.tar.gz"), FILES)
    os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.tar.gz").stat().st_mode) == 0o600
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert set(members) == {"a/report.txt", "a/log.txt"}
        assert {member.mode for member in members.values()} == {0o600}
        file = archive.extractfile("a/report.txt")
        assert file is not None
        assert file.read() == b"all is well\n"


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    for name in ("file", "link", "dangling"):
        path = tmp_path / f"{name}.tar.gz"
        if name == "file":
            path.write_bytes(b"mine")
        else:
            path.symlink_to(tmp_path / ("file.tar.gz" if name == "link" else "nowhere"))
        with pytest.raises(FileExistsError):
            write_archive(str(path), FILES)
    assert (tmp_path / "file.tar.gz").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user")
def test_a_link_of_another_user_on_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match="a link of user 12345"):
        write_archive(str(tmp_path / "link" / "a.tar.gz"), FILES)
    assert os.listdir(tmp_path / "real") == []


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_archive(str(tmp_path / "a.tar.gz"), {"a": b"", "b": None})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == []


def test_the_log_is_text_and_the_rest_is_json() -> None:
    parts = {"log": {"lines": ["a", "\udcff"]}, "status": {"state": "running"}, "clock": {"error": "x"}}
    files = files_of(parts, "well")
    assert files["report.txt"] == b"well\n"
    assert files["log.txt"] == b"a\n\\udcff\n"
    assert json.loads(files["status.json"]) == {"state": "running"}
    assert json.loads(files["clock.json"]) == {"error": "x"}
