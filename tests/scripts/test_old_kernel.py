"""`scripts/old_kernel.sh`: a script runs under an older Linux; where that is not to be had, it says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts" / "old_kernel.sh"
NOT_TO_BE_HAD = 77


def old_kernel(*arguments: str, limit_s: float = 900, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(PROGRAM), *arguments], capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_kernel_that_is_not_known_is_refused() -> None:
    done = old_kernel("4.18", "/dev/null")
    assert (done.returncode, done.stderr) == (2, "old_kernel.sh: 5.10 or 6.1, not 4.18\n")


def test_where_qemu_cannot_be_had_that_is_said(tmp_path: Path) -> None:
    for name in ("bash", "readlink"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    (tmp_path / "apt-get").write_text("#!/bin/bash\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    done = old_kernel("5.10", "/dev/null", PATH=str(tmp_path))
    assert (done.returncode, "cannot install: qemu-system-x86 busybox-static cpio" in done.stderr) == (
        NOT_TO_BE_HAD,
        True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_a_script_runs_under_an_old_kernel() -> None:
    script = PROGRAM.parents[1] / "tests" / "scripts" / "old_kernel_guest.sh"
    done = old_kernel("5.10", str(script), "a b", "$c", OLD_KERNEL_LIMIT="600", OLD_KERNEL_MEMORY="1000")
    if done.returncode == NOT_TO_BE_HAD:
        pytest.skip(done.stderr)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "<a b> <$c>\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("old_kernel.sh: 5.10.0-")


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
@pytest.mark.parametrize("kernel", ["5.10", "6.1"])
def test_deaths_cost_nothing_under_an_old_kernel(kernel: str) -> None:
    script = str(PROGRAM.with_name("kernel_case.sh"))
    done = old_kernel(kernel, script, sys.executable, "--slow", "20", limit_s=1950, OLD_KERNEL_LIMIT="1800")
    if done.returncode == NOT_TO_BE_HAD:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["kernel"].startswith(f"{kernel}.0-")
    assert (found["kills"], found["failed"], found["wrong"], found["left"]) == (20, 0, 0, [])
    assert (found["redelivery"], found["missing"]) == ("records", ["cachestat"])


@pytest.mark.mount
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_the_case_is_played_here(tmp_path: Path) -> None:
    """Under this machine's kernel, in the way of older ones."""
    command = [sys.executable, str(PROGRAM.with_name("kernel_case.py")), "--work", str(tmp_path), "--kills", "2"]
    environment = {**os.environ, "NOPFS_WITHOUT": "resend", "PYTHONPATH": str(PROGRAM.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["redelivery"] == "records"
