"""Mounts without calls that older kernels lack, or containers forbid: reads are right, and what is weaker is said."""

from __future__ import annotations

import errno
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import without_calls

from nopfsfs.system.abilities import CALLS, missing
from tests.conftest import long, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import fill, module, read_all, run
from tests.mount.reading import comparing
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="a filter of system calls takes root"),
]

NAMES = [call.name for call in CALLS]
DOCTOR_S = 40.0  # as docs/reliability.md promises


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 60, 60_000)
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (NAMES, errno.ENOSYS),
        *[slow([name], errno.ENOSYS) for name in NAMES],
        long(["openat2"], errno.EPERM), slow(["pidfd_open"], errno.EPERM),
    ],
    ids=lambda value: "all" if value == NAMES else errno.errorcode.get(value) if isinstance(value, int) else value[0],
)
def test_without_calls(mounting: Mounting, data: Path, names: list[str], number: int) -> None:
    """Processes are killed, too, for their ends are seen in another way where there is no pidfd."""
    with mounting(data, "--ram", "16M", preexec_fn=partial(without_calls.forbid, names, number)) as m:
        m.errors_expected = True  # it says that they died
        read_all(m)
        with comparing(m, readers=2, rounds="all"):
            for role in ("stager", "server"):
                pid = m.kill(role)
                assert wait_until(lambda: m.pid(role) != pid)  # noqa: B023 - called before the next turn
        m.wait_status(lambda status: all(process["running"] for process in status["processes"]))
        status = m.status()
        assert status["read_errors"] == 0
        found = {one["what"]: one["effect"] for one in status["kernel"]}
        assert found.keys() == set(names) | missing().keys()
        text = run([*module("nopfs"), "status", str(m.path)]).stdout
        for name, effect in found.items():
            assert f"kernel     no {name}: {effect}\n" in text
        words = ["doctor", str(m.path), "--output", str(m.log.with_suffix(".tar.gz"))]
        doctor = run([*module("nopfs"), *words], DOCTOR_S).stdout
        assert all(name in doctor for name in names)


@pytest.mark.parametrize("name", ["pidfd_send_signal", long("pidfd_open")])
def test_processes_are_ended_without_pidfds(mounting: Mounting, data: Path, name: str) -> None:
    """A stopped supervisor ends nothing by itself: nopfs-umount has to send signals."""
    with mounting(data) as m:
        m.kill("supervisor", signal.SIGSTOP)
        done = run([*module("umount"), str(m.path)], preexec_fn=partial(without_calls.forbid, [name]))
        assert done.returncode == 0, done.stderr
        m.wait_gone()
