"""The opens of a cell's job: exact `DistributedSampler` order, each rank through a model of torch's DataLoader.

A rank goes on as fast as the others but for some jitter, and begins its next epoch as soon as it is through with
one. Workers are new processes in every epoch, in a rank without workers the same process reads all the time.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import plan_play
from loader_model import Loader
from numpy.typing import NDArray

from identifying.cells import Cell
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec

PREFETCH = 2
# Time from an open of a rank to its next one, as a share of the mean: even numbers between these.
_JITTER = (0.5, 1.5)
_FIRST_PID = 1000


@dataclass(frozen=True, eq=False)
class Opens:
    """By open: the row, who opens (a process id), whose rank (an index of `Cell.ranks`), the how many-th epoch of the
    job it is for that rank, which open of that rank, and which of the mount; int64[m] each."""

    rows: NDArray[np.int64]
    readers: NDArray[np.int64]
    lanes: NDArray[np.int64]
    epochs: NDArray[np.int64]
    nth: NDArray[np.int64]
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def until(self, end: int) -> Opens:
        """The first ones."""
        return self._of(slice(end))

    def showing(self, mask: NDArray[np.bool_]) -> Opens:
        """Those of these rows, b[rows], counted anew for each rank."""
        shown = self._of(mask[self.rows])
        return replace(shown, nth=_counted(shown.lanes))

    def _of(self, which: slice | NDArray[np.bool_]) -> Opens:
        return Opens(*(getattr(self, field.name)[which] for field in fields(self)))


def _counted(lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which open of its rank each is, int64[m]."""
    nth = np.zeros(len(lanes), np.int64)
    for lane in np.unique(lanes):
        own = np.flatnonzero(lanes == lane)
        nth[own] = np.arange(len(own))
    return nth


def rows_of(files: int) -> NDArray[np.integer[Any]]:
    """The row of each training sample, as ImageFolder lists them, integer[files]."""
    dataset = next(one for one in plan_play.tree(files) if one.name == "train")
    return next(one.rows for one in dataset.orders if "image_folder" in one.names)


def opens(cell: Cell, count: int) -> Opens:
    """The first `count` opens of the job. Those of a group are the same."""
    rng = np.random.default_rng(list(cell.group.encode()))
    lanes = [_rank(cell, lane, rng) for lane in range(len(cell.ranks))]
    turns = itertools.islice(_turns(len(lanes), random.Random(cell.group)), count)
    taken = np.array([(*next(lanes[lane]), lane) for lane in turns], np.int64).reshape(-1, 4)
    samples, readers, epochs, of = taken.T
    rows = rows_of(cell.files)[samples].astype(np.int64)
    return Opens(rows, readers.copy(), of.copy(), epochs.copy(), _counted(of), np.arange(len(taken)))


def _turns(lanes: int, rng: random.Random) -> Iterator[int]:
    """Which rank opens next."""
    if lanes == 1:
        yield from itertools.repeat(0)
    waiting = [(rng.uniform(*_JITTER), lane) for lane in range(lanes)]
    heapq.heapify(waiting)
    while True:
        time, lane = waiting[0]
        heapq.heapreplace(waiting, (time + rng.uniform(*_JITTER), lane))
        yield lane


def _rank(cell: Cell, lane: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """(sample, process, epoch of the job) of one rank, for ever."""
    loader = Loader(cell.workers, PREFETCH, cell.batch)
    for epoch in itertools.count():
        order = _dealt(cell.files, cell.seed, cell.first_epoch + epoch, cell.world, cell.ranks)[:, lane].tolist()
        if epoch == 0:
            order = order[cell.skipped :]
        first = _FIRST_PID + (lane if cell.workers == 0 else (epoch * len(cell.ranks) + lane) * cell.workers)
        for sample, worker in loader.reads(order, rng):
            yield sample, first + worker, epoch


@functools.lru_cache(maxsize=8)
def _dealt(files: int, seed: int, epoch: int, world: int, ranks: tuple[int, ...]) -> NDArray[np.int64]:
    """The samples of an epoch, int64[each, ranks]."""
    order = registry.sampler("distributed").order(Spec("distributed", seed), files, epoch, world, ranks)
    return order.reshape(-1, len(ranks))
