"""The job of `scripts/identifying/job.py`: in step, begun in step, and who failed is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from identifying import mounts

from tests.waiting import wait_until

APART, READERS = 2, 12
LATE_S = 0.5


def begin(work: Path, names: list[str]) -> subprocess.Popen[str]:
    """A job of one open a reader, number N of name N, all due at once."""
    said = work / "job.json"
    readers = [[[number, number]] for number in range(len(names))]
    said.write_text(json.dumps({"root": str(work), "names": names, "pause": 0, "apart": APART, "readers": readers}))
    command = [sys.executable, "-I", "-S", mounts.JOB, said]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_no_reader_is_begun_before_its_turn(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(READERS)]
    os.mkfifo(tmp_path / names[0])  # its open waits until somebody writes
    for name in names[1:]:
        (tmp_path / name).write_bytes(b"x")
    with begin(tmp_path, names) as job:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        try:
            assert wait_until(lambda: children.read_text().split())
            time.sleep(LATE_S)
            begun = children.read_text().split()
            os.close(os.open(tmp_path / names[0], os.O_RDWR))  # wakes the reader, and waits for none
            assert job.wait(20) == 0
        finally:
            job.kill()
    assert 1 <= len(begun) <= APART + 1


def test_who_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "f0").write_bytes(b"x")
    with begin(tmp_path, ["f0", "gone"]) as job:
        assert job.wait(20) != 0
        assert job.stderr is not None
        assert "open 1: FileNotFoundError" in job.stderr.read()
