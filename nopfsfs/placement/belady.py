"""What many nodes keep where that is ruled by Belady: at the end of each epoch, what each reads again soonest. Pure.

The same rule as in `kept`, which decides at each reading of one node, as a mount must. For all nodes of a cluster that
would take many times as long, and deciding once in an epoch hits as often; tests hold both against one oracle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement.methods import take
from nopfsfs.policy.next_use import NEVER

Ints = NDArray[np.int64]


def keep(
    node: NDArray[np.integer], next_use: NDArray[np.integer], sizes: Ints, room: Ints
) -> NDArray[np.bool_]:  # fmt: skip
    """At the end of an epoch: which of m samples, each held or just read by a node, it goes on holding, b[m]: those
    that it reads again soonest, as far as its room goes. `room` i64[nodes], bytes. Within the epoch what is yet to be
    read takes room too, so that this holds a little more than a node could."""
    again: NDArray[np.bool_] = next_use < NEVER
    load = np.bincount(node, weights=np.where(again, sizes, 0), minlength=len(room))
    kept: NDArray[np.bool_] = again & (load <= room)[node]  # all that such a node wants has room
    order = np.flatnonzero(again & ~kept)
    if len(order):
        order = order[np.lexsort((next_use[order], node[order]))]
        kept[order[take(node[order].astype(np.int64), sizes[order], room.copy())]] = True
    return kept
