"""How surely a sequence of opens follows an order.

The i-th of the opens has a rank among the places not yet opened. For a reader that has nothing to do with
the order, (rank + 1) / unopened is uniform and independent of what was before, so that minus the sum of its
logarithms is Gamma distributed (Fisher's method). No window and no worker count enter: interleaved workers
merely give smaller sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fit:
    """How well opens follow an order."""

    score: float  # minus the sum of log((rank + 1) / unopened)
    log_chance: float  # log of the probability of that score or more by chance
    explained: float  # share of the opens that lie in the nearer quarter of what was unopened


# An open counts as explained when it lies in this share of what is still unopened.
_NEAR = 0.25


def ranks_unopened(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many unopened places each open jumped over, int64[m]. `positions` int64[m], distinct but for -1,
    which is a file that the order does not hold and stays -1."""
    known = positions >= 0
    before = np.tri(len(positions), k=-1, dtype=bool)
    passed = (positions[None, :] < positions[:, None]) & before & known[None, :]
    return np.where(known, positions - passed.sum(axis=1), -1)


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
    return Fit(score, log_gamma_tail(score, m), float(near.mean()))


def log_gamma_tail(score: float, m: int) -> float:
    """log P(G >= score) for G the sum of m exponential variables of mean 1."""
    if score <= 0:
        return 0.0
    terms = np.arange(m) * math.log(score) - np.array([math.lgamma(j + 1) for j in range(m)])
    top = float(terms.max())
    return min(0.0, -score + top + math.log(float(np.exp(terms - top).sum())))
