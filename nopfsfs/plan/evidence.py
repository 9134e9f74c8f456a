"""How surely a sequence of opens follows an order.

The i-th of the opens has a rank among the places not yet opened. For a reader that has nothing to do with
the order, (rank + 1) / unopened is uniform and independent of what was before, so that minus the sum of its
logarithms is Gamma distributed (Fisher's method). No window and no worker count enter: interleaved workers
merely give smaller sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fit:
    """How well opens follow an order."""

    score: float  # minus the sum of log((rank + 1) / unopened)
    log_chance: float  # log of the probability of that score or more by chance
    explained: float  # share of the opens that lie in the nearer quarter of what was unopened
    jumped: float = 0.0  # unopened places that an open jumped over, the median


# Opens are looked at up to so many; [i, j]: whether open j came before open i.
_MOST = 256
_BEFORE = np.tri(_MOST, k=-1, dtype=bool)
# By so many places threads of one process may overtake each other.
_OVERTAKEN = 32
# An open counts as explained when it lies in this share of what is still unopened.
_NEAR = 0.25


def closed_up(
    positions: NDArray[np.int64], n: int, spacing: int
) -> tuple[NDArray[np.int64], int]:
    """Positions of opens of which one in `spacing` is seen, and the length of the order, as if there were no others."""
    if spacing == 1:
        return positions, n
    return np.where(positions >= 0, positions // spacing, -1), max(-(-n // spacing), len(positions))


def ranks_unopened(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many unopened places each open jumped over, int64[m]. `positions` int64[m], distinct but for -1,
    which is a file that the order does not hold and stays -1."""
    known = positions >= 0
    before = _BEFORE[: len(positions), : len(positions)]
    passed = (positions[None, :] < positions[:, None]) & before & known[None, :]
    return np.where(known, np.maximum(positions - passed.sum(axis=1), 0), -1)


def fit(positions: NDArray[np.int64], n: int) -> Fit:
    """The fit of opens at `positions` (int64[m], -1: not in the order) of an order over n files. m is at
    most n."""
    m = len(positions)
    if m == 0 or n == 0:
        return Fit(0.0, 0.0, 0.0)
    unopened = np.maximum(n - np.arange(m), 1)
    ranks = ranks_unopened(positions)
    share = np.where(ranks >= 0, np.minimum((ranks + 1) / unopened, 1.0), 1.0)
    score = float(-np.log(share).sum())
    # at the very end of a small set even the right place is half of what is left
    near = (ranks >= 0) & ((share <= _NEAR) | (ranks == 0))
    jumped = float(np.median(ranks[ranks >= 0])) if (ranks >= 0).any() else 0.0
    return Fit(score, log_gamma_tail(score, m), float(near.mean()), jumped)


def at_best(positions: NDArray[np.int64], n: int) -> float:
    """A bound of `fit(...).log_chance` from below, which costs a tenth: no open can have jumped over fewer places than
    its position less the opens before it."""
    m = len(positions)
    if m == 0 or n == 0:
        return 0.0
    opened = np.arange(m)
    share = (np.maximum(positions - opened, 0) + 1) / np.maximum(n - opened, 1)
    return log_gamma_tail(float(-np.log(np.minimum(share, 1.0))[positions >= 0].sum()), m)


def disorder(positions: NDArray[np.int64], readers: NDArray[np.int64]) -> float:
    """The share of a reader's opens that stand before others which it opened a while earlier: 0 for readers that
    follow the order, however many they are, 0.5 for readers that go about it at random. 0 where readers are not known.

    A reader of a small shuffle buffer goes nearly in order through every order of the same kind, with any seed; only
    in the right one does it go forward all the time. A while: what threads of one process may overtake each other by.
    """
    compared = against = 0
    for reader in np.unique(readers[readers > 0]).tolist():
        mine = positions[(readers == reader) & (positions >= 0)]
        lag = min(len(mine) // 2, _OVERTAKEN)
        if lag:
            compared += len(mine) - lag
            against += int(np.count_nonzero(mine[lag:] < mine[:-lag]))
    return against / compared if compared else 0.0


def likeness(score: float, m: int, n: int) -> float:
    """Minus how far m opens of n files are displaced, from their score: the same for data sets of any size."""
    return score - float(np.log(np.maximum(n - np.arange(m), 1)).sum())


def log_gamma_tail(score: float, m: int) -> float:
    """log P(G >= score) for G the sum of m exponential variables of mean 1."""
    if score <= 0:
        return 0.0
    terms = np.arange(m) * math.log(score) - _log_factorials(m)
    top = float(terms.max())
    return min(0.0, -score + top + math.log(float(np.exp(terms - top).sum())))


@lru_cache(maxsize=512)
def _log_factorials(m: int) -> NDArray[np.float64]:
    return np.array([math.lgamma(j + 1) for j in range(m)])
