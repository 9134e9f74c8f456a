"""Epochs of an order that is not known: a new one begins when files are opened that were opened before."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.unread import Unread


def unread(length: int) -> Unread:
    files = FileOrder(("image_folder",), np.arange(length))
    return Unread(build(Hypothesis(0, 0, Spec("sequential")), [DataSet(0, "train", (files,))]))


def opened_twice(rows: list[int], workers: int, chance: random.Random) -> Iterator[int]:
    """Each worker opens its next file, then the same again; workers take turns by chance."""
    left, again = iter(rows), [-1] * workers
    while True:
        worker = chance.randrange(workers)
        if again[worker] >= 0:
            yield again[worker]
            again[worker] = -1
        elif (row := next(left, -1)) >= 0:
            yield row
            again[worker] = row
        else:
            return


@pytest.mark.parametrize("workers", [1, 8, 32])
def test_files_that_many_readers_open_twice_begin_no_epoch(workers: int) -> None:
    chance = random.Random(workers)
    files = unread(5000)
    for epoch in range(3):
        rows = chance.sample(range(5000), 5000)
        begun = [at for at, row in enumerate(opened_twice(rows, workers, chance)) if files.observe(row, at)]
        assert len(begun) == min(epoch, 1), "one at most, with the epoch"
        assert all(at < 100 for at in begun)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 10, 20, 60, 200, 1000])
def test_a_new_epoch_shows_by_its_first_files(length: int) -> None:
    """Of few files, those that were opened last in the epoch before may be opened first in the next."""
    chance = random.Random(length)
    files = unread(length)
    for epoch in range(10):
        for row in chance.sample(range(length), length):
            files.observe(row, 0)
        assert files.generation == epoch
