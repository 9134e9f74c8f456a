"""Access to the source while others rename, link and mount there: the indexed file, or an error, and never another."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nopfsfs.dataset import directory_scan
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol.columns import Columns
from nopfsfs.system import beneath
from nopfsfs.system.file_system import FileSystem, file_system_at
from nopfsfs.tiers import source as module
from nopfsfs.tiers.source import Changed, Source
from tests.dataset.scanned import left_out
from tests.stager.rig import open_files_below

SECRET = b"of root alone"


@pytest.fixture(params=["openat2", "steps"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "steps":
        monkeypatch.setattr(beneath, "_has_openat2", False)


@dataclass
class Tree:
    """A source and what lies beside it."""

    root: Path
    secret: Path
    source: Source
    index: Index

    def row(self, path: str) -> int:
        row = 0
        for part in os.fsencode(path).split(b"/"):
            row = self.index.lookup(row, part)
        assert row >= 0
        return row

    def read(self, path: str) -> bytes:
        fd, _ = self.source.open(self.row(path))
        try:
            return os.read(fd, 1000)
        finally:
            os.close(fd)

    def swap(self) -> None:
        """What the owner of a/d can do: another directory in its place, by a link."""
        (self.root / "a/d").rename(self.root / "a/away")
        (self.root / "a/d").symlink_to(self.secret)


def source_of(root: Path, index: Index, known: FileSystem | None = None) -> Source:
    fd = Columns.create(index.n)
    try:
        return Source(os.fsencode(root), index, Columns(fd, index.n, writable=True), known)
    finally:
        os.close(fd)


def tree_of(root: Path, secret: Path, **options: bool) -> Tree:
    index = scan(root, **options).index  # type: ignore[arg-type]
    return Tree(root, secret, source_of(root, index, file_system_at(os.fsencode(root))), index)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    root, secret = tmp_path / "S", tmp_path / "secret"
    (root / "a/d").mkdir(parents=True)
    secret.mkdir(mode=0o700)
    (root / "a/d/f").write_bytes(b"open to all")
    (secret / "f").write_bytes(SECRET)
    yield tree_of(root, secret)
    assert open_files_below(tmp_path) == []


ACCESSES: dict[str, Callable[[Tree, int], object]] = {
    "open": lambda t, row: t.source.open(row),
    "stat": lambda t, row: t.source._below.stat(row),
    "getxattr": lambda t, row: t.source.getxattr(row, b"user.x"),
    "listxattr": lambda t, row: t.source.listxattr(row),
    "acl": lambda t, row: t.source.look(row, lambda st: True)[1],
}


@pytest.mark.parametrize("access", ACCESSES)
def test_a_parent_that_became_a_link_leads_nowhere(tree: Tree, access: str) -> None:
    os.setxattr(tree.secret / "f", "user.x", SECRET)
    tree.swap()
    with pytest.raises((Changed, OSError)) as raised:
        ACCESSES[access](tree, tree.row("a/d/f"))
    if isinstance(raised.value, OSError):
        assert raised.value.errno in (errno.ESTALE, errno.ELOOP, errno.ENOTDIR)


@pytest.mark.parametrize("access", ACCESSES)
def test_a_file_that_became_a_link_is_not_followed(tree: Tree, access: str) -> None:
    (tree.root / "a/d/f").unlink()
    (tree.root / "a/d/f").symlink_to(tree.secret / "f")
    if access in ("stat", "acl"):
        found, acl = tree.source.look(tree.row("a/d/f"), lambda st: True)
        assert (stat.S_ISLNK(found.st_mode), acl) == (True, b""), "those of the link"
        return
    with pytest.raises((Changed, OSError)):
        ACCESSES[access](tree, tree.row("a/d/f"))


@pytest.mark.parametrize("access", ["getxattr", "listxattr"])
def test_attributes_of_another_inode_are_not_taken(tree: Tree, access: str) -> None:
    (tree.root / "a/d/new").write_bytes(b"new")
    os.setxattr(tree.root / "a/d/new", "user.x", b"new")
    os.replace(tree.root / "a/d/new", tree.root / "a/d/f")
    with pytest.raises(OSError) as raised:
        ACCESSES[access](tree, tree.row("a/d/f"))
    assert raised.value.errno == errno.ESTALE


def test_a_swap_between_open_and_comparison(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.check

    def late(fd: int, identity: module.Identity) -> None:
        tree.swap()
        real(fd, identity)

    monkeypatch.setattr(module, "check", late)
    assert tree.read("a/d/f") == b"open to all"  # what was opened is what is compared and read


def test_a_swap_while_the_source_is_scanned(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    real = directory_scan.open_beneath

    def swapped(fd: int, path: bytes, flags: int) -> int:
        if path == b"a/d" and not (tree.root / "a/away").exists():
            tree.swap()
        return real(fd, path, flags)

    monkeypatch.setattr(directory_scan, "open_beneath", swapped)
    result = scan(tree.root)
    paths = {result.index.path(row) for row in range(result.index.n)}
    assert b"a/d/f" not in paths
    assert left_out(result) == 1


def test_the_source_is_moved_and_comes_back(tree: Tree) -> None:
    """As when it is unmounted: an empty directory is there for a while."""
    os.rename(tree.root, tree.root.with_name("away"))
    tree.root.mkdir()
    for access in ACCESSES.values():
        with pytest.raises(OSError) as raised:
            access(tree, tree.row("a/d/f"))
        assert raised.value.errno == errno.ESTALE
    tree.root.rmdir()
    with pytest.raises(OSError) as raised:
        tree.read("a/d/f")
    assert raised.value.errno == errno.ESTALE
    os.rename(tree.root.with_name("away"), tree.root)
    assert tree.read("a/d/f") == b"open to all"


def test_another_file_system_in_the_sources_place(tree: Tree) -> None:
    known = file_system_at(os.fsencode(tree.root))
    assert known is not None
    other = source_of(tree.root, tree.index, known._replace(kind=known.kind + 1))
    for access in (other.open, other._below.stat):
        with pytest.raises(OSError) as raised:
            access(tree.row("a/d/f"))
        assert raised.value.errno == errno.ESTALE


def test_xattrs_of_every_kind_of_row(tree: Tree) -> None:
    for path in ("a/d/f", "a"):
        os.setxattr(tree.root / path, "user.x", b"value")
        assert tree.source.getxattr(tree.row(path), b"user.x") == b"value"
        assert b"user.x" in tree.source.listxattr(tree.row(path))
    os.setxattr(tree.root, "user.x", b"root")
    assert tree.source.getxattr(0, b"user.x") == b"root"
    assert tree.source.look(tree.row("a/d/f"), lambda st: True)[1] == b""


class TestFollowed:
    @pytest.fixture
    def followed(self, tmp_path: Path) -> Iterator[Tree]:
        root, out, secret = tmp_path / "S", tmp_path / "out", tmp_path / "secret"
        for path in (root / "d", out / "sub", secret / "sub"):
            path.mkdir(parents=True)
        for path in (out, secret):
            (path / "sub/f").write_bytes(path.name.encode())
            (path / "f").write_bytes(path.name.encode())
        (root / "d/file").symlink_to("../../out/f")
        (root / "dir").symlink_to(out)
        yield tree_of(root, secret, follow_symlinks=True)
        assert open_files_below(tmp_path) == []

    FILES = ("d/file", "dir/f", "dir/sub/f")

    def test_is_read(self, followed: Tree) -> None:
        assert [followed.read(path) for path in self.FILES] == [b"out"] * 3
        assert followed.source.listxattr(followed.row("d/file")) is not None
        assert stat.S_ISREG(followed.source._below.stat(followed.row("d/file")).st_mode)

    def test_a_link_that_leads_elsewhere_is_stale_until_it_leads_back(self, followed: Tree) -> None:
        for link, target in (("d/file", "f"), ("dir", "")):
            (followed.root / link).unlink()
            (followed.root / link).symlink_to(followed.secret / target)
        for path in self.FILES:
            for access in ACCESSES.values():
                with pytest.raises(OSError) as raised:
                    access(followed, followed.row(path))
                assert raised.value.errno == errno.ESTALE, path
        again = scan(followed.root, follow_symlinks=True, previous=followed.index)
        remounted = Tree(followed.root, followed.secret, source_of(followed.root, again.index), again.index)
        assert [remounted.read(path) for path in self.FILES] == [b"secret"] * 3

    def test_a_target_that_was_replaced_is_stale(self, followed: Tree) -> None:
        out = followed.root.parent / "out"
        os.rename(out / "f", out / "g")
        (out / "f").write_bytes(b"out")
        with pytest.raises(OSError) as raised:
            followed.source._below.stat(followed.row("d/file"))
        assert raised.value.errno == errno.ESTALE

    def test_below_a_followed_directory_links_are_not_followed(self, followed: Tree) -> None:
        out = followed.root.parent / "out"
        (out / "sub").rename(out / "away")
        (out / "sub").symlink_to(followed.secret / "sub")
        with pytest.raises(Changed):
            followed.read("dir/sub/f")
        assert followed.read("dir/f") == b"out"

    def test_a_further_link_on_the_way_counts(self, tmp_path: Path) -> None:
        root = tmp_path / "S"
        root.mkdir()
        for name in ("one", "two"):
            (tmp_path / name).write_bytes(name.encode())
        (tmp_path / "middle").symlink_to("one")
        (root / "link").symlink_to("../middle")
        tree = tree_of(root, tmp_path, follow_symlinks=True)
        assert tree.read("link") == b"one"
        (tmp_path / "middle").unlink()
        (tmp_path / "middle").symlink_to("two")
        with pytest.raises(OSError) as raised:
            tree.read("link")
        assert raised.value.errno == errno.ESTALE
        again = scan(root, follow_symlinks=True, previous=tree.index)
        assert Tree(root, tmp_path, source_of(root, again.index), again.index).read("link") == b"two"

    def test_links_of_proc_are_not_followed(self, tmp_path: Path) -> None:
        if not beneath._has_openat2:
            pytest.skip("without openat2 they are")
        root = tmp_path / "S"
        root.mkdir()
        with (tmp_path / "out").open("w") as file:
            (root / "link").symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
            index = scan(root, follow_symlinks=True).index
        assert stat.S_ISLNK(int(index.mode[index.lookup(0, b"link")]))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
class TestMounts:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        """A directory with a tmpfs upon it; whatever is mounted there is unmounted in the end."""
        path = tmp_path / "S"
        path.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "none", path], capture_output=True, check=False).returncode != 0:
            pytest.skip("tmpfs cannot be mounted here")
        yield path
        while os.path.ismount(path):
            subprocess.run(["umount", path], check=True)

    def test_a_source_that_is_unmounted_and_mounted_again(self, place: Path, tmp_path: Path) -> None:
        (place / "f").write_bytes(b"data")
        tree = tree_of(place, place)
        assert tree.read("f") == b"data"
        keep = tmp_path / "keep"
        keep.mkdir()
        subprocess.run(["mount", "--bind", place, keep], check=True)
        try:
            subprocess.run(["umount", place], check=True)  # nothing holds it
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
            (place / "f").write_bytes(b"data")
            assert place.stat().st_ino == tree.index.src_ino[0]  # of every tmpfs
            with pytest.raises(OSError) as raised:
                tree.source._below.stat(tree.row("f"))
            assert raised.value.errno == errno.ESTALE
            with pytest.raises((Changed, OSError)):
                tree.read("f")
            subprocess.run(["umount", place], check=True)
            with pytest.raises(OSError) as raised:
                tree.read("f")
            assert raised.value.errno == errno.ESTALE
            subprocess.run(["mount", "--bind", keep, place], check=True)
            assert tree.read("f") == b"data"
        finally:
            subprocess.run(["umount", keep], check=True)

    def test_a_mount_inside_the_source_stays_reachable(self, place: Path) -> None:
        (place / "inner").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", place / "inner"], check=True)
        try:
            (place / "inner/f").write_bytes(b"inside")
            tree = tree_of(place, place)
            assert tree.read("inner/f") == b"inside"
        finally:
            subprocess.run(["umount", place / "inner"], check=True)
        with pytest.raises(FileNotFoundError):
            tree.source._below.stat(tree.row("inner/f"))
