"""Nobody's link leads a writer elsewhere but root's and the writer's own."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from nopfsfs.cli.umount import write_report
from nopfsfs.dataset.index_cache import open_or_scan
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.process_setup import _LogFile
from nopfsfs.system.trusted_path import make_directories, open_for_append, open_trusted

USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def names(fd: int) -> list[str]:
    try:
        return sorted(os.listdir(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory `place/real/inside`, and one of another's wish, `secret`."""
    (tmp_path / "place" / "real" / "inside").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    return tmp_path / "place"


def test_directories_and_links_of_ours(place: Path) -> None:
    (place / "absolute").symlink_to(place / "real")
    (place / "relative").symlink_to("./real")
    for path in ("real", "absolute", "relative", "real/../real/./", "absolute/../real"):
        assert names(open_trusted(f"{place}/{path}")) == ["inside"]
    assert "tmp" in names(open_trusted("/"))


@pytest.mark.parametrize("path", ["none", "real/none", "file", "file/x"])
def test_what_is_no_directory(path: str, place: Path) -> None:
    (place / "file").touch()
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        open_trusted(f"{place}/{path}")


def test_links_in_a_circle_and_links_where_none_may_be(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    (place / "link").symlink_to("real")
    for path, links in (("a", True), ("link", False), ("link/inside", False)):
        with pytest.raises(OSError) as raised:
            open_trusted(f"{place}/{path}", links=links)
        assert raised.value.errno == errno.ELOOP


def test_directories_that_are_missing_are_made(place: Path) -> None:
    for _ in range(2):
        make_directories(str(place / "real" / "a" / "b"), 0o700)
    assert [(place / "real" / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
    (place / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_directories(str(place / "file" / "a"), 0o700)


@needs_root
def test_no_directory_is_made_behind_a_link_of_another_user(place: Path) -> None:
    (place / "link").symlink_to(place.parent / "secret")
    os.chown(place / "link", USER, USER, follow_symlinks=False)
    with pytest.raises(OSError, match=f"a link of user {USER}"):
        make_directories(str(place / "link" / "a"), 0o700)
    scanned = open_or_scan(place / "real", str(place / "link" / "a"))
    os.close(scanned.fd)
    assert list((place.parent / "secret").iterdir()) == []


@needs_root
def test_a_link_of_another_user_is_refused_for_reports_logs_and_files(place: Path) -> None:
    (place / "link").symlink_to(place.parent / "secret")
    os.chown(place / "link", USER, USER, follow_symlinks=False)
    path = str(place / "link" / "file")

    with pytest.raises(OSError, match=f"a link of user {USER}"), whole_file(path, 0o600):
        pass
    with pytest.raises(OSError, match=f"a link of user {USER}"):
        open_for_append(path)
    scanned = open_or_scan(place / "real", str(place / "link"))
    os.close(scanned.fd)
    assert scanned.path is None
    assert f"a link of user {USER} is in the way" in scanned.result.warnings[-1]
    with pytest.raises(NopfsError, match=f"cannot be written: a link of user {USER}") as raised:
        write_report({}, path)

    assert raised.value.exit_code is Exit.REPORT
    assert os.listdir(place.parent / "secret") == []


def test_a_report_takes_the_place_of_a_link(place: Path) -> None:
    other = place / "other"
    other.write_text("kept")
    (place / "report").symlink_to(other)

    write_report({"state": "ended"}, str(place / "report"))

    assert json.loads((place / "report").read_text()) == {"state": "ended"}
    assert other.read_text() == "kept"
    assert sorted(os.listdir(place)) == ["other", "real", "report"]


@needs_root
@pytest.mark.parametrize("kind", ["link", "fifo", "theirs", "names"])
def test_a_log_is_a_file_of_ours(kind: str, place: Path) -> None:
    log, other = place / "log", place / "other"
    other.write_text("kept")
    if kind == "link":
        log.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(log)
    elif kind == "names":
        os.link(other, log)
    else:
        log.touch()
        os.chown(log, USER, USER)

    with pytest.raises(OSError):
        open_for_append(str(log))

    assert other.read_text() == "kept"


def test_a_log_is_written_and_taken_up_again_when_it_was_rotated_away(place: Path) -> None:
    path = place / "log"
    handler = _LogFile(str(path))
    for message in ("first", "second"):
        handler.emit(logging.LogRecord("x", logging.INFO, __file__, 1, message, None, None))
        path.rename(place / message)
    handler.close()
    assert [(place / name).read_text() for name in ("first", "second")] == ["first\n", "second\n"]
