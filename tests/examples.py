"""The examples of random tests: all in CI and in `make test-all`, a fifth of them elsewhere.

They are the same at each run of a test, until the test changes: a change is judged by its own faults. `make test-all`
draws new ones each time. What it finds becomes an `@example`.
"""

from __future__ import annotations

import os

ALL = os.environ.get("NOPFSFS_EXAMPLES") in ("all", "new")
SAME = os.environ.get("NOPFSFS_EXAMPLES") != "new"


def examples(count: int) -> int:
    """`count`, or a fifth of it; at least 1."""
    return count if ALL else max(1, count // 5)
