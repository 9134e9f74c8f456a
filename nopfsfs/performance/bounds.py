"""Lower bounds on source bytes and time, which no policy can beat. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance.model import Cluster


def source_bytes(
    epochs: int, read: Callable[[int], NDArray[np.bool_]], sizes: NDArray[np.int64], capacity: int
) -> list[float]:
    """The bytes that must come from the source in each epoch: samples that no node has read before. Of the rest, what
    all nodes together cannot have kept must come from there too. Where each epoch reads everything, that is S in the
    first, and in each later one max(0, S - sum of D). `read(e)` b[F]: the samples that epoch e reads; `capacity`: sum
    of D."""
    before = np.zeros(len(sizes), np.bool_)
    needed: list[float] = []
    for epoch in range(epochs):
        now = read(epoch)
        known = float(sizes[now & before].sum())
        needed.append(float(sizes[now & ~before].sum()) + max(0.0, known - capacity))
        before |= now
    return needed


def seconds(cluster: Cluster, compute: list[float], needed: list[float]) -> float:
    """The least time of a training, seconds. Each epoch adds the larger of its computing time and the time in which the
    source delivers its `needed`, bytes."""
    rate = cluster.source.most(cluster.nodes)
    return sum(max(busy, some / rate) for busy, some in zip(compute, needed, strict=True))
