"""Samplers: a sampler is a pure function from (seed, options, n, epoch, world, ranks) to an order of samples.

Owns the words that every framework's module shares. Knows no framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import sharding

Value = int | float | str


class Dealt(Enum):
    """The way in which an order is dealt to ranks."""

    ALL = "all"  # every rank reads the whole of `shared`
    STRIDED = "strided"  # rank r of R reads the places r, r+R, r+2R, ... of `shared`
    BATCHES = "batches"  # ranks take batches of `shared` in turn, of the size in the option `batch`
    OWN = "own"  # every rank has an order of its own, which only `order` knows


@dataclass(frozen=True)
class Option:
    """An option of a sampler, as plan files and commands name it. `kind`: int, float, str or bool; `least` and
    `most` bound a number, `choices` a word."""

    help: str
    kind: type = int
    default: Value = 0
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GivenOrders:
    """Orders that are given instead of computed, an array of samples (int64[m]) for each epoch; after the last
    one they begin anew."""

    epochs: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Spec:
    """A sampler as its user configured it: registry name, seed, options as sorted (name, value) pairs; `data`
    only for `explicit`."""

    sampler: str
    seed: int = 0
    options: tuple[tuple[str, Value], ...] = ()
    data: GivenOrders | None = None

    def get(self, name: str, default: Value) -> Value:
        """The value of an option, or `default`."""
        for key, value in self.options:
            if key == name:
                return value
        return default

    def number(self, name: str) -> int:
        """The value of an option that counts or is a flag; 0 when not set."""
        return int(self.get(name, 0))

    def with_option(self, name: str, value: Value) -> Spec:
        """A sampler with one more option set; 0 is what an option is when it is not set."""
        options = {**dict(self.options), name: value}
        return replace(self, options=tuple(sorted((k, v) for k, v in options.items() if v != 0)))


# An option of all samplers of which every rank reads all: the program slices the order, [rank::world].
STRIDED = "strided"
STRIDED_OPTION = Option("the program takes every world-th sample of the order, beginning with the rank's", bool)


class Sampler(ABC):
    """A family of samplers. Stateless; every method is pure. A subclass says `shared`; what else differs from the
    usual it overrides."""

    name: str
    summary: str  # what it is, in one line, naming the class or function of the framework
    dealt: Dealt = Dealt.ALL
    # The file orders (names of `dataset/file_orders.py`) that its framework enumerates, likeliest first.
    files: tuple[str, ...] = ("image_folder", "sorted_files")
    options: Mapping[str, Option] = {}
    # False: with one rank the order is one that another family has, so that it is not tried then.
    alone = True
    # True: the beginning of an order costs as much as the whole.
    costly = False
    # True: the order depends on how many files each class has, which its option `classes` says.
    by_class = False
    # The seeds that the framework takes, (least, most); None when there is no seed.
    seeds: tuple[int, int] | None = (0, 2**32 - 1)
    # False: `variants` has none, because other families have the same orders, or because no order can be guessed.
    guessed = True
    # The number of epochs that are worth trying when the epoch is not known.
    tried = 1
    # True: an epoch may be read again, where a program does not say that another has begun.
    may_repeat = False
    # True: the first epoch may follow, because the job was started again.
    may_restart = False

    @abstractmethod
    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The first `count` samples (default: all) of the order before it is dealt out to ranks, int64.

        A head costs in proportion to `count` where the framework's algorithm allows that. May hold fewer than n
        samples (a subset), or more (replacement, repetition).
        """

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The samples that `ranks` read, their orders interleaved place by place: int64[m * len(ranks)]. NOTHING stands
        where a rank has fewer samples than another. `count`: only the first places of each rank.

        Here every rank reads the whole of `shared`. When strided, the ranks share it, padded to a multiple of the world
        as DistributedSampler does. With the option `strided` a rank reads every world-th place, neither padded nor cut.
        The option `drop_batch` leaves out a last batch that is not full. Raises ValueError: ranks that do not fit the
        world; a world, n or option that the framework would refuse.
        """
        if self.dealt is Dealt.STRIDED:
            sharding.check_ranks(world, ranks)
            full = sharding.padded(self.shared(spec, n, epoch), world, drop_last=bool(spec.number("drop_last")))
            mine = sharding.strided(full, world, ranks)[: None if count is None else count * len(ranks)]
        elif spec.number(STRIDED):
            sharding.check_ranks(world, ranks)
            full = self.shared(spec, n, epoch, None if count is None else count * world)
            mine = sharding.interleave([full[rank::world] for rank in ranks])
        else:
            mine = sharding.everyone(self.shared(spec, n, epoch, count), world, ranks)
        # a head is never at the end: what happens there is of no concern to it
        return sharding.full_batches(mine, len(ranks), spec.number("drop_batch")) if count is None else mine

    def dealt_out(self, spec: Spec, batch: int) -> Spec | None:
        """The sampler by which several ranks share this order, in strides (`batch` 1), or in batches of that size in
        turn. None where nobody is known to do that."""
        if self.dealt is Dealt.BATCHES:
            return spec.with_option("batch", batch)
        if batch > 1:
            return None
        return spec.with_option(STRIDED, 1) if self.dealt is Dealt.ALL else spec

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The configurations to try when only the seed is known, likeliest first. No two have the same order in every
        epoch. The result is () when the framework would not take that seed. Few: each costs a computation for each
        epoch."""
        if not self.guessed:
            return ()
        if self.seeds is None:
            return (Spec(self.name),)
        return (Spec(self.name, seed),) if self.seeds[0] <= seed <= self.seeds[1] else ()

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """More to try when none of those fits."""
        return ()

    def after(self, spec: Spec, words: int) -> Spec:
        """The sampler when its generator has drawn so many more words before; `spec` itself where the sampler
        shares no generator."""
        return spec

    def epochs(self, spec: Spec) -> int:
        """The number of epochs that are worth trying when the epoch is not known."""
        return self.tried

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The epochs that may be read after this one, likeliest first: (spec, epoch) pairs.

        A spec may hold what was learned (the step from one epoch's seed to the next), so that the first entry
        stays right.
        """
        others = [at for at, may in ((epoch, self.may_repeat), (0, self.may_restart)) if may]
        return tuple(dict.fromkeys((spec, at) for at in (epoch + 1, *others)))


class Subset(ABC):
    """A rule by which a program reads only a part of its files. Stateless; pure."""

    name: str
    summary: str
    options: Mapping[str, Option] = {}
    seeds: tuple[int, int] | None = (0, 2**32 - 1)

    @abstractmethod
    def samples(self, spec: Spec, n: int) -> NDArray[np.int64]:
        """The files that make up the part, of n, in the order in which the program has them: int64[m], m <= n. Sample i
        of a sampler over the part is file samples[i]. Raises ValueError: a part that does not exist."""

    @abstractmethod
    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The parts to try when only the seed is known, likeliest first."""

    def words(self, spec: Spec, n: int) -> int:
        """The words of the generator's stream that are gone once the files are cut. They count where a sampler may draw
        from the same stream after that; 0: none can."""
        return 0
