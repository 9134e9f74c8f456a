"""Opening below a directory, by openat2 and by steps."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.system import beneath
from nopfsfs.system.beneath import open_absolute, open_beneath, open_followed, place_of, reopen

READ = os.O_RDONLY


@pytest.fixture(params=["openat2", "steps"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "steps":
        monkeypatch.setattr(beneath, "_has_openat2", False)
    elif not beneath._has_openat2:
        pytest.skip("no openat2 here")
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_bytes(b"data")
    (tmp_path / "a/up").symlink_to("b")
    (tmp_path / "link").symlink_to("a/b/f")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def text(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_file_below(root: int, tmp_path: Path) -> None:
    assert text(open_beneath(root, b"a/b/f", READ)) == b"data"
    assert text(open_absolute(os.fsencode(tmp_path) + b"/a/b/f", READ)) == b"data"


def test_the_directory_itself(root: int) -> None:
    fd = open_beneath(root, b"", os.O_PATH)
    assert os.path.samestat(os.fstat(fd), os.fstat(root))
    os.close(fd)


@pytest.mark.parametrize("path", [b"link", b"a/up/f", b"a/b/f/g", b"../x", b"a/../../x"])
def test_neither_links_nor_ways_out(root: int, tmp_path: Path, path: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as raised:
        open_beneath(root, path, READ)
    assert raised.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)
    if not path.count(b".."):
        with pytest.raises(OSError):
            open_absolute(os.fsencode(tmp_path) + b"/" + path, READ)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_itself_by_o_path(root: int) -> None:
    fd = open_beneath(root, b"link", os.O_PATH)
    assert stat.S_ISLNK(os.fstat(fd).st_mode)
    os.close(fd)


def test_names_of_any_bytes_and_paths_of_any_length(root: int) -> None:
    names = [b"\xff\xfe", b"a\nb", *(bytes([65 + i]) * 255 for i in range(24))]
    at = os.dup(root)
    for name in names:
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    fd = os.open(b"f", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(fd, b"deep")
    os.close(fd)
    os.symlink(b".", b"l", dir_fd=at)
    os.close(at)
    path = b"/".join([*names, b"f"])
    assert len(path) > 6000
    before = len(os.listdir("/proc/self/fd"))
    assert text(open_beneath(root, path, READ)) == b"deep"
    with pytest.raises(OSError) as raised:
        open_beneath(root, b"/".join([*names, b"l", b"f"]), READ)
    assert raised.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert len(os.listdir("/proc/self/fd")) == before


def test_mounts_below_are_entered() -> None:
    assert os.stat("/proc").st_dev != os.stat("/").st_dev
    root = os.open("/", os.O_PATH)
    assert text(open_beneath(root, b"proc/version", READ)).startswith(b"Linux")
    os.close(root)


def test_what_a_link_leads_to_is_opened_by_its_descriptor(root: int, tmp_path: Path) -> None:
    fd = open_followed(root, b"link")
    assert place_of(fd) == os.fsencode(tmp_path / "a/b/f")
    (tmp_path / "link").unlink()
    (tmp_path / "a/b/f").rename(tmp_path / "elsewhere")
    (tmp_path / "a/b/f").write_bytes(b"another")
    assert text(reopen(fd, READ)) == b"data"
    os.close(fd)


def test_a_lookup_that_is_disturbed_again_and_again_goes_by_steps(
    root: int, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    calls = []

    def disturbed(*args: object) -> int:
        calls.append(args)
        raise BlockingIOError(errno.EAGAIN, "try again")

    if way == "openat2":
        monkeypatch.setattr(beneath, "_openat2", disturbed)
    assert text(open_beneath(root, b"a/b/f", READ)) == b"data"
    assert len(calls) == (way == "openat2")


def test_a_kernel_or_a_sandbox_without_openat2_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.ENOSYS, errno.EPERM):

        def forbidden(*args: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(beneath, "_openat2", forbidden)
        assert beneath._find_out() is False
