"""Clusters and data sets that are simulated in no time, and figures of runs that never were."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.sim.run import Outcome
from nopfsfs.sim.training import SimDataSet, Training

MB = 10**6
STAGING = StorageClass("staging", (8 * MB,), 2, Curve.flat(1e9), Curve.flat(1e9))
RAM = StorageClass("ram", (20 * MB,), 2, Curve.flat(1e9), Curve.flat(1e9))
SSD = StorageClass("ssd", (30 * MB,), 2, Curve.flat(2e8), Curve.flat(2e8))
TINY = Cluster("tiny", 2, 1e8, 1e9, SourceModel(Curve.flat(2e7)), STAGING, (RAM, SSD))
FEW = SimDataSet("few", 100, 1.0 * MB)
TRAINING = Training(3, 5)

TINY_TOML = """
name = "tiny"
nodes = 2
compute = "100 MB/s"
network = "1000 MB/s"
[source]
rate = "20 MB/s"
[staging]
capacity = "8 MB"
threads = 2
read = "1000 MB/s"
[[class]]
name = "ram"
capacity = "20 MB"
threads = 2
read = "1000 MB/s"
[[class]]
name = "ssd"
capacity = "30 MB"
threads = 2
read = "200 MB/s"
"""
FEW_TOML = """
name = "few"
samples = 100
mean = "1 MB"
[training]
epochs = 3
batch = 5
"""
IMPOSSIBLE = Outcome("lbann-dynamic", "few", "tiny", 2, reason="it does not fit")


def outcome(policy: str, seconds: float, *, nodes: int = 2, stall: float = 1.0) -> Outcome:
    """Of a run of three epochs."""
    return Outcome(
        policy, "few", "tiny", nodes, seconds=seconds, bound_seconds=5.0, stall_seconds=stall,
        source_reads_per_epoch=[1000, 10, 30], distinct_share=0.5,
        served={"ram": 0.25, "ssd": 0.0, "peer": 0.25, "source": 0.5}, epoch_seconds=[seconds / 3] * 3,
    )  # fmt: skip


def with_nodes(nodes: int) -> Cluster:
    return replace(TINY, nodes=nodes)

CLASSES = 2
rates = st.sampled_from([0.5, 1.0, 3.0, 20.0, 1e9])


def storage(name: str, capacity: int, threads: int, read: float, write: float) -> StorageClass:
    return StorageClass(name, (capacity,), threads, Curve.flat(read), Curve.flat(write))


@st.composite
def clusters(draw: st.DrawFn, staging: int = 30) -> Cluster:
    """Up to three nodes of up to two ranks, whose staging buffers hold one to three steps."""
    nodes, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    points = sorted(draw(st.dictionaries(st.integers(1, 3), rates, min_size=1)).items())
    latency, at_once = draw(st.sampled_from([0.0, 0.3])), draw(st.integers(1, 3))
    source = SourceModel(Curve(tuple((float(x), y) for x, y in points)), draw(rates), latency, at_once)
    classes = tuple(
        storage(str(n), draw(st.integers(0, 60)), draw(st.integers(1, 3)), draw(rates), draw(rates))
        for n in range(CLASSES)
    )
    buffer = storage("staging", staging, draw(st.integers(1, 3)), 1e9, draw(rates))
    return Cluster("any", nodes, draw(rates), draw(rates), source, buffer, classes, draw(rates), ranks)
