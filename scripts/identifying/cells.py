"""The cells of the table: which job reads, on how many ranks here, and what was said of it. Pure.

Four cells that differ only in what was said are a *group*: the same opens, four times.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

WORLDS = (1, 2, 3, 4, 5, 7, 8, 16, 24, 64, 256, 1024)
# one rank: the last, or any other; several: from a drawn first one on
LOCALS = ("last", "other", "two", "four", "second")
WORKERS = (0, 2, 8)
BEGINS = ("start", "middle", "epoch37")
NOTHING, SEED, WORLD, WRONG = SAID = ("nothing", "seed", "world", "wrong")
FILES = (4000, 60_000)
SEEDS_BELOW = 10_300
COMMON_SEEDS = (0, 42)
LATE_EPOCH = 37
BATCH = 32
# A rank has at least so many batches in an epoch; where it has few files its batches are smaller.
BATCHES = 16


@dataclass(frozen=True)
class Cell:
    """One job. `said`: the mount knows nothing, the seed, the seed and the world from its environment, or a wrong
    seed. `seed`: the true one; `wrong`: the one that is said where it is wrong."""

    files: int
    world: int
    local: str
    ranks: tuple[int, ...]
    workers: int
    begin: str
    said: str
    seed: int
    wrong: int
    all_said: bool  # the environment has all that torchrun sets, not WORLD_SIZE alone

    @property
    def group(self) -> str:
        """The name of all that read the same."""
        return f"{self.files}/w{self.world}/{self.local}/workers{self.workers}/{self.begin}"

    @property
    def name(self) -> str:
        return f"{self.group}/{self.said}"

    @property
    def each(self) -> int:
        """Files that a rank opens in a whole epoch."""
        return -(-self.files // self.world)

    @property
    def batch(self) -> int:
        return max(1, min(BATCH, self.each // BATCHES))

    @property
    def first_epoch(self) -> int:
        return LATE_EPOCH if self.begin == "epoch37" else 0

    @property
    def skipped(self) -> int:
        """Files of the first epoch that a rank does not open: whole batches, as `skip_first_batches` does it."""
        return -(-self.each // self.batch) // 2 * self.batch if self.begin == "middle" else 0

    @property
    def seed_said(self) -> int | None:
        return None if self.said == NOTHING else self.wrong if self.said == WRONG else self.seed

    @property
    def environment(self) -> dict[str, str]:
        """Of the mount, in the words of torchrun, as the first rank here would have it."""
        if self.said != WORLD:
            return {}
        known = {"WORLD_SIZE": str(self.world)}
        if self.all_said:
            known |= {"RANK": str(self.ranks[0]), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(len(self.ranks))}
        return known

    @property
    def true_said(self) -> bool:
        return self.said in (SEED, WORLD)

    @property
    def world_is_true(self) -> bool:
        """False: torchrun's environment, where it is all there, names ranks in a row, and others read here."""
        first = self.ranks[0]
        return not self.all_said or self.ranks == tuple(range(first, first + len(self.ranks)))


def groups(files: int) -> Iterator[Cell]:
    """The first cell of each group that exists; what is drawn depends on its name alone."""
    for world in WORLDS:
        for local in LOCALS:
            for workers in WORKERS:
                for begin in BEGINS:
                    cell = Cell(files, world, local, (), workers, begin, NOTHING, 0, 0, all_said=False)
                    rng = random.Random(cell.group)
                    ranks = ranks_here(world, local, rng)
                    if ranks:
                        seed = rng.choice((*COMMON_SEEDS, rng.randrange(SEEDS_BELOW)))
                        wrong = rng.choice([s for s in (*COMMON_SEEDS, rng.randrange(SEEDS_BELOW)) if s != seed])
                        yield replace(cell, ranks=ranks, seed=seed, wrong=wrong, all_said=rng.random() < 0.5)


def ranks_here(world: int, local: str, rng: random.Random) -> tuple[int, ...]:
    """The ranks that read through the mount; none where the world has too few, or they would be those of another
    cell."""
    if local == "last":
        return (world - 1,)
    if local == "other":
        return (rng.randrange(world - 1),) if world > 1 else ()
    if local == "second":
        return tuple(range(rng.randrange(2) if world > 3 else 0, world, 2)) if world > 2 else ()
    count = {"two": 2, "four": 4}[local]
    first = rng.randrange(world - count + 1) if world >= count else 0
    return tuple(range(first, first + count)) if world >= count else ()


def chosen(files: Sequence[int], only: Sequence[str], draw: dict[int, int], seed: int) -> list[Cell]:
    """The cells of these numbers of files whose names match. `draw`: about so many of them, in whole groups, where a
    number of files is there."""
    found: list[Cell] = []
    for number in files:
        there = [cells for cells in map(_matching(only), groups(number)) if cells]
        if number in draw:
            most = max((len(cells) for cells in there), default=1)
            count = min(len(there), -(-draw[number] // most))
            there = random.Random(f"{seed} {number}").sample(there, count)
        found += [cell for cells in there for cell in cells]
    return found


class _matching:
    """The cells of a group whose names match one of the patterns; all without patterns."""

    def __init__(self, only: Sequence[str]) -> None:
        self._only = only

    def __call__(self, first: Cell) -> list[Cell]:
        return [
            cell for cell in of_group(first) if not self._only or any(fnmatch(cell.name, one) for one in self._only)
        ]


def of_group(first: Cell) -> Iterable[Cell]:
    return (replace(first, said=said) for said in SAID)
