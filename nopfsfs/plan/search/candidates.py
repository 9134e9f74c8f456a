"""Candidates that are tried when opens are to be explained: file orders, subsets, families, seeds, epochs, in stages.

Owns the sequence of candidates, likeliest first, what it costs in bits to name each, and the beginnings of their
orders. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, Sampler, Spec
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.recently_used import RecentlyUsed

# Seeds that people write, and the years; 0 and 42 first: the defaults of DistributedSampler and of Hugging Face.
COMMON_SEEDS = (
    *(0, 42, 1, 1234, 123, 2, 3, 1337, 3407, 10, 100, 12345, 7, 5, 4, 2024, 2025, 2026, 2023, 21, 31, 999, 6, 8, 9),
    *(11, 13, 17, 77, 88, 99, 111, 200, 256, 314, 404, 512, 666, 777, 1000, 1024, 2019, 2020, 2021, 2022, 4242),
    *(31337, 54321, 123456, 1234567, 12345678, 123456789, 1111, 3141592, 20, 30, 50, 12, 14, 15, 16, 18, 19),
)
_FIRST_SEEDS = 2  # of these: tried as if they had been given when none is
# Epochs that are tried first, and of a seed that is only a common one.
_EPOCHS_FIRST = 4
_EPOCHS_COMMON = 2
# Common seeds that are tried at a time; and in families of which each candidate costs a whole order.
_AT_ONCE = 16
_COSTLY_SEEDS = 24
# Worlds for which orders are dealt out that cannot be compared before.
_WORLDS_MOST = 8
# and ranks of one node: of more such an order takes long to compute
_RANKS_MOST = 16
# Families that are tried first, and over parts of the files: more would cost more than that they are likely.
_USUAL = ("distributed", "random", "sequential", "global")
# Places of an order that are computed to compare with: this many, and this many for each rank. Loaders
# displace opens by some thousand places.
_HEAD = 16_384
_HEAD_PER_RANK = 256
# and at a first glance
_GLANCE = 1024
_GLANCE_PER_RANK = 16
# Of data sets up to this size whole orders are compared, so that it does not matter where a reader begins.
WHOLE = 16_384
_KEPT_BYTES = 64 << 20
# Bits that it takes to name a seed: one that was said, that of the last job, one of the defaults, a common one.
SAID, RECORDED, _DEFAULT, _COMMON = 1.0, 2.0, 5.0, 10.0
# and what is unusual, or a part of the files
_UNUSUAL, _PART = 4.0, 5.0


@dataclass(frozen=True)
class Seeds:
    """The seeds to try: the one that was given, if any, those of the last job, then the common ones."""

    given: int | None = None
    recorded: tuple[int, ...] = ()

    @property
    def first(self) -> tuple[int, ...]:
        """The seeds whose usual configurations are tried first: the one that was given, the last job's, defaults."""
        given = () if self.given is None else (self.given,)
        return tuple(dict.fromkeys((*given, *self.recorded, *COMMON_SEEDS[:_FIRST_SEEDS])))

    @property
    def common(self) -> tuple[int, ...]:
        return tuple(seed for seed in COMMON_SEEDS if seed not in self.first)

    def cost(self, seed: int) -> float:
        """Bits that it takes to name a seed."""
        if seed == self.given:
            return SAID
        if seed in self.recorded:
            return RECORDED
        return _DEFAULT if seed in COMMON_SEEDS[:_FIRST_SEEDS] else _COMMON


@dataclass(frozen=True)
class FileList:
    """An enumeration of the files of one data set."""

    dataset: int
    order: int
    n: int
    names: tuple[str, ...]
    classes: str = ""  # of the file order


@dataclass(frozen=True)
class Candidate:
    """An order to compare with. `world` None: before it is dealt out to ranks; else as dealt out to these."""

    dataset: int
    order: int
    spec: Spec
    epoch: int
    subset: Spec | None = None
    world: World | None = None

    def hypothesis(self, world: int = 1, ranks: tuple[int, ...] = (0,)) -> Hypothesis:
        """With the ranks that read it, where it does not say them itself."""
        world, ranks = self.world or (world, ranks)
        return Hypothesis(self.dataset, self.order, self.spec, self.epoch, world, ranks, self.subset)


def candidate_of(hypothesis: Hypothesis) -> Candidate:
    """The candidate that a hypothesis is compared as."""
    own = registry.sampler(hypothesis.spec.sampler).dealt is Dealt.OWN
    world = (hypothesis.world, hypothesis.ranks) if own else None
    h = hypothesis
    return Candidate(h.dataset, h.order, h.spec, h.epoch, h.subset, world)


def targets(datasets: Sequence[DataSet], among: Iterable[int]) -> Iterator[FileList]:
    """The enumerations of these data sets."""
    for index in among:
        for at, order in enumerate(datasets[index].orders):
            yield FileList(index, at, len(order.rows), order.names, order.classes)


@dataclass(frozen=True)
class Stage:
    """Candidates of about the same likelihood. `epochs`: from the first to before the last; `unusual`: configurations
    that are tried only now; `subsets`: parts of the files."""

    families: tuple[Sampler, ...]
    seeds: tuple[int, ...]
    first_epoch: int = 0
    epochs: int = 1 << 30
    unusual: bool = False
    subsets: bool = False
    before: int = 0  # as many families were likelier

    def candidates(self, target: FileList, worlds: Sequence[World], seeds: Seeds) -> Iterator[tuple[Candidate, float]]:
        """All that the files of `target` could be read as, each with the bits that it takes to name it."""
        for subset in self._subsets():
            for family, spec, cost in self._specs(target, seeds, subset):
                for epoch in range(self.first_epoch, min(self.epochs, family.epochs(spec))):
                    for nth, world in enumerate(_dealt(family, worlds)):
                        bits = cost + target.order + 2 * math.log2((epoch + 1) * (nth + 1))
                        bits += 0.0 if subset is None else _PART
                        yield Candidate(target.dataset, target.order, spec, epoch, subset, world), bits

    def _subsets(self) -> Iterator[Spec | None]:
        if not self.subsets:
            yield None
            return
        found = (spec for rule in registry.SUBSETS.values() for seed in self.seeds for spec in rule.variants(seed))
        yield from dict.fromkeys(found)

    def _specs(self, target: FileList, seeds: Seeds, subset: Spec | None) -> Iterator[tuple[Sampler, Spec, float]]:
        for rank, family in enumerate(self.families, self.before):
            if not set(family.files) & set(target.names) or (family.by_class and not target.classes):
                continue
            seen: dict[Spec, float] = {}
            for seed in self.seeds:
                for nth, spec in enumerate(family.unusual(seed) if self.unusual else family.variants(seed)):
                    bits = seeds.cost(seed) if family.seeds is not None else SAID
                    seen.setdefault(spec, bits + 2 * math.log2((rank + 1) * (nth + 1)) + _UNUSUAL * self.unusual)
            words = 0 if subset is None else registry.subset(subset.sampler).words(subset, target.n)
            for usual, cost in seen.items():
                spec = usual.with_option("classes", target.classes) if family.by_class else usual
                yield family, spec, cost
                # cut and shuffled with the same generator
                if subset is not None and words and subset.seed == spec.seed:
                    later = family.after(spec, words)
                    if later is not spec:
                        yield family, later, cost + 1


def _dealt(family: Sampler, worlds: Sequence[World]) -> tuple[World | None, ...]:
    """To whom an order must be dealt out before it can be compared."""
    if family.dealt is not Dealt.OWN:
        return (None,)
    worlds = [(size, ranks) for size, ranks in worlds if len(ranks) <= _RANKS_MOST]
    alone = [(size, (rank,)) for size, ranks in worlds for rank in ranks]
    found = dict.fromkeys(world for world in (*worlds, *alone) if family.alone or world[0] > 1)
    return tuple(found)[:_WORLDS_MOST]


def stages(seeds: Seeds, sampler: str) -> Iterator[Stage]:
    """The stages of what is tried, likeliest first."""
    families = registry.families(sampler)
    given = seeds.first if seeds.given is None else (seeds.given,)
    seeded = tuple(family for family in families if family.seeds is not None)
    quick = tuple(family for family in seeded if not family.costly)
    shared = tuple(family for family in families if family.dealt is not Dealt.OWN)
    usual = tuple(family for family in shared if family.name in _USUAL)
    yield Stage(usual, given, epochs=_EPOCHS_FIRST)
    others = tuple(family for family in shared if family not in usual)
    yield Stage(others, given, epochs=_EPOCHS_FIRST, before=len(usual))
    yield Stage(tuple(family for family in families if family not in shared), given, epochs=_EPOCHS_FIRST)
    if given != seeds.first:
        yield Stage(quick, seeds.first, epochs=_EPOCHS_FIRST)
    over_parts = tuple(family for family in families if family.name in _USUAL)
    yield Stage(over_parts, given, epochs=1, subsets=True)
    more = [
        Stage(families, given, first_epoch=_EPOCHS_FIRST),
        Stage(families, given, epochs=_EPOCHS_FIRST, unusual=True),
    ]
    costly = tuple(family for family in seeded if family.costly)
    common = []
    for nth, at in enumerate(range(0, len(seeds.common), _AT_ONCE)):
        common.append(Stage(quick, seeds.common[at : at + _AT_ONCE], epochs=_EPOCHS_COMMON))
        half = _AT_ONCE // 2 * nth
        if half < _COSTLY_SEEDS:
            common.append(Stage(costly, seeds.common[half : half + _AT_ONCE // 2], epochs=_EPOCHS_COMMON))
    # of a seed that was said first the unusual; where none was, the commonest other seeds
    yield from (*more, *common) if seeds.given is not None else (*common[:2], *more, *common[2:])


def usual_of_common(seeds: Seeds, sampler: str) -> Stage:
    """The likeliest of what has a common seed that nobody said."""
    usual = tuple(family for family in registry.families(sampler) if family.name in _USUAL and family.seeds is not None)
    return Stage(usual, seeds.common, epochs=_EPOCHS_COMMON)


class OrderHeads:
    """The beginnings of orders; those asked for last are kept, 64 MiB of them. Belongs to one thread at a time."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES, spacing: int = 1) -> None:
        """`spacing`: one open in so many is seen."""
        self.spacing = spacing
        self._kept: RecentlyUsed[object, NDArray[np.integer[Any]]] = RecentlyUsed(kept_bytes)

    def epoch_began(self) -> None:
        """Note that an epoch of a followed order has begun, and forget what was last asked for long ago."""
        self._kept.epoch_began()

    def first(self, candidate: Candidate, n: int, largest_world: int) -> NDArray[np.integer[Any]]:
        """The first thousand or so samples; all of a small data set."""
        glance = (_GLANCE + _GLANCE_PER_RANK * largest_world) * self.spacing
        return self._head(candidate, n, glance if n > WHOLE else n)

    def full(self, candidate: Candidate, n: int, largest_world: int) -> NDArray[np.integer[Any]]:
        """The first samples, as many as loaders may be ahead by, int64[<= n]."""
        return self._head(candidate, n, (_HEAD + _HEAD_PER_RANK * largest_world) * self.spacing)

    def whole(self, candidate: Candidate, n: int) -> NDArray[np.integer[Any]]:
        """All samples, int64[m]."""
        return self._head(candidate, n, None)

    def part(self, subset: Spec, n: int) -> NDArray[np.integer[Any]]:
        """The samples of n that make up a subset."""
        return self._keep((subset, n), lambda: registry.subset(subset.sampler).samples(subset, n))

    def _head(self, candidate: Candidate, n: int, count: int | None) -> NDArray[np.integer[Any]]:
        family, spec, epoch = registry.sampler(candidate.spec.sampler), candidate.spec, candidate.epoch
        world = candidate.world

        def compute() -> NDArray[np.integer[Any]]:
            if world is None:
                return family.shared(spec, n, epoch, None if count is None else min(count, n))[:count]
            size, ranks = world
            return family.order(spec, n, epoch, size, ranks, None if count is None else -(-count // size))[:count]

        return self._keep((spec, epoch, world, n, count), compute)

    def _keep(self, key: object, compute: Any) -> NDArray[np.integer[Any]]:
        found = self._kept.get(key)
        if found is not None:
            return found
        try:
            head: NDArray[np.integer[Any]] = compute()
        except ValueError:  # a world, n or part that the framework would refuse
            head = np.zeros(0, np.int64)
        head = head.astype(np.int32) if len(head) == 0 or int(head.max()) < 2**31 else head
        self._kept.put(key, head)
        return head
