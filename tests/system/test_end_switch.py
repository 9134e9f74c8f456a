"""The switch ends those who have armed it, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nopfsfs.system import end_switch

SLEEPER = """
import os, sys, time
from nopfsfs.system import end_switch
if sys.argv[2] == "arm":
    end_switch.arm(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
NOBODY = 65534


@pytest.fixture
def switch() -> Iterator[int]:
    fd = end_switch.create()
    yield fd
    os.close(fd)


def sleeper(switch: int, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(switch), how], pass_fds=[switch], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_it_ends_all_that_have_armed_it_also_stopped_ones(switch: int) -> None:
    armed, stopped, other = sleeper(switch, "arm"), sleeper(switch, "arm"), sleeper(switch, "not")
    try:
        stopped.send_signal(signal.SIGSTOP)
        end_switch.throw(switch)
        assert armed.wait(20) == stopped.wait(20) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (armed, stopped, other):
            process.kill()
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_ends_a_process_of_root_by_it(switch: int) -> None:
    armed = sleeper(switch, "arm")
    try:
        thrower = subprocess.run(
            [sys.executable, "-c", f"import os; os.setresuid(*[{NOBODY}] * 3); os.write({switch}, b'x')"],
            pass_fds=[switch], check=True, timeout=10,
        )  # fmt: skip
        assert thrower.returncode == 0
        assert armed.wait(20) == -signal.SIGKILL
    finally:
        armed.kill()
        armed.communicate()
