"""Copies that the nodes of a simulated cluster keep beside the homes of samples, epoch by epoch: second copies, and
copies that Belady's rule holds. All nodes at once, found by sample: in an epoch a sample has one reader, except where
the order was filled up. Bytes of new copies are added to those that an epoch writes (`Reads.written`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance.model import NOWHERE, FetchOrigin, Times
from nopfsfs.placement.access_counts import NOBODY, NOT_AGAIN, Nodes, Readers, next_readings
from nopfsfs.placement.belady import keep
from nopfsfs.placement.methods import Placement
from nopfsfs.sim.fluid import Reads

Ints = NDArray[np.int64]


class SecondCopies:
    """The useful second copies of a placement. A copy is there once its node has read the sample."""

    def __init__(self, placed: Placement, times: Times, sizes: Ints, nodes: NDArray[np.int32]) -> None:
        self._nodes, self._sizes, self._home = nodes, sizes, placed.home  # nodes: by rank, i32[ranks]
        self._keys, self._classes = _by_sample(placed.copies)
        sample = self._keys // len(placed.copies)
        used = times.fetch_from(sizes[sample], self._classes, placed.home_class[sample]) == FetchOrigin.LOCAL
        self._keys, self._classes = self._keys[used], self._classes[used]
        self._got = np.zeros(len(self._keys), np.bool_)

    def __len__(self) -> int:
        return len(self._keys)

    def reads(self, readers: Nodes, reads: Reads) -> None:
        """Read samples from the copies that are there; then record the new copies of samples that were read. `readers`
        u16[F]: the node that reads each sample first."""
        if not len(self):
            return
        samples = reads.samples
        at, copied = self._find(np.arange(len(readers)), readers)
        copied &= readers != NOBODY
        number = np.where(copied & self._got[at], self._classes[at], np.int8(NOWHERE))[samples]
        node = np.broadcast_to(self._nodes.astype(np.uint16), samples.shape)
        again = np.nonzero(readers[samples] != node)  # read by a second node as well: the order was filled up
        at_again, copied_again = self._find(samples[again], node[again])
        number[again] = np.where(copied_again & self._got[at_again], self._classes[at_again], np.int8(NOWHERE))
        there = number >= 0
        reads.where[there], reads.holder[there] = number[there], node[there]
        self._keep(at[copied], reads)
        self._keep(np.unique(at_again[copied_again]), reads)

    def _keep(self, copies: Ints, reads: Reads) -> None:
        """Record that these copies are there from now on. A home is not written here: the reads name the node that
        reads for it first."""
        new = copies[~self._got[copies]]
        self._got[new] = True
        sample, node = np.divmod(self._keys[new], int(self._nodes[-1]) + 1)
        besides = self._home[sample] != node
        _write(reads, self._classes[new][besides], node[besides], self._sizes[sample[besides]])

    def _find(self, samples: NDArray[np.integer], node: Nodes) -> tuple[Ints, NDArray[np.bool_]]:
        """The index of the copy that each node has of each sample, and True where it has one. Fastest for samples in
        their order."""
        wanted = samples.astype(np.int64) * (int(self._nodes[-1]) + 1) + node
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return at, self._keys[at] == wanted


def _by_sample(copies: tuple[tuple[Ints, NDArray[np.int8]], ...]) -> tuple[Ints, NDArray[np.int8]]:
    """All copies, as sample * nodes + node ascending, i64[m], and their classes, i8[m]."""
    keys = np.concatenate([kept * len(copies) + node for node, (kept, _) in enumerate(copies)])
    classes = np.concatenate([classes for _, classes in copies])
    order = np.argsort(keys)
    return keys[order], classes[order]


def _write(reads: Reads, number: NDArray[np.int8] | int, node: NDArray[np.integer], sizes: Ints) -> None:
    """Add these bytes to those written in the epoch into the class `number` of each node."""
    if reads.written is not None and len(sizes):
        flat = reads.written.reshape(-1)
        at = np.asarray(number, np.int64) * reads.written.shape[1] + node
        flat += np.bincount(at, weights=sizes, minlength=len(flat))


class BeladySlice:
    """The part of each node's storage that is ruled by Belady: over the epochs, all nodes at once. `room` i64[nodes];
    `nodes` i32[ranks]: by rank; `useful` b[F]: samples that it may hold. A sample that fills up an order counts for its
    first read."""

    def __init__(
        self, readers: Readers, epochs: int, sizes: Ints, room: Ints, nodes: NDArray[np.int32],
        useful: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        self._sizes, self._room, self._nodes, self._useful = sizes, room, nodes, useful
        self._next = next_readings(readers, epochs, len(sizes))
        # The copies: node, sample, and the epoch in which that node reads the sample next.
        self._node, self._sample, self._use = np.zeros(0, np.uint16), np.zeros(0, np.int32), np.zeros(0, np.uint8)

    def reads(
        self, epoch: int, readers: Nodes, reads: Reads, home: NDArray[np.int32] | None = None
    ) -> None:  # fmt: skip
        """Read the samples held from the fastest class. Then choose the samples to hold from those read, except samples
        at home at their reader anyway. `readers` u16[F]: the node that reads each sample first; `home` i32[F]."""
        due = self._use == epoch
        holds = np.full(len(readers), NOBODY, np.uint16)
        holds[self._sample[due]] = self._node[due]
        node = np.broadcast_to(self._nodes.astype(np.uint16), reads.samples.shape)
        there = holds[reads.samples] == node
        reads.where[there] = 0
        reads.holder[there] = node[there]
        wanted = (self._next[epoch] != NOT_AGAIN) & self._useful
        if home is not None:
            wanted &= home != readers
        new = np.flatnonzero(wanted).astype(np.int32)
        node, sample = np.append(self._node[~due], readers[new]), np.append(self._sample[~due], new)
        use = np.append(self._use[~due], self._next[epoch][new])
        kept = keep(node, use, self._sizes[sample], self._room)
        fresh = new[kept[len(node) - len(new) :]]
        fresh = fresh[holds[fresh] != readers[fresh]]
        _write(reads, 0, readers[fresh], self._sizes[fresh])
        self._node, self._sample, self._use = node[kept], sample[kept], use[kept]
