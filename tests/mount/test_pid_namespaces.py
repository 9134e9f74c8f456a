"""Mounts in pid namespaces of their own, as containers have, that share the place of the state directories."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nopfsfs.control.process_list import living, read_pids
from nopfsfs.fuse.mounting import may_mount
from nopfsfs.system import life_lock
from tests.conftest import state_dirs_at
from tests.mount.harness import TEST_ID, Mounted, mounted, read_all, run, write
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0 or not may_mount(), reason="needs namespaces"),
]
APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
MODULE = f"{sys.executable} -m nopfsfs.cli."
FILES = {f"a/{number}": b"%d" % number * 1000 for number in range(8)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    write(source, FILES)
    return source


def apart(m: Mounted, script: str) -> str:
    """Run a shell script where no process of the mount can be seen; return what it printed."""
    done = run([*APART, "sh", "-ec", script], env={**os.environ, TEST_ID: m.test_id})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_mount_there_leaves_the_state_of_one_here(data: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with mounted(data, work=tmp_path) as m:
        before = read_pids(m.state_dir)
        script = f"{MODULE}mount --index-dir {tmp_path}/index {data} {there}; cat {there}/a/7; {MODULE}umount {there}"
        assert apart(m, script).encode().startswith(FILES["a/7"])
        assert living(before) == before
        assert m.status()["state"] == "running"
        read_all(m, readers=1)


@pytest.mark.long
def test_a_mount_that_was_killed_there_is_swept_here(data: Path, tmp_path: Path) -> None:
    """With its namespace all of its processes end."""
    there = tmp_path / "there"
    there.mkdir()
    with mounted(data, work=tmp_path) as m:
        apart(m, f"{MODULE}mount --index-dir {tmp_path}/index {data} {there}; cat {there}/a/7")
        left = state_dirs_at(there)
        assert len(left) == 1
        assert wait_until(lambda: not life_lock.is_held(str(left[0])))
        assert m.umount().returncode == 0
        with mounted(data, work=tmp_path):
            assert state_dirs_at(there) == []


@pytest.mark.long
def test_a_mount_that_is_seen_there_is_not_taken_for_dead(data: Path, tmp_path: Path) -> None:
    with mounted(data, work=tmp_path) as m:
        assert "running" in apart(m, f"{MODULE}nopfs status {m.path} --json")
        words = apart(m, f"{MODULE}nopfs doctor --output {tmp_path}/archive.tar.gz {m.path}")
        found = " ".join(words.split())
        assert "cannot be seen from here" in found
        assert "are gone" not in found
        assert m.status()["state"] == "running"


@pytest.mark.long
def test_its_end_is_ordered_there(data: Path, tmp_path: Path) -> None:
    """Who unmounts waits for the end of processes that it cannot see."""
    with mounted(data, work=tmp_path) as m:
        apart(m, f"{MODULE}umount {m.path}")
        assert not m.living()
        assert state_dirs_at(m.path) == []
