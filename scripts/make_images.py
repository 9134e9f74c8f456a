#!/usr/bin/env python3
"""Builds an ImageFolder of real JPEG files that resembles ImageNet: sides, file sizes, classes, names.

Every image is a crop of a photograph that comes with scikit-image or scikit-learn, resized and compressed so
that the sizes follow ImageNet's (mean 110 KB, standard deviation 60 KB, from 4 KB to 500 KB). The same seed,
counts and Pillow give the same bytes. What was built is described in a manifest beside the tree, and not
built again.

    python scripts/make_images.py build/images --count 8000
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import PIL
from PIL import Image
from tqdm import tqdm

GENERATOR_VERSION = 1  # part of the manifest: a change of what is drawn below builds anew

# (package, folder in it, photograph). All are in colour, and have the detail that ImageNet's file sizes need.
PHOTOGRAPHS = [
    ("skimage", "data", "astronaut.png"),
    ("skimage", "data", "chelsea.png"),
    ("skimage", "data", "coffee.png"),
    ("skimage", "data", "hubble_deep_field.jpg"),
    ("skimage", "data", "ihc.png"),
    ("skimage", "data", "motorcycle_left.png"),
    ("skimage", "data", "motorcycle_right.png"),
    ("sklearn", "datasets/images", "china.jpg"),
    ("sklearn", "datasets/images", "flower.jpg"),
]

# File sizes of ImageNet's training set: about log-normal in the body, bounded here at both ends.
MEAN_BYTES, SPREAD_BYTES = 113_000, 62_000
LEAST_BYTES, MOST_BYTES = 4_000, 500_000
TYPICAL_PIXELS = 500 * 375
LEAST_PIXELS, MOST_PIXELS = 64 * 48, 1_000_000
QUALITIES = (40, 98)  # below, pictures fall into blocks; above, sizes explode
TRIAL_QUALITY = 94
CLOSE_ENOUGH = 0.1  # a file this near its drawn size is kept: the drawn sizes vary far more
ASPECTS = (4 / 3, 4 / 3, 4 / 3, 3 / 4, 1.0, 3 / 2)  # most ImageNet pictures are 500 x 375


@dataclass(frozen=True)
class Recipe:
    """All that decides the bytes; the manifest holds it."""

    count: int
    val_count: int
    classes: int
    seed: int
    pillow: str = PIL.__version__
    generator: int = GENERATOR_VERSION


@dataclass(frozen=True)
class Task:
    """One image to make."""

    path: str
    seed: str


def photograph_paths() -> list[Path]:
    """Where the photographs are, without importing their packages."""
    paths = []
    for package, folder, name in PHOTOGRAPHS:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"make_images: the package {package} is not installed (pip install -e '.[demo]')")
        paths.append(Path(spec.submodule_search_locations[0]) / folder / name)
    return paths


@functools.cache
def photograph(number: int) -> Image.Image:
    return Image.open(photograph_paths()[number]).convert("RGB")


def draw_size(rng: random.Random) -> float:
    """A file size in bytes."""
    variance = math.log(1 + (SPREAD_BYTES / MEAN_BYTES) ** 2)
    while True:
        size = rng.lognormvariate(math.log(MEAN_BYTES) - variance / 2, math.sqrt(variance))
        if LEAST_BYTES <= size <= MOST_BYTES:
            return size


def draw_crop(rng: random.Random, target: float) -> Image.Image:
    """A part of a photograph, with about as many pixels as ImageNet's pictures of `target` bytes have."""
    source = photograph(rng.randrange(len(PHOTOGRAPHS)))
    aspect = rng.choice(ASPECTS) * rng.uniform(0.95, 1.05)
    share = rng.uniform(0.7, 1.0)
    width = share * min(source.width, source.height * aspect)
    height = width / aspect
    left, top = rng.uniform(0, source.width - width), rng.uniform(0, source.height - height)
    pixels = TYPICAL_PIXELS * math.sqrt(target / MEAN_BYTES) * rng.lognormvariate(0, 0.15)
    pixels = min(MOST_PIXELS, max(LEAST_PIXELS, pixels))
    size = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
    box = (left, top, left + width, top + height)
    crop = source.resize(size, Image.Resampling.BICUBIC, box)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def compress(image: Image.Image, quality: int) -> bytes:
    with io.BytesIO() as file:
        image.save(file, "JPEG", quality=quality)
        return file.getvalue()


def better_quality(quality: int, ratio: float) -> int:
    """The quality at which a file gets about `ratio` times as large.

    A file's size goes about with the power -0.7 of the quantisation step: in libjpeg, 2 - quality / 50.
    """
    step = (2 - quality / 50) * math.pow(ratio, -1 / 0.7)
    return max(QUALITIES[0], min(QUALITIES[1], round(50 * (2 - step))))


def make_jpeg(rng: random.Random) -> bytes:
    """An image of a random size that follows ImageNet's."""
    target = draw_size(rng)
    crop = draw_crop(rng, target)
    quality, data = TRIAL_QUALITY, compress(crop, TRIAL_QUALITY)
    for _ in range(2):
        wanted = better_quality(quality, target / len(data))
        if abs(len(data) / target - 1) < CLOSE_ENOUGH or wanted == quality:
            break
        quality, data = wanted, compress(crop, wanted)
    ratio = target / len(data)
    if abs(ratio - 1) > CLOSE_ENOUGH:  # a smooth picture has too few bytes at any quality: make it larger
        scale = math.sqrt(min(ratio**1.4, MOST_PIXELS / (crop.width * crop.height)))
        size = max(32, round(crop.width * scale)), max(32, round(crop.height * scale))
        data = compress(crop.resize(size, Image.Resampling.BICUBIC), quality)
    return data


def write_image(task: Task) -> tuple[str, int]:
    """Make the file; returns a digest of it and its size."""
    data = make_jpeg(random.Random(task.seed))
    Path(task.path).write_bytes(data)
    return hashlib.blake2b(data, digest_size=16).hexdigest(), len(data)


def tasks(root: Path, recipe: Recipe) -> list[Task]:
    """All images of the tree, named as ImageNet's are."""
    found = []
    for split, count in (("train", recipe.count), ("val", recipe.val_count)):
        for number in range(count):
            label = number % recipe.classes
            name = f"n{label:08d}_{number // recipe.classes}.JPEG"
            path = root / split / f"n{label:08d}" / name
            found.append(Task(os.fspath(path), f"{recipe.seed}/{split}/{number}"))
    return found


def manifest_path(root: Path) -> Path:
    return root.with_name(root.name + ".json")


def build(root: Path, recipe: Recipe, progress: bool = True) -> dict[str, float]:
    """Make the tree at `root` unless it is there already; returns {"files", "mean_bytes", "spread_bytes"}.

    A tree of another recipe, or a half-made one, is replaced; a directory that this did not make is refused.
    """
    manifest = manifest_path(root)
    described = json.loads(manifest.read_text()) if manifest.exists() else None
    if described and described["recipe"] == asdict(recipe) and described["summary"] and root.is_dir():
        summary: dict[str, float] = described["summary"]
        return summary
    if root.exists() and described is None:
        raise SystemExit(f"make_images: {root} exists and was not made by this; name another directory")
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(manifest, recipe, None)  # half-made until the summary is there
    summary = summarise(run(tasks(root, recipe), progress))
    write_manifest(manifest, recipe, summary)
    return summary


def write_manifest(path: Path, recipe: Recipe, summary: dict[str, float] | None) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"recipe": asdict(recipe), "summary": summary}, indent=1) + "\n")
    temporary.replace(path)


def run(todo: list[Task], progress: bool) -> list[tuple[str, int]]:
    for directory in {os.path.dirname(task.path) for task in todo}:
        os.makedirs(directory)
    context = multiprocessing.get_context("spawn")
    with context.Pool(len(os.sched_getaffinity(0))) as pool:
        results: Iterable[tuple[str, int]] = pool.imap_unordered(write_image, todo, chunksize=16)
        bar = tqdm(results, total=len(todo), desc="making images", unit="file", disable=None if progress else True)
        return list(bar)


def summarise(made: list[tuple[str, int]]) -> dict[str, float]:
    """Checks that all files differ."""
    if len({digest for digest, _ in made}) != len(made):
        raise SystemExit("make_images: two images are the same; use another seed")
    sizes = [size for _, size in made]
    mean = sum(sizes) / len(sizes)
    spread = math.sqrt(sum((size - mean) ** 2 for size in sizes) / len(sizes))
    return {"files": len(made), "mean_bytes": round(mean), "spread_bytes": round(spread)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build an ImageFolder of JPEG files that resembles ImageNet.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--count", type=int, default=8000, help="training images")
    parser.add_argument("--val-count", type=int, default=200, help="validation images")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(argv)
    recipe = Recipe(arguments.count, arguments.val_count, arguments.classes, arguments.seed)
    summary = build(arguments.root.absolute(), recipe)
    kilobytes = f"{summary['mean_bytes'] / 1000:.0f} KB +- {summary['spread_bytes'] / 1000:.0f} KB"
    print(f"{arguments.root}: {summary['files']:.0f} files, {kilobytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
