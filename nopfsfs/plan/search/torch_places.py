"""The places of a few samples in torch's randperm, without the permutation.

Owns following samples through the swaps of a shuffle: drawing the swaps takes a tenth of the time of the permutation.
Knows no readers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def advance(
    target: NDArray[np.int64], begin: int, at: NDArray[np.int64], place: NDArray[np.int64], marks: NDArray[np.bool_]
) -> None:
    """Follows samples through the next steps of a shuffle, of which `begin` have been made. `target`: the steps,
    int64[count], as `torch_generator.targets` gives them for the places that are left.

    `at`: where each sample stands, counted from `begin`; `place`: where it stands for good, or -1. Both int64[m], and
    changed. `marks`: n times False.
    """
    moving = np.flatnonzero(place < 0)
    stands = at[moving]
    final = follow(target, stands, marks)
    at[moving] = stands - len(target)
    place[moving] = np.where(final < 0, final, begin + final)


def follow(target: NDArray[np.int64], at: NDArray[np.int64], marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The step i = 0, 1, ... that brings each sample to its final place i, or -1, int64[m]. Step i swaps place i with
    place target[i] >= i. `at`, int64[m]: where the samples stand, before and (those that are not final) after.

    `marks`, all False before and after, has room for every target. Several shuffles may be laid end to end.

    What stands at x goes to the first i <= x that aims at x, and stays there: later steps aim further. If there is
    none, step x takes it to target[x]. So all places where it may come to stand are known from a few targets, and one
    pass tells which steps aim at them.
    """
    steps = len(target)
    chain = [at]
    now = at[at < steps]
    while len(now):
        further = target[now]
        now = further[further > now]
        chain.append(now)
        now = now[now < steps]
    possible = np.concatenate(chain)
    marks[possible] = True
    aiming = np.flatnonzero(marks.take(target))
    marks[possible] = False
    # (place, step) in one word; the last one is beyond all
    hits = np.append(target[aiming] << 32 | aiming, np.iinfo(np.int64).max)
    hits.sort()
    final = np.full(len(at), -1, dtype=np.int64)
    moving, since = np.arange(len(at)), np.zeros(len(at), dtype=np.int64)
    while len(moving):
        here = at[moving]
        hit = hits[np.searchsorted(hits, here << 32 | since)]
        ends = hit >> 32 == here
        final[moving[ends]] = hit[ends] & 0xFFFFFFFF
        goes = ~ends & (here < steps)
        moving, here = moving[goes], here[goes]
        at[moving] = target[here]
        since = here + 1
    return final
