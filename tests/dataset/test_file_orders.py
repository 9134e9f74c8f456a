"""Orders against what the standard library and torchvision really list."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nopfsfs.dataset.file_orders import ORDERS, candidate_roots, class_sizes, image_folder, sorted_files
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import IndexWalk
from nopfsfs.dataset.tree_scan import scan
from tests.dataset import trees
from tests.examples import examples
from tests.framework_setup import import_torchvision

slow = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder_by_hand(root: str) -> list[str]:
    """The paths that torchvision 0.29 lists, by the same standard library calls."""
    found = []
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for where, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            found += [os.path.join(where, file) for file in sorted(files) if file.lower().endswith(SUFFIXES)]
    return found


def class_sizes_by_hand(root: str) -> tuple[int, ...]:
    """How many of these paths are in each directory right below."""
    paths = image_folder_by_hand(root)
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    return tuple(sum(path.startswith(os.path.join(root, name, "")) for path in paths) for name in classes)


def sources_of(index: Index, root: bytes, rows: np.ndarray) -> list[bytes]:
    """What the rows are at the source, links followed to their end."""
    return [os.path.realpath(os.path.join(root, index.path(row))) for row in rows.tolist()]


def resolved(paths: list[str]) -> list[bytes]:
    return [os.fsencode(os.path.realpath(path)) for path in paths]


@slow
@given(trees.paths())
def test_image_folder_of_any_tree(files) -> None:
    with trees.tree(files) as root:
        index = scan(root).index
        assert sources_of(index, root, image_folder(index, 0)) == resolved(image_folder_by_hand(os.fsdecode(root)))
        assert class_sizes(index, 0) == class_sizes_by_hand(os.fsdecode(root))


targets = st.sampled_from([b"a", b"../a", b"b", b"../b/a", b"a b", b"../a.b", b"missing.jpg", b"a.jpg", b"../z"])


@slow
@given(
    trees.paths(trees.texts, most=15),
    st.lists(st.tuples(trees.paths(trees.texts, most=1), targets), max_size=4),
)
def test_image_folder_with_links(files, links) -> None:
    links = [(paths[0], target) for paths, target in links if paths]
    with trees.tree(files, links) as root:
        if any(_loops(os.path.join(where, name)) for where, dirs, _ in os.walk(root) for name in dirs):
            return
        if any(_leads_nowhere(os.path.join(root, name)) for name in os.listdir(root)):
            return  # the oracle cannot follow it either
        index = scan(root).index
        rows = image_folder(index, 0)
        assert sources_of(index, root, rows) == resolved(image_folder_by_hand(os.fsdecode(root)))
        assert class_sizes(index, 0) == class_sizes_by_hand(os.fsdecode(root))


def _leads_nowhere(path: bytes) -> bool:
    """Whether it is a link that leads to itself."""
    try:
        os.stat(path)
    except OSError as e:
        return e.errno == errno.ELOOP
    return False


def _loops(link: bytes) -> bool:
    """Whether a link may lead to something that contains it, itself or through another: os.walk would go
    round."""
    return os.path.islink(link) and any(
        os.path.islink(os.path.join(where, name))
        for where, dirs, _ in os.walk(link, followlinks=False)
        for name in dirs
    )


@pytest.mark.framework
@slow
@given(trees.paths(most=15))
def test_image_folder_is_torchvisions(files) -> None:
    folder = import_torchvision().datasets.folder
    with trees.tree(files) as root:
        index = scan(root).index
        rows = image_folder(index, 0)
        try:
            _, classes = folder.find_classes(os.fsdecode(root))
            samples = folder.make_dataset(os.fsdecode(root), classes, folder.IMG_EXTENSIONS, allow_empty=True)
        except FileNotFoundError:  # no class directory
            assert len(rows) == 0
            return
        assert [root + b"/" + index.path(row) for row in rows.tolist()] == [os.fsencode(path) for path, _ in samples]


@slow
@given(trees.paths())
def test_sorted_files_of_any_tree(files) -> None:
    with trees.tree(files) as root:
        index = scan(root).index
        for dir_row in range(index.n_dirs):
            top = os.fsdecode(os.path.join(root, index.path(dir_row)))
            expected = sorted(os.path.join(where, file) for where, _, names in os.walk(top) for file in names)
            got = [os.path.join(root, index.path(row)) for row in sorted_files(index, dir_row).tolist()]
            assert got == [os.fsencode(path) for path in expected]


def fill(root: Path, counts: dict[str, int]) -> Index:
    for directory, count in counts.items():
        (root / directory).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / directory / f"{i}.jpg").write_bytes(b"")
    return scan(str(root)).index


def test_links_to_files_count_as_the_file(tmp_path) -> None:
    fill(tmp_path, {"c": 1, "d": 1})
    os.symlink("../c/0.jpg", tmp_path / "d/link.jpg")
    os.symlink("missing", tmp_path / "d/dangling.jpg")
    os.symlink("c", tmp_path / "e")
    index = scan(str(tmp_path)).index
    c, d = index.lookup(index.lookup(0, b"c"), b"0.jpg"), index.lookup(index.lookup(0, b"d"), b"0.jpg")
    dangling = index.lookup(index.lookup(0, b"d"), b"dangling.jpg")
    assert sorted_files(index, 0).tolist() == [c, d, c]
    assert image_folder(index, 0).tolist() == [c, d, dangling, c, c]
    assert image_folder(index, 0).dtype == sorted_files(index, 0).dtype == np.uint32


def test_a_loop_of_links_ends(tmp_path) -> None:
    fill(tmp_path, {"c": 1})
    os.symlink("..", tmp_path / "c/up")
    index = scan(str(tmp_path)).index
    assert image_folder(index, 0).tolist() == [index.lookup(index.lookup(0, b"c"), b"0.jpg")]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, [b""]),
        ({"": 3}, [b""]),
        ({f"c{i}": 2 for i in range(9)}, [b""]),
        (
            {f"train/{i}": 5 for i in range(9)} | {f"val/{i}": 2 for i in range(9)},
            [b"train", b"val", b""],
        ),
        ({"train": 9, "val": 3}, [b"", b"train", b"val"]),
        ({f"x/y/train/{i}": 1 for i in range(9)} | {"x/val": 3}, [b"x/y/train", b"x", b"x/val", b"x/y", b""]),
    ],
)
def test_candidate_roots(tmp_path, counts: dict[str, int], expected: list[bytes]) -> None:
    index = fill(tmp_path, counts)
    roots = [index.path(row) for row in candidate_roots(index).tolist()]
    assert roots == expected


def test_only_data_sets_are_candidates(tmp_path) -> None:
    index = fill(tmp_path, {f"train/{i}": 5 for i in range(9)} | {"val": 3})
    roots = [index.path(row) for row in candidate_roots(index).tolist()]
    assert set(roots) == {b"train", b"val", b""}


TREE = ["train/c10/2.jpg", "train/c10/10.JPG", "train/c9/x1.gif", "train/.h/1.png", "train/c9-a/1.bmp", "val/c9/1.jpeg"]
TREE += ["train/c9/sub/3.png", "top.jpg", "readme.txt"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm", [".h/1.png", "c9/sub/3.png", "c10/2.jpg", "c10/10.JPG"]),
        ("keras_images", ["c10/10.JPG", "c10/2.jpg", "c9/x1.gif", "c9/sub/3.png", "c9-a/1.bmp"]),
        ("dali_files", [".h/1.png", "c10/10.JPG", "c10/2.jpg", "c9-a/1.bmp"]),
        ("hf_imagefolder", ["c10/10.JPG", "c10/2.jpg", "c9-a/1.bmp", "c9/sub/3.png", "c9/x1.gif"]),
        ("listed", [".h/1.png", "c10/10.JPG", "c10/2.jpg", "c9/x1.gif", "c9/sub/3.png", "c9-a/1.bmp"]),
    ],
)
def test_each_order_of_one_tree(name: str, expected: list[str]) -> None:
    with trees.tree([os.fsencode(path) for path in TREE]) as root:
        index = scan(root).index
        train = index.lookup(0, b"train")
        rows = ORDERS[name](index, train, IndexWalk(index))
        assert rows.dtype == np.uint32
        assert [os.fsdecode(index.path(row)) for row in rows.tolist()] == [f"train/{path}" for path in expected]


def test_the_first_split_of_hugging_face_is_train() -> None:
    with trees.tree([os.fsencode(path) for path in TREE]) as root:
        index = scan(root).index
        rows = ORDERS["hf_imagefolder"](index, 0, None).tolist()
        assert rows == ORDERS["hf_imagefolder"](index, index.lookup(0, b"train"), None).tolist()


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_of_nothing_is_empty(name: str, tmp_path: Path) -> None:
    rows = ORDERS[name](scan(str(tmp_path)).index, 0, None)
    assert rows.dtype == np.uint32
    assert len(rows) == 0


SHARDS = ["train/00000.tar", "train/00001.TAR", "train/00000.parquet", "train/00001.parquet", "train/index.json"]
SHARDS += ["train/00000_stats.json", "val/00000.tar", "README.md", ".cache/00000.tar"]


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [
        ("shards", "train", ["train/00000.tar", "train/00001.TAR"]),
        ("shards", "", [".cache/00000.tar", "train/00000.tar", "train/00001.TAR", "val/00000.tar"]),
        ("hf_shards", "", ["train/00000.tar", "train/00001.TAR"]),
        ("hf_shards", "val", ["val/00000.tar"]),
    ],
)
def test_shards_are_of_the_kind_of_which_there_are_most(name: str, root: str, expected: list[str]) -> None:
    with trees.tree([os.fsencode(path) for path in SHARDS]) as at:
        index = scan(at).index
        rows = ORDERS[name](index, index.lookup(0, os.fsencode(root)) if root else 0, None)
        assert [os.fsdecode(index.path(row)) for row in rows.tolist()] == expected


SHARD_NAMES = [
    "a.tar",
    "a.mds.zstd",
    "b.jsonl.zst",
    "B.JSONL",
    "c.json.gz",
    "d.tar.gz",
    "e.parquet",
    "f.tgz",
    "x.jpg",
    "y",
]


@slow
@given(st.lists(st.tuples(st.sampled_from(["", "a/", "a.b/", "ä/"]), st.sampled_from(SHARD_NAMES)), unique=True))
def test_shards_of_any_tree(files: list[tuple[str, str]]) -> None:
    kinds = [(".tar", ".tar.gz", ".tgz"), (".parquet",), (), (".jsonl", ".jsonl.zst", ".json.gz"), (".mds.zstd",)]
    paths = sorted(directory + name for directory, name in files)
    by_kind = [[path for path in paths if path.lower().endswith(kind)] for kind in kinds]
    with trees.tree([os.fsencode(path) for path in paths]) as root:
        index = scan(root).index
        rows = ORDERS["shards"](index, 0, None)
        assert [os.fsdecode(index.path(row)) for row in rows.tolist()] == max(by_kind, key=len)
