"""Simulated jobs for the follower: data sets, the opens of epochs, and feeding them."""

from __future__ import annotations

import numpy as np
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.plan.lasting_heads import LastingHeads

SEED = 42
HEADS = LastingHeads(512 << 20)
SHUFFLED = Spec("distributed", SEED)
IN_ORDER = Spec("sequential")


def tree(train: int = 4000, val: int = 1000, seed: int = 0) -> list[DataSet]:
    """A mount with 20 directories, train/, val/ and a file that belongs to no data set."""
    rows = np.arange(20, 20 + train + val, dtype=np.int64)
    parts = [DataSet(0, "train", (FileOrder(("image_folder",), rows[:train]),))]
    if val:
        parts.append(DataSet(1, "val", (FileOrder(("image_folder",), rows[train:]),)))
        parts.append(DataSet(2, "", (FileOrder(("image_folder",), rows),)))
    return parts


def epoch_opens(
    part: DataSet,
    spec: Spec,
    epoch: int,
    loader: Loader,
    rng: np.random.Generator,
    world: int = 1,
    ranks: tuple[int, ...] = (0,),
) -> np.ndarray:
    rows = part.orders[0].rows
    orders = [rows[registry.order(spec, len(rows), epoch, world, rank)].tolist() for rank in ranks]
    return np.array(loader.ranks(orders, rng), dtype=np.int64)


# Every run in `feed` does the background work in time; `test_whatever_is_opened...` does it late.
def feed(follower: Follower, opens: np.ndarray, chunk: int = 16) -> np.ndarray:
    """Opens in chunks, with the background work done in between."""
    flags = []
    for i in range(0, len(opens), chunk):
        flags.append(follower.observe(opens[i : i + chunk]))
        follower.settle()
    return np.concatenate(flags) if flags else np.zeros(0, np.uint8)


def read(follower: Follower, opens: list[tuple[int, int]], chunk: int = 16) -> np.ndarray:
    flags = []
    for i in range(0, len(opens), chunk):
        rows, readers = np.array(opens[i : i + chunk], dtype=np.int64).T
        flags.append(follower.observe(rows, readers))
        follower.settle()
    return np.concatenate(flags)
