"""What takes minutes to find: the place in torch's global generator, and the buffer of a tf.data shuffle.

A loader with `shuffle=True` after `torch.manual_seed` takes its seed from a stream of which the model's initialisation
has consumed an unknown part; a tf.data shuffle has a buffer of any size. `find` tries them all for the likely seeds,
within a limit. Pure, and made of plain values, so that it can run in another process.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import registry, tf_search
from nopfsfs.plan.candidates import Seeds
from nopfsfs.plan.epochs import DataSet, Hypothesis
from nopfsfs.plan.search import positions
from nopfsfs.plan.spec import Spec
from nopfsfs.plan.torch_search import Found, GlobalSearch, Target
from nopfsfs.plan.trail import Cohort

TORCH, TENSORFLOW = "global", "tf_shuffle"
# Words of the stream that are looked at, a part for every seed before the next part: of the seed that was given all
# (some 30 s), of the first and of other common ones fewer.
_PARTS = (0, 1 << 21, 1 << 23, 1 << 25, 1 << 26, 1 << 28)
_GIVEN, _LIKELY, _COMMON = 1 << 28, 1 << 26, 1 << 25
_COMMON_SEEDS = 8
# Opens of one reader that are compared, and readers and enumerations at most.
_OPENS = 64
_READERS = 8
_TARGETS = 24
# How far tf.data's parallel calls displace opens.
_SLACK = 48
_LARGEST_BUFFERS = 4_000_000  # files: beyond, too many buffers to try


@dataclass(frozen=True, eq=False)
class Enumeration:
    """One enumeration of a data set: what was opened, as samples of it. `firsts`: by reader, int64[<= 64] each;
    `pooled`: by all, int64[<= 256]."""

    dataset: int
    order: int
    n: int
    firsts: tuple[NDArray[np.int64], ...]
    pooled: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """All that `find` needs. `origins`: (seed or state, first word, last word but one) to look at, likeliest first."""

    enumerations: tuple[Enumeration, ...]
    origins: tuple[tuple[int | str, int, int], ...]
    seeds: tuple[int, ...]
    torch: bool
    tensorflow: bool


def task(
    datasets: Sequence[DataSet],
    among: Sequence[int],
    cohort: Cohort,
    seeds: Seeds,
    sampler: str,
    known: Sequence[Spec] = (),
) -> Task | None:
    """What to look for; None when neither search could find anything. `known`: plans that were believed before; from
    the place of such a one on the stream is looked at first."""
    names = [family.name for family in registry.families(sampler)]
    torch, tensorflow = TORCH in names, TENSORFLOW in names
    if not torch and not tensorflow:
        return None
    files = {name for family in (TORCH, TENSORFLOW) if family in names for name in registry.sampler(family).files}
    found: list[Enumeration] = []
    for index in among:
        firsts, pooled = cohort.firsts(index, _OPENS)[:_READERS], cohort.rows(index)
        for at, order in enumerate(datasets[index].orders):
            if set(order.names) & files and len(found) < _TARGETS:
                samples = [_leading(positions(rows, order.rows)) for rows in firsts]
                whole = tuple(one for one in samples if len(one) >= 4)
                found.append(Enumeration(index, at, len(order.rows), whole, _leading(positions(pooled, order.rows))))
    likely = (*seeds.first, *seeds.common[:_COMMON_SEEDS])
    limits = [_GIVEN if seeds.given is not None else _LIKELY, *[_LIKELY] * (len(seeds.first) - 1)]
    limits += [_COMMON] * (len(likely) - len(limits))
    again = [
        (str(spec.get("state", "")) or spec.seed, spec.number("offset"), spec.number("offset") + _COMMON)
        for spec in known
        if spec.sampler == TORCH and spec.number("offset") > 0
    ]
    first = [
        (seed, start, end)
        for start, end in itertools.pairwise(_PARTS)
        for seed, limit in zip(likely, limits, strict=True)
        if end <= limit
    ]
    return Task(tuple(found), (*again, *first), likely, torch, tensorflow)


def _leading(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """The samples before the first file that is not in the order."""
    outside = np.flatnonzero(samples < 0)
    return samples[: outside[0]] if len(outside) else samples


def find(work: Task) -> tuple[Hypothesis, int] | None:
    """(what explains the opens, how many possibilities were tried); None when the limits are reached. 0.1 s for a
    million words of a stream, and for a million buffers."""
    for search in (_tensorflow, _torch):
        found = search(work)
        if found is not None:
            return found
    return None


def _tensorflow(work: Task) -> tuple[Hypothesis, int] | None:
    names = registry.sampler(TENSORFLOW).files
    if not work.tensorflow or not names:
        return None
    for seed in work.seeds[:2]:
        for one in work.enumerations:
            if len(one.pooled) < 16 or one.n > _LARGEST_BUFFERS:
                continue
            found = tf_search.specs(seed, one.pooled, one.n, _SLACK)
            if found:
                spec, epoch, _ = found[0]
                return Hypothesis(one.dataset, one.order, spec, epoch), one.n * 64
    return None


def _torch(work: Task) -> tuple[Hypothesis, int] | None:
    if not work.torch:
        return None
    targets: list[Target] = []
    whose: list[Enumeration] = []
    for one in work.enumerations:
        for samples in one.firsts:
            targets.append(Target(one.n, samples))
            whose.append(one)
    for origin, start, limit in work.origins:
        try:
            search = GlobalSearch(origin, targets, limit, start)
        except ValueError:  # a seed that torch would not take
            continue
        while not search.done:
            for found in search.step():
                return _hypothesis(search, found, whose[found.target]), limit * len(targets)
    return None


def _hypothesis(search: GlobalSearch, found: Found, one: Enumeration) -> Hypothesis:
    return Hypothesis(one.dataset, one.order, search.spec(found))
