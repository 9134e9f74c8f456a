"""A simulated training on a cluster: each policy's reads through the fluid cluster, compared with the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance import bounds
from nopfsfs.performance.model import Cluster
from nopfsfs.sim.fluid import Epoch, Fluid
from nopfsfs.sim.policies import NotSupported, SimJob
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.sim.training_orders import TrainingOrders, of_sampler, permutations

Progress = Callable[[float], None]
PLACING = 0.5  # of the progress, at most, is for computations before the first epoch


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one policy. Where the policy does not work, `seconds` is None and `reason` says why. `served`:
    shares of the reads, by storage class, `peer` and `source`; `reads_per_epoch`: their numbers in each epoch."""

    policy: str
    dataset: str
    cluster: str
    nodes: int
    seconds: float | None = None
    bound_seconds: float = 0.0
    stall_seconds: float | None = None
    source_reads_per_epoch: list[int] = field(default_factory=list)
    distinct_share: float = 0.0
    served: dict[str, float] = field(default_factory=dict)
    reads_per_epoch: list[dict[str, int]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """The outcome as `nopfs simulate --json` prints it."""
        return {
            "policy": self.policy, "dataset": self.dataset, "cluster": self.cluster, "nodes": self.nodes,
            "seconds": self.seconds, "bound_seconds": self.bound_seconds, "stall_seconds": self.stall_seconds,
            "source_reads_per_epoch": self.source_reads_per_epoch, "distinct_share": self.distinct_share,
            "served": self.served, "reads_per_epoch": self.reads_per_epoch, "epoch_seconds": self.epoch_seconds,
            "reason": self.reason,
        }  # fmt: skip


class Simulation:
    """A data set and training on one cluster. `order`: a sampler's name, or None for numpy's permutations."""

    def __init__(
        self, cluster: Cluster, dataset: SimDataSet, training: Training, *, order: str | None = None,
        slice_share: float | None = None,
    ) -> None:  # fmt: skip
        self._cluster, self._dataset, self._training = cluster, dataset, training
        self.sizes = dataset.draw()
        ranks = cluster.nodes * cluster.ranks
        how: TrainingOrders = (
            permutations(training, len(self.sizes), ranks, cluster.ranks)
            if order is None else of_sampler(order, training, len(self.sizes), ranks, cluster.ranks)
        )  # fmt: skip
        self._job = SimJob(cluster, self.sizes, how, training.epochs, cluster.capacities(), slice_share)
        self._needed: list[float] | None = None

    def run(self, policy: str, progress: Progress = lambda share: None) -> Outcome:
        """Simulate one policy; `progress` gets the share that is done. Raises NopfsError: no such policy."""
        name = find_policy(policy)
        cluster, epochs = self._cluster, self._training.epochs
        outcome = partial(
            Outcome, policy=name, dataset=self._dataset.name, cluster=cluster.name, nodes=cluster.nodes
        )  # fmt: skip
        placing = _Placing(epochs, progress)
        try:
            at_work = POLICIES[name](replace(self._job, asked=placing.asked))
        except NotSupported as why:
            return outcome(reason=str(why))
        fluid = Fluid(cluster, self.sizes, self._training.batch)
        done: list[Epoch] = []
        load = at_work.load()
        if load is not None:
            fluid.load(load)
        for epoch in range(epochs):
            done.append(fluid.run(at_work.reads(epoch)))
            progress(placing.share + (1 - placing.share) * (epoch + 1) / epochs)
        compute = [one.compute_seconds for one in done]
        source = [one.reads["source"] for one in done]
        if load is not None:
            source[0] += len(load.samples)
        reads = {key: sum(one.reads[key] for one in done) for key in done[0].reads}
        total = max(1, sum(reads.values()))
        return outcome(
            seconds=fluid.now, bound_seconds=bounds.seconds(cluster, compute, self.needed()),
            stall_seconds=fluid.now - sum(compute), source_reads_per_epoch=source,
            distinct_share=at_work.distinct_share, served={key: count / total for key, count in reads.items()},
            reads_per_epoch=[one.reads for one in done], epoch_seconds=[one.seconds for one in done],
        )  # fmt: skip

    def needed(self) -> list[float]:
        """Bytes that must come from the source in each epoch."""
        if self._needed is None:
            readers = self._job.orders.readers
            self._needed = bounds.source_bytes(
                self._training.epochs, lambda epoch: readers(epoch) != np.uint16(0xFFFF), self.sizes,
                int(self._job.room.sum()),
            )  # fmt: skip
        return self._needed


class _Placing:
    """Progress of the computations before the first epoch. They ask for the readers of all epochs several times; how
    often is not known before."""

    def __init__(self, epochs: int, progress: Progress) -> None:
        self._epochs, self._progress = epochs, progress
        self._count = 0

    @property
    def share(self) -> float:
        return PLACING * self._count / (self._count + self._epochs)

    def asked(self) -> None:
        self._count += 1
        self._progress(self.share)


def find_policy(name: str, known: Iterable[str] = POLICIES, what: str = "a policy") -> str:
    """Return the name if it is among `known`, the names of `what`. Raises NopfsError."""
    known = list(known)
    if name in known:
        return name
    near = get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise NopfsError(Exit.USAGE, f"{name!r} is not {what}: choose among {', '.join(known)}{hint}")
