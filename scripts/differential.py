#!/usr/bin/env python3
"""A mount and its source side by side under thousands of random steps, by four users; needs root.

    python scripts/differential.py --steps 2000 --seed 1 --kind plain
    python scripts/differential.py --steps 300 --kind all

What is done and what must hold: tests/mount/differing.py, which this runs. Exit code 1: a difference was found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("plain", "roomy", "ranges", "disk", "passthrough", "two servers", "tripwire", "no fast path", "slow",
         "slow, disk")  # fmt: skip


def main(argv: list[str]) -> int:
    kinds: list[str | None] = [None]
    if "all" in argv and argv[argv.index("all") - 1] == "--kind":
        at = argv.index("all") - 1
        argv, kinds = argv[:at] + argv[at + 2 :], list(KINDS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    failed = 0
    for kind in kinds:
        words = [*argv, *(["--kind", kind] if kind is not None else [])]
        done = subprocess.run([sys.executable, "-m", "tests.mount.differing", *words], env=environment, check=False)
        failed |= done.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
