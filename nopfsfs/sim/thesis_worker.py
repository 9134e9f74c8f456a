"""The course of time in the thesis's simulator: ranks that stage samples ahead of themselves and train on them. Pure.

Rules (thesis, section 4.1.4, and the simulator that it describes) that differ from those of the paper's model:
- The ranks meet after every batch. The staging buffer is refilled when a batch begins and the last has left it.
- The staging threads take turns, however long each is busy. Each has its node's whole share of the source.
- A sample that is not staged in time is fetched on demand, past the staging buffer, if that is sooner.
- The source is shared with the other nodes that have a known read which begins at the same time or later. Ranks are
  simulated one after another, each up to the end of its batch.
- Nodes know at once what the others keep. A read of it has the whole rate of its storage class.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nopfsfs.performance.model import Cluster, Floats, Rows, Times
from nopfsfs.sim.thesis_order import Accesses

PROGRESS_STEPS = 100  # so often is progress reported


@dataclass(frozen=True, slots=True, eq=False)
class ThesisCache:
    """The samples that the nodes keep in their storage classes. `since` f64[nodes, F]: from when on, seconds; inf:
    never. `cost` f64[nodes, F]: seconds a byte to read it there and to write it for the training; inf where it never
    is."""

    since: Floats
    cost: Floats

    @staticmethod
    def nothing(nodes: int, samples: int) -> ThesisCache:
        return ThesisCache(np.full((nodes, samples), np.inf), np.full((nodes, samples), np.inf))

    def put(self, node: int, samples: Rows, since: Floats | float, cost: float) -> None:
        self.since[node, samples] = since
        self.cost[node, samples] = cost


@dataclass(frozen=True, slots=True)
class ThesisRates:
    """Seconds a byte. `compute`: to train on it; `write`: to prepare it and write it into the staging buffer. `peer`:
    to get it from a peer whose storage is no limit, and write it. `source[g]`: to get it from the source, which g nodes
    read, and write it."""

    compute: float
    write: float
    peer: float
    source: tuple[float, ...]

    @staticmethod
    def of(cluster: Cluster) -> ThesisRates:
        times = [Times.of_thread(cluster, max(1, readers)) for readers in range(cluster.nodes + 1)]
        write = times[0].write
        source = tuple(t.source + write for t in times)
        return ThesisRates(1 / cluster.compute, write, 1 / cluster.network + write, source)


@dataclass(frozen=True, slots=True)
class ThesisStaging:
    """The ranks' staging buffers. `capacity`: bytes of each. `threads` of each rank fill them with what its node keeps.
    The threads also take what the source and the peers have where `from_source` and `from_peers` are True."""

    capacity: tuple[int, ...]
    threads: int
    from_source: bool
    from_peers: bool


@dataclass(frozen=True, slots=True, eq=False)
class BufferPlace:
    """Places where samples may be, for one value at a time: from when on, and seconds a byte to get and write them."""

    since: array[float]
    cost: array[float]

    @staticmethod
    def of(since: Floats, cost: Floats) -> BufferPlace:
        return BufferPlace(array("d", since.tobytes()), array("d", cost.tobytes()))


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """The places that a node knows beside the source: that from which its staging takes each sample, and all."""

    staging: BufferPlace
    everywhere: list[BufferPlace]


def sights(kept: ThesisCache, peer_least: float, from_peers: bool) -> list[Sight]:
    """The sight of each node. No peer is read in less than `peer_least` seconds a byte. Staging takes a sample from the
    node itself, or `from_peers` from where it is cheapest."""
    own = [BufferPlace.of(*node) for node in zip(kept.since, kept.cost, strict=True)]
    peer_cost = np.maximum(kept.cost, peer_least)
    peers = [BufferPlace.of(*node) for node in zip(kept.since, peer_cost, strict=True)]
    used = np.flatnonzero(np.isfinite(kept.since).any(axis=1)).tolist()
    found = []
    for node, near in enumerate(own):
        if from_peers:
            cost = peer_cost.copy()
            cost[node] = kept.cost[node]
            best = np.argmin(cost, axis=0)[np.newaxis]
            near = BufferPlace.of(np.take_along_axis(kept.since, best, 0), np.take_along_axis(cost, best, 0))
        found.append(Sight(near, [own[i] if i == node else peers[i] for i in used]))
    return found


class ThesisWorker:
    """A rank, the only one of its node, between two batches. `waited`: seconds for samples until now. `last_read`: the
    time when the last known read of the source by this rank begins."""

    def __init__(
        self,
        stream: Rows,
        bounds: Rows,
        sizes: array[float],
        capacity: int,
        staging: ThesisStaging,
        rates: ThesisRates,
        sight: Sight,
    ) -> None:
        self._stream = array("q", stream.tobytes())
        self._bounds: list[int] = bounds.tolist()
        self._size = sizes
        self._capacity, self._staging = capacity, staging
        self._compute, self._source = rates.compute, rates.source
        self._sight = sight
        # by access: the time when it is in the staging buffer
        self._staged = array("d", [math.inf]) * len(self._stream)
        self._next = 0  # access that is staged next
        self._used = 0.0  # bytes of the staging buffer
        self._idle_at = [0.0] * staging.threads
        self._turn = 0
        self.waited = 0.0
        self.last_read = -math.inf

    def refill(self, step: int, begin: float, others: Sequence[float]) -> None:
        """Clear the last batch out of the staging buffer and stage what fits, before the batch of that step begins.
        `others`: the `last_read` of the other ranks, ascending."""
        if step:
            self._clear(*self._bounds[step - 1 : step + 1])
        self._next = max(self._next, self._bounds[step])
        self._idle_at = [max(begin, idle) for idle in self._idle_at]
        idle_at, turn, used = self._idle_at, self._turn, self._used
        stream, size, staged = self._stream, self._size, self._staged
        near_since, near_cost, source = self._sight.staging.since, self._sight.staging.cost, self._source
        capacity, threads, from_source = self._capacity, self._staging.threads, self._staging.from_source
        last_read, nodes = self.last_read, len(others) + 1
        access = self._next
        for access in range(self._next, len(stream)):
            sample = stream[access]
            length = size[sample]
            if used + length > capacity:
                break
            now, since, cost = idle_at[turn], near_since[sample], near_cost[sample]
            if from_source:
                source_cost = source[nodes - bisect_left(others, now)]
                if since > now or source_cost < cost:
                    cost = source_cost
                    if now > last_read:
                        last_read = now
            elif since > now:
                if since == math.inf:
                    continue  # left to a fetch on demand
                now = since
            idle_at[turn] = staged[access] = now + length * cost
            turn = turn + 1 if turn + 1 < threads else 0
            used += length
        else:
            access = len(stream)
        self._next, self._turn, self._used, self.last_read = access, turn, used, last_read

    def train(self, step: int, begin: float, others: Sequence[float]) -> float:
        """The time when the compute on the batch of that step ends, if the batch begins at `begin`. `others` as in
        `refill`."""
        first, last = self._bounds[step : step + 2]
        size, compute = self._size, self._compute
        now = begin
        for sample, ready in zip(self._stream[first:last], self._staged[first:last], strict=True):
            if ready > now:
                ready = min(ready, self._demanded(sample, ready, now, others))
                self.waited += ready - now
                now = ready
            now += size[sample] * compute
        return now

    def _demanded(self, sample: int, staged: float, now: float, others: Sequence[float]) -> float:
        """The time when the sample is there if it is fetched now from where it is cheapest. If that is the source, and
        sooner than `staged`, the source is read."""
        at_source = cost = self._source[len(others) + 1 - bisect_left(others, now)]
        for place in self._sight.everywhere:
            if place.since[sample] <= now and place.cost[sample] < cost:
                cost = place.cost[sample]
        ready = now + self._size[sample] * cost
        if ready < staged and cost == at_source and now > self.last_read:
            self.last_read = now
        return ready

    def _clear(self, first: int, last: int) -> None:
        for sample, staged in zip(self._stream[first:last], self._staged[first:last], strict=True):
            if staged < math.inf:
                self._used -= self._size[sample]


def workers(
    accesses: Accesses, sizes: Rows, kept: ThesisCache, rates: ThesisRates, staging: ThesisStaging
) -> list[ThesisWorker]:
    """A worker for each stream of `accesses`. `sizes` i64[F], bytes."""
    lengths = array("d", sizes.astype(np.float64).tobytes())
    seen = sights(kept, rates.peer, staging.from_peers)
    each = zip(accesses.streams, accesses.bounds, staging.capacity, seen, strict=True)
    return [ThesisWorker(stream, bounds, lengths, room, staging, rates, sight) for stream, bounds, room, sight in each]


def play(ranks: Sequence[ThesisWorker], steps: int, begin: float, progress: Callable[[float], None] | None) -> float:
    """The time when the last batch ends, if the first begins at `begin`. `progress` gets the share of steps done."""
    tell_every = max(1, steps // PROGRESS_STEPS)
    for step in range(steps):
        end = begin
        for worker in ranks:
            others = sorted(other.last_read for other in ranks if other is not worker)
            worker.refill(step, begin, others)
            end = max(end, worker.train(step, begin, others))
        begin = end
        done = step + 1
        if progress and (done % tell_every == 0 or done == steps):
            progress(done / steps)
    return begin
