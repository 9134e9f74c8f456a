"""What no policy can do better than. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nopfsfs.performance.model import Cluster


def source_bytes(
    epochs: int, read: Callable[[int], NDArray[np.bool_]], sizes: NDArray[np.int64], capacity: int
) -> list[float]:
    """What must come from the source in each epoch, bytes: what nobody has read before, and of the rest what all nodes
    together cannot have kept. Where each epoch reads everything that is S in the first, and max(0, S - sum of D) in
    each later one. `read(e)` b[F]: what epoch e reads; `capacity`: sum of D."""
    before = np.zeros(len(sizes), np.bool_)
    needed: list[float] = []
    for epoch in range(epochs):
        now = read(epoch)
        known = float(sizes[now & before].sum())
        needed.append(float(sizes[now & ~before].sum()) + max(0.0, known - capacity))
        before |= now
    return needed


def seconds(cluster: Cluster, compute: list[float], needed: list[float]) -> float:
    """The time is at least the sum over the epochs of the larger of what computing takes, seconds, and what the source
    needs to deliver `needed`, bytes."""
    rate = cluster.source.most(cluster.nodes)
    return sum(max(busy, some / rate) for busy, some in zip(compute, needed, strict=True))
