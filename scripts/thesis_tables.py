"""The simulations that the thesis on HDMLP published: what was simulated, and the seconds that came out.

R. Böhringer, "Clairvoyant Prefetching for Machine Learning I/O" (ETH Zürich, 2020), section 5.2. Its "GB" of storage
are 1024 MB. It prints neither the number of epochs, which the lower bounds show, nor the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.sim.training import SimDataSet, Training

MB = 10**6
GB = 1024 * MB
NODES = 4
BATCH = 25  # of a rank: the 100 of the thesis are those of all four
MEMORY, DISK, SWEPT_DISK = 21_164 * MB, 86 * MB, 100 * MB  # bytes a second by two threads
PFS = Curve(((1, 66e6), (2, 86e6), (3, 129e6), (4, 146e6)))


def storage(name: str, capacity: int, rate: int) -> StorageClass:
    return StorageClass(name, (capacity,), threads=2, read=Curve.flat(rate), write=Curve.flat(rate))


def cluster(staging: int, *classes: StorageClass) -> Cluster:
    return Cluster(
        name="thesis",
        nodes=NODES,
        compute=100e6,
        network=10_000e6,
        source=SourceModel(PFS, link=2_000e6),
        staging=storage("staging", staging, MEMORY),
        classes=classes,
        preprocess=200e6,
    )


CLUSTER = cluster(1 * GB, storage("memory", 50 * GB, MEMORY), storage("disk", 100 * GB, DISK))


@dataclass(frozen=True)
class Scenario:
    """One of section 5.2.2, and the seconds it published for each policy; None: not supported."""

    dataset: SimDataSet
    training: Training
    published: dict[str, float | None]


POLICIES = (
    "perfect", "naive", "nopfs", "staging", "deepio-ordered", "deepio-opportunistic", "parallel-staging",
    "lbann-dynamic", "lbann-preloading", "locality-aware",
)  # fmt: skip


def scenario(name: str, samples: int, mean: float, sigma: float, epochs: int, *seconds: float | None) -> Scenario:
    dataset = SimDataSet(name, samples, mean * MB, sigma * MB)
    return Scenario(dataset, Training(epochs, BATCH), dict(zip(POLICIES, seconds, strict=True)))


SCENARIOS = (
    scenario("S1", 10_000, 0.027, 0.01, 10, 7.30, 27.78, 7.78, 10.24, 8.41, 8.40, 10.11, 7.71, 8.41, 8.41),
    scenario(
        "S2", 150_000, 1, 0.1, 10,
        3825.66, 15130.54, 3836.12, 4982.27, 4433.27, 4432.90, 4972.65, 4051.12, 4433.27, 4433.27,
    ),
    scenario(
        "S3", 300_000, 2, 0.2, 5,
        7655.25, 30272.96, 7661.26, 9945.29, 23948.24, 8487.42, 9313.58, None, None, 9314.33,
    ),
    scenario(
        "S4", 400_000, 3, 0.2, 5,
        15204.78, 60526.36, 16795.17, 19888.26, 54122.52, 16034.89, 16861.82, None, None, 19082.99,
    ),
)  # fmt: skip
S1, S2, S3, S4 = SCENARIOS

# section 5.2.3 and figure 5.8: NoPFS on S3. Rows: GB of a storage class of `SWEPT_DISK`; columns: GB of memory.
SWEPT_MEMORY = (0, 10, 20, 40)
SWEPT = {
    0: (9947.0, 9554.47, 9239.67, 8613.13),
    20: (9579.53, 9212.1, 8889.2, 8249.8),
    40: (9257.99, 8885.5, 8550.5, 8015.7),
    80: (8703.59, 8382.7, 8102.9, 7678.2),
}


def environments() -> dict[str, tuple[Cluster, float]]:
    """The clusters on which NoPFS ran S3, and the seconds it took."""
    found = {"no storage": (cluster(0), 30275.72)}
    found |= {f"staging {size} GB": (cluster(size * GB), 9947.0) for size in (1, 2, 4)}
    for disk, row in SWEPT.items():
        for memory, seconds in zip(SWEPT_MEMORY, row, strict=True):
            classes = [storage("memory", memory * GB, MEMORY), storage("disk", disk * GB, SWEPT_DISK)]
            there = [one for one in classes if one.capacity != (0,)]
            if there:
                found[f"memory {memory} GB, disk {disk} GB"] = (cluster(4 * GB, *there), seconds)
    return found
