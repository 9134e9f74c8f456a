"""The tree against the source it presents, without a mount."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol.columns import Columns
from nopfsfs.tiers.source import Source
from nopfsfs.vfs.tree import Attributes, RefreshedAttributes, Tree
from nopfsfs.vfs.tree_errors import (
    NameTooLong,
    NoSuchAttribute,
    NotADirectory,
    NotALink,
    NotFound,
    SourceFailed,
    StaleFile,
)
from tests.dataset import trees
from tests.examples import examples


def tree_of(source: str | bytes | Path) -> Tree:
    source = os.fspath(source)
    index = scan(source).index
    return Tree(index, at_source(source, index), {})


def at_source(root: str | bytes | Path, index: Index) -> Source:
    fd = Columns.create(index.n)
    try:
        return Source(os.fsencode(root), index, Columns(fd, index.n, writable=True))
    finally:
        os.close(fd)


def walk(tree: Tree, row: int = 0, path: bytes = b"") -> Iterator[tuple[bytes, int]]:
    for _, name, child in tree.entries(row):
        yield path + name, child
        if stat.S_ISDIR(tree.attributes(child).mode):
            yield from walk(tree, child, path + name + b"/")


def at(tree: Tree, path: bytes) -> int:
    row = 0
    for part in path.split(b"/"):
        row = tree.lookup(row, part)
    return row


def check_attributes(attributes: Attributes, st: os.stat_result) -> None:
    for name in ("mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns", "rdev"):
        assert getattr(attributes, name) == getattr(st, f"st_{name}"), name
    assert attributes.atime_ns == st.st_mtime_ns
    assert attributes.blocks * 512 >= st.st_size > attributes.blocks * 512 - 512


targets = st.sampled_from([b"a", b"../a", b"b/a", b"../../..", b"/", b"missing"])


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(trees.paths(), st.lists(st.tuples(trees.names, targets), max_size=4))
def test_any_tree_is_listed_as_the_source(files, links) -> None:
    with trees.tree(files, links) as root:
        tree = tree_of(root)
        found = dict(walk(tree))
        expected = {
            os.path.relpath(os.path.join(where, name), root)
            for where, dirs, names in os.walk(root)
            for name in dirs + names
        }
        assert found.keys() == expected
        for path, row in found.items():
            source = os.path.join(root, path)
            attributes = tree.attributes(row)
            check_attributes(attributes, os.lstat(source))
            assert attributes.ino == row + 1
            assert at(tree, path) == row
            if os.path.islink(source):
                assert tree.readlink(row) == os.readlink(source)


@pytest.fixture
def source(tmp_path) -> Path:
    for name in ("a/x", "a/b/y", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    os.symlink("a/x", tmp_path / "link")
    return tmp_path


def test_dots(source) -> None:
    tree = tree_of(source)
    b = at(tree, b"a/b")
    assert [tree.lookup(b, b"."), tree.lookup(b, b".."), tree.lookup(0, b"..")] == [b, at(tree, b"a"), 0]


@pytest.mark.parametrize("name", [b"no", b"", b"a/b", b"A", b"z" * 255])
def test_names_that_are_not_there(source, name: bytes) -> None:
    with pytest.raises(NotFound):
        tree_of(source).lookup(0, name)


@pytest.mark.parametrize("row", [-1, 100])
def test_rows_that_are_not_there(source, row: int) -> None:
    tree = tree_of(source)
    calls = [tree.attributes, tree.entries, tree.readlink, tree.listxattr]
    for call in [*calls, lambda row: tree.lookup(row, b"x"), lambda row: tree.getxattr(row, b"user.x")]:
        with pytest.raises(NotFound):
            call(row)


def test_a_file_is_no_directory_and_no_link(source) -> None:
    tree = tree_of(source)
    row = at(tree, b"z")
    for name in (b"x", b".", b".."):
        with pytest.raises(NotADirectory):
            tree.lookup(row, name)
    with pytest.raises(NotADirectory):
        tree.entries(row)
    with pytest.raises(NotALink):
        tree.readlink(row)


def test_a_listing_goes_on_where_it_stopped(source) -> None:
    tree = tree_of(source)
    every = list(tree.entries(0))
    assert [name for _, name, _ in every] == [b"a", b"link", b"z"]
    for position, _, _ in every:
        assert list(tree.entries(0, position + 1)) == every[position + 1 :]


def test_file_system_totals(source) -> None:
    totals = tree_of(source).file_system
    assert (totals.blocks, totals.block_size, totals.files) == (1, 4096, 7)
    assert (totals.free_blocks, totals.free_files) == (0, 0)


def test_refreshed_attributes_win(source) -> None:
    index: Index = scan(str(source)).index
    changed = RefreshedAttributes(stat.S_IFREG | 0o600, 1, 2, 3, 1000, 5, 6)
    row = index.lookup(0, b"z")
    tree = Tree(index, at_source(source, index), {row: changed})
    assert tree.attributes(row) == Attributes(row + 1, changed.mode, 3, 1, 2, 0, 1000, 2, 5, 5, 6)
    assert tree.attributes(at(tree, b"a/x")).size == 5


def test_device_numbers(tmp_path) -> None:
    try:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no right to make a device node")
    tree = tree_of(tmp_path)
    check_attributes(tree.attributes(at(tree, b"device")), os.stat(tmp_path / "device"))


class TestExtendedAttributes:
    @pytest.fixture
    def tree(self, source) -> Tree:
        try:
            os.setxattr(source / "a/x", "user.colour", b"red\0")
        except OSError:
            pytest.skip("no user attributes on this file system")
        index = scan(str(source)).index
        return Tree(index, at_source(source, index), {}, lambda row: {b"user.nopfs.row": b"%d" % row})

    def test_come_from_the_source_as_it_is_now(self, tree, source) -> None:
        row = at(tree, b"a/x")
        assert tree.getxattr(row, b"user.colour") == b"red\0"
        os.setxattr(source / "a/x", "user.colour", b"blue")
        os.setxattr(source / "a/x", "user.nopfs.row", b"not ours")
        assert tree.getxattr(row, b"user.colour") == b"blue"
        assert sorted(tree.listxattr(row)) == [b"user.colour", b"user.nopfs.row"]

    def test_links_are_not_followed(self, tree) -> None:
        with pytest.raises(NoSuchAttribute):
            tree.getxattr(at(tree, b"link"), b"trusted.colour")
        assert b"user.colour" not in tree.listxattr(at(tree, b"link"))

    def test_the_mounts_own(self, tree) -> None:
        row = at(tree, b"z")
        assert tree.getxattr(row, b"user.nopfs.row") == b"%d" % row
        assert tree.listxattr(row) == [b"user.nopfs.row"]
        with pytest.raises(NoSuchAttribute):
            tree.getxattr(row, b"user.nopfs.other")

    def test_missing(self, tree) -> None:
        with pytest.raises(NoSuchAttribute):
            tree.getxattr(at(tree, b"z"), b"user.colour")
        with pytest.raises(NoSuchAttribute):
            tree.getxattr(0, b"user.colour")

    def test_of_a_file_that_is_gone(self, tree, source) -> None:
        row = at(tree, b"z")
        (source / "z").unlink()
        for call in (lambda: tree.getxattr(row, b"user.x"), lambda: tree.listxattr(row)):
            with pytest.raises(StaleFile):
                call()

    def test_of_a_source_that_fails(self, tree, monkeypatch) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "getxattr", fail)
        with pytest.raises(SourceFailed) as caught:
            tree.getxattr(0, b"user.x")
        assert caught.value.errno == errno.EIO


def test_names_longer_than_any_are_too_long(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    tree = tree_of(tmp_path)

    with pytest.raises(NameTooLong):
        tree.lookup(0, b"x" * 256)
    with pytest.raises(NotFound):
        tree.lookup(0, b"x" * 255)
