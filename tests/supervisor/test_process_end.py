"""The end of a supervisor: while its thread still searches, and when it fails as it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TIMES = 8  # NumPy's threads bring down one interpreter in two that ends by itself
SCRIPT = """
import threading
from types import SimpleNamespace

import numpy as np
import trio

from nopfsfs.supervisor import process as supervisor


def search():
    rows = np.random.default_rng(0).integers(0, 1 << 30, 200_000)
    while True:
        np.unique(rows)


class Supervisor:
    keeps_state, failed = True, {failed}

    def __init__(self, *args):
        pass

    async def run(self):
        threading.Thread(target=search, daemon=True).start()
        await trio.sleep(0.1)


supervisor.Supervisor = Supervisor
supervisor.begin = lambda argv: SimpleNamespace(config=SimpleNamespace(peers=None, state_dir=""))
supervisor.main()
"""


@pytest.mark.long
def test_a_search_does_not_bring_it_down() -> None:
    script = SCRIPT.format(failed=False)
    ended = [subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30) for _ in range(TIMES)]
    assert [(one.returncode, one.stderr) for one in ended] == TIMES * [(0, b"")]


def test_its_failure_shows_in_its_status() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT.format(failed=True)], timeout=30).returncode == 1


FAILING = """
import logging
import sys
from types import SimpleNamespace

from nopfsfs.supervisor import process as supervisor
from nopfsfs.system.state_dirs import StateDir

logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)


class Supervisor:
    keeps_state, failed = True, False

    def __init__(self, *args):
        self.state_dir = StateDir(sys.argv[1])

    def say_ready(self, error):
        print(error)

    async def run(self):
        raise FileNotFoundError("no state")


supervisor.Supervisor = Supervisor
supervisor.begin = lambda argv: SimpleNamespace(config=SimpleNamespace(peers=None))
supervisor.main()
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_failure_is_an_error_unless_the_mount_was_cleared_away_as_it_started(tmp_path: Path, there: bool) -> None:
    """As by the next nopfs-mount, after the one that started the supervisor was killed."""
    state_dir = tmp_path if there else tmp_path / "gone"
    done = subprocess.run([sys.executable, "-c", FAILING, state_dir], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "FileNotFoundError: no state\n")
    first, *rest = done.stderr.splitlines()
    assert first == f"{'ERROR' if there else 'INFO'}: the supervisor failed: FileNotFoundError: no state"
    assert bool(rest) == there, "a traceback"
