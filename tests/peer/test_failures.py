"""What dies, hangs, lies or leaves while a cluster of mounts is read: readers see no error and the right bytes, and
nothing waits for ever. Real ranks of both MPI implementations."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import slow
from tests.mount.harness import fill, module, run
from tests.mount.modes import why_not
from tests.peer.implementations import BOTH
from tests.peer.mounts import LIMIT_S, Mounts, mounts, room
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.timeout(240),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NODES, FILES, SIZE = 3, 360, 20_000
OWN = FILES // NODES  # of a node, in an epoch
MID = 1.4  # epochs

Made = Callable[[str, int], AbstractContextManager[Mounts]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    fill(root, FILES, SIZE)
    return root


@pytest.fixture
def made(tree: Path, tmp_path: Path) -> Made:
    """Return a function that mounts the tree itself on nodes of that implementation, with room for all of it
    together."""

    def make(implementation: str, nodes: int) -> AbstractContextManager[Mounts]:
        return mounts(tree, tree, tmp_path / "at", nodes, *room(tree, 1.2 / nodes), implementation=implementation)

    return make


def fetched(m: Mounts, *nodes: int) -> list[int]:
    """Files that each of these nodes got from others."""
    return [m.stager(node, "peer_fetches") for node in nodes]


def assert_more(before: list[int], after: list[int]) -> None:
    """Each has got more; some of what it reads next it had before."""
    assert all(now > then + OWN // 10 for then, now in zip(before, after, strict=True)), (before, after)


def umount_well(m: Mounts) -> None:
    """Two mounts that have gone on without peers: they run, and nobody saw an error."""
    for node in range(2):
        assert m.status(node)["state"] == "running"
        assert m.status(node)["read_errors"] == 0
    m.umount(*range(2))


@pytest.mark.long
@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("whom", ["a peer process", slow("mpirun")])
def test_the_end_of_mpi_in_mid_epoch(made: Made, implementation: str, whom: str) -> None:
    with made(implementation, 2) as m, m.readers(epochs=3) as readers:
        readers.epoch(1)
        readers.go()
        m.wait_opened(range(2), MID * FILES / 2)
        peers = [m.peer(node) for node in range(2)]
        assert all(m.stager(node, "peer_fetches") for node in range(2))

        os.kill(peers[1] if whom == "a peer process" else m.made.process.pid, signal.SIGKILL)

        assert m.code() != 0
        assert wait_until(lambda: not set(peers) & set(m.marked()), LIMIT_S)
        readers.epoch(2)
        for node in range(2):
            m.wait_peers(node, state="lost")
        readers.go()
        readers.epoch(3)
        readers.end()
        umount_well(m)


@pytest.mark.long
@pytest.mark.parametrize("implementation", BOTH)
def test_a_whole_mount_is_killed_in_mid_epoch(made: Made, implementation: str) -> None:
    with made(implementation, NODES) as m, m.readers(epochs=4) as readers:
        readers.epoch(1)
        readers.go()
        m.wait_opened(range(NODES), MID * OWN)
        its = readers.leave(1)
        its.go()  # or it may wait for the others at the end of its epoch, and read nothing

        for process in m.processes(1):
            process.signal(signal.SIGKILL)

        assert its.process.wait(LIMIT_S) != 0  # its reader has an error, and does not hang
        readers.epoch(2)
        for node in (0, 2):
            m.wait_peers(node, left=[1], over={"1": "left"})
        before = fetched(m, 0, 2)
        readers.go()
        readers.epoch(3)
        readers.go()
        m.umount(1)  # while the others read on
        readers.epoch(4)
        readers.end()
        assert_more(before, fetched(m, 0, 2))
        m.umount(0, 2)
        assert m.code() == 0
        assert "node1 was killed by signal 9" in m.said()


@pytest.mark.long
@pytest.mark.parametrize("implementation", BOTH)
def test_a_node_is_done_early(made: Made, implementation: str) -> None:
    with made(implementation, NODES) as m, m.readers(epochs=4) as readers:
        readers.epoch(1)
        its = readers.leave(1)
        its.__exit__()
        readers.go()
        m.wait_opened((0, 2), MID * OWN)

        m.umount(1)

        for node in (0, 2):
            m.wait_peers(node, left=[1], over={"1": "left"})
        readers.epoch(2)
        before = fetched(m, 0, 2)
        readers.go()
        readers.epoch(3)
        readers.go()
        readers.epoch(4)
        readers.end()
        assert_more(before, fetched(m, 0, 2))
        assert m.peer(1) in m.marked(), "its nopfs-mount waits for the others"
        m.umount(0, 2)
        assert m.code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["openmpi"])
def test_a_peer_process_hangs_and_goes_on(made: Made, implementation: str) -> None:
    with made(implementation, NODES) as m, m.readers(epochs=4) as readers:
        readers.epoch(1)
        readers.go()
        m.wait_opened(range(NODES), MID * OWN)
        stopped = m.peer(1)

        os.kill(stopped, signal.SIGSTOP)
        try:
            readers.epoch(2)
            readers.go()
            readers.epoch(3)
            assert all(m.status(node)["state"] == "running" for node in range(NODES))
            assert sum(m.stager(node, name) for node in (0, 2) for name in ("peer_late", "fetches_hedged")) > 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        readers.go()
        readers.epoch(4)
        readers.end()
        assert all(m.peers(node)["state"] == "running" for node in range(NODES))
        m.umount(*range(NODES))
        assert m.code() == 0


@pytest.mark.long
@pytest.mark.parametrize("implementation", ["mpich"])
def test_a_stager_is_killed_in_mid_epoch(made: Made, implementation: str) -> None:
    with made(implementation, NODES) as m, m.readers(epochs=4) as readers:
        readers.epoch(1)
        readers.go()
        m.wait_opened(range(NODES), MID * OWN)
        killed = m.process(1, "stager")

        killed.signal(signal.SIGKILL)

        readers.epoch(2)
        m.wait_restarted(1, killed)
        assert wait_until(lambda: all(process["running"] for process in m.status(1)["processes"]), LIMIT_S)
        before = fetched(m, *range(NODES))
        lent = m.stager(1, "lent_files")
        readers.go()
        readers.epoch(3)
        readers.go()
        readers.epoch(4)
        readers.end()
        assert_more(before, fetched(m, *range(NODES)))
        assert m.stager(1, "lent_files") > lent + OWN // 10
        assert all(m.peers(node)["state"] == "running" for node in range(NODES))
        m.umount(*range(NODES))
        assert m.code() == 0


@pytest.mark.long
@pytest.mark.parametrize("dies", ["stager", slow("supervisor")])
def test_a_peer_process_that_hangs_is_ended_before_others_use_its_arena(made: Made, dies: str) -> None:
    with made("mpich", 2) as m, m.readers(epochs=3) as readers:
        readers.epoch(1)
        stopped = m.peer(1)
        os.kill(stopped, signal.SIGSTOP)

        killed = m.process(1, dies)
        killed.signal(signal.SIGKILL)

        if dies == "supervisor":
            assert killed.wait(LIMIT_S)
            adopted = run([*module("nopfs"), "adopt", str(m.paths[1])])
            assert adopted.returncode == 0, adopted.stderr
        assert wait_until(lambda: stopped not in m.marked(), LIMIT_S)
        assert m.code() != 0
        readers.go()
        readers.epoch(2)
        readers.go()
        readers.epoch(3)
        readers.end()
        umount_well(m)
