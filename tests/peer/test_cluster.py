"""What a cluster of mounts reads of its source, with real ranks of both MPI implementations, each mount read by an
unmodified PyTorch loop of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster, Epoch, Readers, cluster
from slow_source import SlowSource

from tests.mount.harness import fill
from tests.mount.modes import why_not
from tests.peer.implementations import BOTH
from tests.peer.mounts import checksum, opens_at_rest, opens_of_files, room

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
            assert sum(once) <= 1.005 * FILES, json.dumps(made.statuses())
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
