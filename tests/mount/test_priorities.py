"""Who answers readers runs before who works ahead of them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Mounting
from tests.mount.harness import write

pytestmark = pytest.mark.mount


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "source", {"a": b"x"})
    return tmp_path / "source"


@pytest.mark.long
def test_servers_come_first_and_so_do_those_that_replace_them(mounting: Mounting, source: Path) -> None:
    with mounting(source) as m:
        m.errors_expected = True  # a server is killed
        try:
            os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, os.getpid()) - 1)
            os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, os.getpid()) + 1)
        except PermissionError:
            pytest.skip("nobody may be given a higher priority here")
        for _ in range(2):
            nice = {role: os.getpriority(os.PRIO_PROCESS, m.pid(role)) for role in ("supervisor", "server", "stager")}
            assert nice == {"supervisor": 0, "server": -10, "stager": 5}
            before = m.kill("server")
            assert (m.path / "a").read_bytes() == b"x"
            m.wait_status(partial(has_another, before))


def has_another(before: int, status: dict[str, Any]) -> bool:
    pids = [process["pid"] for process in status["processes"]]
    return before not in pids and len(pids) == 3
