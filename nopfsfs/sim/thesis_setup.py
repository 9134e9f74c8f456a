"""Policies of the thesis's simulator: what each has ready before the first batch, and how it goes on. Pure.

NoPFS's placement is that of `placement.methods`. The other policies follow the rules of the thesis's code, which differ
from `sim.policies` (which class they use, what they draw). So the thesis's tables are met.

All policies fill the storage classes from the source as if all nodes read it at once. Threads take turns, each with its
node's whole share. Except with NoPFS and LBANN's dynamic store, the training waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance.model import Cluster, Floats, Rows
from nopfsfs.placement import methods
from nopfsfs.sim.policies import NotSupported
from nopfsfs.sim.thesis_order import Accesses
from nopfsfs.sim.thesis_worker import ThesisCache, ThesisRates

MEMORY, DISK = 0, 1  # the storage classes 1 and 2


@dataclass(frozen=True, slots=True, eq=False)
class ThesisJob:
    """The input of a policy. `sizes` i64[F], bytes; `seed` of the samples that it draws itself."""

    cluster: Cluster
    sizes: Rows
    accesses: Accesses
    rates: ThesisRates
    seed: int

    def capacity(self, number: int) -> Rows:
        """The capacity of the storage class of that number on each node, i64[nodes]."""
        if number >= len(self.cluster.classes):
            raise NotSupported(f"it needs a storage class {number + 1}, which cluster {self.cluster.name} has not")
        return self.cluster.capacities()[:, number]

    def local_cost(self, number: int) -> float:
        """Seconds a byte from that storage class into the staging buffer."""
        return 1 / self.cluster.classes[number].read_rate + self.rates.write

    def filled(self, number: int, samples: Rows) -> Floats:
        """The time when each of the samples, i64[m], is in that storage class, f64[m], if they are fetched from the
        source."""
        cost = self.rates.source[self.cluster.nodes]
        return in_turn(self.sizes[samples] * cost, self.cluster.classes[number].threads)

    def shares(self) -> list[Rows]:
        """The samples in contiguous parts of equal number, the last with what is left over: one for each node."""
        each = len(self.sizes) // self.cluster.nodes
        return np.split(np.arange(len(self.sizes)), [each * node for node in range(1, self.cluster.nodes)])


@dataclass(frozen=True, slots=True, eq=False)
class ThesisSetup:
    """A policy at work. `begin`: seconds until the first batch begins. `staging`: True when there is a staging buffer;
    `from_source`, `from_peers`: True when it is also filled from there, beside from its own node."""

    accesses: Accesses
    kept: ThesisCache
    begin: float = 0.0
    staging: bool = True
    from_source: bool = False
    from_peers: bool = False


def in_turn(seconds: NDArray[np.floating[Any]], threads: int) -> Floats:
    """The time when each of m pieces of work is done by threads that take one after another in turn, f64[m]."""
    done = np.empty(len(seconds))
    for thread in range(threads):
        done[thread::threads] = np.cumsum(seconds[thread::threads])
    return done


def last(done: Floats) -> float:
    return float(done.max(initial=0.0))


def naive(job: ThesisJob) -> ThesisSetup:
    """Fetch each sample when it is needed."""
    return replace(staging_only(job), staging=False, from_source=False)


def staging_only(job: ThesisJob) -> ThesisSetup:
    """Prefetch into the staging buffer, as tf.data and double buffering do."""
    return ThesisSetup(job.accesses, ThesisCache.nothing(job.cluster.nodes, len(job.sizes)), from_source=True)


def nopfs(job: ThesisJob) -> ThesisSetup:
    """Fill the classes while the training runs, in the order of the first access; this takes nothing from the staging.
    Unlike NoPFS itself, the thesis's simulator asks peers on demand only."""
    accesses, count = job.accesses, len(job.sizes)
    placed = methods.nopfs(accesses.readers(count), accesses.epochs, job.sizes, job.cluster.capacities())
    kept = ThesisCache.nothing(job.cluster.nodes, count)
    for node, (samples, numbers) in enumerate(placed.copies):
        first = accesses.first(node, count)
        for number in range(len(job.cluster.classes)):
            mine = samples[numbers == number]
            mine = mine[np.argsort(first[mine])]
            kept.put(node, mine, job.filled(number, mine), job.local_cost(number))
    return ThesisSetup(accesses, kept, from_source=True)


def prefix(samples: Rows, sizes: Rows, capacity: int) -> Rows:
    """The first of `samples`, i64[m], as many as fit into `capacity` bytes together."""
    return samples[: np.searchsorted(np.cumsum(sizes[samples]), capacity, side="right")]


def load(job: ThesisJob, number: int, wanted: Sequence[Rows]) -> ThesisSetup:
    """Load before the training: each node what it wants, i64[m], as far as that fits into the storage class. Peers are
    read for staging, the source on demand only."""
    kept = ThesisCache.nothing(job.cluster.nodes, len(job.sizes))
    begin = 0.0
    for node, capacity in enumerate(job.capacity(number)):
        samples = prefix(wanted[node], job.sizes, capacity)
        kept.put(node, samples, 0.0, job.local_cost(number))
        begin = max(begin, last(job.filled(number, samples)))
    return ThesisSetup(job.accesses, kept, begin, from_peers=True)


def deepio_ordered(job: ThesisJob) -> ThesisSetup:
    """Load a share into the memory of each node; of a larger data set, as many of its first samples as fit."""
    capacities = job.capacity(MEMORY)
    if job.sizes.sum() <= capacities.sum():
        return load(job, MEMORY, job.shares())
    wanted = []
    left = np.arange(len(job.sizes))
    for capacity in capacities:
        wanted.append(prefix(left, job.sizes, capacity))
        left = left[len(wanted[-1]) :]
    return load(job, MEMORY, wanted)


def deepio_opportunistic(job: ThesisJob) -> ThesisSetup:
    """Read only samples in memory in place of those asked for: at random, so that 1/N of them are the node's own."""
    setup = deepio_ordered(job)
    held = np.flatnonzero(np.isfinite(setup.kept.since).any(axis=0))
    return replace(setup, accesses=redrawn(job, [held] * job.cluster.nodes))


def parallel_staging(job: ThesisJob) -> ThesisSetup:
    """Load a node's share into storage class 2, then what fits of the others' shares from them. Ranks read at random
    what their node has."""
    setup = load(job, DISK, job.shares())
    kept, begin = setup.kept, setup.begin
    from_peer = max(job.rates.peer, job.local_cost(DISK))
    loaded = np.isfinite(kept.since)
    ready = begin
    held = []
    for node, capacity in enumerate(job.capacity(DISK)):
        room = capacity - job.sizes[loaded[node]].sum()
        copies = prefix(np.flatnonzero(loaded.any(axis=0) & ~loaded[node]), job.sizes, room)
        copied = in_turn(job.sizes[copies] * from_peer, job.cluster.classes[DISK].threads)
        kept.put(node, copies, 0.0, job.local_cost(DISK))
        ready = max(ready, begin + last(copied))
        held.append(np.flatnonzero(np.isfinite(kept.since[node])))
    return ThesisSetup(redrawn(job, held), kept, ready)


def redrawn(job: ThesisJob, held: Sequence[Rows]) -> Accesses:
    """Replace each access by a sample that is drawn from those of its rank, with replacement."""
    if not all(map(len, held)):
        raise NotSupported("a node holds nothing that it could train on")
    rng = np.random.default_rng([job.seed, 1])  # the order is drawn from the seed itself
    streams = zip(held, job.accesses.streams, strict=True)
    return replace(job.accesses, streams=tuple(rng.choice(samples, len(stream)) for samples, stream in streams))


def lbann_preloading(job: ThesisJob) -> ThesisSetup:
    """Load the data set into the memory of all nodes before the training."""
    _fits_memory(job)
    return load(job, MEMORY, job.shares())


def lbann_dynamic(job: ThesisJob) -> ThesisSetup:
    """Keep in the memory of each node the share of the samples that the node reads first, as it reads them."""
    _fits_memory(job)
    kept = ThesisCache.nothing(job.cluster.nodes, len(job.sizes))
    for node, stream in enumerate(job.accesses.streams):
        read = stream[: len(job.sizes) // job.cluster.nodes]
        samples = read[np.sort(np.unique(read, return_index=True)[1])]
        kept.put(node, samples, job.filled(MEMORY, samples), job.local_cost(MEMORY))
    return ThesisSetup(job.accesses, kept, from_peers=True)


def _fits_memory(job: ThesisJob) -> None:
    if job.sizes.sum() > job.capacity(MEMORY).sum():
        raise NotSupported("the data set does not fit into the memory of all nodes")


def locality_aware(job: ThesisJob) -> ThesisSetup:
    """Load a node's share into storage class 2, as far as it fits. The order stays: that ranks exchange samples of a
    batch made no difference to the figures of the thesis."""
    return replace(load(job, DISK, job.shares()), from_source=True)


POLICIES: dict[str, Callable[[ThesisJob], ThesisSetup]] = {
    "naive": naive,
    "staging": staging_only,
    "deepio-ordered": deepio_ordered,
    "deepio-opportunistic": deepio_opportunistic,
    "parallel-staging": parallel_staging,
    "lbann-dynamic": lbann_dynamic,
    "lbann-preloading": lbann_preloading,
    "locality-aware": locality_aware,
    "nopfs": nopfs,
}
