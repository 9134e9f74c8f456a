"""Where the reads of a cluster come from, against its simulator."""

from __future__ import annotations

from pathlib import Path

import cluster_shares
import pytest

from tests.mount.modes import why_not

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NODES, FILES, SIZE = 4, 1200, 20_000


@pytest.mark.parametrize("share", [0.3, 0.125])
def test_reads_come_from_where_the_simulator_says(share: float, tmp_path: Path) -> None:
    tree = cluster_shares.make_files(tmp_path / "tree", FILES, SIZE)
    run = cluster_shares.train_compared(tree, tmp_path, NODES, share, FILES)
    assert max(run.differences().values()) <= 5, (run.shares, run.simulated)
