"""The thesis's simulator: what it published, and what must hold for any numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import thesis_tables
from hypothesis import given
from hypothesis import strategies as st
from thesis_tables import GB, MB, Scenario

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass, ends
from nopfsfs.sim import thesis
from nopfsfs.sim.thesis_order import deal
from nopfsfs.sim.thesis_setup import POLICIES, ThesisJob
from nopfsfs.sim.thesis_worker import ThesisRates
from nopfsfs.sim.training import SimDataSet, Training

SCALE = 100  # of data sets and storage classes; what is published for the whole holds for the part within 2 %
LARGE = [thesis_tables.S2, thesis_tables.S3, thesis_tables.S4]
ENVIRONMENTS = thesis_tables.environments()
STAGING = GB // 2  # at most: some batches, and a small part of the data set
REDRAWN = ("deepio-opportunistic", "parallel-staging")  # read other samples than the others


def scaled_storage(cluster: Cluster) -> Cluster:
    def scaled(one: StorageClass) -> StorageClass:
        return replace(one, capacity=tuple(room // SCALE for room in one.capacity))

    staging = replace(cluster.staging, capacity=(min(cluster.staging.capacity[0], STAGING),))
    return replace(cluster, staging=staging, classes=tuple(map(scaled, cluster.classes)))


def scaled(scenario: Scenario) -> tuple[SimDataSet, Training]:
    return replace(scenario.dataset, samples=scenario.dataset.samples // SCALE), scenario.training


def simulate(policy: str, scenario: Scenario, cluster: Cluster = thesis_tables.CLUSTER) -> thesis.ThesisResult:
    return thesis.run(policy, scaled_storage(cluster), *scaled(scenario))


def one_node(threads: int, staging: int = GB, *classes: StorageClass) -> Cluster:
    """c 100, beta 200, PFS 50 MB/s, which the node has to itself."""
    memory = StorageClass("staging", (staging,), threads, Curve.flat(1e12), Curve.flat(1e12))
    return Cluster("one", 1, 100e6, 1e9, SourceModel(Curve.flat(50e6)), memory, classes, preprocess=200e6)


# ---- what was published ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "seconds"), thesis_tables.S1.published.items())
def test_the_smallest_scenario_takes_as_long_as_published(policy: str, seconds: float) -> None:
    scenario = thesis_tables.S1
    result = thesis.run(policy, thesis_tables.CLUSTER, scenario.dataset, scenario.training)
    assert result.seconds == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.dataset.name)
def test_a_part_of_a_scenario_takes_as_much_less(scenario: Scenario) -> None:
    for policy, published in scenario.published.items():
        if published is None:
            with pytest.raises(thesis.NotSupported):
                simulate(policy, scenario)
        else:
            assert simulate(policy, scenario).seconds * SCALE == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("cluster", "seconds"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_a_part_of_the_sweep_takes_as_much_less(cluster: Cluster, seconds: float) -> None:
    assert simulate("nopfs", thesis_tables.S3, cluster).seconds * SCALE == pytest.approx(seconds, rel=0.02)


# ---- bounds and orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.dataset.name)
def test_nothing_is_faster_than_no_io_and_each_stall_is_waited_for(scenario: Scenario) -> None:
    bound = simulate("perfect", scenario)
    assert bound.stall_seconds == 0
    for policy in thesis.NAMES:
        if scenario.published[policy] is not None and policy not in REDRAWN:
            result = simulate(policy, scenario)
            assert result.seconds >= bound.seconds - 1e-6
            assert 0 <= result.stall_seconds <= result.seconds


def test_without_storage_nopfs_and_staging_are_naive() -> None:
    nothing = thesis_tables.cluster(0)
    naive = simulate("naive", thesis_tables.S3)
    assert simulate("nopfs", thesis_tables.S3, nothing) == naive
    assert simulate("staging", thesis_tables.S3, nothing) == naive


def test_without_classes_nopfs_is_staging() -> None:
    cluster = thesis_tables.cluster(GB)
    assert simulate("nopfs", thesis_tables.S3, cluster) == simulate("staging", thesis_tables.S3)


@pytest.mark.parametrize("policy", [p for p in thesis.NAMES if p.startswith(("deepio", "lbann", "par", "loc"))])
def test_a_missing_storage_class_is_not_supported(policy: str) -> None:
    with pytest.raises(thesis.NotSupported, match="storage class"):
        simulate(policy, thesis_tables.S1, thesis_tables.cluster(GB))


def test_more_memory_makes_nopfs_faster() -> None:
    clusters = [thesis_tables.cluster(4 * GB, thesis_tables.storage("m", n * GB, 21_164 * MB)) for n in (10, 20, 40)]
    seconds = [simulate("nopfs", thesis_tables.S3, cluster).seconds for cluster in clusters]
    assert seconds == sorted(seconds, reverse=True)


def test_a_staging_buffer_smaller_than_a_batch_helps_some() -> None:
    few = [simulate("staging", thesis_tables.S3, thesis_tables.cluster(room * MB)) for room in (0, 20, 100)]
    seconds = [result.seconds for result in few]
    assert seconds == sorted(seconds, reverse=True)


def test_the_seed_decides_everything() -> None:
    dataset, training = scaled(thesis_tables.S4)
    cluster = scaled_storage(thesis_tables.CLUSTER)
    for policy in thesis.NAMES[1:]:
        if thesis_tables.S4.published[policy]:
            first = thesis.run(policy, cluster, dataset, training)
            assert thesis.run(policy, cluster, dataset, training) == first
            assert thesis.run(policy, cluster, dataset, replace(training, seed=7)) != first


def test_progress_goes_up_to_one() -> None:
    told: list[float] = []
    dataset, training = scaled(thesis_tables.S2)
    thesis.run("nopfs", scaled_storage(thesis_tables.CLUSTER), dataset, training, told.append)
    assert told == sorted(told)
    assert 50 <= len(told) <= 200
    assert told[-1] == 1


def test_what_is_not_of_the_thesis_is_refused() -> None:
    dataset, training = scaled(thesis_tables.S1)
    with pytest.raises(ValueError, match="nopfs"):
        thesis.run("best", thesis_tables.CLUSTER, dataset, training)
    with pytest.raises(thesis.NotSupported):
        thesis.run("naive", replace(thesis_tables.CLUSTER, ranks=2), dataset, training)


# ---- one node, by hand --------------------------------------------------------------------------------------

READ = 1 / 50 + 1 / 200  # seconds for a MB from the source, and to prepare it
DATA = SimDataSet("by hand", 4, 0, sizes=np.array([MB, 2 * MB, 3 * MB, 4 * MB]))


def test_naive_reads_and_computes_in_turn() -> None:
    result = thesis.run("naive", one_node(1), DATA, Training(2, batch=2))
    assert result.seconds == pytest.approx(2 * 10 * (READ + 1 / 100))
    assert result.stall_seconds == pytest.approx(2 * 10 * READ)


@given(st.lists(st.integers(1, 10 * MB), min_size=1, max_size=30), st.integers(1, 7))
def test_one_staging_thread_is_the_model(sizes: list[int], batch: int) -> None:
    """Paper, section 4: avail(f) is the sum of all reads until f, and compute f begins after f - 1 and avail(f)."""
    training = Training(1, batch, drop_last=False)
    [order] = deal(len(sizes), training, 1).streams
    data = SimDataSet("any", len(sizes), 0, sizes=np.array(sizes))
    lengths = np.array(sizes)[order] / MB
    expected = ends(np.cumsum(lengths * READ), lengths / 100)
    result = thesis.run("staging", one_node(1), data, training)
    assert result.seconds == pytest.approx(expected[-1])


def test_staging_threads_have_the_whole_source_each() -> None:
    data = SimDataSet("same", 8, MB)
    result = thesis.run("staging", one_node(2), data, Training(1, batch=8))
    assert result.seconds == pytest.approx(4 * READ + 2 / 100)


def test_one_node_that_loads_all_then_only_computes() -> None:
    memory = StorageClass("memory", (GB,), 1, Curve.flat(1e12), Curve.flat(1e12))
    result = thesis.run("lbann-preloading", one_node(4, GB, memory), SimDataSet("d", 50, MB), Training(3, batch=25))
    loading = 50 * READ + 1 / 200  # and prepares the first sample
    assert result.stall_seconds == pytest.approx(loading, rel=1e-6)
    assert result.seconds == pytest.approx(loading + 3 * 50 / 100, rel=1e-6)


# ---- the order ----------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_each_epoch_reads_each_sample_once(samples: int, epochs: int, batch: int, ranks: int, drop: bool) -> None:
    accesses = deal(samples, Training(epochs, batch, drop_last=drop), ranks)
    steps = accesses.steps // epochs
    assert steps == (samples // (batch * ranks) if drop else -(-samples // (batch * ranks)))
    for epoch in range(epochs):
        read = [
            stream[bounds[epoch * steps] : bounds[(epoch + 1) * steps]]
            for stream, bounds in zip(accesses.streams, accesses.bounds, strict=True)
        ]
        together = np.concatenate(read)
        assert len(np.unique(together)) == len(together) == (steps * batch * ranks if drop else samples)
    assert (np.diff(accesses.bounds) <= batch).all()
    ones = np.ones(samples, np.int64)
    np.testing.assert_array_equal(accesses.batch_sums(ones), np.diff(accesses.bounds))


def test_the_first_rank_has_the_first_part_of_each_batch() -> None:
    training = Training(1, batch=2, drop_last=False)
    [order] = deal(7, training, 1).streams
    first, second = deal(7, training, 2).streams
    assert first.tolist() == [*order[0:2], *order[4:6]]
    assert second.tolist() == [*order[2:4], *order[6:7]]


# ---- NoPFS's placement ----------------------------------------------------------------------------------------


def kept_in_turn(stream: list[int], sizes: list[int], rooms: list[int]) -> list[list[int]]:
    """What a node keeps in each class, as it fetches it (paper, section 5.1, and its code): what it reads most first,
    of equals the lower number; a class closes at the first that does not fit, which opens the next."""
    left = sorted(set(stream), key=lambda sample: (-stream.count(sample), sample))
    found = []
    for room in rooms:
        kept: list[int] = []
        while left and sum(sizes[sample] for sample in [*kept, left[0]]) <= room:
            kept.append(left.pop(0))
        found.append(sorted(kept, key=stream.index))
    return found


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 4), st.booleans(),
    st.lists(st.integers(0, 80), max_size=3),
)  # fmt: skip
def test_a_node_keeps_what_it_reads_most(
    sizes: list[int], nodes: int, epochs: int, drop_last: bool, rooms: list[int]
) -> None:
    training = Training(epochs, 3, drop_last=drop_last)
    classes = [StorageClass("any", (room,), 2, Curve.flat(1e6), Curve.flat(1e6)) for room in rooms]
    cluster = replace(one_node(2, GB, *classes), nodes=nodes)
    accesses = deal(len(sizes), training, nodes)
    job = ThesisJob(cluster, np.array(sizes), accesses, ThesisRates.of(cluster), 0)

    kept = POLICIES["nopfs"](job).kept

    for node, stream in enumerate(accesses.streams):
        expected = np.full(len(sizes), np.inf)
        for number, samples in enumerate(kept_in_turn(stream.tolist(), sizes, rooms)):
            expected[samples] = job.filled(number, np.array(samples, np.int64))
        assert kept.since[node].tolist() == expected.tolist()


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_who_reads_what(samples: int, ranks: int, epochs: int, drop_last: bool) -> None:
    accesses = deal(samples, Training(epochs, 2, drop_last=drop_last), ranks)
    readers = [accesses.readers(samples)(epoch) for epoch in range(epochs)]

    for rank, stream in enumerate(accesses.streams):
        assert sorted(stream) == sorted(np.concatenate([np.flatnonzero(who == rank) for who in readers]))
        first = accesses.first(rank, samples)
        assert all(stream.tolist().index(sample) == first[sample] for sample in set(stream.tolist()))
