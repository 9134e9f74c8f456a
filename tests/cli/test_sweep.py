"""What killed mounts leave in the run directory is removed at the next start, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nopfsfs.control.process_list import PIDS_FILE, start_time, write_pids
from nopfsfs.control.stale_mounts import is_orphaned, sweep_run_dir
from nopfsfs.system import life_lock


def dead_pid_in(directory: Path) -> None:
    directory.mkdir()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_pids(str(directory), {"supervisor": process.pid})
    process.communicate(b"\n")


def test_only_the_dead_are_swept(tmp_path: Path) -> None:
    dead_pid_in(tmp_path / "dead")
    (tmp_path / "being made").mkdir()
    (tmp_path / "alive").mkdir()
    write_pids(str(tmp_path / "alive"), {"supervisor": os.getpid()})
    sweep_run_dir(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alive", "being made"]


def test_who_lives_where_process_ids_say_nothing(tmp_path: Path) -> None:
    """A mount of another pid namespace: its processes are not seen, but they hold its lock."""
    dead_pid_in(tmp_path / "mount")
    alive = life_lock.make(str(tmp_path / "mount"))
    sweep_run_dir(str(tmp_path))
    assert (tmp_path / "mount").exists()
    os.close(alive)
    sweep_run_dir(str(tmp_path))
    assert not (tmp_path / "mount").exists()


HERE, GONE = os.getpid(), 1 << 23  # no process has such a number


@pytest.mark.parametrize(
    ("roles", "orphaned", "kept"),
    [
        ({"supervisor": HERE, "server": HERE}, False, True),
        ({"supervisor": GONE, "server": HERE, "stager": GONE}, True, True),
        ({"supervisor": GONE, "server": GONE, "server-1": HERE}, True, True),
        ({"supervisor": GONE, "stager": HERE}, False, True),
        ({"supervisor": GONE, "server": GONE}, False, False),
        ({}, False, True),
    ],
)
def test_a_mount_without_its_supervisor_is_orphaned_as_long_as_a_server_lives(
    roles: dict[str, int], orphaned: bool, kept: bool, tmp_path: Path
) -> None:
    state_dir = tmp_path / "mount"
    state_dir.mkdir()
    listed = {role: {"pid": pid, "start_time": start_time(pid) or 1} for role, pid in roles.items()}
    (state_dir / PIDS_FILE).write_text(json.dumps(listed))
    assert is_orphaned(str(state_dir)) == orphaned
    sweep_run_dir(str(tmp_path))
    assert state_dir.exists() == kept


def test_a_missing_run_directory_is_no_error(tmp_path: Path) -> None:
    sweep_run_dir(str(tmp_path / "none"))
    assert os.listdir(tmp_path) == []
