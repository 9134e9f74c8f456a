"""The columns, and their form on disk."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.dataset import index_file
from nopfsfs.dataset.index import COLUMNS, Index
from nopfsfs.dataset.index_build import RECORD, Listing, build
from nopfsfs.dataset.index_check import IndexDamaged

FILE, DIR, LINK = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777


def listing(
    path: bytes, entries: dict[bytes, tuple[int, int, int]], targets: dict[bytes, bytes] | None = None
) -> Listing:
    """A directory with entries name: (mode, inode, nlink); a file's size is its inode."""
    names = sorted(entries)
    records = np.zeros(len(names), RECORD)
    for i, name in enumerate(names):
        for column, value in zip(("mode", "src_ino", "nlink"), entries[name], strict=True):
            records[column][i] = value
    records["size"], records["dev"] = records["src_ino"], 7
    own = np.zeros(1, RECORD)
    own["mode"], own["dev"] = DIR, 7
    lengths = np.array([len(name) for name in names], np.uint32)
    positions = {names.index(name): target for name, target in (targets or {}).items()}
    return Listing(path, own, b"".join(names), lengths, records, positions)


def small() -> Index:
    return build(
        [
            listing(b"a/b", {b"deep": (FILE, 30, 1)}),
            listing(b"", {b"a": (DIR, 1, 2), b"a b": (DIR, 2, 2), b"z": (FILE, 10, 2), b"gone": (DIR, 3, 2)}),
            listing(b"a b", {b"hard": (FILE, 10, 2), b"\xff": (FILE, 40, 1)}),
            listing(b"a", {b"b": (DIR, 4, 2), b"l": (LINK, 50, 1), b"f": (FILE, 20, 1)}, {b"l": b"b/deep"}),
        ]
    )


def test_directories_come_first_in_path_order_then_files_by_their_first_entry() -> None:
    index = small()
    paths = [index.path(row) for row in range(index.n)]
    assert paths == [b"", b"a b", b"a", b"a/b", b"z", b"a b/\xff", b"a/f", b"a/l", b"a/b/deep"]
    assert (index.n, index.n_dirs, index.n_entries) == (9, 4, 9)


def test_hard_links_share_a_row_and_the_first_entry_is_its_path() -> None:
    index = small()
    row = index.lookup(1, b"hard")
    assert row == index.lookup(0, b"z")
    assert index.path(row) == b"z"
    assert index.size[row] == 10


def test_a_directory_without_a_listing_is_left_out() -> None:
    index = small()
    assert index.lookup(0, b"gone") == -1
    assert [name for _, name, _ in index.entries(0)] == [b"a", b"a b", b"z"]


@pytest.mark.parametrize("name", [b"", b"\x00", b"zz", b"a ", b"l\xff", b"no"])
def test_lookup_of_what_is_not_there(name: bytes) -> None:
    index = small()
    assert [index.lookup(d, name) for d in range(index.n_dirs)] == [-1] * index.n_dirs


def test_entries_begin_anywhere() -> None:
    index = small()
    every = list(index.entries(2))
    assert [(position, name) for position, name, _ in every] == [(0, b"b"), (1, b"f"), (2, b"l")]
    assert [list(index.entries(2, start)) for start in range(5)] == [every[start:] for start in range(5)]


def test_links_and_parents() -> None:
    index = small()
    link = index.lookup(2, b"l")
    assert index.readlink(link) == b"b/deep"
    with pytest.raises(KeyError):
        index.readlink(0)
    assert [index.parent(row) for row in range(index.n)] == [0, 0, 0, 2, 0, 1, 2, 2, 3]


def test_columns_cannot_be_written() -> None:
    with pytest.raises(ValueError):
        small().size[0] = 1


def test_totals() -> None:
    assert small().total_bytes == 10 + 40 + 20 + 30
    assert small().any_acl is False


def test_an_empty_source() -> None:
    index = build([listing(b"", {})])
    assert (index.n, index.n_dirs, list(index.entries(0)), index.lookup(0, b"x")) == (1, 1, [], -1)


def test_lookup_in_a_directory_of_many_names() -> None:
    names = {b"%07d" % (i * 3): (FILE, i + 5, 1) for i in range(20_000)}
    index = build([listing(b"", names)])
    for i in range(0, 60_000, 7):
        row = index.lookup(0, b"%07d" % i)
        assert row == (-1 if i % 3 else 1 + i // 3)


def test_the_fingerprint_changes_with_names_sizes_and_times_only() -> None:
    index = small()
    same = build([listing(b"", {b"a": (FILE, 5, 1)})]).fingerprint
    assert same == build([listing(b"", {b"a": (FILE & ~0o044, 5, 1)})]).fingerprint
    for other in ({b"b": (FILE, 5, 1)}, {b"a": (FILE, 6, 1)}, {b"a": (LINK, 5, 1)}):
        assert build([listing(b"", other)]).fingerprint != same
    assert small().fingerprint == index.fingerprint


def test_saved_and_loaded_it_is_the_same(tmp_path) -> None:
    index = small()
    index_file.save(index, tmp_path / "index")
    loaded = index_file.load(tmp_path / "index")
    for name, _, _ in index_file.COLUMNS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(index, name))
        assert getattr(loaded, name).dtype == getattr(index, name).dtype
    assert loaded.fingerprint == index.fingerprint
    assert loaded.lookup(2, b"f") == index.lookup(2, b"f") >= 0
    assert os.listdir(tmp_path) == ["index"]
    assert stat.S_IMODE(os.stat(tmp_path / "index").st_mode) == 0o600


def test_loaded_from_a_descriptor_which_can_then_be_closed() -> None:
    fd = index_file.to_memfd(small())
    try:
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        loaded = index_file.load_fd(fd)
    finally:
        os.close(fd)
    assert loaded.path(8) == b"a/b/deep"
    assert not loaded.size.flags.writeable


def test_the_index_is_mapped_as_old_kernels_allow_it() -> None:
    """Before Linux 6.7, what is sealed against writing cannot be mapped as shared memory, not even to be read."""
    fd = index_file.to_memfd(small())
    loaded = index_file.load_fd(fd)
    os.close(fd)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "nopfs-index" in line]
    assert loaded.n
    assert {rights for _, rights, *_ in mapped} == {"r--p"}


def test_every_damaged_byte_is_noticed(tmp_path) -> None:
    path = tmp_path / "index"
    index_file.save(small(), path)
    whole = path.read_bytes()
    used = set(range(index_file.HEADER.size))
    places, _ = index_file._places(index_file._counts(small()))
    used |= {i for _, t, length, offset in places for i in range(offset, offset + length * int(t[-1]))}
    for i in sorted(used)[::7]:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        with pytest.raises(IndexDamaged):
            index_file.load(path)


@pytest.mark.parametrize("length", [0, 1, 100, -1, -64])
def test_a_file_cut_short_is_noticed(tmp_path, length: int) -> None:
    path = tmp_path / "index"
    index_file.save(small(), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(IndexDamaged):
        index_file.load(path)


def test_a_foreign_file_is_noticed(tmp_path) -> None:
    (tmp_path / "index").write_bytes(bytes(range(256)) * 16)
    with pytest.raises(IndexDamaged, match="not an index"):
        index_file.load(tmp_path / "index")


def test_a_failed_save_leaves_nothing(tmp_path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(IsADirectoryError):
        index_file.save(small(), tmp_path / "index")
    assert os.listdir(tmp_path) == ["index"]


def test_a_file_costs_at_most_150_bytes_names_included() -> None:
    names = {b"n01440764_%d.JPEG" % (i * 13): (FILE, i + 5, 1) for i in range(10_000)}
    index = build([listing(b"", names)])
    assert sum(getattr(index, name).nbytes for name, _, _ in COLUMNS) < 150 * len(names)
