"""Which calls of the kernel are missing is found by trying each, without any effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
import without_calls

from nopfsfs.system.abilities import CALLS, missing

NAMES = [call.name for call in CALLS]
TELL = "import json; from nopfsfs.system.abilities import missing; print(json.dumps(missing()))"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a filter of system calls takes root")


def missing_without(names: Sequence[str], number: str) -> dict[str, str]:
    command = [sys.executable, without_calls.__file__, *names, "--errno", number, "--", sys.executable, "-c", TELL]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    found: dict[str, str] = json.loads(subprocess.check_output(command, env=environment, timeout=30))
    return found


def test_a_try_changes_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    assert missing().keys() <= set(NAMES)
    assert os.listdir("/proc/self/fd") == before


@needs_root
@pytest.mark.parametrize("number", ["ENOSYS", "EPERM"])
def test_calls_that_fail_are_missing(number: str) -> None:
    here = missing().keys()
    for names in (["openat2"], ["pidfd_send_signal", "cachestat"], NAMES):
        found = missing_without(names, number)
        assert found.keys() == here | set(names)
        assert all(found.values())
