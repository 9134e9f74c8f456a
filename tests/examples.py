"""The number of examples of random tests: all in CI and in `make test-all`, a fifth elsewhere."""

from __future__ import annotations

import os

ALL = os.environ.get("NOPFSFS_EXAMPLES") == "all"


def examples(count: int) -> int:
    """`count`, or a fifth of it; at least 1."""
    return count if ALL else max(1, count // 5)
