"""A process sees how its children end, also where whoever started it ignores SIGCHLD."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

COMMAND = """
import subprocess
from nopfsfs.cli.error_exit import run
raise SystemExit(run("test", lambda: subprocess.run(["sh", "-c", "exit 7"]).returncode))
"""
PROCESS = """
import subprocess
from nopfsfs.config import MountConfig
from nopfsfs.system.process_setup import Handoff, begin
begin(["", str(Handoff("super", MountConfig(source="/s", mountpoint="/m", state_dir=""), {}, {}).write())])
raise SystemExit(subprocess.run(["sh", "-c", "exit 7"]).returncode)
"""


@pytest.mark.parametrize("script", [COMMAND, PROCESS], ids=["command", "process of a mount"])
def test_it_sees_a_failure(script: str) -> None:
    started = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        timeout=30,
    )
    assert started.returncode == 7
