"""Orders that users give: what is read from good files, and what is said of bad ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.dataset import order_files
from nopfsfs.dataset.file_orders import image_folder
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.order_files import Places, directory, read_order
from nopfsfs.dataset.tree_scan import scan


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four images in two classes, a link to one, a directory of no images."""
    path = tmp_path / "source"
    for name in ("train/a/0.jpg", "train/a/1.jpg", "train/b/0.jpg", "train/b/ü 2.jpg", "train/docs/x/readme"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x")
    os.symlink("../a/1.jpg", path / "train/b/link.jpg")
    os.symlink("train", path / "current")
    os.mkfifo(path / "train/pipe")
    return path


def read(source: Path, *paths: Path, repeats: bool = False) -> list[list[str]]:
    """The paths of each epoch."""
    index = scan(str(source)).index
    root = directory(index, "train")
    places = Places(root, str(source), "/mnt/fast")
    rows, epochs = read_order(
        [str(p) for p in paths], index, places, lambda: image_folder(index, root), repeats=repeats
    )
    assert rows.dtype == np.int64
    assert all(epoch.dtype == np.int64 for epoch in epochs)
    return [[os.fsdecode(index.path(int(row))) for row in rows[epoch]] for epoch in epochs]


def save(path: Path, values: object, dtype: str = "int64") -> Path:
    np.save(path, np.array(values, dtype))
    return path


FILES = ["train/a/0.jpg", "train/a/1.jpg", "train/b/0.jpg", "train/a/1.jpg", "train/b/ü 2.jpg"]


@pytest.mark.parametrize("dtype", ["int64", "uint8", ">i4", "uint64"])
def test_arrays_of_one_and_two_dimensions(source: Path, tmp_path: Path, dtype: str) -> None:
    one = save(tmp_path / "1.npy", [4, 0, 2], dtype)
    two = save(tmp_path / "2.npy", [[0, 1], [1, 0]], dtype)

    assert read(source, one, two) == [[FILES[4], FILES[0], FILES[2]], FILES[:2], FILES[1::-1]]


def test_a_text_file_says_paths_from_anywhere(source: Path, tmp_path: Path) -> None:
    lines = ["a/1.jpg", "train/a/0.jpg", f"{source}/train/b/0.jpg", "", "/mnt/fast/train/b/ü 2.jpg\r"]
    (tmp_path / "0.txt").write_text("\n".join(lines))
    (tmp_path / "1.txt").write_text("./b/../b//0.jpg\nb/link.jpg\n")

    order = read(source, tmp_path / "0.txt", tmp_path / "1.txt")

    assert order == [[FILES[1], FILES[0], FILES[2], FILES[4]], [FILES[2], FILES[1]]]


def test_repeats_are_taken_where_they_are_meant(source: Path, tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("a/1.jpg\nb/link.jpg\n")

    assert read(source, save(tmp_path / "0.npy", [0, 0]), repeats=True) == [[FILES[0], FILES[0]]]
    assert read(source, tmp_path / "0.txt", repeats=True) == [[FILES[1], FILES[1]]]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([0, 5], "int64", "position 1: 5 is no index of 5 files: 0 to 4"),
        ([0, 1, -1], "int64", "position 2: -1 is no index"),
        ([2**64 - 1], "uint64", "18446744073709551615 is no index"),
        ([0, 3, 1, 3, 1], "int64", r"position 3: 3 again, after position 1; say repeats = true"),
        ([[0, 1], [2, 2]], "int64", "row 1, position 1: 2 again"),
        ([], "int64", "is empty"),
        ([0.5], "float64", "holds float64 in 1 dimensions; whole numbers"),
        ([[[0]]], "int64", "holds int64 in 3 dimensions"),
        (7, "int64", "0 dimensions"),
        (["a"], "U1", "holds <U1"),
    ],
)
def test_an_array_that_is_no_order(source: Path, tmp_path: Path, values: object, dtype: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        read(source, save(tmp_path / "x.npy", values, dtype))
    assert str(raised.value).startswith(str(tmp_path / "x.npy"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/0.jpg\n\nc/0.jpg", ":3: c/0.jpg is not there"),
        ("a/0.jpg\na/1.jpg\na/0.jpg", ":3: the same file as in line 1; say repeats"),
        ("a", ":1: a is a directory"),
        ("pipe", ":1: pipe is no regular file"),
        ("/elsewhere/0.jpg", ":1: /elsewhere/0.jpg is not below the source"),
        ("../../etc/passwd", "is not there"),
        ("\n\n", ": is empty"),
        ("x" * 5000, ":1: not a path"),
        ("a\0b", ":1: not a path"),
    ],
)
def test_a_list_that_is_no_order(source: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(source, tmp_path / "x.txt")
    assert str(raised.value).startswith(str(tmp_path / "x.txt"))


def test_files_that_cannot_be_read(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.npy").write_text("a/0.jpg")
    (tmp_path / "cut.npy").write_bytes(save(tmp_path / "x.npy", [0, 1, 2]).read_bytes()[:-8])
    np.savez(tmp_path / "many", a=np.arange(3))
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "a.txt").write_text("a/0.jpg")
    for paths, message in (
        (["missing.npy"], "missing.npy: No such file"),
        (["pipe"], "not a regular file"),
        (["text.npy"], "not a .npy file"),
        (["cut.npy"], "cut.npy: "),
        (["object.npy"], "object.npy: "),
        (["many.npz"], "many.npz:1: "),
        (["x.npy", "a.txt"], "mixed"),
        ([], "no file is named"),
    ):
        with pytest.raises(ValueError, match=message):
            read(source, *[tmp_path / path for path in paths])


@pytest.mark.parametrize(
    "head",
    ["{'descr': '<i8',", "(" * 9000, "{'descr': '<i8', 'fortran_order': False}", "-" * 4000 + "1",
     "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 3), }"],
    ids=["cut", "deep", "no shape", "nested", "huge"],
)  # fmt: skip
def test_an_array_whose_head_is_none(source: Path, tmp_path: Path, head: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head.encode() + bytes(64))
    with pytest.raises(ValueError, match=r"x\.npy: cannot be read as a \.npy file of numbers: .") as raised:
        read(source, path)
    assert "\n" not in str(raised.value)


def test_too_much_is_refused_before_it_is_read(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_files, "EPOCHS_MOST", 2)
    monkeypatch.setattr(order_files, "SMALLEST", 1)
    (tmp_path / "x.txt").write_text("a/0.jpg\n" * 100)
    for path in save(tmp_path / "x.npy", [0] * 11), tmp_path / "x.txt":
        with pytest.raises(ValueError, match="too large"):
            read(source, path, repeats=True)


def test_directory(source: Path) -> None:
    index: Index = scan(str(source)).index
    train = index.lookup(0, b"train")
    assert (directory(index, ""), directory(index, "train"), directory(index, "current")) == (0, train, train)
    for root, message in (("nowhere", "is not there"), ("train/a/0.jpg", "is not a directory"), ("..", "is not there")):
        with pytest.raises(ValueError, match=message):
            directory(index, root)
