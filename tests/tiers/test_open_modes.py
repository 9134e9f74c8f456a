"""The mode in which a file is opened: that in which it is open already, whoever else opens and closes it, or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.fuse import passthrough
from nopfsfs.tiers.open_modes import OpenModes

ROW, ROWS, NUMBER = 3, 8, 41


@pytest.fixture
def numbers() -> memoryview:
    return np.zeros(ROWS, np.int32).data


@pytest.fixture
def modes(numbers: memoryview) -> Iterator[OpenModes]:
    fd = OpenModes.create(ROWS)
    yield OpenModes(fd, numbers)
    os.close(fd)


@pytest.mark.parametrize(
    ("alive", "number", "may_pass", "expected"),
    [
        (0, 0, True, 0),  # not registered
        (0, NUMBER, True, NUMBER),
        (0, NUMBER, False, 0),  # O_DIRECT, or the stager does not know of this server
        (0, -NUMBER, True, 0),  # withdrawn
        (2, NUMBER, True, 0),  # open through the page cache
        (-2, NUMBER, True, NUMBER),
        (-2, NUMBER, False, NUMBER),
        (-2, -NUMBER, True, NUMBER),  # withdrawn, and in use
    ],
)
def test_how_a_file_is_opened(
    modes: OpenModes, numbers: memoryview, alive: int, number: int, may_pass: bool, expected: int
) -> None:
    modes.alive[ROW], numbers[ROW] = alive, number
    assert modes.enter(ROW, may_pass=may_pass) == expected
    assert modes.alive[ROW] == alive + (-1 if expected else 1)
    modes.leave(ROW, passed=expected > 0)
    assert modes.alive[ROW] == alive
    assert modes.passing(ROW) == (alive < 0)


@given(st.lists(st.sampled_from(["open", "close", "register", "withdraw", "grace", "twice", "killed"])))
def test_no_open_meets_another_mode_or_another_number(steps: list[str]) -> None:
    """`kernel`: what it knows to be open, and as what. "twice": an open that another server has answered as well.
    "killed": a server counts an open, and dies before it answers it."""
    numbers = np.zeros(ROWS, np.int32).data
    fd = OpenModes.create(ROWS)
    modes, kernel, registered, last = OpenModes(fd, numbers), list[int](), set[int](), 0
    try:
        for step in steps:
            if step == "open":
                number = modes.enter(ROW, may_pass=True)
                assert not number or number in registered
                assert not kernel or set(kernel) == {number}
                kernel.append(number)
            elif step == "close" and kernel:
                modes.leave(ROW, passed=kernel.pop() > 0)
            elif step == "register" and numbers[ROW] == 0:
                last += 1
                registered.add(last)
                numbers[ROW] = last
            elif step == "withdraw" and numbers[ROW] > 0:
                numbers[ROW] = -numbers[ROW]
            elif step == "grace" and numbers[ROW] < 0 and not modes.passing(ROW):
                registered.discard(-numbers[ROW])
                numbers[ROW] = 0
            elif step == "twice":
                modes.leave(ROW, passed=modes.enter(ROW, may_pass=True) > 0)
            elif step == "killed":
                modes.enter(ROW, may_pass=True)
    finally:
        os.close(fd)


def test_servers_count_together(modes: OpenModes) -> None:
    counting = [get_context("fork").Process(target=_count, args=(modes, 2000)) for _ in range(3)]
    for process in counting:
        process.start()
    for process in counting:
        process.join(60)
        assert process.exitcode == 0
    assert modes.alive[ROW] == 3 * 2000


def _count(modes: OpenModes, times: int) -> None:
    for _ in range(times):
        modes.enter(ROW, may_pass=True)
        modes.enter(ROW, may_pass=True)
        modes.leave(ROW, passed=False)


HOLDER = """
import fcntl, sys, time
fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_server_frees_its_lock_and_holds_up_no_other_row(modes: OpenModes) -> None:
    fd = modes._fd
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(fd), str(ROW)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        modes.enter(ROW + 1, may_pass=True)
        waiting = get_context("fork").Process(target=_count, args=(modes, 1))
        waiting.start()
        time.sleep(0.1)
        assert modes.alive[ROW] == 0
        holder.send_signal(signal.SIGKILL)
        waiting.join(20)
        assert modes.alive[ROW] == 1


def test_without_a_connection_nothing_is_permitted(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert not passthrough.is_permitted(fd)
    finally:
        os.close(fd)
