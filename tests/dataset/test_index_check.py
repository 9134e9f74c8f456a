"""Index files whose checksums are right and whose columns are not: none is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nopfsfs.dataset import index_file
from nopfsfs.dataset.index import COLUMNS, HAS_ACL, Index
from nopfsfs.dataset.index_cache import open_or_scan
from nopfsfs.dataset.index_check import IndexDamaged, check
from nopfsfs.dataset.tree_scan import scan
from tests.mount import rights

Columns = dict[str, Any]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Two directories, one in the other, a hard link, a symbolic link, a hidden file, one with an ACL."""
    root = tmp_path / "source"
    (root / "d/e").mkdir(parents=True)
    (root / "d/f").write_bytes(b"f")
    (root / "d/.h").write_bytes(b"")
    os.setxattr(root / "d/.h", rights.ACL, rights.acl(
        (rights.USER_OBJ, 6, rights.NO_ID), (rights.USER, 4, 65534), (rights.GROUP_OBJ, 4, rights.NO_ID),
        (rights.MASK, 4, rights.NO_ID), (rights.OTHER, 0, rights.NO_ID),
    ))  # fmt: skip
    os.link(root / "d/f", root / "g")
    os.symlink("g", root / "link")
    return scan(root).index


def columns_of(index: Index) -> Columns:
    return {name: getattr(index, name).copy() for name, _, _ in COLUMNS}


def set_to(column: str, at: int, value: int) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[column][at] = value

    return change


def named(name: bytes) -> Callable[[Columns], None]:
    """The hidden file gets another name of its length."""

    def change(columns: Columns) -> None:
        at = bytes(columns["names"]).index(b".h")
        columns["names"][at : at + 2] = np.frombuffer(name, np.uint8)

    return change


def test_what_a_scan_made_is_right(index: Index) -> None:
    check(columns_of(index))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (set_to("entry_row", 0, 99), "rows of entries"),
        (set_to("entry_parent", 0, 2), "directories of entries"),
        (set_to("entry_parent", 0, 99), "directories of entries"),
        (set_to("first_entry", 1, 77), "places of entries"),
        (set_to("first_entry", -1, 2), "places of entries"),
        (set_to("name_start", 1, 99), "places of names"),
        (set_to("name_start", 1, 0), "places of names"),
        (set_to("primary", 1, 99), "ways to rows"),
        (set_to("primary", 0, 0), "ways to rows"),
        (set_to("primary", 1, 1), "ways up"),
        (set_to("src_dev", 2, 7), "devices"),
        (set_to("mode", 1, 0o100644), "kinds"),
        (set_to("mode", -1, 0o040755), "kinds"),
        (set_to("size", 3, -1), "sizes"),
        (set_to("link_row", 0, 1), "links"),
        (set_to("link_start", 1, 50), "targets"),
        (set_to("flags", 0, HAS_ACL), "rows with an ACL"),
        (set_to("acl_row", 0, 0), "rows with an ACL"),
        (set_to("acl_number", 0, 1), "numbers of ACLs"),
        (set_to("acl_start", 1, 7), "ACLs"),
        (named(b".."), "names"),
        (named(b"x/"), "names"),
        (named(b"x\0"), "names"),
    ],
)
def test_what_makes_no_sense_is_refused(index: Index, change: Callable[[Columns], None], what: str) -> None:
    columns = columns_of(index)
    change(columns)

    with pytest.raises(IndexDamaged, match=f"{what}.* make no sense"):
        check(columns)


def test_a_directory_that_is_in_itself_is_refused(index: Index) -> None:
    """A path would have no end."""
    columns = columns_of(index)
    at = int(columns["primary"][2])  # e, in d
    columns["first_entry"][1:3] = [at, len(columns["entry_row"])]
    columns["entry_parent"][:] = np.repeat(np.arange(3), np.diff(columns["first_entry"]))
    columns["entry_parent"][at], columns["first_entry"][2] = 2, at

    with pytest.raises(IndexDamaged):
        check(columns)


def test_a_mount_scans_anew_in_place_of_it(index: Index, tmp_path: Path) -> None:
    kept = tmp_path / "index"
    first = open_or_scan(str(tmp_path / "source"), str(kept))
    os.close(first.fd)
    assert first.path is not None
    wrong = columns_of(index)
    wrong["entry_row"][0] = 99
    index_file.save(Index(**wrong, fingerprint=index.fingerprint), first.path)

    again = open_or_scan(str(tmp_path / "source"), str(kept))

    os.close(again.fd)
    assert again.result.dirs_reused == 0
    assert [again.index.path(row) for row in range(again.index.n)] == [index.path(row) for row in range(index.n)]
