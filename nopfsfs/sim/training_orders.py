"""The order in which a simulated training reads: numpy permutations, or those of a framework's sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement.access_counts import Nodes, dealt
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt
from nopfsfs.sim.training import Training

Samples = NDArray[np.int32]
# Bytes kept; more is computed anew each time. A shuffle takes longer than finding the readers.
KEPT_BYTES = 768 << 20  # of readers
ORDERS_BYTES = 320 << 20  # of orders: those of all epochs, or none


@dataclass(slots=True)
class TrainingOrders:
    """Orders of `samples` samples, dealt out to `ranks` ranks, `per_node` on each node. Places are those of a rank's
    stream."""

    training: Training
    samples: int
    ranks: int
    per_node: int
    shuffle: Callable[[int], NDArray[np.integer]]
    _readers: dict[int, Nodes] = field(default_factory=dict)
    _orders: dict[int, Samples] = field(default_factory=dict)

    def epoch(self, epoch: int) -> Samples:
        """The sample that each rank reads at each of its places, i32[places, ranks]. With `drop_last` there are whole
        steps of all ranks only; else the order is filled up to a multiple of the ranks, as DistributedSampler does.
        With fewer samples than a step takes there is one step, filled up. Callers must not write to it."""
        found = self._orders.get(epoch)
        if found is None:
            found = self._make(epoch)
            if found.nbytes * self.training.epochs <= ORDERS_BYTES:
                self._orders[epoch] = found
        return found

    def _make(self, epoch: int) -> Samples:
        order = np.asarray(self.shuffle(epoch))
        step = self.ranks * self.training.batch
        if self.training.drop_last and len(order) >= step:
            order = order[: len(order) // step * step]
        else:
            order = np.resize(order, -(-len(order) // self.ranks) * self.ranks)
        return order.reshape(-1, self.ranks).astype(np.int32, copy=False)

    def readers(self, epoch: int) -> Nodes:
        """The node that reads each sample, u16[samples]."""
        found = self._readers.get(epoch)
        if found is None:
            found = dealt(self.epoch(epoch).reshape(-1), self.samples, self.ranks, self.per_node)
            if 2 * self.samples * (len(self._readers) + 1) <= KEPT_BYTES:
                self._readers[epoch] = found
        return found


def permutations(training: Training, samples: int, ranks: int, per_node: int) -> TrainingOrders:
    """Orders from a numpy permutation for each epoch."""

    def shuffle(epoch: int) -> NDArray[np.integer]:
        order = np.arange(samples, dtype=np.int32)
        np.random.default_rng((training.entropy, epoch)).shuffle(order)
        return order

    return TrainingOrders(training, samples, ranks, per_node, shuffle)


def of_sampler(name: str, training: Training, samples: int, ranks: int, per_node: int) -> TrainingOrders:
    """Orders of a framework's sampler that all ranks share. Raises ValueError."""
    family = registry.sampler(name)
    if family.dealt is Dealt.OWN:
        raise ValueError(f"{name}: each rank has an order of its own; only orders that are dealt out can be simulated")
    spec = next(iter(family.variants(training.seed)), None)
    if spec is None:
        raise ValueError(f"{name}: takes no seed {training.seed}")
    return TrainingOrders(training, samples, ranks, per_node, lambda epoch: family.shared(spec, samples, epoch))
