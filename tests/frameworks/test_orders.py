"""File orders against what the frameworks really list."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nopfsfs.dataset import file_orders, natural_order
from nopfsfs.dataset.index_walk import IndexWalk
from nopfsfs.dataset.tree_scan import scan
from tests.dataset import trees
from tests.examples import examples
from tests.framework_setup import import_torchvision

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif("NOPFSFS_FRAMEWORKS" not in os.environ, reason="NOPFSFS_FRAMEWORKS is not set"),
]
slow = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

STEMS = [
    "a",
    "A",
    "b",
    "a b",
    "a-b",
    "a.b",
    "a1",
    "a01",
    "a10",
    "A2",
    "1",
    "01",
    "007",
    "10x2",
    ".hid",
    "__s",
    "...",
    "z",
]
STEMS += ["train", "x_val", "test-1", "valid", "eval", "data"]
UNICODE = ["ä", "Ä", "é2", "\U0001f600", "\ue000", "ß10", "٣", "ẞ"]
SUFFIXES = [
    "",
    ".jpg",
    ".JPG",
    ".jpeg",
    ".Png",
    ".gif",
    ".bmp",
    ".webp",
    ".txt",
    ".jpg.gz",
    ".tif",
    ".flac",
    ".pgm",
    "jpg",
]


def names(stems: list[str]) -> st.SearchStrategy[bytes]:
    return st.tuples(st.sampled_from(stems), st.sampled_from(SUFFIXES)).map(lambda t: os.fsencode("".join(t)))


plain = names(STEMS)
texts = st.one_of(plain, names(UNICODE))
targets = st.sampled_from([b"a", b"../a", b"b", b"../b/a.jpg", b"a.jpg", b"../z.png", b"1"])
links = st.lists(st.tuples(trees.paths(texts, most=1), targets), max_size=3)


@contextmanager
def sorted_listings() -> Iterator[None]:
    """Directories are listed as the mount lists them: sorted by name."""
    real_scandir, real_listdir = os.scandir, os.listdir

    class Sorted:
        def __init__(self, path: Any) -> None:
            with real_scandir(path) as entries:
                self._entries = iter(sorted(entries, key=lambda entry: os.fsencode(entry.name)))

        def __iter__(self) -> Any:
            return self._entries

        def __next__(self) -> Any:
            return next(self._entries)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def close(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", Sorted)
        patch.setattr(os, "listdir", lambda path=".": sorted(real_listdir(path), key=os.fsencode))
        yield


def listing(root: bytes, name: str) -> list[bytes]:
    """What our order lists, links followed to their end."""
    index = scan(root).index
    rows = file_orders.ORDERS[name](index, 0, None)
    assert rows.dtype == np.uint32
    return [os.path.realpath(os.path.join(root, index.path(row))) for row in rows.tolist()]


def real(paths: list[str]) -> list[bytes]:
    return [os.path.realpath(os.fsencode(path)) for path in paths]


def circular(root: bytes) -> bool:
    """Whether a link leads to a directory: walks may go round, which is looked at elsewhere."""
    return any(os.path.islink(os.path.join(where, name)) for where, dirs, _ in os.walk(root) for name in dirs)


@pytest.mark.parametrize("stems", [plain, texts], ids=["plain", "texts"])
def test_timm(stems: st.SearchStrategy[bytes]) -> None:
    import_torchvision()
    reader = pytest.importorskip("timm.data.readers.reader_image_folder")

    @slow
    @given(trees.paths(stems, most=30), links)
    def check(files: list[bytes], links: list[Any]) -> None:
        chosen = [(paths[0], target) for paths, target in links if paths] if stems is texts else []
        with trees.tree(files, chosen) as root:
            if circular(root):
                return
            with sorted_listings():
                found, _ = reader.find_images_and_targets(os.fsdecode(root))
            assert listing(root, "timm") == real([path for path, _ in found])

    check()


def test_the_fast_natural_sort_is_the_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natural_order, "_GROUP", 7)
    monkeypatch.setattr(natural_order, "_AT_ONCE", 3)
    rng = np.random.default_rng(1)
    files = [b"c%d/%s%d%s.jpg" % (c, [b"", b"x_", b"x0"][k % 3], k, [b"", b"-1", b"01"][k % 7 % 3])
             for c in (1, 9, 10) for k in rng.integers(0, 5000, 60).tolist()]  # fmt: skip
    files += [b"c1/sub1/%d.jpg" % k for k in range(12)] + [b"c1/sub1.jpg", b"c1/sub0.jpg", b"c1/sub2.jpg", b"12.jpg"]
    with trees.tree(files) as root:
        index = scan(root).index
        view = IndexWalk(index)
        for row in range(index.n_dirs):
            fast = natural_order.entries_naturally(view, row)
            is_dir = index.entry_row[fast] < index.n_dirs
            by_paths = natural_order._by_whole_paths(view, row)
            assert fast[~is_dir].tolist() == by_paths[index.entry_row[by_paths] >= index.n_dirs].tolist()


@slow
@given(trees.paths(texts, most=30), links)
def test_keras(files: list[bytes], links: list[Any]) -> None:
    utils = pytest.importorskip("keras.src.utils.dataset_utils")
    with trees.tree(files, [(paths[0], target) for paths, target in links if paths]) as root:
        formats = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
        found, _, _ = utils.index_directory(os.fsdecode(root), "inferred", formats, shuffle=False, verbose=False)
        assert listing(root, "keras_images") == real(found)


@settings(slow, max_examples=examples(25))
@given(trees.paths(texts, most=20))
def test_hf_imagefolder(tmp_path_factory: pytest.TempPathFactory, files: list[bytes]) -> None:
    datasets = pytest.importorskip("datasets")
    check_hf(datasets, files, str(tmp_path_factory.getbasetemp() / "cache"))


def check_hf(datasets: Any, files: list[bytes], cache: str) -> None:
    with trees.tree(files) as root:
        try:
            builder = datasets.load_dataset_builder("imagefolder", data_dir=os.fsdecode(root), cache_dir=cache)
        except FileNotFoundError:  # nothing that it takes for data
            assert listing(root, "hf_imagefolder") == []
            return
        split = next(iter(builder.config.data_files))
        found, _, _ = builder._split_files_and_metadata_and_archives(builder.config.data_files[split])
        assert listing(root, "hf_imagefolder") == real([str(path) for path in found])


@pytest.mark.parametrize(
    "files",
    [
        [b"train/b/1.jpg", b"train/a/2.jpg", b"val/b/3.jpg", b"test/x/1.jpg", b"other/1.jpg"],
        [b"val/b/3.jpg", b"dev/1.jpg", b"x/valid.d/dev/7.png", b"eval-9/1.jpg"],
        [b"x/train_1.jpg", b"x/b.jpg", b"y/test-1.jpg", b"y/a.training.9.jpg"],
        [b"c/ILSVRC2012_val_00000001.JPEG", b"c/ILSVRC2012_val_00000002.JPEG", b"d/readme.txt"],
        [b"trainer/1.jpg", b"xtrain/2.jpg", b"a/README.md", b"a/.x.jpg", b".x/a.jpg", b"a/__x/b.jpg", b"a/m.jpg.gz"],
    ],
)
def test_hf_splits(files: list[bytes], tmp_path: Path) -> None:
    check_hf(pytest.importorskip("datasets"), files, str(tmp_path))


@pytest.mark.parametrize("name", [b"metadata.csv", b"c/metadata.jsonl", b"x.eval", b"data/train-00000-of-00002.jpg"])
def test_hf_orders_that_the_tree_does_not_say(name: bytes) -> None:
    with trees.tree([b"c/1.jpg", b"d/2.jpg", name]) as root:
        assert listing(root, "hf_imagefolder") == []


def dali_listing(root: str) -> list[bytes]:
    dali = pytest.importorskip("nvidia.dali")
    fn = pytest.importorskip("nvidia.dali.fn")

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return tuple(fn.readers.file(file_root=root, name="reader"))

    made = pipeline()
    made.build()
    return [bytes(np.array(made.run()[0][0])) for _ in range(made.epoch_size("reader"))]


def test_dali(tmp_path: Path) -> None:
    files = ["b/1.jpg", "b/10.jpg", "b/2.JPG", "a/x.png", "a/sub/y.jpg", "top.jpg", "C/z.jpeg", "a/u.txt", "a/ä.jpg"]
    files += ["A b/q.bmp", ".hid/h.jpg", "a/.h.jpg", "a/.jpg", "..x/k.jpg", "a/dir.jpg/x.jpg", "a-b/1.jpg", "a.b/1.Jpg"]
    ends = "gif,avif,npy,mp4,tif,tiff,pnm,ppm,pgm,pbm,jp2,JP2,webp,flac,ogg,wav,heic"
    files += [f"t/1.{end}" for end in ends.split(",")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(os.fsencode(file))
    os.symlink("../b", tmp_path / "a/inner")
    os.symlink("b", tmp_path / "link")
    os.symlink("../b/1.jpg", tmp_path / "C/link.jpg")

    said = dali_listing(str(tmp_path))

    ours = listing(os.fsencode(tmp_path), "dali_files")
    assert [path[len(os.fsencode(tmp_path)) + 1 :] for path in ours] == said


@slow
@given(trees.paths(texts, most=30), links)
def test_listed(files: list[bytes], links: list[Any]) -> None:
    with trees.tree(files, [(paths[0], target) for paths, target in links if paths]) as root, sorted_listings():
        walked = [os.path.join(where, file) for where, _, found in os.walk(root) for file in found]
        assert listing(root, "listed") == [os.path.realpath(path) for path in walked if os.path.isfile(path)]
        if not circular(root):
            top = os.fsdecode(root)
            for found in glob.glob(top + "/**/*", recursive=True, include_hidden=True), map(str, Path(top).rglob("*")):
                assert listing(root, "listed") == real([path for path in found if os.path.isfile(path)])
