"""The mount's own policy in the simulator: where it lets each read come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.performance.bounds import source_bytes
from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.placement.access_counts import NOBODY
from nopfsfs.sim.fluid import NOTHING, PEER, SOURCE, STORED
from nopfsfs.sim.mounted_nodes import MountPolicy, NodeStream
from nopfsfs.sim.policies import SimJob
from nopfsfs.sim.run import Outcome, Simulation
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.sim.training_orders import permutations
from tests.examples import examples

SIZE, SAMPLES = 100, 1200


def storage(name: str, *capacity: int, rate: float = 1e9) -> StorageClass:
    return StorageClass(name, capacity, 1, Curve.flat(rate), Curve.flat(rate))


def cluster(nodes: int, *capacities: int, ranks: int = 1, staging: int = 10 * SIZE) -> Cluster:
    classes = tuple(storage(f"class{n}", capacity, rate=1e9 / 10**n) for n, capacity in enumerate(capacities))
    source = SourceModel(Curve.flat(1e4))
    return Cluster("c", nodes, 1e5, 1e7, source, storage("staging", staging), classes, 1e9, ranks)


def simulate(policy: str, on: Cluster, epochs: int = 4) -> Outcome:
    return Simulation(on, SimDataSet("d", SAMPLES, SIZE), Training(epochs, 4, drop_last=False)).run(policy)


def job(on: Cluster, sizes: list[int], epochs: int, batch: int = 2) -> SimJob:
    ranks = on.nodes * on.ranks
    orders = permutations(Training(epochs, batch, drop_last=False), len(sizes), ranks, on.ranks)
    return SimJob(on, np.array(sizes, np.int64), orders, epochs, on.capacities())


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_what_the_model_of_it_says_of_the_source_and_of_peers_holds(nodes: int, share: float) -> None:
    """`homes` knows nothing of the node policy; both read the source as often, and nodes fetch as much from others."""
    room = share * SAMPLES / nodes * SIZE
    on = cluster(nodes, round(0.7 * room), round(0.3 * room))
    ours, model = simulate("mount", on), simulate("homes", on)

    # what is fetched ahead at the end of an epoch may be read twice
    assert ours.source_reads_per_epoch == pytest.approx(model.source_reads_per_epoch, rel=2e-3, abs=0)
    assert ours.served["peer"] == pytest.approx(model.served["peer"], abs=1e-3)
    assert ours.distinct_share == pytest.approx(model.distinct_share)
    assert ours.seconds == pytest.approx(model.seconds, rel=0.01)


def test_memory_is_filled_before_the_disk_and_a_copy_on_disk_is_read_from_there() -> None:
    at_work = MountPolicy(job(cluster(1, 4 * SIZE, 3 * SIZE), [SIZE] * 10, 3))
    first, second = at_work.reads(0), at_work.reads(1)

    count = {code: int((first.where == code).sum()) for code in (STORED, STORED + 1, SOURCE)}
    assert count == {STORED: 4, STORED + 1: 3, SOURCE: 3}
    kept = dict(zip(first.samples[:, 0].tolist(), first.where[:, 0].tolist(), strict=True))
    for row, where in zip(second.samples[:, 0].tolist(), second.where[:, 0].tolist(), strict=True):
        assert where == (SOURCE if kept[row] == SOURCE else kept[row] - STORED)


def test_what_a_node_reads_for_another_is_there_for_all() -> None:
    on = cluster(3, 10 * SIZE)
    at_work = MountPolicy(job(on, [SIZE] * 24, 4))
    homes: dict[int, int] = {}
    of_source: list[int] = []
    for epoch in range(4):
        reads = at_work.reads(epoch)
        readers = np.broadcast_to(np.arange(3), reads.samples.shape)
        for row, where, holder, reader in zip(
            *(each.reshape(-1).tolist() for each in (reads.samples, reads.where, reads.holder, readers)), strict=True
        ):
            assert where in (0, STORED, PEER)
            assert where != 0 or holder == reader
            of_source += [row] * (where == STORED)
            if where != 0:
                assert homes.setdefault(row, holder) == holder
    assert sorted(of_source) == sorted(homes) == list(range(24))


def test_a_file_that_is_too_large_for_all_comes_from_the_source_each_time() -> None:
    sizes = [SIZE] * 7 + [50 * SIZE]
    at_work = MountPolicy(job(cluster(1, 20 * SIZE), sizes, 3))
    for epoch in range(3):
        reads = at_work.reads(epoch)
        assert reads.where[reads.samples == 7].tolist() == [SOURCE]


def test_the_next_read_of_a_sample_is_found_in_a_later_epoch_too() -> None:
    made = job(cluster(2, SIZE), [SIZE] * 12, 6)
    stream = NodeStream(made, 1)
    rows = np.concatenate([stream.rows(epoch) for epoch in range(6)])
    for position in (0, 5, stream.length + 2):
        found = stream.next_uses(np.arange(12), position)
        known = (position // stream.length + 4) * stream.length
        for row in range(12):
            ahead = np.flatnonzero(rows[position:known] == row)
            assert found[row] == (position + ahead[0] if len(ahead) else -1)
    assert stream.upcoming(stream.length - 2, 5).tolist() == rows[stream.length - 2 : stream.length + 3].tolist()
    assert len(stream.upcoming(len(rows) - 3, 10)) == 3


@given(
    nodes=st.integers(1, 3), ranks=st.integers(1, 2), room=st.lists(st.integers(0, 2000), max_size=3),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=40), staging=st.integers(1, 800), epochs=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=examples(100), deadline=None)
def test_nothing_is_kept_beyond_the_room_and_all_that_is_read_comes_from_where_it_is(
    nodes: int, ranks: int, room: list[int], sizes: list[int], staging: int, epochs: int
) -> None:
    on = replace(cluster(nodes, *room, ranks=ranks), staging=storage("staging", staging))
    made = job(on, sizes, epochs)
    at_work = MountPolicy(made)
    read: set[int] = set()
    of_source: set[int] = set()
    from_there = 0
    for epoch in range(epochs):
        reads = at_work.reads(epoch)
        assert (reads.where != NOTHING).all()
        read.update(reads.samples.reshape(-1).tolist())
        of_source.update(reads.samples[reads.where >= STORED].tolist())
        from_there += int(made.sizes[reads.samples[reads.where >= STORED]].sum())
        assert (reads.holder < nodes).all()
        for number, node in enumerate(at_work._nodes):
            homes = node.policy.residency.homes
            assert 0 <= homes.used <= (room[0] if room else 0)
            assert all(left >= 0 for left in homes._disk_room), number
    assert read == of_source
    kept = int(made.room.sum()) + nodes * staging
    assert from_there >= sum(source_bytes(epochs, lambda epoch: made.orders.readers(epoch) != NOBODY, made.sizes, kept))
