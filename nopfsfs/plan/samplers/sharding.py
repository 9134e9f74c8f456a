"""Dealing an order out to ranks: the arithmetic that the frameworks share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Place of a rank that has fewer samples than the others: nothing is read there.
NOTHING = -1


def check_ranks(world: int, ranks: Sequence[int]) -> None:
    """Raises ValueError unless there is a rank and every rank lies in [0, world)."""
    if world < 1 or not ranks or any(not 0 <= rank < world for rank in ranks):
        raise ValueError(f"ranks {list(ranks)} do not fit a world of {world}")


def everyone(full: NDArray[np.int64], world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
    """An order that every rank reads, interleaved: int64[len(full) * len(ranks)]."""
    check_ranks(world, ranks)
    return full if len(ranks) == 1 else np.repeat(full, len(ranks))


def strided(full: NDArray[np.int64], world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
    """Places r, r+world, ... of the order for each rank r, interleaved. `full` has a multiple of `world` places."""
    check_ranks(world, ranks)
    if list(ranks) == list(range(world)):
        return full
    return np.ascontiguousarray(full.reshape(-1, world)[:, list(ranks)]).reshape(-1)


def interleave(orders: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Orders of several ranks, place by place; NOTHING where one is shorter than another."""
    if len(orders) == 1:
        return orders[0]
    merged = np.full((max(map(len, orders)), len(orders)), NOTHING, dtype=np.int64)
    for lane, order in enumerate(orders):
        merged[: len(order), lane] = order
    return merged.reshape(-1)


def full_batches(order: NDArray[np.int64], lanes: int, batch: int) -> NDArray[np.int64]:
    """The places that loaders with drop_last=True read of an order of `lanes` ranks, interleaved. Each rank reads as
    many places as make full batches; all for a batch of 0."""
    return order[: len(order) // lanes // batch * batch * lanes] if batch else order


def padded(full: NDArray[np.int64], world: int, *, drop_last: bool) -> NDArray[np.int64]:
    """Cut, or filled up by repeating the list from its beginning, to a multiple of `world` (DistributedSampler)."""
    n = len(full)
    each = (n // world if drop_last else -(-n // world)) if n else 0
    return full if each * world == n else np.resize(full, each * world)
