"""NoPFS's performance model: the time to fetch a sample from each place, and when the sample can be used. Pure.

Symbols are those of the paper (SC21, arXiv 2101.08734, section 4; the thesis, section 3.1): c, beta, b_c, b_fs,
t(gamma), d_j, p_j, r_j(p), w_j(p). Storage class 0 is the staging buffer. Bytes, seconds, bytes per second.

Beyond the paper: a source may cost a time for each file (`latency`), and serves `at_once` files of a node at a time.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
NOWHERE = -1  # in place of the number of a storage class
MOST_CLASSES = 63  # beside the staging buffer: six bits hold their number where each read has a byte
_BLOCK = 1 << 16  # samples whose costs are compared at once: they fit a processor's cache


@dataclass(frozen=True, slots=True)
class Curve:
    """A rate that was measured at some points `(x, rate)`, x ascending: linear between them, and constant beyond both
    ends (thesis, equation 4.1)."""

    points: tuple[tuple[float, float], ...]

    @staticmethod
    def flat(rate: float) -> Curve:
        """A curve with the same rate everywhere."""
        return Curve(((1.0, rate),))

    def at(self, x: float) -> float:
        """The rate at x."""
        after = bisect.bisect_left(self.points, (x, -math.inf))
        if after == len(self.points):
            return self.points[-1][1]
        if after == 0:
            return self.points[0][1]
        (x0, y0), (x1, y1) = self.points[after - 1 : after + 1]
        return y0 + (x - x0) * (y1 - y0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A kind of storage that every node has. `capacity` d_j: node i has the entry i modulo their number. `threads` p_j
    work on it; `read` r_j(p) and `write` w_j(p) are the rates of p threads together."""

    name: str
    capacity: tuple[int, ...]
    threads: int
    read: Curve
    write: Curve

    @property
    def read_rate(self) -> float:
        """r_j(p_j): the rate at which all its threads read together."""
        return self.read.at(self.threads)

    @property
    def write_rate(self) -> float:
        """w_j(p_j): the rate at which all its threads write together."""
        return self.write.at(self.threads)


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The parallel file system. `rate` t(gamma): bytes per second to gamma nodes together; `link` b_fs: the most to one
    node. `latency`: seconds for each file beside its bytes; `at_once`: files that one node has under way meanwhile."""

    rate: Curve
    link: float = math.inf
    latency: float = 0.0
    at_once: int = 1

    def share(self, gamma: float) -> float:
        """Bytes per second for each of gamma nodes."""
        return min(self.link, self.rate.at(gamma) / gamma)

    def most(self, nodes: int) -> float:
        """The most bytes per second that up to `nodes` nodes get together."""
        return max(min(self.rate.at(gamma), gamma * self.link) for gamma in range(1, nodes + 1))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of one kind. `ranks` of the job run on each and share its storage. `compute` c: bytes per second that one
    rank trains on; `preprocess` beta: that one staging thread prepares; `network` b_c: between two nodes."""

    name: str
    nodes: int
    compute: float
    network: float
    source: SourceModel
    staging: StorageClass
    classes: tuple[StorageClass, ...] = ()  # 1, 2, ...: fastest first
    preprocess: float = math.inf
    ranks: int = 1

    def capacities(self) -> Rows:
        """The capacities d_j of each node, i64[nodes, classes]."""
        columns = [np.resize(np.array(one.capacity, np.int64), self.nodes) for one in self.classes]
        return np.stack(columns, axis=1) if columns else np.zeros((self.nodes, 0), np.int64)


class FetchOrigin(IntEnum):
    """The place from which a sample is fetched."""

    LOCAL = 0
    PEER = 1
    SOURCE = 2


@dataclass(frozen=True, slots=True)
class Times:
    """Costs of a fetch, in seconds for each byte; `latency` seconds more for each file of the source.

    `local`, `peer` f64[classes + 1]: by storage class. The last entry, which the number `NOWHERE` names, is infinite.
    """

    local: Floats
    peer: Floats
    source: float
    write: float
    latency: float = 0.0

    @staticmethod
    def of_thread(cluster: Cluster, gamma: float) -> Times:
        """The costs for one staging thread, while gamma nodes read the source. Paper, section 4: fetch from the source
        s/min(b_fs, t(gamma)/gamma); from class j of a peer s/min(b_c, r_j(p_j)/p_j), of this node s/(r_j(p_j)/p_j);
        write max(s/beta, s/(w_0(p_0)/p_0)). A thread is charged its part of a storage class. But the thread has the
        node's part of the source for itself, as if there were as many sources as threads."""
        rates = [one.read_rate / one.threads for one in cluster.classes]
        staging = cluster.staging
        write = max(1 / cluster.preprocess, staging.threads / staging.write_rate)
        return _times(cluster, gamma, rates, write, cluster.source.latency)

    @staticmethod
    def of_node(cluster: Cluster, gamma: float) -> Times:
        """The costs for all staging threads of a node together. The threads share the source as they share the storage
        classes; the latency of a file is divided by the `at_once` files under way."""
        staging = cluster.staging
        write = max(1 / (staging.threads * cluster.preprocess), 1 / staging.write_rate)
        latency = cluster.source.latency / cluster.source.at_once
        return _times(cluster, gamma, [one.read_rate for one in cluster.classes], write, latency)

    def fetch_from(self, sizes: Rows, local: NDArray[np.int8], peer: NDArray[np.int8]) -> NDArray[np.uint8]:
        """The place from which each of m samples comes soonest, u8[m] of `FetchOrigin`; of equals the nearer one.
        `local`, `peer` i8[m]: the class in which this node and a peer have the sample, or NOWHERE. An empty sample
        counts as one byte."""
        nearest = np.empty(len(sizes), np.uint8)
        for first in range(0, len(sizes), _BLOCK):
            part = slice(first, first + _BLOCK)
            some = np.maximum(sizes[part], 1)  # nothing times infinity is no number
            costs = some * self.local[local[part]], some * self.peer[peer[part]], some * self.source + self.latency
            nearest[part] = np.argmin(np.stack(costs), axis=0)
        return nearest


def _times(cluster: Cluster, gamma: float, rates: list[float], write: float, latency: float) -> Times:
    return Times(
        local=np.array([*(1 / rate for rate in rates), math.inf]),
        peer=np.array([*(1 / min(cluster.network, rate) for rate in rates), math.inf]),
        source=1 / cluster.source.share(gamma),
        write=write,
        latency=latency,
    )


def ends(available: Floats, compute: Floats, begin: float = 0.0) -> Floats:
    """The time when the compute on each sample ends, f64[m, ...] along the first axis. The time is t_f + s_f/c with t_f
    = max(avail(f), t_{f-1} + s_{f-1}/c) (paper, section 4), for `available` avail(f) and `compute` s_f/c. No compute
    begins before `begin`."""
    done = np.cumsum(compute, axis=0)
    ready = np.maximum.accumulate(np.maximum(available, begin) - (done - compute), axis=0)
    return ready + done


def has_arrived(first_use: Rows, position: Rows | int, margin: int) -> NDArray[np.bool_]:
    """True for samples that a peer which keeps them has by now, without asking the peer. Such samples were first read
    anywhere in the cluster at least `margin` places before one's own place. `position`: one's own place in the stream,
    i64[m] or the same for all. All ranks go through their streams together, so that one's own place gives the others'.
    In NoPFS's code the progress of the same class gives them.

    `first_use` i64[m]: the place at which each is read for the first time."""
    return first_use + margin <= position
