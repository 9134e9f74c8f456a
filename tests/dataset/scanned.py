"""Trees to be scanned, and scans, for tests."""

import os
import re
import time
from pathlib import Path

from nopfsfs.dataset.directory_scan import RACY_NS
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import ScanResult

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


def left_out(result: ScanResult) -> int:
    """How many entries the scan says it has left out."""
    return _counted(result, "left out")


def links_leaving(result: ScanResult) -> int:
    """How many links out of the source the scan says it has kept as links."""
    return _counted(result, "symbolic links lead out")


def _counted(result: ScanResult, what: str) -> int:
    found = [re.match(rf"(\d+) {what}", line) for line in result.warnings]
    return sum(int(one[1]) for one in found if one)
