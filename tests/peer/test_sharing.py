"""What the nodes of a cluster get from each other where they are unlike, where there are more readers than nodes, and
where a holder or the source fails. Real ranks."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Readers, cluster
from slow_source import SlowSource

from tests.mount.harness import Reader, fill
from tests.mount.modes import why_not
from tests.mount.rooms import charges
from tests.peer.implementations import BOTH
from tests.peer.mounts import (
    LIMIT_S,
    SEED,
    Followers,
    Mounts,
    by_choice,
    checksum,
    mounts,
    opens_at_rest,
    opens_of_files,
    room,
)

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.timeout(240),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

FILES, SIZE = 360, 20_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    fill(root, FILES, SIZE)
    return root


# ---- nodes and readers ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("implementation", BOTH)
def test_nodes_with_unlike_rooms(implementation: str, tree: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = int(0.4 * charges(tree).sum())
    own = [room(tree, 0.6), room(tree, 0.2, pages=1.0), [*room(tree, 0.1, pages=1.0), "--disk", f"{disk}:{size}"]]
    with (
        SlowSource(tree) as source,
        mounts(source.path, tree, tmp_path / "at", 3, implementation=implementation, own=own) as m,
    ):
        m.wait_placed()
        with m.readers(epochs=3) as readers:
            readers.epoch(1)
            opens_at_rest(source)
            readers.go()
            readers.epoch(2)
            readers.go()
            readers.epoch(3)
            readers.end()
        said = [m.peers(node) for node in range(3)]
        assert [peers["distinct_share"] for peers in said] == [1.0] * 3
        assert sum(peers["homes_here"] for peers in said) == FILES
        opens = opens_of_files(source)
        assert len(opens) == FILES
        # A server reads by itself what its stager has no room for at this moment, with peers or without.
        direct = sum(m.status(node)["direct_reads"] for node in range(3))
        assert direct <= 0.02 * FILES, str(m.why_again())
        chosen = by_choice([m.status(node) for node in range(3)])
        assert sum(opens) - direct - chosen <= 1.005 * FILES, str(m.why_again())
        # What lives on the disk of the third was read by the others, and not from the source.
        assert m.stager(2, "disk_fetches") > 0
        assert m.stager(2, "lent_files") > 0
        assert sum(m.stager(node, "peer_corrupt", "disk_errors", "corrupt_copies") for node in range(3)) == 0
        shown = [m.metrics(node) for node in range(3)]
        assert [one["nopfs_peers_connected"] for one in shown] == [2.0] * 3
        assert all(one["nopfs_peer_fetches_total"] > 0 for one in shown)
        assert sum(one["nopfs_lent_bytes_total"] for one in shown) >= SIZE * FILES
        m.umount(0, 1, 2)
        assert m.code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("implementation", BOTH)
def test_two_ranks_on_each_of_two_nodes(implementation: str, tree: Path, tmp_path: Path) -> None:
    expected = checksum(tree)
    with SlowSource(tree) as source:
        options = ["--seed", SEED, *room(tree, 0.6)]
        with cluster(source.path, tmp_path / "at", 2, *options, implementation=implementation) as made:
            with Readers(made.mountpoints, a_node=2, epochs=3) as readers:
                for _ in range(3):
                    done = readers.epoch()
                    assert len(done) == 4
                    assert sum(one.files for one in done) == FILES
                    assert sum(one.checksum for one in done) == expected
                    opens_at_rest(source)
                    readers.go_on()
            opens = opens_of_files(source)
            assert len(opens) == FILES
            assert sum(opens) - by_choice(made.statuses()) <= 1.005 * FILES, str(Mounts(made, tree, "").why_again())
            assert made.unmount() == 0
        assert all(report["stager"]["peer_fetches"] > FILES // 4 for report in made.reports)


# ---- wrong bytes ----------------------------------------------------------------------------------------------


class Arena:
    """The staged bytes of a node's stager, behind its back."""

    def __init__(self, m: Mounts, node: int) -> None:
        pid = m.process(node, "stager").pid
        fds = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
        self._path = next(fd for fd in fds if os.readlink(fd).startswith("/memfd:nopfs-arena"))

    def find(self, data: bytes) -> list[int]:
        """Where these bytes lie."""
        with open(self._path, "rb") as file:
            memory = file.read()
        found, at = [], -1
        while (at := memory.find(data, at + 1)) >= 0:
            found.append(at)
        return found

    def spoil(self, data: bytes) -> None:
        """Write something else where these bytes lie."""
        with open(self._path, "r+b") as file:
            for at in self.find(data):
                file.seek(at + len(data) // 2)
                file.write(b"wrong")


def names_of(readers: Followers, rank: int, epoch: int) -> list[str]:
    return [readers.names[at] for at in readers.orders[rank][epoch - 1]]


@pytest.mark.long
def test_wrong_bytes_of_a_holder(tree: Path, tmp_path: Path) -> None:
    with (
        SlowSource(tree, open_latency=0.05) as source,  # far slower than the holder: little goes there by choice
        mounts(source.path, tree, tmp_path / "at", 2, *room(tree, 0.52), implementation="mpich") as m,
        m.readers(epochs=4) as readers,
    ):
        readers.epoch(1)
        readers.go()
        readers.epoch(2)
        holder, other = Arena(m, 0), Arena(m, 1)

        def lent(epoch: int) -> list[bytes]:
            """What the other node is to fetch from the holder late in that epoch."""
            late = [(tree / name).read_bytes() for name in names_of(readers, 1, epoch)[-FILES // 4 :]]
            return [data for data in late if holder.find(data) and not other.find(data)]

        again = {(tree / name).read_bytes() for name in names_of(readers, 1, 4)}
        holder.spoil(next(data for data in lent(3) if data in again))  # the holder's own reader does not come to it
        chosen = by_choice([m.status(1)])
        readers.go()
        readers.epoch(3)
        corrupt = m.stager(1, "peer_corrupt")
        assert corrupt <= 2, "that one, and perhaps once more, ahead of the next epoch"
        assert corrupt >= 1 or by_choice([m.status(1)]) > chosen, m.why_again()
        assert m.peers(1)["over"] == {}
        before = m.stager(1, "peer_fetches")

        for data in lent(4):
            holder.spoil(data)
        readers.go()
        readers.epoch(4)
        readers.end()
        assert m.stager(1, "peer_fetches") > before
        assert m.stager(1, "peer_corrupt") >= 3 + min(1, corrupt), "the first one may have been read from the source"
        m.wait_peers(1, over={"0": "corrupt"})
        m.umount(0, 1)
        assert m.code() == 0


# ---- the source -----------------------------------------------------------------------------------------------


def outcomes(m: Mounts, node: int, names: Sequence[str]) -> list[object]:
    """Of reading these files there: the errno of each, or None for the right bytes."""
    with Reader("read", *(m.paths[node] / name for name in names)) as through:
        found = through.result(LIMIT_S)
    with Reader("read", *(m.tree / name for name in names)) as direct:
        right = direct.result(LIMIT_S)
    return [None if one == other else one for one, other in zip(found, right, strict=True)]


def compared(m: Mounts, node: int) -> dict[str, Any]:
    """Of reading all files there, in an order that nobody knows."""
    with Reader("compare", m.paths[node], m.tree, "1", "1") as reader:
        found: dict[str, Any] = reader.result(LIMIT_S)
    return found


@pytest.mark.slow
def test_a_source_that_fails_or_stalls(tmp_path: Path) -> None:
    files, tree = 200, tmp_path / "few"
    fill(tree, files, SIZE)
    failing = ["class1/00001.jpg", "class1/00005.jpg", "class1/00009.jpg"]
    stalling = "class2/00002.jpg"
    options = [*room(tree, 0.3), "--io-timeout", "1s"]
    with SlowSource(tree) as source:
        for name in failing:
            source.fail("open", errno.EIO, name)
        source.stall("open", stalling)
        with mounts(source.path, tree, tmp_path / "at", 2, *options, implementation="mpich") as m:
            m.wait_placed()
            for node in range(2):
                assert outcomes(m, node, [*failing, stalling]) == [errno.EIO] * 4
            source.release()
            for node in range(2):
                assert outcomes(m, node, [*failing, stalling]) == [None] * 4
            with m.readers(epochs=2) as readers:
                readers.epoch(1)
                readers.go()
                readers.epoch(2)
                readers.end()
            homes = sum(m.peers(node)["homes_here"] for node in range(2))
            assert 0.5 * files < homes < 0.65 * files

            source.fail("open", errno.EIO)
            failed = []
            for node in range(2):
                said = compared(m, node)
                assert said["wrong"] == []
                assert {code for _, code in said["errors"]} == {errno.EIO}
                assert len(said["errors"]) <= files - homes, "what lives in the cluster is served"
                failed.append(said["errors"][0][0])
            source.release()
            source.stall("open")
            for node in range(2):
                assert outcomes(m, node, failed[node : node + 1]) == [errno.EIO]
            source.release()
            for node in range(2):
                assert compared(m, node) == {"wrong": [], "errors": []}
            m.umount(0, 1)
            assert m.code() == 0
