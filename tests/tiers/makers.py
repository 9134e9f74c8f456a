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
print(os.path.join(disk.path, disk._directory.name), flush=True)
sys.stdin.read()
"""


KILLED_AT_EACH_CALL = """
import os, signal, sys
from nopfsfs.tiers.disk import Disk
from nopfsfs.tiers.tier_directory import clear_leftovers

path, uid, us = sys.argv[1], int(sys.argv[2]), os.geteuid()

def make_and_remove(calls):
    def count(frame, event, arg):
        nonlocal calls
        if event == "c_call":
            calls -= 1
            if calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    disk = Disk(path, 1 << 20)
    sys.setprofile(count)
    disk.open(uid, uid)
    os.seteuid(us if uid < 0 else uid)
    disk.write(7, memoryview(b"seven"))
    os.seteuid(us)
    disk.close()
    sys.setprofile(None)
    os._exit(0)

calls, found = 0, 0
while True:
    child = os.fork()
    if child == 0:
        make_and_remove(calls)
    _, status = os.waitpid(child, 0)
    found += bool(os.listdir(path))
    clear_leftovers(path, None if uid < 0 else uid)
    assert os.listdir(path) == [], (calls, os.listdir(path))
    if status == 0:
        break
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    calls += 1
print(calls, found)
"""


def killed_at_each_call(path: Path, uid: int = -1) -> tuple[int, int]:
    """Make and remove a tier in `path` in processes that are killed, each one call later than the one before. Return
    how many were killed, and how many of them left a directory. What they left must be cleared each time."""
    argv = [sys.executable, "-c", KILLED_AT_EACH_CALL, str(path), str(uid)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls, found = done.stdout.split()
    return int(calls), int(found)


def start_maker(path: Path, uid: int = -1) -> tuple[subprocess.Popen[str], Path]:
    """Another process that has a tier open in `path`, with two copies; and its directory."""
    argv = [sys.executable, "-c", MAKER, str(path), str(1 << 20), str(uid)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
