"""Search in the stream of torch's global generator for the place where a `WeightedRandomSampler` began an epoch, after
an unknown number of draws. Takes 10 ms for a million words and reader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch import SEED_WORDS, stream
from nopfsfs.plan.samplers.torch_weighted import INVERSE, Weighted, cumulative, samples
from nopfsfs.plan.search.torch_stream_search import FALSE_FIND, agreement

# Words that are looked at at a time, and words after those that tell whether a place is right.
_CHUNK = 1 << 20
_REACH = 1 << 15
# Samples that must follow each other before more are looked at.
_LEAST = 2
# Of a sample's random number the first word has so many bits.
_HIGH_BITS = 21


@dataclass(frozen=True, eq=False)
class WeightedTarget:
    """The samples that one reader opened first, in order and each once, int64[m]; `classes` and `weights`: options of
    `weighted`."""

    samples: NDArray[np.int64]
    classes: str
    weights: str


def find(
    origin: int | str, targets: Sequence[WeightedTarget], start: int, limit: int
) -> tuple[Spec, WeightedTarget] | None:
    """The sampler that explains a target, and the target of which it explains most; None when there is none. The
    sampler's epoch 0 begins at the first word, from `start` to `limit` - 1, that explains a target. The words are those
    of the stream of a seed or state. Raises ValueError: a seed or state that torch would not take.

    Each sample has words of its own. So what a loader's second worker opened looks like the beginning of a stream, a
    batch further on. Hence `find` takes the first word of all targets.
    """
    spec = Spec(Weighted.name, 0, (("state", origin),)) if isinstance(origin, str) else Spec(Weighted.name, origin)
    state = stream(spec, start)
    for begin, count, words in torch_generator.overlapping(state, start, limit, _CHUNK, _REACH) if targets else ():
        most = math.log(FALSE_FIND) - math.log(2 * len(targets) * limit)
        found = [
            (word, -agreed, at)
            for at, target in enumerate(targets)
            for word, agreed, chance in _explained(words, count, target)
            if chance < most
        ]
        if found:
            word, _, at = min(found)
            made = spec.with_option("offset", begin + word - SEED_WORDS).with_option("classes", targets[at].classes)
            usual = targets[at].weights == INVERSE
            return made if usual else made.with_option("weights", targets[at].weights), targets[at]
    return None


def _explained(words: NDArray[np.uint32], count: int, target: WeightedTarget) -> Iterator[tuple[int, int, float]]:
    """(one of the first `count` words, how many samples of a target agree with what is drawn there, logarithm of the
    chance of that)."""
    edges = cumulative(target.classes, target.weights)
    for word in _places(words, count, target, edges):
        agreed, workers = agreement(samples(edges, words[word : word + _REACH]), target.samples)
        yield word, agreed, _chance(target, edges, agreed, workers)


def _places(words: NDArray[np.uint32], count: int, target: WeightedTarget, edges: NDArray[np.float64]) -> list[int]:
    """The first `count` words at which the first samples of a target would be drawn."""
    first = int(target.samples[0])
    low = int((edges[first - 1] if first else 0.0) * (1 << _HIGH_BITS))
    width = np.uint32(int(edges[first] * (1 << _HIGH_BITS)) - low)
    high = (words[:count] & np.uint32((1 << _HIGH_BITS) - 1)) - np.uint32(low)
    places = np.flatnonzero(high <= width)
    for at in range(min(_LEAST, len(target.samples))):
        pairs = np.stack((words[places + 2 * at], words[places + 2 * at + 1]), axis=1).reshape(-1)
        places = places[samples(edges, pairs) == target.samples[at]]
    found: list[int] = places.tolist()
    return found


def _chance(target: WeightedTarget, edges: NDArray[np.float64], agreed: int, workers: int) -> float:
    """Logarithm of the probability that so many samples agree by chance; the number of workers was chosen, too."""
    share = np.diff(edges, prepend=0.0)[target.samples[:agreed]]
    return float(np.log(share).sum()) + (math.log(workers) if workers else 0.0)
