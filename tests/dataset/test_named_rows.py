"""Paths name files, and directories all files below them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.named_rows import NamedRows
from nopfsfs.dataset.tree_scan import scan
from tests.dataset.scanned import fill, find


@pytest.fixture
def index(tmp_path: Path) -> Index:
    root = fill(tmp_path, "a/1", "a/2", "a/x/3", "a/x/y/4", "a.b/5", "ab/6", "z/7", "8")
    os.symlink("1", root / "a/link")
    os.link(root / "a/1", root / "z/hard")
    os.mkfifo(root / "z/pipe")
    (root / "empty").mkdir()
    return scan(str(root)).index


def named(index: Index, path: str) -> set[bytes]:
    return {index.path(row) for row in NamedRows(index).rows(os.fsencode(path)).tolist()}


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("a/1", "a/1"), ("8", "8"), ("a//x/./3", "a/x/3"), ("z/hard", "a/1"),
        ("a", "a/1 a/2 a/x/3 a/x/y/4"), ("a/x", "a/x/3 a/x/y/4"), ("a.b", "a.b/5"), ("z", "a/1 z/7"), ("empty", ""),
        ("", "a/1 a/2 a/x/3 a/x/y/4 a.b/5 ab/6 z/7 8"),
    ],
)  # fmt: skip
def test_a_path_names_a_file_or_what_is_below(path: str, files: str, index: Index) -> None:
    assert named(index, path) == {os.fsencode(file) for file in files.split()}


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("no", "is not there"), ("a/no", "is not there"), ("a/1/no", "is not there"), ("a/../8", "is not there"),
        ("a/\0", "is not there"), ("a/link", "is a link; name what it leads to"),
        ("z/pipe", "is not a regular file"),
    ],
)  # fmt: skip
def test_a_path_that_names_nothing(path: str, wrong: str, index: Index) -> None:
    with pytest.raises(ValueError, match=wrong):
        named(index, path)


def test_what_lies_below_a_directory_that_was_named_adds_nothing(index: Index) -> None:
    files = NamedRows(index)
    assert len(files.rows(b"a/x")) == 2
    assert len(files.rows(b"a/x/y")) == 0
    assert set(files.rows(b"a").tolist()) >= {find(index, "a/1"), find(index, "a/x/3")}
    assert len(files.rows(b"a")) == len(files.rows(b"a/x")) == 0
    assert files.rows(b"").dtype == np.int64
    assert len(files.rows(b"")) == 0
