"""NoPFS's performance model, against the paper's formulas written out once more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.performance.model import (
    NOWHERE,
    Cluster,
    Curve,
    FetchOrigin,
    SourceModel,
    StorageClass,
    Times,
    ends,
    has_arrived,
)

rates = st.floats(1, 1e12)
curves = st.lists(st.tuples(st.integers(1, 64), rates), min_size=1, max_size=6, unique_by=lambda point: point[0]).map(
    lambda points: Curve(tuple((float(x), y) for x, y in sorted(points)))
)


def storage(name: str, threads: int, read: Curve, write: Curve) -> StorageClass:
    return StorageClass(name, (1000,), threads, read, write)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    def one(name: str) -> StorageClass:
        return storage(name, draw(st.integers(1, 16)), draw(curves), draw(curves))

    source = SourceModel(draw(curves), draw(rates), draw(st.floats(0, 0.01)), draw(st.integers(1, 8)))
    classes = tuple(one(str(number)) for number in range(draw(st.integers(0, 3))))
    return Cluster(
        "any", draw(st.integers(1, 9)), draw(rates), draw(rates), source, one("staging"), classes, draw(rates)
    )


# ---- curves and the source ---------------------------------------------------------------------------------


@given(curves, st.floats(0.1, 100))
def test_a_curve_is_numpys_interpolation(curve: Curve, x: float) -> None:
    xs, ys = zip(*curve.points, strict=True)
    assert curve.at(x) == pytest.approx(np.interp(x, xs, ys), rel=1e-9)


def test_a_flat_curve_is_the_same_everywhere() -> None:
    assert {Curve.flat(7.0).at(x) for x in (0, 1, 2.5, math.inf)} == {7.0}


@given(curves, rates, st.integers(1, 80))
def test_the_source_gives_what_the_best_number_of_readers_gets(rate: Curve, link: float, nodes: int) -> None:
    best = max(gamma * min(link, rate.at(gamma) / gamma) for gamma in range(1, nodes + 1))

    assert SourceModel(rate, link).most(nodes) == pytest.approx(best, rel=1e-9)


def test_a_source_that_slows_down_is_best_between_two_measured_points() -> None:
    assert SourceModel(Curve(((1, 100), (4, 40))), link=30).most(4) == pytest.approx(60)


@given(curves, rates, st.integers(1, 80))
def test_a_readers_share(rate: Curve, link: float, gamma: int) -> None:
    assert SourceModel(rate, link).share(gamma) == min(link, rate.at(gamma) / gamma)


# ---- capacities --------------------------------------------------------------------------------------------


def test_capacities_repeat_over_the_nodes() -> None:
    ram = StorageClass("ram", (1, 2), 1, Curve.flat(1), Curve.flat(1))
    ssd = StorageClass("ssd", (7,), 1, Curve.flat(1), Curve.flat(1))
    staging = storage("staging", 1, Curve.flat(1), Curve.flat(1))
    cluster = Cluster("c", 3, 1.0, 1.0, SourceModel(Curve.flat(1)), staging, (ram, ssd))

    assert cluster.capacities().tolist() == [[1, 7], [2, 7], [1, 7]]
    assert Cluster("c", 3, 1.0, 1.0, SourceModel(Curve.flat(1)), staging).capacities().shape == (3, 0)


# ---- what fetching costs -----------------------------------------------------------------------------------


@given(clusters(), st.integers(1, 9), st.integers(1, 10**9))
def test_a_threads_times_are_the_papers(cluster: Cluster, gamma: int, size: int) -> None:
    times = Times.of_thread(cluster, gamma)
    p0 = cluster.staging.threads
    write = max(size / cluster.preprocess, size / (cluster.staging.write.at(p0) / p0))

    assert size * times.write == pytest.approx(write, rel=1e-9)
    assert size * times.source == pytest.approx(
        size / min(cluster.source.link, cluster.source.rate.at(gamma) / gamma), rel=1e-9
    )
    for number, one in enumerate(cluster.classes):
        rate = one.read.at(one.threads) / one.threads
        assert size * times.local[number] == pytest.approx(size / rate, rel=1e-9)
        assert size * times.peer[number] == pytest.approx(size / min(cluster.network, rate), rel=1e-9)


@given(clusters(), st.integers(1, 9))
def test_a_nodes_threads_do_together_what_each_does_times_their_number(cluster: Cluster, gamma: int) -> None:
    node, thread = Times.of_node(cluster, gamma), Times.of_thread(cluster, gamma)

    assert node.write * cluster.staging.threads == pytest.approx(thread.write, rel=1e-9)
    assert node.source == thread.source
    assert node.latency == cluster.source.latency / cluster.source.at_once
    assert thread.latency == cluster.source.latency
    for number, one in enumerate(cluster.classes):
        assert node.local[number] * one.threads == pytest.approx(thread.local[number], rel=1e-9)
        assert node.peer[number] == pytest.approx(max(1 / cluster.network, node.local[number]), rel=1e-9)


@given(clusters(), st.integers(1, 9), st.data())
def test_a_sample_is_fetched_from_the_soonest(cluster: Cluster, gamma: int, data: st.DataObject) -> None:
    classes = st.lists(st.integers(NOWHERE, len(cluster.classes) - 1), min_size=8, max_size=8)
    local, peer = data.draw(classes), data.draw(classes)
    sizes = data.draw(st.lists(st.integers(0, 10**9), min_size=8, max_size=8))
    times = Times.of_node(cluster, gamma)

    found = times.fetch_from(np.array(sizes), np.array(local, np.int8), np.array(peer, np.int8))

    for size, here, there, origin in zip(sizes, local, peer, found.tolist(), strict=True):
        size = max(1, size)
        costs = {FetchOrigin.SOURCE: times.latency + size * times.source}
        if here != NOWHERE:
            costs[FetchOrigin.LOCAL] = size * float(times.local[here])
        if there != NOWHERE:
            costs[FetchOrigin.PEER] = size * float(times.peer[there])
        assert origin == min(sorted(costs), key=lambda place: costs[place])


# ---- when it can be used -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), min_size=1, max_size=30), st.floats(0, 50))
def test_the_end_of_each_compute_follows_the_recurrence(samples: list[tuple[float, float]], begin: float) -> None:
    expected = []
    end = begin
    for available, compute in samples:
        end = max(available, end) + compute
        expected.append(end)

    found = ends(np.array([a for a, _ in samples]), np.array([c for _, c in samples]), begin)

    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_ends_of_several_ranks_are_apart() -> None:
    available, compute = np.array([[0.0, 5.0], [1.0, 0.0]]), np.array([[2.0, 1.0], [2.0, 1.0]])
    assert ends(available, compute).tolist() == [[2.0, 6.0], [4.0, 7.0]]


def test_a_peer_has_what_was_read_a_margin_ago() -> None:
    assert has_arrived(np.array([0, 79, 80, 81, 200]), 100, 20).tolist() == [True, True, True, False, False]
    assert has_arrived(np.array([0, 1]), np.array([0, 2]), 1).tolist() == [False, True]
