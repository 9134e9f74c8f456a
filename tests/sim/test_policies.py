"""What each policy reads from where: against counts made one read at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.errors import NopfsError
from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.placement.belady import NEVER
from nopfsfs.placement.methods import homes
from nopfsfs.sim.fluid import NOTHING, PEER, SOURCE, STORED, Reads
from nopfsfs.sim.policies import NotSupported, Placed, SimJob
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.run import Outcome, Simulation
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.sim.training_orders import permutations
from tests.examples import examples
from tests.policy.belady import Belady

SIZE = 100
REDRAWN = ("deepio-opportunistic", "parallel-staging")  # read other samples than the others


def storage(name: str, capacity: int, rate: float = 1e9) -> StorageClass:
    return StorageClass(name, (capacity,), 1, Curve.flat(rate), Curve.flat(rate))


def cluster(nodes: int, *capacities: int, ranks: int = 1, rate: float = 1e4) -> Cluster:
    """Whose storage is faster than its network, and that faster than its source."""
    classes = tuple(storage(f"class{n}", capacity, 1e9 / 10**n) for n, capacity in enumerate(capacities))
    source = SourceModel(Curve.flat(rate))
    return Cluster("c", nodes, 1e5, 1e7, source, storage("staging", 10 * SIZE), classes, 1e9, ranks)


def job(on: Cluster, samples: int, epochs: int, *, batch: int = 4, share: float | None = None) -> SimJob:
    ranks = on.nodes * on.ranks
    orders = permutations(Training(epochs, batch, drop_last=False), samples, ranks, on.ranks)
    return SimJob(on, np.full(samples, SIZE, np.int64), orders, epochs, on.capacities(), share)


def simulation(on: Cluster, samples: int, epochs: int) -> Simulation:
    return Simulation(on, SimDataSet("d", samples, SIZE), Training(epochs, 4, drop_last=False))


def simulate(policy: str, on: Cluster, samples: int, epochs: int) -> Outcome:
    return simulation(on, samples, epochs).run(policy)


def source_reads(reads: Reads) -> int:
    return int(((reads.where >= STORED) & (reads.where != NOTHING)).sum())


# ---- how often the source is read --------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 8])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.0])
def test_homes_read_the_source_once_and_what_has_no_home(nodes: int, share: float) -> None:
    samples = 8000
    simulated = simulation(cluster(nodes, round(share * samples / nodes) * SIZE), samples, 4)
    outcome = simulated.run("homes")

    later = max(0, samples - round(share * samples))
    assert outcome.source_reads_per_epoch[0] == samples
    assert outcome.source_reads_per_epoch[1:] == pytest.approx([later] * 3, rel=1e-3)
    assert outcome.distinct_share == pytest.approx(min(1.0, share))
    assert simulated.needed() == pytest.approx([samples * SIZE, *[later * SIZE] * 3])


@pytest.mark.parametrize("policy", ["staging", "naive"])
def test_everything_from_the_source_in_every_epoch(policy: str) -> None:
    outcome = simulate(policy, cluster(2, 10**9), 1000, 3)
    assert outcome.source_reads_per_epoch == [1000] * 3
    assert outcome.served["source"] == 1.0


def test_perfect_reads_nothing() -> None:
    outcome = simulate("perfect", cluster(2), 1000, 3)
    assert outcome.source_reads_per_epoch == [0] * 3
    assert outcome.stall_seconds == pytest.approx(0.0)
    assert outcome.seconds == pytest.approx(3 * 500 * SIZE / 1e5)


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.5), (2, 0.5), (4, 1.0), (8, 1.0)])
def test_nopfs_reads_what_no_node_keeps(nodes: int, share: float) -> None:
    samples, epochs = 2000, 6
    room = round(share * samples / nodes)
    made = job(cluster(nodes, room * SIZE), samples, epochs)
    often: list[Counter[int]] = [Counter() for _ in range(nodes)]
    for epoch in range(epochs):
        for sample, node in enumerate(made.orders.readers(epoch).tolist()):
            often[node][sample] += 1
    kept = {s for count in often for s in sorted(count, key=lambda s, c=count: (-c[s], s))[:room]}

    outcome = simulate("nopfs", cluster(nodes, room * SIZE), samples, epochs)

    assert outcome.source_reads_per_epoch == [samples, *[samples - len(kept)] * (epochs - 1)]
    assert outcome.distinct_share == len(kept) / samples


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.3), (4, 0.1), (8, 0.2)])
def test_belady_reads_what_its_node_does_not_hold(nodes: int, share: float) -> None:
    samples, epochs = 1000, 12
    room = round(share * samples)
    made = job(cluster(nodes, room * SIZE), samples, epochs)
    who = np.stack([made.orders.readers(epoch) for epoch in range(epochs)])
    expected = [0] * epochs
    for node in range(nodes):
        belady = Belady(room * SIZE)
        for epoch in range(epochs):
            for sample in made.orders.epoch(epoch)[:, node].tolist():
                later = np.flatnonzero(who[epoch + 1 :, sample] == node)
                expected[epoch] += sample not in belady
                belady.read(sample, SIZE, epoch + 1 + int(later[0]) if len(later) else NEVER)

    found = simulate("belady", cluster(nodes, room * SIZE), samples, epochs).source_reads_per_epoch

    assert found[0] == samples
    assert sum(found) == pytest.approx(sum(expected), abs=0.01 * samples * epochs)


def test_staged_shards_are_read_before_the_training() -> None:
    outcome = simulate("deepio-ordered", cluster(4, 100 * SIZE), 1000, 3)
    assert outcome.source_reads_per_epoch == [400 + 600, 600, 600]
    outcome = simulate("deepio-opportunistic", cluster(4, 100 * SIZE), 1000, 3)
    assert outcome.source_reads_per_epoch == [400, 0, 0]
    outcome = simulate("parallel-staging", cluster(4, 100 * SIZE, 200 * SIZE), 1000, 3)
    assert outcome.source_reads_per_epoch == [800, 0, 0]
    assert outcome.served["class1"] == 1.0
    assert simulate("lbann-preloading", cluster(4, 250 * SIZE), 1000, 3).source_reads_per_epoch == [1000, 0, 0]
    assert simulate("lbann-dynamic", cluster(4, 250 * SIZE), 1000, 3).source_reads_per_epoch == [1000, 0, 0]


@pytest.mark.parametrize("policy", ["lbann-dynamic", "lbann-preloading"])
def test_lbann_needs_room_for_everything(policy: str) -> None:
    with pytest.raises(NotSupported, match="does not fit"):
        POLICIES[policy](job(cluster(4, 249 * SIZE), 1000, 2))
    outcome = simulate(policy, cluster(4), 1000, 2)
    assert outcome.seconds is None
    assert "does not fit" in outcome.reason


def test_a_policy_that_there_is_not() -> None:
    with pytest.raises(NopfsError, match="did you mean homes"):
        simulate("home", cluster(1), 10, 1)


# ---- where from --------------------------------------------------------------------------------------------


def places_of(policy: Placed, epoch: int) -> list[tuple[int, int, int, int]]:
    """Rank, sample, where, holder; in the order of the stream."""
    reads = policy.reads(epoch)
    return [
        (rank, int(reads.samples[p, rank]), int(reads.where[p, rank]), int(reads.holder[p, rank]))
        for p in range(len(reads.samples))
        for rank in range(reads.samples.shape[1])
    ]


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["homes", "nopfs"]), st.integers(1, 4), st.integers(1, 2), st.integers(1, 60),
    st.lists(st.integers(0, 40), max_size=3), st.integers(1, 4),
)  # fmt: skip
def test_a_placement_is_read_as_it_says(
    name: str, nodes: int, ranks: int, samples: int, rooms: list[int], epochs: int
) -> None:
    on = cluster(nodes, *(room * SIZE for room in rooms), ranks=ranks)
    policy = POLICIES[name](job(on, samples, epochs))
    assert isinstance(policy, Placed)
    placement = policy.placement
    copies = [dict(zip(k.tolist(), c.tolist(), strict=True)) for k, c in placement.copies]
    seen: set[int] = set()
    got: set[tuple[int, int]] = set()
    for epoch in range(epochs):
        now: set[tuple[int, int]] = set()
        for rank, sample, where, holder in places_of(policy, epoch):
            node, home, number = rank // ranks, int(placement.home[sample]), int(placement.home_class[sample])
            if where == 0 and placement.slice[node] and home != node:
                assert holder == node
                assert (node, sample) in got
            elif (node, sample) in got and sample in copies[node]:
                assert (where, holder) == (copies[node][sample], node)
            elif home < 0:
                assert where == SOURCE
            elif sample not in seen:
                assert (where, holder) == (STORED + number, home)
            elif home == node:
                assert (where, holder) == (number, node)
            else:
                assert (where, holder) == (PEER + number, home)
            seen.add(sample)
            now.add((node, sample))
        got |= now


def test_a_slower_class_is_not_read_nor_written_again() -> None:
    slow = replace(cluster(2), classes=(storage("disk", 10**6, 1e3),))
    policy = POLICIES["homes"](job(slow, 100, 8))

    for epoch in range(8):
        assert set(policy.reads(epoch).where.reshape(-1).tolist()) == {SOURCE if epoch else STORED}


@pytest.mark.parametrize(("at_once", "expected"), [(2, {0, PEER}), (64, {SOURCE})])
@pytest.mark.parametrize("name", ["homes", "nopfs", "belady"])
def test_a_slow_class_is_read_where_the_latency_of_the_source_is_more(
    name: str, at_once: int, expected: set[int]
) -> None:
    """0.1 s a sample from the disk; 0.01 s and 0.5 s of latency from the source, so many at once."""
    on = cluster(2)
    source = replace(on.source, latency=0.5, at_once=at_once)
    made = job(replace(on, source=source, classes=(storage("disk", 10**6, 1e3),)), 100, 8)
    policy = POLICIES[name](made)
    policy.reads(0)
    found = {int(where) for epoch in range(1, 8) for where in policy.reads(epoch).where.reshape(-1)}

    assert found == ({0, SOURCE} if name == "belady" and at_once == 2 else expected)


def test_only_small_samples_are_read_from_a_slow_class() -> None:
    on = replace(cluster(2), classes=(storage("disk", 10**6, 1e3),))
    made = job(replace(on, source=replace(on.source, latency=0.5)), 100, 8)
    sizes = np.where(np.arange(100) < 50, 100, 1000)  # 0.1 s or 1 s from the disk, 0.51 s or 0.6 s from the source
    policy = POLICIES["homes"](replace(made, sizes=sizes))
    policy.reads(0)
    reads = policy.reads(1)

    assert ((reads.where == SOURCE) == (sizes[reads.samples] == 1000)).all()


def test_a_copy_on_a_slow_disk_is_passed_by_for_a_peers_memory() -> None:
    """Paper, section 4: each sample from where it comes soonest."""
    on = cluster(2, 500 * SIZE, 1000 * SIZE)
    on = replace(on, classes=(on.classes[0], storage("disk", 1000 * SIZE, 2e4)))
    policy = POLICIES["homes"](job(on, 1000, 6))
    found = [policy.reads(epoch) for epoch in range(6)]

    assert isinstance(policy, Placed)
    assert all(len(kept) for kept, _ in policy.placement.copies)
    for reads in found:
        reader = np.broadcast_to(policy.job.nodes, reads.where.shape)
        elsewhere = policy.placement.home[reads.samples] != reader
        disk = (reads.where == 1) & elsewhere
        assert (policy.placement.home_class[reads.samples[disk]] == 1).all()


def test_the_slice_of_homes_saves_readings_from_peers() -> None:
    made = job(cluster(4, 400 * SIZE), 1000, 20)
    policy = POLICIES["homes"](made)
    assert isinstance(policy, Placed)
    assert policy.placement.slice.sum() == 600 * SIZE
    own = [(policy.placement.home == made.orders.readers(epoch)).sum() for epoch in range(20)]

    local = [int((policy.reads(epoch).where == 0).sum()) for epoch in range(20)]

    assert local[0] == 0
    assert sum(local[1:]) > 1.3 * sum(own[1:])


def written_and_read(name: str, made: SimJob) -> tuple[np.ndarray, Counter[tuple[int, int]]]:
    """Bytes written beside the homes, f64[classes, nodes], and how often each node read each sample."""
    policy = POLICIES[name](made)
    written, often = np.zeros((made.room.shape[1], 4)), Counter[tuple[int, int]]()
    for epoch in range(made.epochs):
        reads = policy.reads(epoch)
        assert reads.written is not None
        written += reads.written
        nodes = np.broadcast_to(made.nodes, reads.samples.shape)
        often.update(zip(nodes.flat, reads.samples.flat, strict=True))
    return written, often


def test_a_cache_with_room_for_all_is_written_once_with_what_is_read_again() -> None:
    written, often = written_and_read("belady", job(cluster(4, 2000 * SIZE), 1000, 6))

    assert written.tolist() == [[SIZE * sum(n == node and c > 1 for (n, _), c in often.items()) for node in range(4)]]


@pytest.mark.parametrize(("name", "rooms"), [("nopfs", (200, 500)), ("homes", (0, 900))])
def test_second_copies_are_written_once(name: str, rooms: tuple[int, ...]) -> None:
    made = job(cluster(4, *(room * SIZE for room in rooms)), 1000, 6)
    policy = POLICIES[name](made)
    assert isinstance(policy, Placed)
    home = policy.placement.home

    written, often = written_and_read(name, made)

    for node, (kept, classes) in enumerate(policy.placement.copies):
        besides = home[kept] != node
        assert besides.any() == (name != "nopfs" or node > 0), "of the paper's, the first node keeps no second copies"
        assert all(often[node, sample] for sample in kept.tolist())
        assert written[:, node].tolist() == (SIZE * np.bincount(classes[besides], minlength=2)).tolist()


def test_what_a_slice_takes_in_is_written() -> None:
    written, _ = written_and_read("homes", job(cluster(4, 400 * SIZE), 1000, 12))

    assert (written[0] >= 150 * SIZE).all()  # the room of each slice at least


def test_homes_are_those_of_the_placement() -> None:
    made = job(cluster(4, 100 * SIZE), 1000, 5, share=0.5)
    policy = POLICIES["homes"](made)
    assert isinstance(policy, Placed)
    expected = homes(made.orders.readers, 5, made.sizes, made.room, slice_share=0.5)
    assert (policy.placement.home == expected.home).all()
    assert policy.placement.slice.tolist() == [50 * SIZE] * 4


# ---- what is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in (*REDRAWN, "locality-aware")])
def test_the_order_is_left_alone(policy: str) -> None:
    made = job(cluster(4, 1000 * SIZE, ranks=2), 999, 3)
    at_work = POLICIES[policy](made)
    for epoch in range(3):
        assert (at_work.reads(epoch).samples == made.orders.epoch(epoch)).all()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("room", [20, 100])
def test_locality_aware_deals_each_steps_samples_out_anew(ranks: int, room: int) -> None:
    batch, samples = 4, 403
    made = job(cluster(4, 10 * SIZE, room * SIZE, ranks=ranks), samples, 3, batch=batch)
    policy = POLICIES["locality-aware"](made)
    assert isinstance(policy, Placed)
    home = policy.placement.home
    for epoch in range(3):
        before, after = made.orders.epoch(epoch), policy.reads(epoch).samples
        assert after.shape == before.shape
        for first in range(0, len(before), batch):
            step, dealt = before[first : first + batch], after[first : first + batch]
            assert sorted(step.reshape(-1).tolist()) == sorted(dealt.reshape(-1).tolist())
            if epoch:
                places = len(step) * ranks
                for node in range(4):
                    mine = dealt[:, node * ranks : (node + 1) * ranks]
                    assert (home[mine] == node).sum() == min(places, (home[step] == node).sum())
            else:
                assert (step == dealt).all()


@pytest.mark.parametrize("policy", REDRAWN)
def test_what_is_read_instead_is_the_nodes_own(policy: str) -> None:
    made = job(cluster(4, 50 * SIZE, 100 * SIZE, ranks=2), 1000, 2)
    at_work = POLICIES[policy](made)
    assert isinstance(at_work, Placed)
    for epoch in range(2):
        before, reads = made.orders.epoch(epoch), at_work.reads(epoch)
        changed = before != reads.samples
        node = np.broadcast_to(made.nodes, before.shape)
        assert (at_work.placement.home[reads.samples[changed]] == node[changed]).all()
        assert source_reads(reads) == 0


def test_the_same_again() -> None:
    one, other = (simulate("homes", cluster(4, 60 * SIZE, 50 * SIZE, ranks=2), 500, 5).record() for _ in range(2))
    assert one == other
