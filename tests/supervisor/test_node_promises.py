"""What one mount was promised, no other is promised."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.supervisor.node_promises import FILE, LOCK_S, MOUNTS_MOST, MemoryPromise, NodePromises, own_cgroup
from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.node_memory import NOTHING_PROMISED
from nopfsfs.system.proc import pid_namespace, start_time
from tests.waiting import wait_until

CGROUP = own_cgroup()


def beside(run_dir: Path, name: str, pid: int, budget: int, held: int, cgroup: str = CGROUP, **other: object) -> Path:
    """The file of another mount, whose supervisor is process `pid`."""
    directory = run_dir / name
    directory.mkdir(exist_ok=True)
    promise = MemoryPromise(pid, start_time(pid) or 0, cgroup, budget, held)
    (directory / FILE).write_bytes(msgspec.json.encode(msgspec.structs.asdict(promise) | other))
    return directory


@pytest.fixture
def node(tmp_path: Path) -> NodePromises:
    own = tmp_path / "own"
    own.mkdir()
    return NodePromises(str(own), str(tmp_path))


def test_what_others_do_not_hold_yet_is_theirs(node: NodePromises, tmp_path: Path) -> None:
    assert node.others() == NOTHING_PROMISED
    beside(tmp_path, "first", os.getppid(), budget=1000, held=300)
    beside(tmp_path, "second", os.getppid(), budget=500, held=700)
    assert node.others() == (700, 700, 1000)
    beside(tmp_path, "third", os.getppid(), budget=50, held=0, cgroup="0::/elsewhere\n")
    assert node.others() == (750, 700, 1000)


def test_a_mount_does_not_count_itself(node: NodePromises) -> None:
    node.promise(1000, 0)
    assert node.others() == NOTHING_PROMISED


def test_a_mount_whose_processes_cannot_be_seen(node: NodePromises, tmp_path: Path) -> None:
    """In a pid namespace of its own its lock says whether it lives, not whatever has its pid here."""
    own = pid_namespace()
    there = beside(tmp_path, "there", os.getppid(), budget=1000, held=300, pid_namespace=own + 1)
    beside(tmp_path, "here", os.getppid(), budget=10, held=0, pid_namespace=own)
    assert node.others() == (10, 10, 0)
    with closing_fd(life_lock.make(str(there))):
        assert node.others() == (710, 710, 300)
        beside(tmp_path, "there", os.getppid(), 1000, 300, cgroup="1 0::/\n", pid_namespace=own + 1)
        assert node.others() == (710, 10, 0), "of another cgroup namespace"
    assert node.others() == (10, 10, 0)


def test_what_is_told_is_read_by_others(node: NodePromises, tmp_path: Path) -> None:
    node.promise(6400, 100)
    node.promise(6400, 199)  # changes little: nothing is written
    (other := tmp_path / "other").mkdir()
    look = (
        "from nopfsfs.supervisor.node_promises import NodePromises as N;"
        f"print(*N({str(other)!r}, {str(tmp_path)!r}).others())"
    )
    assert subprocess.check_output([sys.executable, "-c", look], text=True).split() == ["6300", "6300", "100"]
    node.promise(6400, 200)
    assert subprocess.check_output([sys.executable, "-c", look], text=True).split() == ["6200", "6200", "200"]


def test_a_mount_that_was_killed_is_promised_nothing(node: NodePromises, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        wait_until(lambda: start_time(process.pid) is not None)
        beside(tmp_path, "first", process.pid, budget=1000, held=0)
        assert node.others() == (1000, 1000, 0)
        process.kill()
    assert node.others() == NOTHING_PROMISED
    beside(tmp_path, "second", os.getppid(), budget=1000, held=0, start_time=1)  # another process has the number now
    assert node.others() == NOTHING_PROMISED


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"pid":1}', b"\xff" * 9, b"[" * 40_000]))
def test_garbage_promises_nothing(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        run_dir = Path(path)
        beside(run_dir, "first", os.getppid(), 10, 0)
        (run_dir / "first" / FILE).write_bytes(garbage)
        (run_dir / "file").touch()
        assert NodePromises(path, path).others() == NOTHING_PROMISED


def test_no_link_is_followed_and_no_pipe_waited_for(node: NodePromises, tmp_path: Path) -> None:
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(beside(elsewhere, "there", os.getppid(), 1000, 0))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / FILE).symlink_to(elsewhere / "there" / FILE)
    (tmp_path / "second").mkdir()
    os.mkfifo(tmp_path / "second" / FILE)
    assert node.others() == NOTHING_PROMISED


def test_many_directories_are_bounded(node: NodePromises, tmp_path: Path) -> None:
    for number in range(2 * MOUNTS_MOST):
        beside(tmp_path, f"mount{number}", os.getppid(), 1, 0)
    assert MOUNTS_MOST - 1 <= node.others().node <= MOUNTS_MOST


def test_of_mounts_that_begin_at_once_one_chooses_first(node: NodePromises, tmp_path: Path) -> None:
    """Ten processes take half of what is left of 2^20 bytes, at once: together no more than there is."""
    take = f"""
import os, sys, time
from nopfsfs.supervisor import node_promises
from nopfsfs.supervisor.node_promises import NodePromises
node_promises.LOCK_S = 60  # ten that take turns may need longer than one that starts waits for
own = {str(tmp_path)!r} + "/mount" + sys.argv[1]
os.mkdir(own)
node = NodePromises(own, {str(tmp_path)!r})
with node.claimed():
    budget = ((1 << 20) - node.others().node) // 2
    time.sleep(0.01)
    node.promise(budget, 0)
print(budget, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", take]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(number)], **pipes) for number in range(10)]  # type: ignore[call-overload]
    budgets = [int(process.stdout.readline()) for process in processes]
    assert sum(budgets) == node.others().node < 1 << 20
    assert sorted(budgets, reverse=True) == [1 << 19 - number for number in range(10)]
    for process in processes:
        process.communicate()


def test_what_fails_while_it_is_claimed_is_raised(node: NodePromises) -> None:
    with pytest.raises(OSError, match="no memory"), node.claimed():
        raise OSError(12, "no memory")


def test_who_holds_the_claim_for_ever_holds_nobody_up(node: NodePromises, tmp_path: Path) -> None:
    with node.claimed(), NodePromises(str(tmp_path / "own"), str(tmp_path)).claimed():
        pass  # after LOCK_S
    assert LOCK_S <= 5
