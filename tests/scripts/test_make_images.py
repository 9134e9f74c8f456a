"""The image set: real, distinct, decodable, of ImageNet's sizes, the same for the same seed, built once."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

import make_images
import pytest
from make_images import Recipe
from PIL import Image

# Not imported here: that takes seconds, in each process that collects the tests.
MISSING = [name for name in ("skimage", "sklearn") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}")

RECIPE = Recipe(count=24, val_count=4, classes=4, seed=1)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.JPEG")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "set"
    make_images.build(root, RECIPE, progress=False)
    return root


def test_is_an_image_folder(tree: Path) -> None:
    assert sorted(p.name for p in tree.iterdir()) == ["train", "val"]
    assert sorted(p.name for p in (tree / "train").iterdir()) == [f"n{n:08d}" for n in range(4)]
    assert len(list(tree.glob("train/*/*.JPEG"))) == 24
    assert len(list(tree.glob("val/*/*.JPEG"))) == 4


def test_all_decode_and_differ(tree: Path) -> None:
    for path in tree.rglob("*.JPEG"):
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
    assert len(set(contents(tree).values())) == 28


def test_the_same_recipe_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    make_images.build(tmp_path / "again", RECIPE, progress=False)
    assert contents(tmp_path / "again") == contents(tree)


def test_is_built_once_and_anew_for_another_recipe(tmp_path: Path) -> None:
    root = tmp_path / "set"
    small = Recipe(count=2, val_count=1, classes=1, seed=1)
    made = make_images.build(root, small, progress=False)
    marker = root / "marker"
    marker.touch()
    assert make_images.build(root, small, progress=False) == made
    assert marker.exists()
    make_images.build(root, Recipe(count=1, val_count=1, classes=1, seed=1), progress=False)
    assert not marker.exists()


def test_refuses_a_directory_that_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(SystemExit, match="was not made by this"):
        make_images.build(tmp_path / "mine", RECIPE, progress=False)
    assert (tmp_path / "mine").exists()


def test_sizes_follow_imagenet() -> None:
    sizes = [len(make_images.make_jpeg(random.Random(f"size/{n}"))) for n in range(60)]
    assert 80_000 < sum(sizes) / len(sizes) < 140_000
    assert min(sizes) < 70_000
    assert max(sizes) > 160_000
