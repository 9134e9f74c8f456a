"""The dealing of an order, read off the places that readers open: world size, ranks, and what a rank takes in a row.

A reader is one process, so of one rank: its steps are multiples of the world size. Where readers are not known, the
world shows in the residues that are read and those that are not. What was said is a prior: opens overrule it. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.search.evidence import code

World = tuple[int, tuple[int, ...]]  # world size, the ranks that read through this mount

_WORLDS_MOST = 1024
# The commonest steps, of which the world size divides one.
_COMMON = 4
# Steps from which on they tell the world size.
STEPS_LEAST = 3
# The same where each reader has opened so few files that all are taken as one: then the residues tell as much.
_STEPS_APART = 12
# Of a reader's steps so many bits lie in that they lead forward, back, or that they fit no world.
_FORWARD, _BACK, _STRAY = 0.85, 0.05, 0.1
# Bits that a world is worth which was said, and one that was read off already: some strays, of what was read in the
# epoch before, make no other of it.
SAID, HELD = 6.0, 40.0
# Residues that are read less than this share of the mean are those of strays, or of an epoch's padding; where the mean
# is so many opens.
_READ, _STRAYS_FROM = 0.25, 3.0
# Where readers are not known: bits by which the residues of the first opens must foretell those of the later ones, and
# bits by which ranks that were said must foretell the residues that are read.
_CLEAR, _CLEAR_SAID = 14.0, 8.0
# Runs that must be of the same length, and begin at multiples of it.
_RUNS_LEAST = 2
_RUNS_ALIKE = 0.75
# Files of a reader from which on they tell its part of the listing; the share of a block that they fill; and how many
# worlds are worth trying.
_LISTED_LEAST, _FILLED, _LISTED_MOST = 8, 0.6, 6
# The share of residues that ranks' workers would read from which on they are taken for such workers.
_WORKERS_READ = 0.75
# With so many files of a rank in an epoch, ranks of a larger world are told apart where a smaller one was read off.
_FILES_LEAST = 8
# After so many opens for each rank that reads, a rank that was said and does not read is taken to read elsewhere.
_PATIENCE = 16


@dataclass(frozen=True)
class Deal:
    """`world` and `ranks` as of a hypothesis; `batch`: places that a rank takes in a row (1: in strides)."""

    world: int = 1
    ranks: tuple[int, ...] = (0,)
    batch: int = 1

    @property
    def whole(self) -> bool:
        """True: all is read here."""
        return len(self.ranks) == self.world


WHOLE = Deal()


def read(
    followed: Mapping[int, Sequence[int]], n: int, said: Sequence[World] = (), trust: float = SAID,
    apart: Mapping[int, Sequence[int]] = {},
) -> Deal | None:  # fmt: skip
    """The deal that places of an order of `n` show. `followed`: by reader (0: those that are not known) the places it
    opened, in order; `trust`: bits that each world in `said` is worth. `apart`: by reader, the places of those that
    `followed` takes as one, because each has opened few. None: too little is known yet."""
    known = {reader: places for reader, places in followed.items() if reader and places}
    unknown = followed.get(0, ())
    if unknown and len(unknown) >= sum(map(len, known.values())):
        steps = _steps(apart)
        if len(steps) < _STEPS_APART:
            found = _by_residues(np.array(unknown, np.int64), n, said, trust)
            if not _refute(steps, found.world):
                return found
        known = dict(apart)
    steps = _steps(known)
    if len(steps) < STEPS_LEAST:
        return None
    world = _by_steps(steps, n, said, trust)
    if world == 1:
        return _in_turn(known) or WHOLE
    places = np.concatenate([np.array(mine, np.int64) for mine in known.values()])
    # What was read off the residues alone yields to steps: its ranks are read apart, if each has more than a few files.
    finer = trust >= HELD and n >= _FILES_LEAST * world
    size = world if finer else _undivided(places, world, said)
    return _ranks(places, size, said if size == world else ())


def _undivided(places: NDArray[np.int64], world: int, said: Sequence[World]) -> int:
    """The world size. `world` is what the steps show. Where `world` is a multiple of a world that was said, its ranks
    may be the workers of the ranks that were said. Such workers load single files in turn. The world that was said
    holds where nearly all of these workers read, or where there are too few places to tell."""
    for size, _ in said:
        if 1 < size < world and world % size == 0:
            read = np.unique(places % world)
            theirs = len(np.unique(read % size)) * (world // size)
            if len(read) >= _WORKERS_READ * theirs or len(places) < _STRAYS_FROM * theirs:
                return size
    return world


def divided(world: int, ranks: Sequence[int], size: int, seen: set[int]) -> tuple[int, ...]:
    """The ranks of a world of `size` that read here. `seen` were seen to read; `ranks` of a smaller `world` were
    thought to. Each of those is divided into several ranks of `size`. Where nearly all of these were seen, and no
    others, all of these read here; else only those that were seen."""
    theirs = {rank for rank in range(size) if rank % world in ranks} if size % world == 0 else set()
    whole = seen <= theirs and len(seen) >= _WORKERS_READ * len(theirs)
    return tuple(sorted(theirs if whole else seen))


def _steps(places: Mapping[int, Sequence[int]]) -> list[int]:
    return [after - before for mine in places.values() for before, after in pairwise(mine)]


def _refute(steps: Sequence[int], world: int) -> bool:
    """True: readers take other steps than a world's. Where several workers have just begun, their places lie close
    together, like the ranks of a large world."""
    return len(steps) >= STEPS_LEAST and 2 * sum(step % world != 0 for step in steps) > len(steps)


def _by_steps(steps: Sequence[int], n: int, said: Sequence[World], trust: float) -> int:
    """The world size that tells the steps of known readers in the fewest bits."""
    counts = Counter(steps)
    common = sorted((step for step in counts if step > 0), key=lambda step: -counts[step])[:_COMMON]
    sizes = {1, *(size for size, _ in said)}
    for step in common:
        sizes.update(size for size in range(2, min(step, _WORLDS_MOST) + 1) if step % size == 0)
    worth = dict.fromkeys((size for size, _ in said), trust)

    def bits(size: int) -> float:
        told = 0.0
        for step, times in counts.items():
            forward = _FORWARD if step > 0 else _BACK
            chance = _STRAY / n if step % size else forward * code(abs(step) // size)
            told -= times * math.log2(chance)
        return told - 2 * math.log2(size) - worth.get(size, 0.0)

    return min(sorted(sizes), key=bits)


def _ranks(places: NDArray[np.int64], world: int, said: Sequence[World]) -> Deal:
    """The residues that are read."""
    counts = np.bincount(places % world, minlength=world)
    mean = float(counts[counts > 0].mean())
    read = tuple(np.flatnonzero(counts > (max(1.0, _READ * mean) if mean >= _STRAYS_FROM else 0)).tolist())
    for size, ranks in said:
        if size == world and set(read) <= set(ranks) and len(places) < _PATIENCE * len(read):
            return Deal(world, tuple(sorted(ranks)))
    return Deal(world, read)


def _in_turn(known: Mapping[int, Sequence[int]]) -> Deal | None:
    """Batches that processes take in turn (Accelerate's BatchSamplerShard): runs of one length, that begin at
    multiples of it. All residues of the batches' numbers are read here: then their readers are one rank's workers, and
    all is read. None: neither shows."""
    runs = [_runs(places) for places in known.values()]
    lengths = Counter(length for mine in runs for _, length in mine[:-1] if length > 1)
    most = max(lengths.values(), default=0)
    if most < _RUNS_LEAST:
        return None
    # a stray, or an open that is not seen, cuts a run: the longest of the usual lengths is a whole one
    batch = max(length for length, times in lengths.items() if times >= max(_RUNS_LEAST, most / 2))
    whole = [[start // batch for start, length in mine if start % batch == 0 and length > 1] for mine in runs]
    if sum(map(len, whole)) < _RUNS_ALIKE * sum(map(len, runs)):
        return None
    jumps = Counter(b - a for mine in whole for a, b in pairwise(mine) if b > a)
    if not jumps or jumps.most_common(1)[0][1] < max(_RUNS_LEAST, sum(jumps.values()) / 2):
        return None
    period = jumps.most_common(1)[0][0]
    seen = {block % period for mine in whole for block in mine}
    for world in (size for size in range(1, period + 1) if period % size == 0):
        ranks = sorted({residue % world for residue in seen})
        if len(ranks) * (period // world) == len(seen):
            return WHOLE if len(ranks) == world else Deal(world, tuple(ranks), batch)
    return None


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """(first place, length) of the places in a row."""
    found: list[tuple[int, int]] = []
    start = places[0]
    for before, after in zip(places, [*places[1:], -1], strict=True):
        if after != before + 1:
            found.append((start, before + 1 - start))
            start = after
    return found


def _by_residues(places: NDArray[np.int64], n: int, said: Sequence[World], trust: float) -> Deal:
    """The world whose residues that were read first foretell those that were read later, in the most bits. Where all
    are read here, that was said holds: no other shows."""
    m = len(places)
    best, deal = _CLEAR, None
    for size, ranks in said:
        if size > 1 and len(ranks) < size:
            inside = np.isin(places % size, ranks)
            worth = trust + math.log2(size / len(ranks)) * inside.sum() - math.log2(n) * (~inside).sum()
            if worth > max(_CLEAR_SAID, best if deal is not None else 0.0):
                best, deal = worth, Deal(size, tuple(sorted(ranks)))
    first = places[: 2 * m // 3 + 1]
    later = places[2 * m // 3 + 1 :]
    worlds = dict.fromkeys((size for size, _ in said if size > 1), trust)
    for size in (*worlds, *range(2, min(_WORLDS_MOST, n // 2) + 1)):
        seen = np.zeros(size, bool)
        seen[first % size] = True
        count = int(seen.sum())
        if count == size:
            continue
        outside = int((~seen[later % size]).sum())
        worth = math.log2(size / count) * (len(later) - outside) - math.log2(n) * outside
        worth += worlds.get(size, 0.0) - math.log2(size)
        if worth > best:
            seen[later % size] = True
            best, deal = worth, Deal(size, tuple(np.flatnonzero(seen).tolist()))
    found = _ranks(places, deal.world, said) if deal is not None else WHOLE
    if not found.whole:
        return found
    if trust >= HELD and said:  # what a few places do not show again holds
        return _ranks(places, said[0][0], said)
    return next((Deal(size, tuple(sorted(ranks))) for size, ranks in said if len(ranks) == size), WHOLE)


def listed(readers: Sequence[NDArray[np.int64]], n: int) -> list[World]:
    """The worlds of which each reader reads one residue class of the listing, or one block: dealt out before they were
    shuffled. `readers`: the samples that each opened, int64[k]."""
    mine = [np.unique(samples) for samples in readers if len(samples) >= _LISTED_LEAST]
    found: dict[World, None] = {}
    size = math.gcd(*(int(step) for samples in mine for step in np.diff(samples)))
    if 1 < size <= _WORLDS_MOST:
        found[size, tuple(sorted({int(samples[0]) % size for samples in mine}))] = None
    widest = max((int(samples[-1] - samples[0]) + 1 for samples in mine), default=n)
    for size in range(min(n // widest, _WORLDS_MOST), max(1, int(_FILLED * n / widest)), -1):
        blocks = [(int(samples[0]) * size // n, int(samples[-1]) * size // n) for samples in mine]
        if all(first == last for first, last in blocks):
            found[size, tuple(sorted({first for first, _ in blocks}))] = None
    return list(found)[:_LISTED_MOST]
