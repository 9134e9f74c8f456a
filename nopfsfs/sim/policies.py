"""Reads of each policy, epoch by epoch, with their origins. The placements, and what a Belady cache keeps, are those of
`placement`; this module holds the systems that ours is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance.model import Cluster, FetchOrigin, Times, has_arrived
from nopfsfs.placement import methods
from nopfsfs.placement.access_counts import Nodes
from nopfsfs.placement.methods import NOWHERE, Placement
from nopfsfs.sim.fluid import NOTHING, PEER, SOURCE, STORED, Preload, Reads
from nopfsfs.sim.second_copies import BeladySlice, SecondCopies
from nopfsfs.sim.training_orders import Samples, TrainingOrders

Ints = NDArray[np.int64]


class NotSupported(ValueError):
    """The policy does not work with this data set on this cluster; the message says why."""


@dataclass(frozen=True, slots=True)
class SimJob:
    """The input of a policy. `sizes` i64[F], `room` i64[nodes, classes], bytes; `slice_share`: of the fastest class.
    `asked` is called for each epoch whose readers the policy computes before the first epoch."""

    cluster: Cluster
    sizes: Ints
    orders: TrainingOrders
    epochs: int
    room: Ints
    slice_share: float | None = None
    asked: Callable[[], None] = lambda: None

    def readers(self, epoch: int) -> Nodes:
        """The node that reads each sample, u16[F], for computations over all epochs before the first."""
        self.asked()
        return self.orders.readers(epoch)

    @property
    def nodes(self) -> NDArray[np.int32]:
        """The node of each rank, i32[ranks]."""
        return np.repeat(np.arange(self.cluster.nodes, dtype=np.int32), self.cluster.ranks)

    @property
    def times(self) -> Times:
        """Costs of a node, while all read the source: as in NoPFS, a policy decides by the same costs in all epochs."""
        return Times.of_node(self.cluster, self.cluster.nodes)

    def nothing_written(self) -> NDArray[np.float64]:
        """Zeros for `Reads.written`."""
        return np.zeros((self.room.shape[1], self.cluster.nodes))

    def columns(self, node: int) -> slice:
        """The ranks of a node."""
        return slice(node * self.cluster.ranks, (node + 1) * self.cluster.ranks)


class Policy(ABC):
    """A policy at work on one job."""

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.prepare()

    def prepare(self) -> None:
        """Prepare what is needed before the first epoch."""
        return

    def load(self) -> Preload | None:
        """Samples that are brought from the source before the training begins, if any."""
        return None

    @abstractmethod
    def reads(self, epoch: int) -> Reads:
        """Return the reads of an epoch; called once for each, in order."""

    @property
    def distinct_share(self) -> float:
        """Share of the samples that are kept somewhere."""
        return 0.0

    def _sliced(self, room: Ints, home_class: NDArray[np.int8]) -> BeladySlice | None:
        """The parts of the nodes' storage that are ruled by Belady, with room i64[nodes]. They hold samples that come
        sooner from the fastest class than from the source and from a peer's `home_class`, i8[F]; None: there are none.
        """
        job = self.job
        if not room.any():
            return None
        here = np.broadcast_to(np.int8(0), len(job.sizes))
        useful = job.times.fetch_from(job.sizes, here, home_class) == FetchOrigin.LOCAL
        if not useful.any():
            return None
        return BeladySlice(job.readers, job.epochs, job.sizes, room, job.nodes, useful)

    def _all(self, samples: Samples, where: int, *, ahead: bool = True) -> Reads:
        shape = samples.shape
        return Reads(samples, np.full(shape, where, np.uint8), np.zeros(shape, np.uint16), ahead=ahead)


class Perfect(Policy):
    """No I/O at all."""

    def reads(self, epoch: int) -> Reads:
        return self._all(self.job.orders.epoch(epoch), NOTHING)


class Naive(Policy):
    """Each sample from the source when it is needed."""

    def reads(self, epoch: int) -> Reads:
        return self._all(self.job.orders.epoch(epoch), SOURCE, ahead=False)


class StagingBuffer(Policy):
    """A staging buffer, always filled from the source: double buffering, tf.data's prefetch."""

    def reads(self, epoch: int) -> Reads:
        return self._all(self.job.orders.epoch(epoch), SOURCE)


class Placed(Policy):
    """A fixed placement. A sample is at its home once any node has read it, and a second copy once its node has. Before
    that, and without a home, the sample comes from the source. It comes from the fastest place that has it (paper,
    section 4: argmin)."""

    placement: Placement

    def prepare(self) -> None:
        job = self.job
        self.placement = self.place()
        self._seen = np.zeros(len(job.sizes), np.bool_)
        self._at_first, self._at_peers, self._at_home = self._origins()
        self._copies = SecondCopies(self.placement, job.times, job.sizes, job.nodes)
        self._slice = self._sliced(self.placement.slice, self.placement.home_class)

    def _origins(self) -> NDArray[np.uint8]:
        """The place that each sample comes from, u8[3, F] as in `Reads`. Row 0: while no node has read it; row 1: for
        nodes other than its home; row 2: for its home."""
        sizes, number = self.job.sizes, self.placement.home_class
        nowhere = np.broadcast_to(np.int8(NOWHERE), len(sizes))
        found = np.full((3, len(sizes)), SOURCE, np.uint8)
        for row, which, code in (
            (0, number != NOWHERE, STORED),
            (1, self.job.times.fetch_from(sizes, nowhere, number) == FetchOrigin.PEER, PEER),
            (2, self.job.times.fetch_from(sizes, number, nowhere) == FetchOrigin.LOCAL, 0),
        ):
            found[row, which] = number[which].astype(np.uint8) | np.uint8(code)
        return found

    @abstractmethod
    def place(self) -> Placement: ...

    @property
    def distinct_share(self) -> float:
        return self.placement.distinct_share

    def order(self, epoch: int) -> Samples:
        """The samples that are read: the order, unless the policy changes it."""
        return self.job.orders.epoch(epoch)

    def reads(self, epoch: int) -> Reads:
        job, samples = self.job, self.order(epoch)
        home, known = self.placement.home[samples], self._known(samples)
        where = np.where(home == job.nodes, self._at_home[samples], self._at_peers[samples])
        if not known.all():
            where = np.where(known, where, self._at_first[samples])
        holder = np.where(home >= 0, home, 0).astype(np.uint16)
        found = Reads(samples, where, holder, written=job.nothing_written())
        if len(self._copies) or self._slice is not None:
            readers = job.orders.readers(epoch)  # no policy with copies or a slice changes the order
            self._copies.reads(readers, found)
            if self._slice is not None:
                self._slice.reads(epoch, readers, found, self.placement.home)
        self._seen[samples] = True
        return found

    def _known(self, samples: Samples) -> NDArray[np.bool_]:
        """True for samples that any node has read before, in this epoch (where the order was filled up) or an earlier
        one."""
        known: NDArray[np.bool_] = self._seen[samples]
        if samples.size > len(self._seen) and not known.all():
            flat = samples.reshape(-1)
            first, place = np.zeros(len(self._seen), np.int64), np.arange(len(flat))
            first[flat[::-1]] = place[::-1]
            known |= has_arrived(first[flat], place, margin=1).reshape(samples.shape)
        return known


class NoPFS(Placed):
    """The paper's placement."""

    def place(self) -> Placement:
        job = self.job
        return methods.nopfs(job.readers, job.epochs, job.sizes, job.room)


class HomesPolicy(Placed):
    """The product's own placement."""

    def place(self) -> Placement:
        job = self.job
        return methods.homes(
            job.readers, job.epochs, job.sizes, job.room, slice_share=job.slice_share
        )  # fmt: skip


class BeladyOnly(Policy):
    """Each node by itself: all its storage is one cache ruled by Belady. Samples that are not in it come from the
    source."""

    def prepare(self) -> None:
        nowhere = np.full(len(self.job.sizes), NOWHERE, np.int8)
        self._slice = self._sliced(self.job.room.sum(axis=1), nowhere)

    def reads(self, epoch: int) -> Reads:
        orders = self.job.orders
        found = replace(self._all(orders.epoch(epoch), SOURCE), written=self.job.nothing_written())
        if self._slice is not None:
            self._slice.reads(epoch, orders.readers(epoch), found)
        return found


class Sharded(Placed):
    """Every node is given an equal part of the data set, and keeps of it what fits one storage class."""

    preloads = True

    def prepare(self) -> None:
        super().prepare()
        if self.preloads:
            self._seen[self.placement.home >= 0] = True

    def load(self) -> Preload | None:
        home, number = self.placement.home, self.placement.home_class
        kept = np.flatnonzero(home >= 0)
        return Preload(kept, home[kept], number[kept]) if self.preloads else None

    def storage(self) -> int:
        """The storage class that is used: RAM."""
        return 0

    def place(self) -> Placement:
        job = self.job
        count, nodes = len(job.sizes), job.cluster.nodes
        shard = (np.arange(count) * nodes // max(1, count)).astype(np.int32)
        home, classes = np.full(count, NOWHERE, np.int32), np.full(count, NOWHERE, np.int8)
        if job.room.shape[1]:
            kept = methods.take(shard.astype(np.int64), job.sizes, job.room[:, self.storage()].copy(), closes=True)
            home[kept], classes[kept] = shard[kept], self.storage()
        return _alone(home, classes, nodes)


class DeepIOOrdered(Sharded):
    """DeepIO: the shards are loaded into RAM first; what does not fit comes from the source."""


class DeepIOOpportunistic(Sharded):
    """DeepIO that reads another sample where the one in the order is in no node's RAM: another order than was asked
    for."""

    def order(self, epoch: int) -> Samples:
        samples = super().order(epoch).copy()
        return _replaced(samples, self.placement.home[samples] < 0, self._own(), self.job, epoch)

    def _own(self) -> list[Ints]:
        return [np.flatnonzero(self.placement.home == node) for node in range(self.job.cluster.nodes)]


class ParallelStaging(DeepIOOpportunistic):
    """Every node copies its shard to its largest storage class first, and trains on that alone."""

    def storage(self) -> int:
        return _largest(self.job)

    def order(self, epoch: int) -> Samples:
        samples = Placed.order(self, epoch).copy()
        return _replaced(samples, np.ones(samples.shape, np.bool_), self._own(), self.job, epoch)


class LbannPreloading(Sharded):
    """LBANN's data store: shards in RAM, loaded first. Everything must fit."""

    def place(self) -> Placement:
        if not self.job.room.shape[1] or int(self.job.sizes.sum()) > int(self.job.room[:, 0].sum()):
            raise NotSupported("the data set does not fit the RAM of all nodes together")
        return super().place()


class LbannDynamic(LbannPreloading):
    """LBANN's data store, filled in the first epoch: the node that reads a sample first keeps it."""

    preloads = False

    def place(self) -> Placement:
        super().place()
        home = self.job.orders.readers(0).astype(np.int32)
        home[home == 0xFFFF] = 0  # not read in the first epoch
        return _alone(home, np.zeros(len(home), np.int8), self.job.cluster.nodes)


class LocalityAware(Sharded):
    """The node that reads a sample first keeps it in the largest class. From the second epoch on, each step's samples
    are dealt out anew, so that every node gets those that it has."""

    preloads = False

    def storage(self) -> int:
        return _largest(self.job)

    def place(self) -> Placement:
        job = self.job
        first = job.orders.readers(0).astype(np.int32)
        home, classes = np.full(len(first), NOWHERE, np.int32), np.full(len(first), NOWHERE, np.int8)
        read = np.flatnonzero(first != 0xFFFF)
        read = read[np.argsort(first[read], kind="stable")]
        if job.room.shape[1]:
            room = job.room[:, self.storage()].copy()
            kept = read[methods.take(first[read].astype(np.int64), job.sizes[read], room)]
            home[kept], classes[kept] = first[kept], self.storage()
        return _alone(home, classes, job.cluster.nodes)

    def order(self, epoch: int) -> Samples:
        samples = super().order(epoch)
        if epoch == 0:
            return samples
        batch, ranks, each = self.job.orders.training.batch, samples.shape[1], self.job.cluster.ranks
        flat = samples.reshape(-1)
        place = np.arange(len(flat)) // ranks
        step = place // batch
        nodes = self.job.cluster.nodes
        here = np.minimum(batch, len(samples) - step * batch) * each  # places of a node in the step
        home = self.placement.home[flat]
        group = step * (nodes + 1) + np.where(home >= 0, home, nodes)
        order = np.argsort(group, kind="stable")
        begins = np.flatnonzero(np.diff(group[order], prepend=-1))
        number = np.arange(len(flat)) - np.repeat(begins, np.diff(begins, append=len(flat)))
        fits = (number < here[order]) & (home[order] >= 0)
        dealt = np.full(len(flat), -1, np.int32)
        # of node n in a step: its ranks' columns, place by place
        offset = (step * batch * ranks)[order] + (number // each) * ranks + home[order] * each + number % each
        dealt[offset[fits]] = flat[order][fits]
        rest = np.zeros(len(flat), np.bool_)
        rest[order[~fits]] = True
        dealt[dealt < 0] = flat[rest]  # both in the order of the steps
        return dealt.reshape(samples.shape)


def _largest(job: SimJob) -> int:
    return int(np.argmax(job.room.sum(axis=0))) if job.room.shape[1] else 0


def _alone(home: NDArray[np.int32], classes: NDArray[np.int8], nodes: int) -> Placement:
    none = (np.zeros(0, np.int64), np.zeros(0, np.int8))
    return Placement(home, classes, (none,) * nodes, np.zeros(nodes, np.int64))


def _replaced(samples: Samples, which: NDArray[np.bool_], own: list[Ints], job: SimJob, epoch: int) -> Samples:
    """Replace the marked samples by those of the reader's node, each in turn, in an order of the node's own."""
    for node, mine in enumerate(own):
        ranks = job.columns(node)
        wanted = which[:, ranks]
        count = int(wanted.sum())
        if count and len(mine):
            rng = np.random.default_rng((job.orders.training.entropy, epoch, node))
            samples[:, ranks][wanted] = np.resize(rng.permutation(mine), count)
    return samples
