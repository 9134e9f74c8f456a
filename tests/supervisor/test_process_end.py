"""The end of a supervisor whose thread still searches."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_search_does_not_bring_it_down() -> None:
    script = SCRIPT.format(failed=False)
    ended = [subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30) for _ in range(TIMES)]
    assert [(one.returncode, one.stderr) for one in ended] == TIMES * [(0, b"")]


def test_its_failure_shows_in_its_status() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT.format(failed=True)], timeout=30).returncode == 1
