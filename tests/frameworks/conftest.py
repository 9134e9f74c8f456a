"""Fixtures of the tests in which real frameworks read through real mounts."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.fuse.mounting import may_mount
from tests.conftest import place_for_all
from tests.mount.harness import mounted

pytest.register_assert_rewrite("tests.frameworks.training")
from tests.frameworks.training import HANGS_S, TRAIN, VAL, Training  # noqa: E402

CLASSES = 20
SIDE = 8  # pixels: decoding must cost nothing


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder `train` and `val` of real JPEG files, each of which has pixels of its own."""
    image = pytest.importorskip("PIL.Image")
    root = place_for_all(tmp_path_factory, "images")
    pixels = np.random.default_rng(0).integers(0, 256, (TRAIN + VAL, SIDE, SIDE, 3), dtype=np.uint8)
    for number, one in enumerate(pixels):
        split, at = ("train", number) if number < TRAIN else ("val", number - TRAIN)
        path = root / split / f"n{at % CLASSES:08}" / f"n{at % CLASSES:08}_{at // CLASSES}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(one).save(path, quality=90)
    return root


@pytest.fixture
def training(images: Path, tmp_path: Path) -> Training:
    """What a test needs to let a job read `images` through a mount of its own."""
    if not may_mount() or not os.path.exists("/dev/fuse"):
        pytest.skip("needs the right to call mount(2), and /dev/fuse")
    return Training(images, tmp_path, partial(mounted, work=tmp_path, hangs_s=HANGS_S))
