"""The buffer of a tf.data shuffle, found from the first opens of an epoch.

Owns the comparison of opens with all buffers at once. Pure; knows nothing of the other samplers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates, philox
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.tensorflow import Shuffle, iterator_seeds, op_seeds

# Emissions that every buffer is compared with, and those of the few that are left.
_FIRST = 12
_ALL = 256
# Of the first emissions so many must be where they are expected. Of the true buffer's, swaps move a third at most (all
# but e**-x of a small buffer's), and of twelve hardly more than eight.
_AGREE = 4
# Buffers compared swap by swap, at most: about 50 microseconds each.
_EXACT = 512
# Share of the emissions that a buffer must explain to be named.
_EXPLAINED = 0.75
# Pairs of seeds to try for the beginning of a program.
_PAIRS = 8
# Buffers that are named, at most.
_BUFFERS = 8


def buffers(
    words: NDArray[np.uint32], opens: NDArray[np.int64], n: int, slack: int = 0
) -> tuple[tuple[int, float], ...]:
    """The buffers, 2 .. n, with which a shuffle of n samples explains its first opens, best first, at most
    `_BUFFERS`. Each is (buffer, share of the emissions found within `slack` places of where they were opened).

    `words`: of the iterator, uint32[m]. `opens`: the distinct samples in the order in which they were opened, int64[m']
    from the first on. With parallel reads samples are displaced by up to `slack`. Time in proportion to n: 0.1 s a
    million. Buffers that are not much greater than `slack` read nearly in order, and are not surely told apart.
    """
    m = min(len(words), len(opens), n, _ALL)
    if m < 2 or n < 2:
        return ()
    at = np.full(n, -1, dtype=np.int32)  # where each sample was opened
    at[opens] = np.arange(len(opens), dtype=np.int32)
    sizes = _plausible(words[:m], at, n, slack)
    found = [(size, *_agreement(words[:m], at, n, size, slack)) for size in sizes.tolist()]
    found = sorted((one for one in found if one[1] >= _EXPLAINED), key=lambda one: (-one[1], one[2]))
    return tuple((size, share) for size, share, _ in found[:_BUFFERS])


def _plausible(words: NDArray[np.uint32], at: NDArray[np.int32], n: int, slack: int) -> NDArray[np.int64]:
    """The buffers of which enough of the first emissions, taken as not yet moved by a swap, stand where they should."""
    sizes = np.arange(2, n + 1, dtype=np.uint32)
    agree = np.zeros(len(sizes), dtype=np.int8)
    first = words[:_FIRST].tolist()
    for k, word in enumerate(first):
        place = at[k + np.uint32(word) % np.minimum(sizes, np.uint32(n - k))]
        agree += (place >= 0) & (np.abs(place - k) <= slack)
    least = min(_AGREE, max(1, len(first) // 2))
    left = np.flatnonzero(agree >= least)
    if len(left) > _EXACT:
        left = left[np.argsort(-agree[left], kind="stable")[:_EXACT]]
    return left.astype(np.int64) + 2


def _agreement(
    words: NDArray[np.uint32], at: NDArray[np.int32], n: int, buffer: int, slack: int
) -> tuple[float, float]:
    """The share of the emissions within `slack`, and how far from their places they are on average."""
    step = np.arange(len(words), dtype=np.int64)
    place = at[fisher_yates.forward(step + words % np.minimum(buffer, n - step))]
    away = np.where(place >= 0, np.abs(place - step), slack + 1)
    return float(np.mean(away <= slack)), float(np.minimum(away, slack + 1).mean())


def specs(seed: int, opens: NDArray[np.int64], n: int, slack: int = 0) -> tuple[tuple[Spec, int, float], ...]:
    """The shuffles with that seed, whoever was given it, which explain the first opens of an epoch, best first:
    (`tf_shuffle` spec, epoch, agreement). Looks at the first epochs only."""
    family = Shuffle()
    found: list[tuple[Spec, int, float]] = []
    for base in family.variants(seed):
        if base.number("buffer"):
            continue
        for epoch in range(1 if base.number("fixed") else _PAIRS):
            own = op_seeds(base) if base.number("fixed") else iterator_seeds(op_seeds(base), epoch)
            for size, share in buffers(philox.words(*own, 0, _ALL), opens, n, slack):
                found.append((base.with_option("buffer", size % n), epoch, share))
    return tuple(sorted(found, key=lambda one: -one[2]))
