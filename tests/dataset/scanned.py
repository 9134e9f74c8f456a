"""Trees to be scanned, and scans, for tests."""

import os
import time
from pathlib import Path

from nopfsfs.dataset.directory_scan import RACY_NS
from nopfsfs.dataset.index import Index

LATER = 10 * RACY_NS


def later() -> int:
    """A clock that makes directories made just now look settled."""
    return time.time_ns() + LATER


def fill(root: Path, *files: str, content: bytes = b"x") -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def paths(index: Index) -> set[bytes]:
    return {index.path(row) for row in range(1, index.n)}


def find(index: Index, path: str) -> int:
    row = 0
    for part in os.fsencode(path).split(b"/"):
        row = index.lookup(row, part)
        assert row >= 0, path
    return row
