"""The table of simulated clusters: what it says of single simulations."""

from __future__ import annotations

from dataclasses import replace

import bench
import bench_sim
import pytest
import sim_table
from sim_table import Cell

CELL = Cell("sc21", "mnist", 4, True, 1.0, 1.01, 0.9, 0, 20)


def test_one_simulation() -> None:
    cell = sim_table.simulate("sc21", "mnist", 4)

    assert cell.fits
    assert 1 <= cell.of_bound <= sim_table.MOST_OF_BOUND
    assert cell.of_nopfs <= sim_table.MOST_OF_NOPFS
    assert cell.reads == cell.nopfs_reads == 0


def test_the_bound_counts_where_everything_fits() -> None:
    small, slow = replace(CELL, fits=False, of_bound=9.0), replace(CELL, nodes=16, of_bound=1.02)

    assert sim_table.worst([CELL, small, slow]) == (slow, CELL)
    assert sim_table.is_good([CELL, small, slow])
    assert not sim_table.is_good([CELL, replace(CELL, of_bound=1.04)])
    assert not sim_table.is_good([CELL, replace(small, of_nopfs=1.01)])
    assert sim_table.worst([small]) == (None, small)


def test_a_row_for_each_data_set_and_a_column_for_each_number_of_nodes() -> None:
    cells = [CELL, replace(CELL, nodes=1024, fits=False), replace(CELL, dataset="cosmoflow"), replace(CELL, nodes=1024)]

    assert list(sim_table.short_table(cells[:2])) == [
        "| cluster | data set | N = 4 | N = 1,024 |",
        "|---|---|---|---|",
        "| sc21 | mnist | 1.010 / 0.900 | (1.010 / 0.900) |",
    ]
    assert len(list(sim_table.long_table(cells))) == 2 + 4
    assert list(sim_table.report(cells))[-1] == "Worst over NoPFS: 0.9000 (sc21, mnist, N = 4); at most 1.005."


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("sim/*", 6),
        ("sim/homes/*", 2),
        ("sim/homes/distinct_share/*", 1),
        ("sim/homes/worst_ratio_to_bound", 1),
        ("sim/imagenet-22k/*", 1),
    ],
)
def test_the_entries_are_found_by_their_names(pattern: str, chosen: int) -> None:
    assert len(bench.selected([pattern])) == chosen


def test_nodes_that_hold_the_data_set_once_keep_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sim, "SHARE_SAMPLES", 640)
    assert [entry.value for entry in bench_sim.share_entries()] == [1.0] * len(bench_sim.SHARE_NODES)


def test_what_a_simulation_costs() -> None:
    found = bench_sim.cost("sc21", "mnist", 2, 8)
    assert 0 < found["seconds"] < 60
    assert found["peak_mb"] > 10
