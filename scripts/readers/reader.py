#!/usr/bin/env python3
"""Reads each file of a list as Python programs do: the counterpart of reader.c, with the same output.

python reader.py LIST [REPEATS [wait]]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def read_all(paths: list[str]) -> int:
    """Bytes read."""
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            total += len(file.read())
    return total


def main() -> None:
    paths = Path(sys.argv[1]).read_text(errors="surrogateescape").splitlines()
    wait = sys.argv[3:] == ["wait"]
    if wait:
        print("ready", flush=True)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        if wait:
            sys.stdin.readline()
        started = time.perf_counter()
        total = read_all(paths)
        seconds = time.perf_counter() - started
        print(json.dumps({"files": len(paths), "bytes": total, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
