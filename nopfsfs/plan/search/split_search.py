"""Search in the stream of torch's global generator for the place where `random_split` cut a data set.
`DataLoader(shuffle=True)` then shuffled a piece; the number of draws before both is not known.

The permutation that is cut draws n - 1 words, and the sampler's seed follows. No permutation is computed for most
words. The sampler's first draws say which places of the cut permutation hold the first files. About half of these
places still hold what their own word put there. Takes 0.5 s for a million words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates, torch_generator
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch import SEED_WORDS, stream
from nopfsfs.plan.samplers.torch_global import Global
from nopfsfs.plan.search.torch_stream_search import FALSE_FIND, agreement, outputs

_CHUNK = 1 << 18
# The first samples that are looked at; of the first half of them one must be where its word put it, of all two.
_HEAD = 8
_REACH = 1 << 16


@dataclass(frozen=True, eq=False)
class SplitTarget:
    """The samples that one reader opened first of a data set of n, in order and each once, int64[m]."""

    n: int
    samples: NDArray[np.int64]


def find(
    seed: int, targets: Sequence[SplitTarget], sizes: Mapping[int, Sequence[int]], start: int, limit: int
) -> tuple[int, int, SplitTarget] | None:
    """(word, size, target): the split begins at `word` of the seed's stream, from `start` to `limit` - 1. The first
    piece has `size` samples, and was shuffled right after the split. `target` shows that. `sizes`: by n, those that the
    first piece may have. None when there is none. Raises ValueError: a seed that torch would not take."""
    spec = Spec(Global.name, seed)
    targets = [target for target in targets if len(target.samples) >= _HEAD]
    longest = max((target.n for target in targets), default=0) + 2 * SEED_WORDS
    state = stream(spec, start)
    for begin, count, words in torch_generator.overlapping(state, start, limit, _CHUNK, longest) if targets else ():
        for n in dict.fromkeys(target.n for target in targets):
            here = [target for target in targets if target.n == n]
            # after the cut a base seed, and of the sampler's own seed the second word
            seeds = words[n + SEED_WORDS : n + SEED_WORDS + count]
            drawn = outputs(seeds, _HEAD)
            for size in sizes.get(n, ()):
                for word, target in _places(words, drawn, n, size, here):
                    if _agrees(words[word : word + n - 1], int(seeds[word]), size, target, limit * len(targets)):
                        return begin + word, size, target
    return None


def _places(
    words: NDArray[np.uint32], drawn: NDArray[np.uint32], n: int, size: int, targets: Sequence[SplitTarget]
) -> Iterator[tuple[int, SplitTarget]]:
    """The words, uint32[m + n], at which a split may begin that a target shows; `drawn`: of the sampler's generator for
    each, uint32[m, 8]."""
    if size < 2 * _HEAD:
        return
    word = np.arange(len(drawn))
    half = [_put(words, word, drawn[:, i], i, n, size) for i in range(_HEAD // 2)]
    for target in targets:
        hits = sum((put == target.samples[i]).astype(np.int8) for i, put in enumerate(half))
        near = np.flatnonzero(hits)
        for i in range(_HEAD // 2, _HEAD):
            hits[near] += _put(words, near, drawn[near, i], i, n, size) == target.samples[i]
        for found in near[hits[near] >= 2].tolist():
            yield found, target


def _put(
    words: NDArray[np.uint32], word: NDArray[np.int64], drawn: NDArray[np.uint32], i: int, n: int, size: int
) -> NDArray[np.int64]:
    """The sample that the cut permutation's own draw put at the place that the sampler takes as its i-th."""
    place = i + (drawn % np.uint32(size - i)).astype(np.int64)
    put: NDArray[np.int64] = place + words[word + place] % (n - place)
    return put


def _agrees(words: NDArray[np.uint32], seed: int, size: int, target: SplitTarget, tried: int) -> bool:
    """True: the samples follow the order to which these words, uint32[n - 1], and that seed lead."""
    step = np.arange(target.n)
    step[:-1] += words % (target.n - step[:-1])
    order = fisher_yates.forward(step)[torch_generator.randperm(torch_generator.generator(seed), size, _REACH)]
    agreed, workers = agreement(order, target.samples)
    chance = -sum(math.log(target.n - i) for i in range(agreed)) + (math.log(workers) if workers else 0.0)
    return chance + math.log(2 * tried) < math.log(FALSE_FIND)
