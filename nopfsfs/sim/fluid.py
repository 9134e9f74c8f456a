"""The time that a cluster takes for the reads of each rank and their origins: the physical mode of the simulator.

Everything that moves bytes is a resource with a rate. All nodes share the source, however many threads they have. A
node has a link to the source, and a network in and out of the node. Each storage class of a node serves the node's own
ranks and its peers. Staging threads prepare samples. All resources work at the same time, each on what comes next in
the order of the stream (earliest deadline first). A sample is there when the slowest resource has done with it. Ranks
train on the samples that are there, and meet at the end of each step. Fetching runs ahead of training as far as the
staging buffer goes. A sample with a place in a storage class is fetched as early as the source allows.

That is the model of `performance.model` without its threads. The time avail(f) is that at which all resources have done
with the first f samples, and t_f follows from it (`model.ends`).

No rank waits for writes to a storage class, but they take the class's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance import model
from nopfsfs.performance.model import Cluster
from nopfsfs.sim.training_orders import Samples

Floats = NDArray[np.float64]
NOTHING = 255  # no I/O at all
SOURCE = 254
STORED = 128  # + the class: from the source, and then kept in that class of node `holder`
PEER = 64  # + the class of node `holder`; below: the class of the node itself (up to `model.MOST_CLASSES` of them)


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads of an epoch. `samples`: one for each rank and place of its stream, i32[places, ranks]; `where`: the
    place that each comes from, u8[places, ranks] (as above). `holder` u16[places, ranks]: the node that each comes from
    or goes to. `ahead`: fetching runs ahead of training. `written` f64[classes, nodes]: bytes that are written besides,
    spread over the epoch."""

    samples: Samples
    where: NDArray[np.uint8]
    holder: NDArray[np.uint16]
    ahead: bool = True
    written: Floats | None = None


@dataclass(frozen=True, slots=True)
class Preload:
    """Samples that are brought from the source before the training: `samples` i64[m], each to `node` i32[m] and its
    storage class `number` i8[m]."""

    samples: NDArray[np.int64]
    node: NDArray[np.int32]
    number: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Epoch:
    """The result of an epoch: seconds, the seconds that computing alone takes, and reads by origin."""

    seconds: float
    compute_seconds: float
    reads: dict[str, int]


class Fluid:
    """The clocks of a cluster. `sizes` i64[F]; `batch`: samples of a rank in a step."""

    def __init__(self, cluster: Cluster, sizes: NDArray[np.int64], batch: int) -> None:
        self._cluster, self._batch = cluster, batch
        self._sizes = sizes.astype(np.float64)
        nodes = cluster.nodes
        self.now = 0.0
        self._past: list[float] = []  # the ends of the last steps
        self._source = 0.0
        self._link, self._prepare = np.zeros(nodes), np.zeros(nodes)
        self._in, self._out = np.zeros(nodes), np.zeros(nodes)
        self._class = np.zeros((len(cluster.classes), nodes))
        staging = cluster.staging
        self._prepare_rate = min(staging.threads * cluster.preprocess, staging.write_rate)
        self._rates = [one.read_rate for one in cluster.classes]
        self._write_rates = np.array([[one.write_rate] for one in cluster.classes]).reshape(-1, 1)
        mean = float(self._sizes.mean()) if len(sizes) else 1.0
        room = min(staging.capacity)
        self._window = max(1, int(room / (mean * batch * cluster.ranks)))  # steps

    def wait(self, seconds: float) -> None:
        """Let time pass in which nothing else is done."""
        self.now += seconds
        self._source = max(self._source, self.now)
        for clock in (self._link, self._prepare, self._in, self._out, self._class):
            np.maximum(clock, self.now, out=clock)

    def load(self, load: Preload) -> None:
        """Load before the training: everything is read and written at the same time, and all wait for the slowest."""
        if not len(load.samples):
            return
        source, nodes = self._cluster.source, self._cluster.nodes
        sizes = self._sizes[load.samples]
        count = np.bincount(load.node, minlength=nodes)
        some_bytes = np.bincount(load.node, weights=sizes, minlength=nodes)
        shared = sizes.sum() / self._from_all(int(np.count_nonzero(count)))
        linked = np.maximum(some_bytes / source.link, count * (source.latency / source.at_once))
        place = load.number.astype(np.int64) * nodes + load.node
        written = np.bincount(place, weights=sizes, minlength=self._class.size).reshape(self._class.shape)
        stored = written / self._write_rates
        self.wait(max(float(shared), float(linked.max()), float(stored.max())) + source.latency)

    def run(self, reads: Reads) -> Epoch:
        """Run one epoch."""
        began = self.now
        places = len(reads.samples)
        steps = -(-places // self._batch)
        gamma = self._reading(reads.where)
        chunk = max(1, self._window // 2) if reads.ahead else steps
        compute = 0.0
        for first in range(0, steps, chunk):
            part = slice(first * self._batch, min(places, (first + chunk) * self._batch))
            compute += self._run(reads, part, gamma)
            if reads.written is not None:
                self._class += reads.written / self._write_rates * ((part.stop - part.start) / places)
        return Epoch(self.now - began, compute, self._count(reads))

    def _reading(self, where: NDArray[np.uint8]) -> int:
        """The number of nodes that read the source, at least 1."""
        ranks = _of_source(where).any(axis=0)
        return max(1, int(ranks.reshape(self._cluster.nodes, -1).any(axis=1).sum()))

    def _count(self, reads: Reads) -> dict[str, int]:
        """The reads by origin."""
        count = np.bincount(reads.where.reshape(-1), minlength=256)
        found = {one.name: int(count[at]) for at, one in enumerate(self._cluster.classes)}
        return {**found, "peer": int(count[PEER:STORED].sum()), "source": int(count[STORED:NOTHING].sum())}

    # ---- some steps ---------------------------------------------------------------------------------------

    def _run(self, reads: Reads, part: slice, gamma: int) -> float:
        """Run some steps; return the time that their computing takes."""
        cluster, batch = self._cluster, self._batch
        samples, where, holder = reads.samples[part], reads.where[part], reads.holder[part]
        sizes = self._sizes[samples]
        steps = -(-len(samples) // batch)
        step = np.repeat(np.arange(steps), batch)[: len(samples), None]
        compute = _by_step(sizes / cluster.compute, steps, batch, 0.0)
        if not reads.ahead:
            return self._one_by_one(sizes, where, compute, gamma)
        gate = self._gate(steps)
        available = self._from_source(sizes, _of_source(where), gamma, gate if (where == SOURCE).any() else 0.0)
        for at, rate in enumerate(self._rates):
            mine, theirs = where == at, where == PEER + at
            self._from_class(at, rate, sizes, mine | theirs, step, holder, steps, gate, available)
            self._store(at, sizes, where == STORED + at, holder)
        self._over_network(sizes, (where >= PEER) & (where < STORED), step, holder, steps, gate, available)
        self._through_staging(sizes, where != NOTHING, step, steps, gate, available)
        # t_f with a barrier at the end of each step: after the last sample that a rank waits for, it only computes.
        rest = np.cumsum(compute[:, ::-1], axis=1)[:, ::-1]
        waited = (_by_step(available, steps, batch, -np.inf) + rest).max(axis=(1, 2))
        busy = rest[:, 0].max(axis=1)
        ends = model.ends(waited - busy, busy, self.now)
        self._past = [*self._past, *ends.tolist()][-2 * self._window - 2 :]
        self.now = float(ends[-1])
        return float(np.cumsum(busy)[-1])

    def _gate(self, steps: int) -> float:
        """The time when the staging buffer has room for the first of so many further steps. The time is the end of the
        step that lies as far back as the buffer holds."""
        back = max(1, self._window - steps + 1)
        return self._past[-1 - back] if len(self._past) > back else 0.0

    def _one_by_one(self, sizes: Floats, where: NDArray[np.uint8], compute: Floats, gamma: int) -> float:
        """Run without fetching ahead: each rank reads a sample, prepares it as one thread does, then trains on it."""
        cluster = self._cluster
        share = cluster.source.share(gamma) / cluster.ranks
        each = sizes / share + cluster.source.latency + sizes / cluster.preprocess
        wait = np.where(_of_source(where), each, 0.0)
        steps, batch = compute.shape[:2]
        total = (_by_step(wait, steps, batch, 0.0) + compute).sum(axis=1).max(axis=1)
        self.now += float(total.sum())
        return float(compute.sum(axis=1).max(axis=1).sum())

    # ---- resources ----------------------------------------------------------------------------------------

    def _from_source(self, sizes: Floats, mine: NDArray[np.bool_], gamma: int, gate: float) -> Floats:
        """The time when each sample has come from the source, f64[places, ranks]; -inf if it comes from elsewhere."""
        source, nodes = self._cluster.source, self._cluster.nodes
        available = np.full(sizes.shape, -np.inf)
        if not mine.any():
            return available
        asked = np.where(mine, sizes, 0.0)
        shared = max(self._source, gate) + np.cumsum(asked.reshape(-1)).reshape(asked.shape) / self._from_all(gamma)
        self._source = float(shared[-1, -1])
        each = asked.reshape(len(asked), nodes, -1).sum(axis=2) / source.link
        if source.latency:
            each = np.maximum(each, mine.reshape((*each.shape, -1)).sum(axis=2) * (source.latency / source.at_once))
        linked = np.maximum(self._link, gate) + np.cumsum(each, axis=0)
        self._link = linked[-1]
        soonest = np.maximum(shared, np.repeat(linked, self._cluster.ranks, axis=1)) + source.latency
        available[mine] = soonest[mine]
        return available

    def _from_all(self, gamma: int) -> float:
        """Bytes per second that `gamma` nodes get from the source together."""
        source = self._cluster.source
        return min(source.rate.at(gamma), gamma * source.link)

    def _from_class(
        self, at: int, rate: float, sizes: Floats, asked: NDArray[np.bool_], step: NDArray[np.intp],
        holder: NDArray[np.uint16], steps: int, gate: float, available: Floats,
    ) -> None:  # fmt: skip
        if asked.any():
            self._class[at] = self._served(sizes, asked, step, holder, steps, rate, self._class[at], gate, available)

    def _store(self, at: int, sizes: Floats, stored: NDArray[np.bool_], holder: NDArray[np.uint16]) -> None:
        """Charge the storage class for writing what came from the source."""
        if stored.any():
            load = np.bincount(holder[stored], weights=sizes[stored], minlength=self._cluster.nodes)
            self._class[at] += load / self._write_rates[at]

    def _over_network(
        self, sizes: Floats, asked: NDArray[np.bool_], step: NDArray[np.intp], holder: NDArray[np.uint16], steps: int,
        gate: float, available: Floats,
    ) -> None:  # fmt: skip
        if asked.any():
            rate, reader = self._cluster.network, np.broadcast_to(self._readers, sizes.shape)
            self._in = self._served(sizes, asked, step, reader, steps, rate, self._in, gate, available)
            self._out = self._served(sizes, asked, step, holder, steps, rate, self._out, gate, available)

    def _through_staging(
        self, sizes: Floats, asked: NDArray[np.bool_], step: NDArray[np.intp], steps: int, gate: float,
        available: Floats,
    ) -> None:  # fmt: skip
        if np.isfinite(self._prepare_rate):
            reader = np.broadcast_to(self._readers, sizes.shape)
            self._prepare = self._served(
                sizes, asked, step, reader, steps, self._prepare_rate, self._prepare, gate, available
            )

    @property
    def _readers(self) -> NDArray[np.uint16]:
        """The node of each rank."""
        return np.repeat(np.arange(self._cluster.nodes, dtype=np.uint16), self._cluster.ranks)

    def _served(
        self, sizes: Floats, asked: NDArray[np.bool_], step: NDArray[np.intp], node: NDArray[np.uint16], steps: int,
        rate: float, clock: Floats, gate: float, available: Floats,
    ) -> Floats:  # fmt: skip
        """Let a resource of each node do the work that is asked of it, step by step, and put `available` off until
        then. Return the time when each node's resource has done all its work, f64[nodes]."""
        nodes = len(clock)
        key = (step * nodes + node)[asked]
        load = np.bincount(key, weights=sizes[asked], minlength=steps * nodes).reshape(steps, nodes)
        done = np.maximum(clock, gate) + np.cumsum(load, axis=0) / rate
        available[asked] = np.maximum(available[asked], done.reshape(-1)[key])
        return np.asarray(done[-1])


def _of_source(where: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (where >= STORED) & (where != NOTHING)
    return found


def _by_step(values: Floats, steps: int, batch: int, empty: float) -> Floats:
    """Reshape f64[places, ranks] to f64[steps, batch, ranks], the last step filled up with `empty`."""
    lacking = steps * batch - len(values)
    if lacking:
        values = np.concatenate([values, np.full((lacking, values.shape[1]), empty)])
    return values.reshape(steps, batch, -1)
