"""The samples that each rank of the thesis's simulator reads, in their order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nopfsfs.performance.model import Rows
from nopfsfs.placement.access_counts import NOBODY, Nodes, Readers
from nopfsfs.sim.training import Training


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """The reads of all ranks. `streams`: samples of each rank, i64[n_i]. `bounds` i64[ranks, steps + 1]: the places in
    its stream where each of a rank's batches begins, and the last ends. All `epochs` have as many steps."""

    streams: tuple[Rows, ...]
    bounds: Rows
    epochs: int

    @property
    def steps(self) -> int:
        return len(self.bounds[0]) - 1

    def readers(self, samples: int) -> Readers:
        """The node that reads each sample in an epoch, for `placement.access_counts`; no sample is read twice."""

        def of(epoch: int) -> Nodes:
            found = np.full(samples, NOBODY, np.uint16)
            for rank, (stream, bounds) in enumerate(zip(self.streams, self.bounds, strict=True)):
                begin, end = (bounds[at * self.steps // self.epochs] for at in (epoch, epoch + 1))
                found[stream[begin:end]] = rank
            return found

        return of

    def first(self, rank: int, samples: int) -> Rows:
        """The place in its stream where a rank first reads each sample, i64[samples]; 0 where it never does."""
        stream = self.streams[rank]
        found = np.zeros(samples, np.int64)
        found[stream[::-1]] = np.arange(len(stream))[::-1]  # of several assignments, the last stays
        return found

    def batch_sums(self, sizes: Rows) -> Rows:
        """The bytes of each batch, i64[ranks, steps]."""
        rows = []
        for stream, bounds in zip(self.streams, self.bounds, strict=True):
            before = np.concatenate([[0], np.cumsum(sizes[stream])])
            rows.append(np.diff(before[bounds]))
        return np.stack(rows)


def deal(samples: int, training: Training, ranks: int) -> Accesses:
    """Deal out one further permutation of numpy's for each epoch, from a generator with the training's seed. A rank
    takes its contiguous part of each global batch, which is `ranks` times the batch of one. Where the last batch of an
    epoch is kept, its first ranks get full batches (thesis, section 4.1.3, "uniform")."""
    rng = np.random.default_rng(training.entropy)
    batch = training.batch
    full, rest = divmod(samples, batch * ranks)
    counts = np.full((ranks, full), batch)
    if rest and not training.drop_last:
        counts = np.column_stack([counts, np.clip(rest - batch * np.arange(ranks), 0, batch)])
    parts: list[list[Rows]] = [[] for _ in range(ranks)]
    for _ in range(training.epochs):
        order = rng.permutation(samples)
        in_full = order[: samples - rest].reshape(full, ranks, batch)
        last = order[samples - rest :] if counts.shape[1] > full else order[:0]
        for rank, part in enumerate(parts):
            part += [in_full[:, rank].ravel(), last[rank * batch : (rank + 1) * batch]]
    ends = np.cumsum(np.tile(counts, training.epochs), axis=1)
    bounds = np.column_stack([np.zeros(ranks, np.int64), ends])
    return Accesses(tuple(np.concatenate([*part, order[:0]]) for part in parts), bounds, training.epochs)
