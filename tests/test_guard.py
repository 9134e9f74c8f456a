"""The guard of the tests themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import guard
from tests.conftest import FakeMounts
from tests.waiting import wait_until

SLEEP = [sys.executable, "-c", "input()"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that ends when its input does."""
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize(("program", "mark"), guard.NEEDS_MARK.items())
def test_a_program_needs_its_mark(program: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["/somewhere" + program if program.startswith("/") else f"/somewhere/{program}", "x"]
    with pytest.raises(guard.MissingMark, match=rf"@pytest\.mark\.{mark}"):
        subprocess.run(argv, check=False)
    monkeypatch.setattr(guard, "running", replace(guard.running, marks=frozenset({mark})))
    with pytest.raises(FileNotFoundError):  # the guard lets it pass
        subprocess.run(argv, check=False)


def test_a_process_that_is_left_is_found(sleeper: subprocess.Popen[bytes]) -> None:
    assert [line for line in guard.processes() if line.startswith(f"{sleeper.pid}: ")] != []
    sleeper.communicate()
    assert [line for line in guard.processes() if line.startswith(f"{sleeper.pid}: ")] == []


def test_so_is_one_whose_starter_has_ended() -> None:
    code = f"import subprocess; subprocess.Popen({['sleep', '60']!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    (left,) = [line for line in guard.processes() if line.endswith(": sleep 60 ")]
    os.kill(int(left.partition(":")[0]), 9)
    assert wait_until(lambda: left not in guard.processes())


def test_a_mount_that_is_left_is_found(fake_mount: FakeMounts, mountpoint: Path, tmp_path: Path) -> None:
    assert guard.fuse_mounts(tmp_path) == []
    fake_mount()
    assert guard.fuse_mounts(tmp_path) == [str(mountpoint)]


def test_marks_follow_from_fixtures(request: pytest.FixtureRequest, fake_mount: FakeMounts) -> None:
    assert "mount" in {mark.name for mark in request.node.iter_markers()}
