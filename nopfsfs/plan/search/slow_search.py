"""Searches that take minutes: for the place in torch's global generator, and for the buffer of a tf.data shuffle.

A loader with `shuffle=True` after `torch.manual_seed` takes its seed from a stream of which the model's initialisation
has consumed an unknown part. The loader reads all files, or a piece that random_split cut off first. A
WeightedRandomSampler draws from that stream itself. A tf.data shuffle has a buffer of any size. `find` tries them all
for the likely seeds, within a limit. Pure, and made of plain values, so that it can run in another process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, Hypothesis
from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry, subsets
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch_weighted import KINDS
from nopfsfs.plan.search import split_search, tf_buffer_search, weighted_search
from nopfsfs.plan.search.candidates import Seeds
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.split_search import SplitTarget
from nopfsfs.plan.search.suspects import Table, leading
from nopfsfs.plan.search.torch_stream_search import GlobalSearch, SearchedFiles, StreamPlace
from nopfsfs.plan.search.weighted_search import WeightedTarget

TORCH, TENSORFLOW, WEIGHTED, SPLIT = "global", "tf_shuffle", "weighted", "random_split"
# Words of the stream that are looked at, a part for every seed before the next part: of the seed that was given all
# (some 30 s), of the first and of other common ones fewer.
_PARTS = (0, 1 << 21, 1 << 23, 1 << 25, 1 << 26, 1 << 28)
_GIVEN, _LIKELY, _COMMON = 1 << 28, 1 << 26, 1 << 25
_COMMON_SEEDS = 8
# Seeds that random_split's own generator may have, whatever the global generator's.
_SPLIT_SEEDS = 2
# Words of the stream at which a split may begin: more take too long.
_SPLIT_MOST = 1 << 25
# Opens of one reader that are compared, and readers and enumerations at most.
_OPENS = 64
_READERS = 8
_TARGETS = 24
# How far tf.data's parallel calls displace opens.
_SLACK = 48
_LARGEST_BUFFERS = 4_000_000  # files: beyond, too many buffers to try


@dataclass(frozen=True, eq=False)
class Enumeration:
    """An enumeration of a data set: what was opened, as samples of it. `firsts`: by reader, int64[<= 64] each;
    `pooled`: by all, int64[<= 256]; `classes`: of the file order."""

    dataset: int
    order: int
    n: int
    firsts: tuple[NDArray[np.int64], ...]
    pooled: NDArray[np.int64]
    classes: str


@dataclass(frozen=True, eq=False)
class SlowSearchTask:
    """All that `find` needs. `origins`: (seed or state, first word, last word but one) to look at, likeliest first."""

    enumerations: tuple[Enumeration, ...]
    origins: tuple[tuple[int | str, int, int], ...]
    seeds: tuple[int, ...]
    torch: bool
    tensorflow: bool
    weighted: bool


def task(
    datasets: Sequence[DataSet],
    among: Sequence[int],
    cohort: Cohort,
    seeds: Seeds,
    sampler: str,
    known: Sequence[Spec] = (),
) -> SlowSearchTask | None:
    """The task for a cohort; None when neither search could find anything. `known`: plans that were followed before:
    the stream is looked at from the place of such a plan on first."""
    names = [family.name for family in registry.families(sampler)]
    wanted = [name for name in (TORCH, TENSORFLOW, WEIGHTED) if name in names]
    if not wanted:
        return None
    files = {name for family in wanted for name in registry.sampler(family).files}
    found: list[Enumeration] = []
    for index in among:
        firsts, pooled = cohort.firsts(index, _OPENS)[:_READERS], cohort.rows(index)
        for at, order in enumerate(datasets[index].orders):
            if set(order.names) & files and len(found) < _TARGETS:
                table = Table(order.rows)
                samples = [leading(table.places(rows)) for rows in firsts]
                whole = tuple(one for one in samples if len(one) >= 4)
                pooled_samples = leading(table.places(pooled))
                found.append(Enumeration(index, at, len(order.rows), whole, pooled_samples, order.classes))
    likely = (*seeds.first, *seeds.common[:_COMMON_SEEDS])
    limits = [_GIVEN if seeds.given is not None else _LIKELY, *[_LIKELY] * (len(seeds.first) - 1)]
    limits += [_COMMON] * (len(likely) - len(limits))
    again = [
        (str(spec.get("state", "")) or spec.seed, spec.number("offset"), spec.number("offset") + _COMMON)
        for spec in known
        if spec.sampler in (TORCH, WEIGHTED) and spec.number("offset") > 0
    ]
    first = [
        (seed, start, end)
        for start, end in itertools.pairwise(_PARTS)
        for seed, limit in zip(likely, limits, strict=True)
        if end <= limit
    ]
    families = (name in wanted for name in (TORCH, TENSORFLOW, WEIGHTED))
    return SlowSearchTask(tuple(found), (*again, *first), likely, *families)


def find(work: SlowSearchTask) -> tuple[Hypothesis, int] | None:
    """(what explains the opens, how many possibilities were tried); None when the limits are reached. 0.1 s for a
    million words of a stream, and for a million buffers."""
    for search in (_tensorflow, _torch):
        found = search(work)
        if found is not None:
            return found
    return None


def _tensorflow(work: SlowSearchTask) -> tuple[Hypothesis, int] | None:
    names = registry.sampler(TENSORFLOW).files
    if not work.tensorflow or not names:
        return None
    for seed in work.seeds[:2]:
        for one in work.enumerations:
            if len(one.pooled) < 16 or one.n > _LARGEST_BUFFERS:
                continue
            found = tf_buffer_search.specs(seed, one.pooled, one.n, _SLACK)
            if found:
                spec, epoch, _ = found[0]
                return Hypothesis(one.dataset, one.order, spec, epoch), one.n * 64
    return None


def _torch(work: SlowSearchTask) -> tuple[Hypothesis, int] | None:
    pieces: dict[int, list[_Read]] = {}
    for origin, start, limit in work.origins:
        try:
            found = (
                _shuffled(work, origin, start, limit, pieces)
                or _weighted(work, origin, start, limit)
                or _split(work, origin, start, limit)
            )
        except ValueError:  # a seed that torch would not take
            continue
        if found is not None:
            return found
    return None


def _shuffled(
    work: SlowSearchTask, origin: int | str, start: int, limit: int, pieces: dict[int, list[_Read]]
) -> tuple[Hypothesis, int] | None:
    """`pieces`: by seed, those that were cut already."""
    if not work.torch:
        return None
    reads = [_Read(one, SearchedFiles(one.n, samples)) for one in work.enumerations for samples in one.firsts]
    for seed in dict.fromkeys((origin, *work.seeds[:_SPLIT_SEEDS])):
        if isinstance(seed, int):
            if seed not in pieces:
                pieces[seed] = list(_pieces(work.enumerations, seed))
            reads += pieces[seed]
    search = GlobalSearch(origin, [read.target for read in reads], limit, start)
    while not search.done:
        for found in search.step():
            return _hypothesis(search, found, reads[found.target]), limit * len(reads)
    return None


def _weighted(work: SlowSearchTask, origin: int | str, start: int, limit: int) -> tuple[Hypothesis, int] | None:
    if not work.weighted:
        return None
    reads = {
        WeightedTarget(samples, one.classes, kind): one
        for one in work.enumerations
        for samples in one.firsts
        for kind in KINDS
        if one.classes
    }
    found = weighted_search.find(origin, tuple(reads), start, limit)
    if found is None:
        return None
    spec, target = found
    one = reads[target]
    return Hypothesis(one.dataset, one.order, spec), limit * len(reads)


def _split(work: SlowSearchTask, origin: int | str, start: int, limit: int) -> tuple[Hypothesis, int] | None:
    """A random_split after the model was initialised, and the loader right after that."""
    if not work.torch or origin not in work.seeds[:_SPLIT_SEEDS] or not isinstance(origin, int) or limit > _SPLIT_MOST:
        return None
    reads = {SplitTarget(one.n, samples): one for one in work.enumerations for samples in one.firsts}
    parts = [spec for spec in registry.subset(SPLIT).variants(origin) if not spec.number("part")]
    cuts = {one.n: {subsets.bounds(spec, one.n)[1]: spec for spec in reversed(parts)} for one in work.enumerations}
    found = split_search.find(origin, tuple(reads), {n: tuple(cut) for n, cut in cuts.items()}, start, limit)
    if found is None:
        return None
    word, size, target = found
    one = reads[target]
    spec = Spec(TORCH, origin).with_option("offset", word + one.n - 1)
    subset = cuts[one.n][size].with_option("offset", word)
    return Hypothesis(one.dataset, one.order, spec, subset=subset), limit * len(reads)


@dataclass(frozen=True, eq=False)
class _Read:
    """The files that one reader opened first, as samples of an enumeration or of a piece of it."""

    whose: Enumeration
    target: SearchedFiles
    subset: Spec | None = None


def _pieces(enumerations: Sequence[Enumeration], seed: int) -> Iterator[_Read]:
    """The pieces of random_split with that seed in which all lies that a reader opened. Takes 0.1 s for a million
    files."""
    for n in dict.fromkeys(one.n for one in enumerations):
        if n < 2 or n >= torch_generator.MAX_N:
            continue
        order = torch_generator.randperm(torch_generator.generator(seed), n)
        cuts = {subsets.bounds(spec, n): spec for spec in reversed(registry.subset(SPLIT).variants(seed))}
        for one in enumerations:
            for samples in one.firsts if one.n == n else ():
                places = Table(order).places(samples)
                for (begin, end), spec in cuts.items():
                    if places.min() >= begin and places.max() < end:
                        yield _Read(one, SearchedFiles(end - begin, places - begin), spec)


def _hypothesis(search: GlobalSearch, found: StreamPlace, read: _Read) -> Hypothesis:
    return Hypothesis(read.whose.dataset, read.whose.order, search.spec(found), subset=read.subset)
