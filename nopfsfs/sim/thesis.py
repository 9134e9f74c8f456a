"""The simulator of NoPFS's predecessor: reproduces the tables that its thesis published.

R. Böhringer, "Clairvoyant Prefetching for Machine Learning I/O" (ETH Zürich, 2020), sections 4.1 and 5.2. A cluster has
one rank on each node. Some rules are not those of real machines (`thesis_worker`): do not predict with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from nopfsfs.performance.model import Cluster
from nopfsfs.sim.policies import NotSupported
from nopfsfs.sim.thesis_order import deal
from nopfsfs.sim.thesis_setup import POLICIES, ThesisJob
from nopfsfs.sim.thesis_worker import ThesisRates, ThesisStaging, play, workers
from nopfsfs.sim.training import SimDataSet, Training

__all__ = ["NAMES", "PERFECT", "NotSupported", "ThesisResult", "run"]

PERFECT = "perfect"  # no I/O: the lower bound
NAMES = (PERFECT, *POLICIES)


@dataclass(frozen=True, slots=True)
class ThesisResult:
    """Times of a training. `seconds`: until the end of the last batch. `stall_seconds`: the time that a node waited for
    samples, on average of all nodes. The loading before the first batch is in it, the waiting for other nodes is
    not."""

    seconds: float
    stall_seconds: float


def run(
    policy: str,
    cluster: Cluster,
    dataset: SimDataSet,
    training: Training,
    progress: Callable[[float], None] | None = None,
) -> ThesisResult:
    """The time that the training takes with a policy of `NAMES`. `progress` gets the share that is done, 0 to 1. Raises
    NotSupported where the policy does not do this, ValueError for an unknown policy."""
    if policy not in NAMES:
        raise ValueError(f"no policy {policy!r}: there are {', '.join(NAMES)}")
    if cluster.ranks != 1 or cluster.source.latency:
        raise NotSupported("the thesis's simulator has one rank on each node, and no latency")
    sizes = dataset.draw()
    accesses = deal(len(sizes), training, cluster.nodes)
    rates = ThesisRates.of(cluster)
    if policy == PERFECT:
        slowest = accesses.batch_sums(sizes).max(axis=0)
        return ThesisResult(float(slowest.sum() * rates.compute), 0.0)
    setup = POLICIES[policy](ThesisJob(cluster, sizes, accesses, rates, training.entropy))
    buffers = cluster.staging.capacity if setup.staging else (0,)
    capacity = tuple(buffers[node % len(buffers)] for node in range(cluster.nodes))
    staging = ThesisStaging(capacity, cluster.staging.threads, setup.from_source, setup.from_peers)
    ranks = workers(setup.accesses, sizes, setup.kept, rates, staging)
    seconds = play(ranks, accesses.steps, setup.begin, progress)
    return ThesisResult(seconds, setup.begin + fmean(rank.waited for rank in ranks))
