"""How simulations are compared with what was published."""

from __future__ import annotations

import math

import pytest
import thesis_tables
from bench_sim import Compared, simulated


@pytest.mark.parametrize(
    ("published", "found", "error"),
    [(100.0, 101.0, 0.01), (100.0, 98.0, -0.02), (None, None, 0.0), (None, 1.0, math.inf), (1.0, None, math.inf)],
)
def test_errors_are_parts_of_what_was_published(published: float | None, found: float | None, error: float) -> None:
    assert Compared("S1", "naive", published, found).error == pytest.approx(error)


def test_a_policy_that_does_not_support_a_cluster_has_no_result() -> None:
    assert simulated("lbann-dynamic", thesis_tables.cluster(0), thesis_tables.S1) is None


def test_the_sweep_has_each_environment_once() -> None:
    found = thesis_tables.environments()
    assert len(found) == 1 + 3 + 4 * 4 - 1
    assert found["memory 40 GB, disk 80 GB"][1] == 7678.2
