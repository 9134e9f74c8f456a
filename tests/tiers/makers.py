"""Disk tiers of other processes, which live or were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAKER = """
import os, sys
from nopfsfs.tiers.disk import Disk
disk = Disk(sys.argv[1], None if sys.argv[2] == "-" else int(sys.argv[2]))
disk.open(int(sys.argv[3]), int(sys.argv[3]))
disk.write(7, memoryview(b"seven"))
disk.write(263, memoryview(b"same subdirectory"))
print(disk.home, flush=True)
sys.stdin.read()
"""


def start_maker(path: Path, uid: int = -1) -> tuple[subprocess.Popen[str], Path]:
    """Another process that has a tier open in `path`, with two copies; and its directory."""
    argv = [sys.executable, "-c", MAKER, str(path), str(1 << 20), str(uid)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
