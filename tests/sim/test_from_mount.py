"""What a simulation takes from a mount's records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.defaults import DEFAULTS
from nopfsfs.policy import budget
from nopfsfs.policy.budget import PASSAGE_LEAST, charges
from nopfsfs.sim.from_mount import from_mount, with_budget
from tests.sim.clusters import TINY

GB = 10**9
STATUS = {"source": "/pfs/few/", "budget": {"total": 3 * GB, "page_cache": GB, "ram": 2 * GB, "disk": 5 * GB}}
LOCKED = {"state": "locked", "sampler": "distributed", "seed": 7, "world": 16, "ranks": [4, 5, 6, 7]}
MEASURED = replace(TINY, nodes=1, network=math.inf)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Two regular files of 4096 and 0 bytes, a directory and a link: a mount charges 5120 bytes for 4096."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(bytes(4096))
    (tmp_path / "b").touch()
    (tmp_path / "l").symlink_to("b")
    return scan(str(tmp_path)).index


def test_a_mount_that_nobody_measured(index: Index) -> None:
    found = from_mount(STATUS, {"state": "watching", "plans": [{"state": "watching", "world": 8}]}, index, None)

    assert (found.dataset.name, sorted(found.dataset.draw())) == ("few", [1, 4096])
    assert found.dataset.draw().dtype == np.int64
    assert (found.cluster.nodes, found.cluster.ranks, found.cluster.source) == (1, 1, DEFAULTS.source)
    assert found.cluster.staging.capacity == (PASSAGE_LEAST // 2 * 4 // 5,)
    assert [(one.name, one.capacity) for one in found.cluster.classes] == [
        ("ram", ((2 * GB - PASSAGE_LEAST) * 4 // 5,)), ("disk", (4 * GB,))
    ]  # fmt: skip
    assert (found.training.epochs, found.training.batch, found.training.drop_last) == (10, 64, False)
    [note] = found.notes
    assert "nopfs calibrate" in note
    assert "500 MB/s" in note


def test_the_ranks_of_a_locked_plan(index: Index) -> None:
    found = from_mount(STATUS, {"plans": [{"state": "watching"}, LOCKED]}, index, MEASURED)

    assert (found.cluster.nodes, found.cluster.ranks, found.training.seed) == (4, 4, 7)
    assert found.cluster.network == DEFAULTS.network
    assert "the network was not measured" in found.notes[0]


def test_rates_are_those_of_the_calibration(index: Index) -> None:
    found = from_mount(STATUS, {}, index, MEASURED)

    assert found.notes == ()
    assert found.cluster.source == TINY.source
    assert [one.read for one in found.cluster.classes] == [one.read for one in TINY.classes]
    assert [one.capacity for one in found.cluster.classes] == [((2 * GB - PASSAGE_LEAST) * 4 // 5,), (4 * GB,)]


@pytest.mark.parametrize("total", [10 << 20, 60 << 20, 200 << 20, 1 << 30])
@pytest.mark.parametrize("page_cache", [None, 4 << 20])
def test_as_many_files_have_a_home_as_in_the_mount(total: int, page_cache: int | None) -> None:
    """Files of one size, of which a mount with that budget would keep so many in memory."""
    sizes = np.full(1000, 110_000)
    charged = charges(sizes)
    split = budget.split(total, int(charged.sum()), page_cache)
    record = {"total": total, "ram": split.arena, "disk": 50 * int(charged[0])}

    cluster = with_budget(MEASURED, record, sizes)

    assert [one.capacity[0] // 110_000 for one in cluster.classes] == [split.homes // int(charged[0]), 50]
    assert cluster.staging.capacity[0] // 110_000 == split.stream // int(charged[0])


def test_a_mount_of_empty_files() -> None:
    assert with_budget(MEASURED, {"ram": 8 << 20, "disk": 0}, np.zeros(3, np.int64)).classes[0].capacity == (6 << 20,)


def test_a_mount_without_disks_has_no_class_for_them(index: Index) -> None:
    status = {**STATUS, "budget": {"ram": GB, "disk": 0}}

    assert [one.name for one in from_mount(status, {}, index, MEASURED).cluster.classes] == ["ram"]


def test_a_disk_that_could_be_bought_has_one(index: Index) -> None:
    status = {**STATUS, "budget": {"ram": GB, "disk": 0}}

    assert [one.capacity[0] for one in from_mount(status, {}, index, None, disk=True).cluster.classes][1] == 0


def test_more_nodes_than_the_plan_has_need_a_network(index: Index) -> None:
    found = from_mount(STATUS, {}, index, MEASURED, several=True)

    assert found.cluster.network == DEFAULTS.network
    assert "the network was not measured" in found.notes[0]


def test_a_disk_that_was_not_measured_has_the_default_rates(index: Index) -> None:
    found = from_mount(STATUS, {}, index, replace(MEASURED, classes=MEASURED.classes[:1]))

    assert found.cluster.classes[1].read == DEFAULTS.classes[1].read


def test_a_mount_without_files(tmp_path: Path) -> None:
    with pytest.raises(NopfsError, match="/pfs/few/ has no files") as raised:
        from_mount(STATUS, {}, scan(str(tmp_path)).index, None)
    assert raised.value.exit_code == Exit.SOURCE
