"""Orders of randperm seeded with one number: DistributedSampler's, and those of all who share them.

Their generator is seeded with seed + epoch, so that one number s is to be found, whoever chose it. Turns the numbers
that `torch_seeds` finds into suspects, under the likeliest name. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import torch_seeds
from nopfsfs.plan.search.candidates import Candidate, FileList, Seeds
from nopfsfs.plan.search.suspects import OpensView
from nopfsfs.plan.search.torch_seeds import SeedSearch

FAMILY = "distributed"
_SEEDED = (FAMILY, "hf_trainer")
# Epochs of a likely seed that are looked at before other seeds.
_EPOCHS = 300
# Epochs by which readers of one job may be apart.
_NEIGHBOURS = 2
# Bits that it takes to name any of the seeds that are tried.
_ANY = 15.0
# Of the readers that opened most so many are looked at, and so many opens of each; in the middle of an epoch one that
# follows the order is enough.
_READERS, _MIDDLE_READERS = 12, 4
_BEGIN_OPENS, _MIDDLE_OPENS = 16, 8
# First opens that are looked at where readers are not told apart; each costs more than the one before.
_TOGETHER_OPENS = 256
_LEAST_OPENS, _LEAST_FILES = 4, 16
# Opens of all readers that are looked at where all are to follow the same order, in runs, and the least that tell.
_JOINT_OPENS, _RUN, JOINT_LEAST = 128, 8, 64
# All seeds are looked at in the middle of an epoch only in so many enumerations of the files.
_TARGETS = 2
# Files up to which the middle of an epoch takes a second or two for all seeds, and up to which some seconds.
_QUICK, _SOON = 16_384, 131_072
# Of more files than this an order that all readers follow is found sooner than one that any of them does.
_JOINT_FILES = 32_768
# World sizes of up to 16 times more than usual show in longer beginnings.
_LONG = 16 * torch_seeds.REACH


@dataclass(frozen=True, eq=False)
class BySeed:
    """A way to look for seeds in one enumeration of files."""

    target: FileList
    make: Callable[[list[NDArray[np.int64]], int], SeedSearch]
    in_middle: bool
    middle_opens: int = _MIDDLE_OPENS
    joint: bool = False  # all readers are to follow the same order

    def begin(self, view: OpensView, samples_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> SeedSearch | None:
        """A search over what was opened; None where that is too little. `samples_of`: the samples of rows, -1: none."""
        if self.joint:
            found = _runs(view, samples_of)
            enough = sum(map(len, found)) >= JOINT_LEAST
        else:
            readers = view.lasts(self.middle_opens) if self.in_middle else view.begun
            found = [samples[samples >= 0][:_TOGETHER_OPENS] for samples in map(samples_of, readers)]
            found = sorted((one for one in found if len(one) >= _LEAST_OPENS), key=len, reverse=True)
            found = found[: _MIDDLE_READERS if self.in_middle else _READERS]
            enough = bool(found)
        if not enough or self.target.n < _LEAST_FILES:
            return None
        try:
            return self.make(found, self.target.n)
        except ValueError:  # more files than torch shuffles so
            return None


def _runs(view: OpensView, samples_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """The samples that were opened last, those of a reader in runs, int64[2 <= k <= _RUN] each."""
    samples = samples_of(view.rows)
    last = np.flatnonzero(samples >= 0)[-_JOINT_OPENS:]
    samples, readers = samples[last], view.together[last]
    found = []
    for reader in np.unique(readers).tolist():
        of_reader = samples[readers == reader]
        found += [of_reader[max(0, end - _RUN) : end] for end in range(len(of_reader), 1, -_RUN)]
    return found


def likely(targets: Iterable[FileList], seeds: Seeds, spacing: int = 1) -> list[BySeed]:
    """The seed that was given, and the defaults, in an epoch's beginning. `spacing`: one open in so many is seen."""
    return [_beginnings(target, _likely(seeds), spacing * torch_seeds.REACH) for target in _here(targets)]


def further(targets: Iterable[FileList], seeds: Seeds, spacing: int = 1) -> list[BySeed]:
    """Two for each target: all seeds in an epoch's beginning, the likely ones in its middle."""
    found = []
    for target in _here(targets):
        found.append(_beginnings(target, torch_seeds.SEEDS, spacing * torch_seeds.REACH))
        found.append(_middles(target, _likely(seeds), spacing))
    return found


def joint(targets: Iterable[FileList], seeds: Seeds, spacing: int = 1) -> list[BySeed]:
    """All seeds in the middle of an epoch, if all readers follow the same order, in the likeliest enumeration of many
    files. The search takes a second, or some seconds for a million files. Where tripwires alone show, opens lie too far
    apart."""
    which = (*_likely(seeds), *torch_seeds.SEEDS)

    def make(runs: list[NDArray[np.int64]], n: int) -> SeedSearch:
        return torch_seeds.joint_middles(runs, n, which)

    many = [target for target in _here(targets) if target.n > _JOINT_FILES]
    return [BySeed(target, make, in_middle=True, joint=True) for target in (many[:1] if spacing == 1 else [])]


def thorough(targets: Iterable[FileList], spacing: int = 1) -> tuple[list[BySeed], list[BySeed], list[BySeed]]:
    """All seeds, in long beginnings and in the middle of an epoch. First come searches that take a second or two, then
    the likeliest that takes some seconds, then those that take longer."""
    here = _here(targets)[:_TARGETS]
    middles = [_middles(target, torch_seeds.SEEDS, spacing) for target in here]
    beginnings = [_beginnings(target, torch_seeds.SEEDS, spacing * _LONG) for target in here]
    quick = [one for one in middles if one.target.n <= _QUICK]
    soon = [one for one in middles[:1] if _QUICK < one.target.n <= _SOON]
    return quick, soon, [*beginnings, *(one for one in middles if one not in (*quick, *soon))]


def _here(targets: Iterable[FileList]) -> list[FileList]:
    return [target for target in targets if set(registry.sampler(FAMILY).files) & set(target.names)]


def _likely(seeds: Seeds) -> list[int]:
    return list(dict.fromkeys(s for seed in seeds.first for s in range(max(seed, 0), max(seed, 0) + _EPOCHS)))


def _beginnings(target: FileList, seeds: Iterable[int], reach: int) -> BySeed:
    return BySeed(target, lambda readers, n: torch_seeds.beginnings(readers, n, seeds, reach), in_middle=False)


def _middles(target: FileList, seeds: Iterable[int], spacing: int) -> BySeed:
    # a step between two opens that show tells less
    opens = _MIDDLE_OPENS if spacing == 1 else _BEGIN_OPENS
    return BySeed(target, lambda readers, n: torch_seeds.middles(readers, n, seeds), in_middle=True, middle_opens=opens)


def named(s: int, target: FileList, seeds: Seeds) -> tuple[Candidate, float]:
    """The number under its likeliest name, and the bits that this takes."""
    known = (*seeds.first, *(seed for seed in seeds.common if seed == s))
    names = [(seeds.cost(seed) + 2 * math.log2(s - seed + 1), seed) for seed in known if 0 <= s - seed < _EPOCHS]
    cost, seed = min(names, default=(_ANY, s))
    return Candidate(target.dataset, target.order, Spec(FAMILY, seed), s - seed), cost + target.order


def renamed(hypothesis: Hypothesis, known: Hypothesis) -> Hypothesis:
    """The order by the seed of what is known, where that is this epoch, or one right before or after it."""
    here, there = hypothesis.spec, known.spec
    of_seed = here.sampler in _SEEDED and there.sampler in _SEEDED
    if not of_seed or here.number("sequential") or there.number("sequential"):
        return hypothesis
    epoch = here.seed + hypothesis.epoch - there.seed
    near = epoch >= 0 and abs(epoch - known.epoch) <= _NEIGHBOURS
    return replace(hypothesis, spec=replace(here, seed=there.seed), epoch=epoch) if near else hypothesis
