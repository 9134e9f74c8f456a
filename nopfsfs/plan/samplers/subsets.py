"""Parts of a data set as PyTorch cuts them: `torch/utils/data/dataset.py` of torch 1.13 to 2.13."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Option, Spec, Subset
from nopfsfs.plan.samplers.torch import SEEDS, STATE, stream

_USUAL = "0.8,0.2"
REST = "rest"
# In the form [int(0.8 * n), n - int(0.8 * n)] only the likeliest: mostly they are the same as the fractions.
LENGTHS = (
    *(_USUAL, "0.9,0.1", "0.7,0.3", "0.75,0.25", "0.95,0.05", "0.8,0.1,0.1", "0.7,0.15,0.15", "0.5,0.5"),
    *("0.8,rest", "0.9,rest", "0.7,rest"),
)


class RandomSplit(Subset):
    """`random_split(data, lengths, generator)[part]`: one permutation, cut into pieces.

    The generator is seeded with the spec's seed: one of its own, or torch's global one after manual_seed; or it is in
    `state`. Options: `lengths`: fractions that add up to 1, or counts that add up to n, separated by commas. Or
    `lengths` are fractions and `rest`: int(n * fraction) each, and what is left. `part`: the index of the piece;
    `offset`: words drawn before.
    """

    name = "random_split"
    summary = "torch.utils.data.random_split"
    seeds = SEEDS
    options: Mapping[str, Option] = {
        "lengths": Option("fractions or counts, as 0.8,0.2 or 800,200 or 0.8,rest", str, _USUAL),
        "part": Option("which piece", least=0),
        "offset": Option("words drawn before", least=0),
        "state": STATE,
    }

    def samples(self, spec: Spec, n: int) -> NDArray[np.int64]:
        """The piece as random_split has it, int64[m]. Raises ValueError: lengths that random_split refuses, no such
        piece."""
        begin, end = bounds(spec, n)
        return torch_generator.randperm(stream(spec, spec.number("offset")), n, end)[begin:]

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The first pieces of the usual fractions, then the others."""
        pieces = [(len(lengths.split(",")), lengths) for lengths in LENGTHS]
        return tuple(_split(seed, lengths, part) for part in range(3) for parts, lengths in pieces if part < parts)

    def words(self, spec: Spec, n: int) -> int:
        """The words of one permutation, and those before."""
        return spec.number("offset") + max(n - 1, 0)


def bounds(spec: Spec, n: int) -> tuple[int, int]:
    """The places in the permutation of n at which the piece of a spec begins and ends. Raises ValueError as
    `samples`."""
    lengths = _lengths(str(spec.get("lengths", _USUAL)), n)
    part = spec.number("part")
    if part >= len(lengths):
        raise ValueError(f"part: there are {len(lengths)}")
    end = sum(lengths[: part + 1])
    return end - lengths[part], end


def _split(seed: int, lengths: str, part: int) -> Spec:
    options = (("lengths", lengths),) if lengths != _USUAL else ()
    return Spec(RandomSplit.name, seed, options).with_option("part", part)


def _lengths(text: str, n: int) -> list[int]:
    """The sizes of the pieces. A fraction's is rounded down; what is left goes one by one to the first pieces, or makes
    the last one, `rest`."""
    text, comma, last = text.rpartition(",")
    if last != REST:
        text += comma + last
    try:
        lengths = [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"lengths: {text!r} is not numbers separated by commas") from None
    if last == REST:
        if any(not 0 <= fraction <= 1 for fraction in lengths) or sum(lengths) > 1:
            raise ValueError(f"lengths: {text!r} leaves no rest")
        sizes = [int(n * fraction) for fraction in lengths]
        return [*sizes, n - sum(sizes)]
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        if any(not 0 <= fraction <= 1 for fraction in lengths):
            raise ValueError(f"lengths: {text!r} has a fraction that is not between 0 and 1")
        sizes = [math.floor(n * fraction) for fraction in lengths]
        left = n - sum(sizes)
        return [size + left // len(sizes) + (i < left % len(sizes)) for i, size in enumerate(sizes)]
    if any(length < 0 or not length.is_integer() for length in lengths) or sum(lengths) != n:
        raise ValueError(f"lengths: {text!r} does not add up to {n} samples, nor to 1")
    return [int(length) for length in lengths]


SUBSETS: tuple[Subset, ...] = (RandomSplit(),)
