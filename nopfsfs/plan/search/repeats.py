"""World size and rank of a reader of `RepeatAugSampler`, from where its opens stand in the permutation.

Each sample of the permutation has `repeats` places in a row. Rank r of a world of W takes the places r, r + W, r + 2 W,
and so on. So its steps in the permutation are about W / repeats (timm 1.0.31, `timm/data/distributed_sampler.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from nopfsfs.plan.search.deal import World

FAMILY = "repeat_aug"

# Steps that must agree, and their share of all: a loader's worker leaps from each batch to its next one.
_STEPS_LEAST = 5
_SHARE = 0.5
_WORLD_MOST = 1024
_USUAL = 3  # repeats
# The share of steps that may be multiples of another world size.
_PLAIN = 0.7
# After so many steps ranks that read the same so far read the same for ever, for repeats of up to one digit.
_ALIKE = 10


def deal_of(followed: Mapping[int, Sequence[int]], n: int, otherwise: int) -> World | None:
    """The world and the ranks of readers by the places that each opened. All readers that opened enough places must be
    of one world, and must not make steps of the world size `otherwise`."""
    found: set[tuple[int, int]] = set()
    for reader, places in followed.items():
        if not reader or len(places) <= _STEPS_LEAST:
            continue
        steps = Counter(after - before for before, after in pairwise(places))
        plain = steps[1] if otherwise == 1 else sum(times for step, times in steps.items() if step % otherwise == 0)
        one = None if plain > _PLAIN * steps.total() else repeats_deal(places, n)
        if one is None or one[0] % _USUAL == 0:  # of such a world a rank reads what one of a smaller reads once
            return None
        found.add(one)
    worlds = {world for world, _ in found}
    return (worlds.pop(), tuple(sorted({rank for _, rank in found}))) if len(worlds) == 1 else None


def repeats_deal(places: Sequence[int], n: int, repeats: float = 3.0) -> tuple[int, int] | None:
    """(world, rank) of one reader that opened the samples at these places of a permutation of n, in order. A file that
    the reader opened twice in a row is there twice (as happens in worlds smaller than `repeats`).

    Where several ranks read the same (worlds that `repeats` divides) the first of them. -1 is a file that is not in the
    permutation. None: less than 5 steps or less than half of all fit a world, or the same number fits several worlds.
    """
    needed = max(_STEPS_LEAST, _SHARE * (len(places) - 1))
    steps = [(here, there) for here, there in pairwise(places) if 0 <= here <= there]
    votes = Counter(vote for here, there in steps for vote in set(_explain(here, there, n, repeats)))
    scores = {deal: _followed(places, *deal, repeats) for deal, count in votes.items() if count >= needed}
    most = max(scores.values(), default=0)
    if most < needed:
        return None
    best = sorted(deal for deal, score in scores.items() if score == most)
    world, rank = best[0]
    same = [_reads(rank, world, repeats) == _reads(r, w, repeats) for w, r in best]
    return (world, rank) if all(same) else None


def _explain(here: int, there: int, n: int, repeats: float) -> Iterator[tuple[int, int]]:
    """Each (world, rank) of which these may be two successive places."""
    for first in _occurrences(here, repeats):
        for second in _occurrences(there, repeats):
            world = second - first
            # an epoch has about n places of the repeats * n
            if 1 <= world <= _WORLD_MOST and second < n + world:
                yield world, first % world


def _followed(places: Sequence[int], world: int, rank: int, repeats: float) -> int:
    """The number of steps between the places that the rank makes, each from where the one before may have led."""
    score = 0
    here: list[int] = []
    for place in places:
        there = [at + world for at in here if int((at + world) // repeats) == place]
        score += bool(there)
        here = there or [at for at in _occurrences(place, repeats) if at % world == rank]
    return score


def _occurrences(place: int, repeats: float) -> range:
    """The places of the repeated permutation that have this one of the permutation."""
    return range(math.ceil(place * repeats), math.ceil((place + 1) * repeats))


def _reads(rank: int, world: int, repeats: float) -> list[int]:
    """The first places of the permutation that a rank reads."""
    return [int((rank + world * step) // repeats) for step in range(_ALIKE)]
