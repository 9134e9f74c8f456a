"""Belady's rule for many nodes: at the end of each epoch, each node keeps what it reads again soonest. Pure.

`policy.belady_set` applies the same rule at each read of one node, as a mount must. To do so for all nodes of a cluster
would take many times as long. A decision once in an epoch hits as often; tests check both against one oracle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement.methods import take

Ints = NDArray[np.int64]
NEVER = 1 << 62  # a position that no stream has


def keep(
    node: NDArray[np.integer], next_use: NDArray[np.integer], sizes: Ints, room: Ints
) -> NDArray[np.bool_]:  # fmt: skip
    """Choose, at the end of an epoch, which of m samples stay with their node, b[m]. Those stay that the node reads
    again soonest, as far as its room goes. Each sample is kept or was just read by `node`. `room` i64[nodes], bytes.
    Within the epoch, samples that are yet to be read take room too. So the result is a little more than a node could
    keep."""
    again: NDArray[np.bool_] = next_use < NEVER
    load = np.bincount(node, weights=np.where(again, sizes, 0), minlength=len(room))
    kept: NDArray[np.bool_] = again & (load <= room)[node]  # there is room for all that such a node wants
    order = np.flatnonzero(again & ~kept)
    if len(order):
        order = order[np.lexsort((next_use[order], node[order]))]
        kept[order[take(node[order].astype(np.int64), sizes[order], room.copy())]] = True
    return kept
