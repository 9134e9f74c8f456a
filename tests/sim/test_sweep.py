"""Which storage to buy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.errors import NopfsError
from nopfsfs.performance.model import Cluster
from nopfsfs.sim.run import Outcome
from nopfsfs.sim.sweep import Point, changed, cheapest, sweep
from tests.sim.clusters import IMPOSSIBLE, TINY, outcome


def made_up(cluster: Cluster) -> Outcome:
    """Each byte of RAM saves two seconds, each of disk one, down to ten."""
    ram, disk = (one.capacity[0] for one in cluster.classes)
    return outcome("homes", max(10.0, 30.0 - 2 * ram - disk))


def test_every_combination_is_run_and_the_least_total_that_is_near_the_best_wins() -> None:
    points = sweep(TINY, [0, 5, 10, 15], [0, 4, 20], made_up)

    assert [(point.ram, point.disk) for point in points] == [(r, d) for r in (0, 5, 10, 15) for d in (0, 4, 20)]
    best = cheapest(points)
    assert best is not None
    assert (best.ram, best.disk, best.outcome.seconds) == (10, 0, 10.0)


def test_one_percent_is_near_enough() -> None:
    points = [Point(0, 1, outcome("homes", 101.0)), Point(5, 0, outcome("homes", 100.0)), Point(0, 0, IMPOSSIBLE)]

    assert cheapest(points) is points[0]
    assert cheapest([Point(0, 1, outcome("homes", 101.1)), points[1]]) is points[1]


def test_of_equal_totals_the_faster() -> None:
    points = [Point(1, 4, outcome("homes", 100.5)), Point(4, 1, outcome("homes", 100.0))]

    assert cheapest(points) is points[1]


def test_where_nothing_works_nothing_is_cheapest() -> None:
    assert cheapest([Point(1, None, IMPOSSIBLE)]) is None


def test_one_class_alone() -> None:
    assert [one.capacity for one in changed(TINY, 7, None).classes] == [(7,), TINY.classes[1].capacity]
    assert [one.capacity for one in changed(TINY, None, 7).classes] == [TINY.classes[0].capacity, (7,)]
    assert [point.disk for point in sweep(TINY, [1, 2], [], made_up)] == [None, None]


@pytest.mark.parametrize(("classes", "rams", "disks", "option"), [(0, [1], [], "ram"), (1, [], [1], "disk")])
def test_a_class_that_there_is_not(classes: int, rams: list[int], disks: list[int], option: str) -> None:
    cluster = Cluster("x", 1, 1e6, 1e6, TINY.source, TINY.staging, TINY.classes[:classes])

    with pytest.raises(NopfsError, match=rf"--sweep-{option}: x has no .*\[\[class\]\]"):
        sweep(cluster, rams, disks, made_up)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(1, 2)), min_size=1, max_size=20))
def test_nothing_near_the_best_has_less(found: list[tuple[int, int, float]]) -> None:
    points = [Point(ram, disk, outcome("homes", seconds)) for ram, disk, seconds in found]

    best = cheapest(points)

    assert best is not None
    limit = min(seconds for _, _, seconds in found) * 1.01
    assert (best.outcome.seconds or 0) <= limit
    assert all(best.bytes <= point.bytes for point in points if (point.outcome.seconds or 0) <= limit)
