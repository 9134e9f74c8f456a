"""The fluid cluster: against a loop over single reads, and what must hold for any cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.performance.model import Cluster, Curve, SourceModel
from nopfsfs.sim import run
from nopfsfs.sim.fluid import NOTHING, PEER, SOURCE, STORED, Epoch, Fluid, Preload, Reads
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.run import Outcome, Simulation
from nopfsfs.sim.training import SimDataSet, Training
from tests.examples import examples
from tests.sim.clusters import CLASSES, clusters, storage

SIZES = np.array([3, 8, 1, 5, 9, 4, 7, 2, 6, 10])
OTHER_SAMPLES = ("perfect", "deepio-opportunistic", "parallel-staging")  # read nothing, or something else


@st.composite
def epochs(draw: st.DrawFn, cluster: Cluster) -> Reads:
    shape = draw(st.integers(1, 7)), cluster.nodes * cluster.ranks
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kinds = [NOTHING, SOURCE, *(kind + n for kind in (0, PEER, STORED) for n in range(CLASSES))]
    where = rng.choice(kinds[draw(st.integers(0, 2)) :], shape).astype(np.uint8)
    holder = rng.integers(0, cluster.nodes, shape).astype(np.uint16)
    own = np.arange(shape[1], dtype=np.uint16) // cluster.ranks
    holder = np.where(where < CLASSES, own, holder).astype(np.uint16)
    written = draw(st.sampled_from([None, rng.integers(0, 40, (CLASSES, cluster.nodes)).astype(float)]))
    return Reads(rng.integers(0, len(SIZES), shape).astype(np.int32), where, holder, written=written)


class OneByOne:
    """The same cluster, a read at a time; every step is fetched when the step `window` + 1 before it has ended."""

    def __init__(self, cluster: Cluster, batch: int, window: int) -> None:
        self.cluster, self.batch, self.window = cluster, batch, window
        self.clock: dict[object, float] = {}
        self.ends: list[float] = []

    def work(self, resource: object, seconds: float, gate: float) -> float:
        self.clock[resource] = max(self.clock.get(resource, 0.0), gate) + seconds
        return self.clock[resource]

    def run(self, reads: Reads) -> float:
        ranks = self.cluster.ranks
        of_source = (reads.where >= STORED) & (reads.where != NOTHING)
        gamma = max(1, len({rank // ranks for rank in np.nonzero(of_source)[1]}))
        for first in range(0, len(reads.samples), self.batch):
            self.step(reads, range(first, min(first + self.batch, len(reads.samples))), gamma)
        return self.ends[-1]

    def step(self, reads: Reads, places: range, gamma: int) -> None:
        cluster, each = self.cluster, self.cluster.ranks
        columns = range(reads.samples.shape[1])
        gate = self.ends[-1 - self.window] if len(self.ends) > self.window else 0.0
        asked = [(p, r) for p in places for r in columns]
        where = {at: int(reads.where[at]) for at in asked}
        size = {at: float(SIZES[reads.samples[at]]) for at in asked}
        there = dict.fromkeys(asked, -np.inf)
        from_source = [at for at in asked if STORED <= where[at] != NOTHING]
        of_buffer = gate if SOURCE in where.values() else 0.0
        rate = min(cluster.source.rate.at(gamma), gamma * cluster.source.link)
        for place in places:  # a node's link brings what its ranks read at a place together
            here = [at for at in from_source if at[0] == place]
            for at in here:
                there[at] = self.work("source", size[at] / rate, of_buffer)
            for node in range(cluster.nodes):
                mine = [at for at in here if at[1] // each == node]
                by_size = sum(size[at] for at in mine) / cluster.source.link
                by_number = len(mine) * cluster.source.latency / cluster.source.at_once
                done = self.work(("link", node), max(by_size, by_number), of_buffer)
                for at in mine:
                    there[at] = max(there[at], done) + cluster.source.latency

        def serve(resource: str, asked: list[tuple[int, int]], node: dict[tuple[int, int], int], rate: float) -> None:
            for number in range(cluster.nodes) if asked else ():
                mine = [at for at in asked if node[at] == number]
                done = self.work((resource, number), sum(size[at] for at in mine) / rate, gate)
                for at in mine:
                    there[at] = max(there[at], done)

        holder = {at: int(reads.holder[at]) for at in asked}
        reader = {at: at[1] // each for at in asked}
        for number, one in enumerate(cluster.classes):
            kept = [at for at in asked if where[at] in (number, PEER + number)]
            serve(f"class {number}", kept, holder, one.read_rate)
            for at in asked:
                if where[at] == STORED + number:
                    self.work((f"class {number}", holder[at]), size[at] / one.write_rate, 0.0)
            if reads.written is not None:
                for node, some in enumerate(reads.written[number] * len(places) / len(reads.samples)):
                    self.work((f"class {number}", node), some / one.write_rate, 0.0)
        peers = [at for at in asked if PEER <= where[at] < STORED]
        serve("in", peers, reader, cluster.network)
        serve("out", peers, holder, cluster.network)
        staging = min(cluster.staging.threads * cluster.preprocess, cluster.staging.write_rate)
        serve("staging", [at for at in asked if where[at] != NOTHING], reader, staging)

        began = self.ends[-1] if self.ends else 0.0
        ends = []
        for rank in columns:
            now = began
            for place in places:
                now = max(now, there[place, rank]) + size[place, rank] / cluster.compute
            ends.append(now)
        self.ends.append(max(ends))


def seconds(cluster: Cluster, reads: list[Reads], batch: int) -> float:
    fluid = Fluid(cluster, SIZES, batch)
    for epoch in reads:
        fluid.run(epoch)
    return fluid.now


@settings(max_examples=examples(100))
@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_reads_one_by_one(data: st.DataObject, batch: int, window: int) -> None:
    cluster = data.draw(clusters())
    room = int(window * SIZES.mean() * batch * cluster.ranks) + 1
    cluster = replace(cluster, staging=replace(cluster.staging, capacity=(room,)))
    reads = [data.draw(epochs(cluster)) for _ in range(2)]
    fluid, oracle = Fluid(cluster, SIZES, batch), OneByOne(cluster, batch, window)

    for epoch in reads:
        began = fluid.now
        found = fluid.run(epoch)

        assert fluid.now == pytest.approx(oracle.run(epoch), rel=1e-9)
        assert found.seconds == pytest.approx(fluid.now - began, abs=1e-9 * fluid.now)
        for name, kind in (("0", 0), ("1", 1)):
            assert found.reads[name] == (epoch.where == kind).sum()
        assert found.reads["peer"] == ((epoch.where >= PEER) & (epoch.where < STORED)).sum()
        assert found.reads["source"] == ((epoch.where >= STORED) & (epoch.where < NOTHING)).sum()


FASTER = ("compute", "network", "preprocess", "rate", "link", "latency", "at_once", "read", "write", "staging")


def faster(cluster: Cluster, what: str, factor: float) -> Cluster:
    def times(curve: Curve) -> Curve:
        return Curve(tuple((x, y * factor) for x, y in curve.points))

    source, first = cluster.source, cluster.classes[0]
    changed = {
        "rate": lambda: {"source": replace(source, rate=times(source.rate))},
        "link": lambda: {"source": replace(source, link=source.link * factor)},
        "latency": lambda: {"source": replace(source, latency=source.latency / factor)},
        "at_once": lambda: {"source": replace(source, at_once=source.at_once + 1)},
        "read": lambda: {"classes": (replace(first, read=times(first.read)), *cluster.classes[1:])},
        "write": lambda: {"classes": (replace(first, write=times(first.write)), *cluster.classes[1:])},
        "staging": lambda: {"staging": replace(cluster.staging, write=times(cluster.staging.write))},
    }
    make = changed.get(what, lambda: {what: getattr(cluster, what) * factor})
    return replace(cluster, **make())


@given(st.data(), st.sampled_from(FASTER), st.sampled_from([1.1, 3.0]), st.integers(1, 3))
def test_nothing_takes_longer_when_something_is_faster(
    data: st.DataObject, what: str, factor: float, batch: int
) -> None:
    cluster = data.draw(clusters(staging=data.draw(st.integers(1, 200))))
    reads = [data.draw(epochs(cluster)) for _ in range(2)]

    assert seconds(faster(cluster, what, factor), reads, batch) <= seconds(cluster, reads, batch) * (1 + 1e-9)


@given(st.data(), st.integers(1, 3))
def test_without_io_there_is_only_computing(data: st.DataObject, batch: int) -> None:
    cluster = data.draw(clusters())
    reads = data.draw(epochs(cluster))
    where = np.full_like(reads.where, NOTHING)
    steps = [SIZES[reads.samples[first : first + batch]] for first in range(0, len(where), batch)]
    fluid = Fluid(cluster, SIZES, batch)

    found = fluid.run(replace(reads, where=where))

    assert fluid.now == pytest.approx(sum(step.sum(axis=0).max() for step in steps) / cluster.compute)
    assert found.compute_seconds == pytest.approx(fluid.now)


@given(st.data(), st.integers(1, 3))
def test_without_fetching_ahead_each_read_is_waited_for(data: st.DataObject, batch: int) -> None:
    cluster = data.draw(clusters())
    reads = data.draw(epochs(cluster))
    reads = replace(reads, where=np.full_like(reads.where, SOURCE), ahead=False)
    gamma = cluster.nodes
    share = min(cluster.source.link, cluster.source.rate.at(gamma) / gamma) / cluster.ranks
    each = SIZES[reads.samples] * (1 / share + 1 / cluster.preprocess + 1 / cluster.compute) + cluster.source.latency

    expected = sum(each[first : first + batch].sum(axis=0).max() for first in range(0, len(each), batch))

    assert seconds(cluster, [reads], batch) == pytest.approx(expected)


@given(st.data(), st.integers(1, 3), st.sampled_from([0.0, 7.0]))
def test_time_that_passes_before_the_training_is_lost(data: st.DataObject, batch: int, wait: float) -> None:
    cluster = data.draw(clusters())
    reads = data.draw(epochs(cluster))
    fluid = Fluid(cluster, SIZES, batch)

    fluid.wait(wait)
    fluid.run(reads)

    assert fluid.now == pytest.approx(wait + seconds(cluster, [reads], batch))


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("rate", 0.1 + (30 + 60) / 2), ("link", 0.1 + 60 / 0.5), ("write", 0.1 + 60 / 0.25),
        ("latency", 100.0 + 4 * 100 / 2),
    ],
)  # fmt: skip
def test_what_is_loaded_first_waits_for_the_slowest(what: str, expected: float) -> None:
    """Node 0 loads 30 bytes in 2 samples into its second class, node 1 60 bytes in 4, at 2 bytes a second together."""
    fast = storage("any", 1000, 1, 1e9, 1e9)
    disk = storage("disk", 1000, 1, 1e9, 0.25 if what == "write" else 1e9)
    latency = 100.0 if what == "latency" else 0.1
    source = SourceModel(Curve(((2.0, 2.0), (3.0, 1e9))), 0.5 if what == "link" else 1e9, latency, 2)
    if what == "link":
        source = replace(source, rate=Curve.flat(1e9))
    cluster = Cluster("c", 3, 10.0, 1.0, source, fast, (fast, disk))
    fluid = Fluid(cluster, np.array([10, 20, 15, 15, 15, 15]), 1)

    fluid.load(Preload(np.arange(6), np.array([0, 0, 1, 1, 1, 1], np.int32), np.ones(6, np.int8)))

    assert fluid.now == pytest.approx(expected)


# ---- all policies ------------------------------------------------------------------------------------------


def with_source_bytes(simulation: Simulation, policy: str) -> tuple[Outcome, list[float]]:
    """The outcome of a policy, and the bytes that come from the source in each epoch; in the first also those before
    the training."""
    loaded, read = [0.0], []

    class Watched(Fluid):
        def load(self, load: Preload) -> None:
            super().load(load)
            loaded.append(float(simulation.sizes[load.samples].sum()))

        def run(self, reads: Reads) -> Epoch:
            of_source = (reads.where >= STORED) & (reads.where != NOTHING)
            read.append(float(simulation.sizes[reads.samples][of_source].sum()))
            return super().run(reads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Fluid", Watched)
        outcome = simulation.run(policy)
    return outcome, [sum(loaded) + sum(read[:1]), *read[1:]]


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 40), st.integers(1, 3), st.integers(1, 4))
def test_nothing_is_below_the_bound(data: st.DataObject, samples: int, batch: int, count: int) -> None:
    cluster = data.draw(clusters(staging=data.draw(st.integers(1, 100))))
    sizes = np.array(data.draw(st.lists(st.integers(1, 20), min_size=samples, max_size=samples)))
    data_set = SimDataSet("d", samples, 0.0, sizes=sizes)
    simulation = Simulation(cluster, data_set, Training(count, batch, drop_last=False))
    most = cluster.source.most(cluster.nodes)
    window = max(1, int(cluster.staging.capacity[0] / (np.mean(sizes) * batch * cluster.ranks)))
    ahead = min((window + 1) * batch * cluster.ranks * cluster.nodes * int(sizes.max()), int(sizes.sum()))

    for policy in POLICIES:
        outcome, source_bytes = with_source_bytes(simulation, policy)
        if outcome.seconds is None:
            continue
        computing = outcome.seconds - (outcome.stall_seconds or 0.0)
        assert outcome.seconds >= computing * (1 - 1e-9), policy
        # Of what is staged when an epoch ends, `mount` serves the next one too: test_mounted_nodes has its bound.
        if policy not in (*OTHER_SAMPLES, "mount"):
            assert outcome.seconds >= sum(simulation.needed()) / most * (1 - 1e-9), policy
            assert outcome.seconds >= outcome.bound_seconds - (count - 1) * ahead / most - 1e-9, policy
            for read, least in zip(source_bytes, simulation.needed(), strict=True):
                assert read >= least - 1e-6, policy
