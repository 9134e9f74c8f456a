"""A small source tree, and what is made of it for the inputs."""

from __future__ import annotations

import os
from pathlib import Path

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import scan

FILES = 24
SIZES = (0, 1, 100, 4096, 4097, 13_000, 70_000)


def make_tree(root: Path) -> Index:
    """Files in classes, a link, a hard link, a fifo, deep directories and long names; the index of it."""
    for number in range(FILES):
        path = root / f"train/class{number % 3}/{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number % 251]) * SIZES[number % len(SIZES)])
    os.symlink("class0/0000.jpg", root / "train/link.jpg")
    os.symlink("/nowhere", root / "train/out")
    os.link(root / "train/class1/0001.jpg", root / "train/again.jpg")
    os.mkfifo(root / "train/fifo")
    (root / "a/b/c/d").mkdir(parents=True)
    (root / "a/b/c/d" / ("n" * 255)).write_bytes(b"long")
    (root / "empty").mkdir()
    return scan(str(root)).index
