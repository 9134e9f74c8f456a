"""Ten drawn cells of the table of `scripts/identify_table.py` on real mounts, with readers that never wait.

On a machine that runs other tests a plan may take three times the time in which it is to be found, and five of a
hundred opens may come before the supervisor has run. What the table is about are plans that are not found at all.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from identifying import mounts
from identifying.cells import Cell

from nopfsfs.fuse.mounting import may_mount
from tests.conftest import long, slow
from tests.mount.harness import mounted

PATIENCE, SHARE = 3.0, 0.95
CELLS = mounts.drawn(10, 16)

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not may_mount(), reason="needs the right to call mount(2)"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    mounts.fill(root)
    return root


@pytest.mark.parametrize("cell", [CELLS[0], *map(long, CELLS[1:2]), *map(slow, CELLS[2:])], ids=lambda cell: cell.name)
def test_a_job_that_never_waits_is_foreseen(cell: Cell, source: Path, tmp_path: Path) -> None:
    with mock.patch.dict("os.environ", cell.environment), mounted(source, *mounts.options(cell), work=tmp_path) as m:
        done = mounts.measure(cell, m.path, tmp_path, m.status, PATIENCE)
    assert done.share >= SHARE, done
