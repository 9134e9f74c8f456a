"""Counts of how often each node reads each sample in the epochs to come. Pure, in bounded memory. For 14.2 million
samples, 1,024 nodes and 90 epochs the counts are made in blocks of nodes or samples, never in a matrix of both.

An epoch is given as an array by sample: the node that reads it (`Readers`). Paper, section 3 (access frequencies) and
5.1. All reads are counted, so that nothing here depends on the paper's laws of expected frequencies (lemma 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY = 0xFFFF  # no node reads the sample in the epoch; there are fewer nodes
AHEAD = 254  # the most epochs whose number fits a byte, beside NOT_AGAIN
NOT_AGAIN = 255  # in place of the next epoch in which a node reads a sample
BLOCK_BYTES = 256 << 20  # for the counts of one block
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio

Nodes = NDArray[np.uint16]
Readers = Callable[[int], Nodes]  # of an epoch: the node that reads each sample, u16[F], or NOBODY


def dealt(order: NDArray[np.integer], samples: int, ranks: int, per_node: int = 1) -> Nodes:
    """The node that reads each sample of an epoch, u16[samples]. `order` is dealt out to `ranks` ranks place by place,
    and `per_node` ranks run on each node. A sample that is read twice (padding) has its first reader."""
    found = np.full(samples, NOBODY, np.uint16)
    readers = (np.arange(len(order), dtype=np.int32) % ranks // per_node).astype(np.uint16)
    found[order[::-1]] = readers[::-1]
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """Reads of each sample by each of the nodes first .. first + m - 1: `often` u8[m, F] (255: or more)."""

    first: int
    often: NDArray[np.uint8]


def by_node(readers: Readers, epochs: int, samples: int, nodes: int, block: int = BLOCK_BYTES) -> Iterator[Counts]:
    """Count for all nodes, a block of nodes at a time. A block takes at most `block` bytes, or is a single node."""
    step = max(1, block // max(1, samples))
    for first in range(0, nodes, step):
        end = min(nodes, first + step)
        often = np.zeros((end - first, samples), np.uint8)
        for epoch in range(epochs):
            node = readers(epoch)
            here = np.flatnonzero((node >= first) & (node < end))
            at = node[here].astype(np.intp) - first
            often[at, here] = np.minimum(often[at, here], 254) + 1
        yield Counts(first, often)


@dataclass(frozen=True, slots=True)
class Ranked:
    """The nodes that read each sample most. `node` u16[F, depth]: NOBODY where there are fewer; `often` u8[F, depth].
    Of equal counts, the node that begins to read the sample first leads. Nodes that begin in the first epoch come last:
    there the sample comes from the source anyway."""

    node: Nodes
    often: NDArray[np.uint8]


def by_sample(readers: Readers, epochs: int, samples: int, depth: int, block: int = BLOCK_BYTES) -> Ranked:
    """Count and rank in blocks of samples. Each block calls `readers` once for each epoch."""
    node = np.full((samples, depth), NOBODY, np.uint16)
    often = np.zeros((samples, depth), np.uint8)
    for first, who in _blocks(readers, epochs, samples, block):
        rows = slice(first, first + len(who))
        node[rows], often[rows] = _rank(who, depth)
    return Ranked(node, often)


_ROWS = 1 << 16  # samples that are sorted at once: what fits a processor's cache is sorted faster


def _blocks(readers: Readers, epochs: int, samples: int, block: int = BLOCK_BYTES) -> Iterator[tuple[int, Nodes]]:
    """Yield the first of some samples, and the node that reads each of them in each epoch, u16[m, E]. `readers` is
    called once for each epoch and `block` bytes."""
    step = max(1, block // (2 * max(1, epochs)))
    for first in range(0, samples, step):
        who = np.stack([readers(epoch)[first : first + step] for epoch in range(epochs)], axis=1)
        for at in range(0, len(who), _ROWS):
            yield first + at, who[at : at + _ROWS]


def _rank(who: Nodes, depth: int) -> tuple[Nodes, NDArray[np.uint8]]:
    """The nodes with the highest counts, and these counts, [m, depth]. `who` u16[m, E]: the reader in each epoch."""
    m, epochs = who.shape
    key = (who.astype(np.uint32) << 16) | np.arange(epochs, dtype=np.uint32)
    key.sort(axis=1)
    node = (key >> 16).astype(np.uint16)
    narrow = np.uint16 if epochs * (epochs + 1) <= 0xFFFF else np.uint64
    at = np.arange(epochs).astype(narrow)
    begins = np.ones((m, epochs), np.bool_)
    begins[:, 1:] = node[:, 1:] != node[:, :-1]
    ends = np.ones((m, epochs), np.bool_)
    ends[:, :-1] = begins[:, 1:]
    start = np.maximum.accumulate(np.where(begins, at, narrow(0)), axis=1)
    length = at - start + narrow(1)
    since = np.take_along_axis(key, start.astype(np.intp), axis=1).astype(np.uint16)
    # The highest count first, of equal ones as `Ranked` says; nothing where no run of a node ends.
    wait = np.where(since == 0, narrow(epochs - 1), since - narrow(1))
    score = np.where(ends & (node != NOBODY), length * narrow(epochs) + (narrow(epochs - 1) - wait), narrow(0))
    nodes = np.full((m, depth), NOBODY, np.uint16)
    counts = np.zeros((m, depth), np.uint8)
    rows = np.arange(m)
    for rank in range(min(depth, epochs)):
        best = np.argmax(score, axis=1)
        there = score[rows, best] > 0
        nodes[there, rank] = node[rows, best][there]
        counts[there, rank] = np.minimum(length[rows, best], 255)[there]
        score[rows, best] = 0
    return nodes, counts


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of a node and a sample. `node` u16[m] reads `sample` i32[m] `often` times, u8[m] (255: or more). The node
    first does so in the epoch `since`, u8[m] (254: or later)."""

    node: Nodes
    sample: NDArray[np.int32]
    often: NDArray[np.uint8]
    since: NDArray[np.uint8]

    def of(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Pairs:
        """The pairs that `which` selects."""
        return Pairs(self.node[which], self.sample[which], self.often[which], self.since[which])

    @staticmethod
    def joined(parts: Sequence[Pairs]) -> Pairs:
        """All pairs of `parts`, by node; the pairs of a node stay in the order of `parts`."""
        node = np.concatenate([part.node for part in parts])
        order = np.argsort(node, kind="stable")
        columns = ((part.sample for part in parts), (part.often for part in parts), (part.since for part in parts))
        sample, often, since = (np.concatenate(list(column))[order] for column in columns)
        return Pairs(node[order], sample, often, since)


def pairs(
    readers: Readers, epochs: int, samples: int, least: int, block: int = BLOCK_BYTES
) -> Iterator[Pairs]:  # fmt: skip
    """Pairs of a node and a sample that it reads at least `least` times, some samples at a time, these ascending."""
    for first, who in _blocks(readers, epochs, samples, block):
        key = (who.astype(np.uint32) << 16) | np.arange(epochs, dtype=np.uint32)
        key.sort(axis=1)
        begins = np.ones(who.shape, np.bool_)
        begins[:, 1:] = (key[:, 1:] ^ key[:, :-1]) > 0xFFFF
        start = np.flatnonzero(begins)
        often = np.diff(start, append=key.size)
        found = key.reshape(-1)[start]
        chosen = (often >= least) & (found < NOBODY << 16)
        start, often, found = start[chosen], often[chosen], found[chosen]
        yield Pairs(
            (found >> 16).astype(np.uint16), (first + start // epochs).astype(np.int32),
            np.minimum(often, 255).astype(np.uint8), np.minimum(found & 0xFFFF, 254).astype(np.uint8),
        )  # fmt: skip


def next_readings(readers: Readers, epochs: int, samples: int) -> NDArray[np.uint8]:
    """The next epoch, after each epoch, in which the same node reads the sample again, u8[E, F], or NOT_AGAIN. Raises
    ValueError for more than 254 epochs."""
    if epochs > AHEAD:
        raise ValueError(f"{epochs} epochs are more than the 254 that can be looked ahead")
    found = np.full((epochs, samples), NOT_AGAIN, np.uint8)
    for first, who in _blocks(readers, epochs, samples):
        key = (who.astype(np.uint32) << 8) | np.arange(epochs, dtype=np.uint32)
        key.sort(axis=1)
        again = ((key[:, 1:] ^ key[:, :-1]) < 1 << 8) & (key[:, 1:] < NOBODY << 8)
        sample, at = np.nonzero(again)
        found[key[sample, at] & 0xFF, first + sample] = key[sample, at + 1] & 0xFF
    return found


def shuffled(node: NDArray[np.integer] | int, samples: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each pair of node and sample, u64, as good as random and the same everywhere. It stands for the
    place within an epoch where only the epoch is known."""
    seed = np.asarray(node).astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    mixed: NDArray[np.uint64] = (samples.astype(np.uint64) + seed) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed
