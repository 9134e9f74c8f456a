"""What a cluster of mounts reads of its source, with real ranks of both MPI implementations, each mount read by an
unmodified PyTorch loop of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster, Epoch, Readers, cluster
from slow_source import SlowSource

from nopfsfs.stager.young_files import LOCAL_S
from tests.mount.harness import fill
from tests.mount.modes import why_not
from tests.peer.implementations import BOTH
from tests.peer.mounts import by_choice, checksum, opens_at_rest, opens_of_files, room
from tests.tiers.kept import copies
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.timeout(240),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NODES, FILES, SIZE, EPOCHS = 4, 1200, 20_000, 3


def read(made: Cluster, source: SlowSource, expected: int) -> list[int]:
    """Opens of the source by the end of each epoch; all bytes are right."""
    opens: list[int] = []
    with Readers(made.mountpoints, epochs=EPOCHS) as readers:
        for _ in range(EPOCHS):
            done: Sequence[Epoch] = readers.epoch()
            assert sum(one.files for one in done) == FILES
            assert sum(one.checksum for one in done) == expected
            opens.append(opens_at_rest(source))
            readers.go_on()
    return opens


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    fill(root, FILES, SIZE)
    return root


@pytest.mark.long
@pytest.mark.parametrize("implementation", BOTH)
def test_what_fits_the_cluster_leaves_the_source_once(implementation: str, tree: Path, tmp_path: Path) -> None:
    expected = checksum(tree)
    with SlowSource(tree) as source:
        options = ["--seed", "42", *room(tree, 0.3)]
        with cluster(source.path, tmp_path / "at", NODES, *options, implementation=implementation) as made:
            read(made, source, expected)
            once = opens_of_files(source)
            assert len(once) == FILES
            statuses = made.statuses()
            assert sum(once) - by_choice(statuses) <= 1.005 * FILES, json.dumps(statuses)
            assert made.unmount() == 0
        fetched = sum(report["stager"]["peer_fetches"] for report in made.reports)
        assert fetched > FILES, "three quarters of what is read live with others"
        assert sum(report["stager"]["peer_corrupt"] for report in made.reports) == 0


@pytest.mark.slow
def test_what_does_not_fit_is_read_anew_by_whoever_needs_it(tree: Path, tmp_path: Path) -> None:
    expected = checksum(tree)
    with SlowSource(tree) as source:
        options = ["--seed", "42", *room(tree, 0.125)]
        with cluster(source.path, tmp_path / "at", NODES, *options) as made:
            opens = read(made, source, expected)
            assert made.unmount() == 0
    assert opens[0] >= FILES
    for before, after in pairwise(opens):
        assert after - before == pytest.approx(FILES / 2, abs=0.03 * FILES)


@pytest.mark.slow
def test_a_second_job_begins_with_what_each_node_has_kept(tree: Path, tmp_path: Path) -> None:
    """It looks at more epochs, by which other files would live on each node; it reads nothing from the source."""
    expected, disks = checksum(tree), [tmp_path / f"disk{node}" for node in range(2)]
    for disk in disks:
        disk.mkdir()
    time.sleep(LOCAL_S + 1)  # the files are so old then that their bytes are sure when they are read
    options = [*room(tree, 0.2), "--disk", tmp_path / "disk{rank}:100M", "--seed", "42", "--epochs"]

    def kept() -> list[int]:
        return [sum(not path.suffix for path in copies(disk)) for disk in disks]

    with cluster(tree, tmp_path / "first", 2, *options, "1") as made:
        with Readers(made.mountpoints, epochs=1) as readers:
            assert sum(one.files for one in readers.epoch()) == FILES
        assert wait_until(lambda: sum(kept()) >= FILES, 30), (kept(), json.dumps(made.statuses()))
        assert made.unmount() == 0
    before = kept()
    with cluster(tree, tmp_path / "second", 2, *options, "3") as made:
        with Readers(made.mountpoints, epochs=2) as readers:
            for _ in range(2):
                assert sum(one.checksum for one in readers.epoch()) == expected
                readers.go_on()
        statuses = made.statuses()
        assert made.unmount() == 0
    assert all(one["stager"]["source_opens"] <= by_choice([one]) for one in statuses), json.dumps(statuses)
    assert [one["peers"]["homes_here"] for one in statuses] == before
    assert sum(before) == FILES
