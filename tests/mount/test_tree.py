"""Names, listings, links and attributes through a real mount; nothing is changed, so all tests share one."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import place_for_all
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, mounted, run, write
from tests.mount.modes import Mode

pytestmark = pytest.mark.mount

MANY = 5_000  # several READDIRs
VERY_MANY = 100_000
DEPTH = 60
RAW_NAMES = [
    b"\xff\xfe",
    b"caf\xe9",
    "é".encode(),
    b"new\nline",
    b" blank ",
    b"-rf",
    b"x" * 255,
    b"\\134",
    "😀".encode(),
]


@pytest.fixture(scope="module")
def source_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = place_for_all(tmp_path_factory, "tree") / "source"
    write(source, {"train/a/1.jpg": b"one", "train/a/2.jpg": b"two" * 5000, "empty": b""})
    make_names(source)
    make_links(source)
    return source


@pytest.fixture(scope="module")
def m(source_of_all: Path, mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(source_of_all, work=place_for_all(tmp_path_factory, "tree"), mode=mode) as made:
        yield made


def make_names(source: Path) -> None:
    raw = os.fsencode(source / "raw")
    os.mkdir(raw)
    for name in RAW_NAMES:
        with open(os.path.join(raw, name), "wb") as file:
            file.write(name)
    deep = source / "deep"
    deep.joinpath(*["d" * 20] * DEPTH).mkdir(parents=True)
    deep.joinpath(*["d" * 20] * DEPTH, "bottom").write_bytes(b"bottom")
    make_many(source, MANY)


def make_many(source: Path, count: int) -> None:
    (source / "many").mkdir()
    fd = os.open(source / "many", os.O_RDONLY)
    for number in range(count):
        os.close(os.open(f"{number:06}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def make_links(source: Path) -> None:
    (source / "links").mkdir()
    os.link(source / "train/a/1.jpg", source / "links/hard")
    for name, target in (
        ("relative", "../train/a/1.jpg"), ("absolute", str(source / "train/a/2.jpg")), ("broken", "nowhere"),
        ("leaving", "/etc/hostname"), ("directory", "../train"), ("to itself", "to itself"),
    ):  # fmt: skip
        os.symlink(target, source / "links" / name)
    os.mkfifo(source / "fifo")


def test_names_are_bytes(m: Mounted) -> None:
    raw = os.fsencode(m.path / "raw")

    assert sorted(os.listdir(raw)) == sorted(RAW_NAMES)
    for name in RAW_NAMES:
        with open(os.path.join(raw, name), "rb") as file:
            assert file.read() == name


def test_deep_trees(m: Mounted) -> None:
    assert m.path.joinpath("deep", *["d" * 20] * DEPTH, "bottom").read_bytes() == b"bottom"


def test_a_large_directory_lists_the_same_twice_and_rewinds(m: Mounted) -> None:
    check_listings(m, MANY)


@pytest.mark.slow
def test_so_does_one_of_100_000_entries(mounting: Mounting, source: Path) -> None:
    make_many(source, VERY_MANY)
    with mounting(source) as m:
        check_listings(m, VERY_MANY)


def check_listings(m: Mounted, count: int) -> None:
    expected = [f"{number:06}" for number in range(count)]
    assert sorted(os.listdir(m.path / "many")) == expected

    with os.scandir(m.path / "many") as first, os.scandir(m.path / "many") as second:
        pairs = [(a.name, b.name) for a, b in zip(first, second, strict=True)]
    assert all(a == b for a, b in pairs)
    assert sorted(a for a, _ in pairs) == expected

    fd = os.open(m.path / "many", os.O_RDONLY)
    try:
        once = os.listdir(fd)
        again = os.listdir(fd)  # rewinds
    finally:
        os.close(fd)
    assert once == again


def test_listing_tells_the_inode_numbers_that_stat_tells(m: Mounted) -> None:
    for directory in ("many", "raw", "links", "."):
        with os.scandir(m.path / directory) as entries:
            for entry in list(entries)[:200]:
                assert entry.inode() == entry.stat(follow_symlinks=False).st_ino


def test_dot_and_dot_dot(m: Mounted) -> None:
    assert os.path.samefile(m.path / "train/a/..", m.path / "train")
    assert os.path.samefile(m.path / "train/.", m.path / "train")
    assert os.path.samefile(f"{m.path}/..", m.path.parent)


def test_empty_files(m: Mounted) -> None:
    assert (m.path / "empty").read_bytes() == b""
    assert (m.path / "empty").stat().st_size == 0


def test_attributes_are_the_sources(m: Mounted) -> None:
    for at, dirs, files in os.walk(m.source):
        if os.path.basename(at) == "many":
            files = files[::1000]
        for name in (*dirs, *files):
            there = os.lstat(os.path.join(at, name))
            here = os.lstat(os.path.join(m.path, os.path.relpath(at, m.source), name))
            fields = ["st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_ctime_ns", "st_nlink"]
            if stat.S_ISREG(there.st_mode):
                fields.append("st_size")
            assert [getattr(here, f) for f in fields] == [getattr(there, f) for f in fields], name


def test_hard_links_share_an_inode(m: Mounted) -> None:
    one, other = (m.path / "train/a/1.jpg").stat(), (m.path / "links/hard").stat()

    assert one.st_ino == other.st_ino
    assert one.st_nlink == other.st_nlink == 2
    assert (m.path / "links/hard").read_bytes() == b"one"


def test_links_inside_the_source_stay_inside_the_mount(m: Mounted) -> None:
    links = m.path / "links"

    assert os.readlink(links / "relative") == "../train/a/1.jpg"
    for name, to in (("relative", "train/a/1.jpg"), ("absolute", "train/a/2.jpg"), ("directory", "train")):
        assert os.path.realpath(links / name) == str(m.path / to)
        assert os.path.samefile(links / name, m.path / to)


def test_links_that_lead_nowhere_or_out_stay_links(m: Mounted) -> None:
    links = m.path / "links"

    assert os.readlink(links / "broken") == "nowhere"
    assert os.readlink(links / "leaving") == "/etc/hostname"
    with pytest.raises(FileNotFoundError):
        (links / "broken").read_bytes()
    with pytest.raises(OSError, match="Too many levels"):
        (links / "to itself").read_bytes()


def test_a_fifo_is_shown(m: Mounted) -> None:
    assert stat.S_ISFIFO((m.path / "fifo").lstat().st_mode)


def test_what_is_not_there(m: Mounted) -> None:
    for name in ("nothing", "train/nothing", ".nopfs"):
        assert not os.path.lexists(m.path / name)
    with pytest.raises(NotADirectoryError):
        (m.path / "empty/x").stat()
    with pytest.raises(OSError, match="too long"):
        (m.path / ("x" * 256)).stat()


def test_df_and_du(m: Mounted) -> None:
    found = os.statvfs(m.path)
    size = sum(p.stat().st_size for p in (m.path / "train").rglob("*.jpg"))

    assert found.f_flag & os.ST_RDONLY
    assert found.f_bavail == found.f_bfree == 0
    assert found.f_blocks * found.f_frsize >= size
    assert found.f_files >= MANY
    assert found.f_namemax == 255
    assert run(["df", "--output=source,target", str(m.path)]).stdout.split()[-2:] == [str(m.source), str(m.path)]
    assert int(run(["du", "-s", "-B1", str(m.path / "train")]).stdout.split()[0]) >= size


def test_mount_options(m: Mounted) -> None:
    line = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {m.path} " in line)
    source, _, kind, options = line.split()[:4]

    assert (source, kind) == (str(m.source), "fuse.nopfs")
    assert {"ro", "nosuid", "nodev", "default_permissions"} <= set(options.split(","))
    assert ("allow_other" in options.split(",")) == (os.geteuid() == 0)


def test_unchanged_trees_compare_equal(m: Mounted) -> None:
    done = subprocess.run(
        ["diff", "-r", "--no-dereference", "--exclude=many", "--exclude=fifo", "--exclude=absolute", m.source, m.path],
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.long
def test_inode_numbers_are_the_same_after_a_remount(mounting: Mounting, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source, {f"{d}/{n}": b"x" for d in "zab" for n in range(20)})
    os.link(source / "z/1", source / "a/hard")

    def numbers() -> dict[str, int]:
        return {str(p.relative_to(m.path)): p.stat().st_ino for p in m.path.rglob("*")}

    with mounting(source) as m:
        before = numbers()
    with mounting(source) as m:
        assert numbers() == before
    with mounting(source, "--rescan") as m:
        assert numbers() == before


@pytest.mark.long
def test_files_added_later_appear_after_a_remount(mounting: Mounting, source: Path) -> None:
    with mounting(source) as m:
        (source / "new").write_bytes(b"new")
        (source / "newdir").mkdir()
        assert os.listdir(m.path) == ["a"]
    with mounting(source) as m:
        assert sorted(os.listdir(m.path)) == ["a", "new", "newdir"]
        assert (m.path / "new").read_bytes() == b"new"


@pytest.mark.long
def test_followed_links_are_files(mounting: Mounting, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, {"f": b"followed", "d/g": b"in a directory"})
    os.symlink(outside / "f", source / "f")
    os.symlink(outside / "d", source / "d")
    os.symlink(outside / "nothing", source / "broken")

    with mounting(source, "--follow-symlinks") as m:
        assert (m.path / "f").read_bytes() == b"followed"
        assert (m.path / "d/g").read_bytes() == b"in a directory"
        assert not (m.path / "f").is_symlink()
        assert not (m.path / "d").is_symlink()
        assert (m.path / "broken").is_symlink()
