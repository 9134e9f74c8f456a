"""The report in the job's directory, however a mount ends; and the end of all mounts of a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.control.process_list import living, read_pids
from nopfsfs.fuse.mount_table import find_mount
from tests.conftest import FakeMount, long, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import fill, module, mounted, read_all, run
from tests.mount.users import NOBODY
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")]


@pytest.fixture
def data(open_to_all: Path) -> Path:
    fill(open_to_all / "source", 40, 20_000)
    return open_to_all / "source"


@pytest.fixture
def report(open_to_all: Path) -> Path:
    """A file in the directory of user NOBODY, which is not there yet."""
    (open_to_all / "job").mkdir()
    (open_to_all / "job").chmod(0o700)
    os.chown(open_to_all / "job", NOBODY, NOBODY)
    return open_to_all / "job" / "nopfs.json"


def written(report: Path) -> dict[str, Any]:
    assert report.stat().st_uid == NOBODY
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("how", ["umount", slow("SIGTERM"), long("nopfs-umount --report")])
def test_it_is_there_when_the_mount_has_ended(how: str, mounting: Mounting, data: Path, report: Path) -> None:
    with mounting(data, "--user", str(NOBODY), "--job-report", str(report)) as m:
        read_all(m, 1)
        if how == "umount":
            assert run(["umount", str(m.path)]).returncode == 0
            m.wait_gone()
        elif how == "SIGTERM":
            m.kill("supervisor", signal.SIGTERM)
            m.wait_gone()
        else:
            assert m.umount().returncode == 0
            assert m.report == written(report)
    found = written(report)
    assert (found["state"], found["final"], found["opens"]["total"]) == ("ended", True, 40)
    assert os.listdir(report.parent) == [report.name]


@pytest.mark.parametrize("killed", ["supervisor", "all"])
def test_nopfs_umount_writes_it_for_a_mount_that_was_killed(
    killed: str, mounting: Mounting, data: Path, report: Path
) -> None:
    with mounting(data, "--user", str(NOBODY), "--job-report", str(report)) as m:
        processes = read_pids(m.state_dir)
        for process in processes:
            if killed == "all" or process.role == "supervisor":
                process.signal(signal.SIGKILL)
        ended = [process for process in processes if killed == "all" or process.role == "supervisor"]
        assert wait_until(lambda: not living(ended))
        assert run([*module("umount"), str(m.path)]).returncode == 0
        m.wait_gone()
    found = written(report)
    assert (found["state"], found["final"], found["source"]) == ("killed", False, str(data))


@pytest.mark.long
def test_a_report_that_cannot_be_written_costs_the_report_alone(
    mounting: Mounting, data: Path, open_to_all: Path
) -> None:
    with mounting(data, "--user", str(NOBODY), "--job-report", str(open_to_all / "none/r")) as m:
        read_all(m, 1)
    log = m.log.read_text()
    assert f"the report {open_to_all}/none/r could not be written: No such file or directory" in log


@pytest.mark.long
def test_below_ends_all_mounts_there_also_dead_ones(data: Path, open_to_all: Path) -> None:
    (open_to_all / "dead").mkdir()
    dead = FakeMount(data, open_to_all / "dead")
    try:
        dead.kill()
        for name in ("one", "two", "beside"):
            (open_to_all / name).mkdir()
        with (
            mounted(data, work=open_to_all / "one") as one,
            mounted(data, work=open_to_all / "two") as two,
            mounted(data, work=open_to_all / "beside") as other,
        ):
            done = run([*module("umount"), "--below", str(open_to_all / "one")])
            assert (done.returncode, one.is_mounted(), two.is_mounted()) == (0, False, True), done.stderr
            assert find_mount(dead.mountpoint) is not None
            done = run([*module("umount"), "--below", str(open_to_all), "--timeout", "1s"])
            assert done.returncode == 0, done.stderr
            assert "cleared the stale mount" in done.stderr
            assert not two.is_mounted()
            assert not other.is_mounted()
            assert run([*module("umount"), "--below", str(open_to_all)]).returncode == 0
    finally:
        dead.end()


@pytest.mark.long
def test_below_names_what_it_could_not_end_and_goes_on(data: Path, open_to_all: Path) -> None:
    (open_to_all / "a").mkdir()
    (open_to_all / "b").mkdir()
    with mounted(data, work=open_to_all / "a") as busy, mounted(data, work=open_to_all / "b") as free:
        holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=busy.path)
        try:
            done = run([*module("umount"), "--below", str(open_to_all), "--timeout", "0.5"])
        finally:
            holder.communicate(b"\n", timeout=10)
        assert done.returncode == 10, done.stderr
        assert f"(pid {holder.pid}, cwd)" in done.stderr
        assert not free.is_mounted()


def test_below_takes_one_directory_and_nothing_else(tmp_path: Path) -> None:
    done = run([*module("umount"), "--below", str(tmp_path), "--report", "r"])
    assert (done.returncode, "use nopfs-mount --job-report" in done.stderr) == (2, True)
    assert run([*module("umount"), "--below", str(tmp_path), str(tmp_path)]).returncode == 2
    assert run([*module("umount")]).returncode == 2
