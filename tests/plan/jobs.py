"""Who opens which places of an order: simulated loaders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def opens(
    n: int, world: int, ranks: Sequence[int], workers: int, batch: int, rng: np.random.Generator, begin: float = 0.0
) -> list[tuple[int, int]]:
    """(place, reader) of an epoch that ranks read in strides, from a share of it on. Each rank has `workers` (0: it
    reads by itself), which take batches in turn; readers come in any order."""
    places = [np.arange(rank, n, world)[int(begin * n / world) :] for rank in ranks]
    return mixed([one for rank in places for one in workers_of(rank, workers, batch)], rng)


def in_turn(
    n: int, world: int, ranks: Sequence[int], workers: int, batch: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """The same where ranks take batches in turn."""
    places = np.arange(n)
    mine = [places[places // batch % world == rank] for rank in ranks]
    return mixed([one for rank in mine for one in workers_of(rank, workers, batch)], rng)


def workers_of(places: NDArray[np.int64], workers: int, batch: int) -> list[list[int]]:
    """By reader, the places that it opens, in order: workers take batches in turn (0: the rank reads by itself)."""
    if not workers:
        return [places.tolist()]
    number = np.arange(len(places)) // batch
    return [places[number % workers == worker].tolist() for worker in range(workers)]


def mixed(readers: Sequence[list[int]], rng: np.random.Generator) -> list[tuple[int, int]]:
    """(place, reader from 1 on): all begin at once, and none is more than a few opens ahead of the others."""
    found: list[tuple[float, int, int]] = []
    for reader, places in enumerate(readers, 1):
        when = np.cumsum(rng.uniform(0.5, 1.5, len(places)))
        found += zip(when.tolist(), places, [reader] * len(places), strict=True)
    return [(place, reader) for _, place, reader in sorted(found)]
