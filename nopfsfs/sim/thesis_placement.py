"""Which samples NoPFS keeps on a node. Pure."""

from __future__ import annotations

import numpy as np

from nopfsfs.policy.model import Rows


def nopfs_placement(stream: Rows, sizes: Rows, capacities: Rows) -> tuple[Rows, ...]:
    """What a node keeps in each storage class, i64[m_j], in the order in which it is fetched: that of the first access.

    The samples that the node reads most go into the first class, equals by their number; a class closes at the first
    that does not fit, which opens the next. Samples that the node never reads are not kept (paper, section 5.1, and the
    published code of NoPFS). `stream` i64[n]: the samples that the node reads, over all epochs. `sizes` i64[F], bytes.
    `capacities` i64[classes], bytes."""
    frequency = np.bincount(stream, minlength=len(sizes))
    first = np.zeros(len(sizes), np.int64)
    first[stream[::-1]] = np.arange(len(stream))[::-1]  # of several, the last assignment stays
    ranking = np.argsort(-frequency, kind="stable")[: np.count_nonzero(frequency)]
    placed = []
    for capacity in capacities:
        kept = prefix(ranking, sizes, capacity)
        placed.append(kept[np.argsort(first[kept])])
        ranking = ranking[len(kept) :]
    return tuple(placed)


def prefix(samples: Rows, sizes: Rows, capacity: int) -> Rows:
    """The first of `samples`, i64[m], as many as fit into `capacity` bytes together."""
    return samples[: np.searchsorted(np.cumsum(sizes[samples]), capacity, side="right")]
