"""A job and a follower without a mount: what is opened, how soon the plan is found, how much is foreseen.

Files are those of a tree like ImageNet's, opened as torch's DataLoader opens them (`loader_model`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bench_index import records
from loader_model import Loader
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_build import Listing, build
from nopfsfs.plan.epoch_order import DataSet
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.follower_output import PlanStatus
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.slow_search import TENSORFLOW, TORCH, WEIGHTED
from nopfsfs.supervisor.plan_worker import data_sets

DIRECTORY, FILE = 0o040755, 0o100644
CLASSES = 100
VALIDATION = 20  # one file of val/ for so many of train/
BATCH = 32
# Opens before the plan is found are shown to the follower one by one, later ones so many at a time.
_CHUNK = 32
# A seed that a mount does not try.
_NOT_COMMON = 876_234_987_123
# What the searches that take minutes may find (`nopfsfs.plan.search.slow_search`).
_APART = (TORCH, TENSORFLOW, WEIGHTED, "lightning", "timm")


@dataclass(frozen=True)
class Reading:
    """What a program reads: `spec` None for an order that no seed determines. `data`: "train", "uneven" for classes of
    different sizes, or "shards" for a directory of .tar files; `files`: in which order it lists them; `ranks`: of the
    `world`, those on this node.
    `start`: the epoch that comes first; `repeats`: it comes again and again; `validation`: val/ is read after each.
    `parallel`: so many calls of one process (tf.data's map), instead of a loader's workers."""

    spec: Spec | None
    world: int = 1
    ranks: tuple[int, ...] = (0,)
    subset: Spec | None = None
    files: str = "image_folder"
    data: str = "train"
    start: int = 0
    repeats: bool = False
    validation: bool = False
    parallel: int = 0


@dataclass
class Outcome:
    """`opens`: after which the order of the epoch was known, None when it never was; `shares` of the opens of each
    epoch that were foreseen; `status` in the end."""

    opens: int | None = None
    shares: list[float] = field(default_factory=list)
    status: PlanStatus = field(default_factory=lambda: PlanStatus("none"))


@functools.lru_cache(maxsize=4)
def tree(n: int, data: str = "train") -> tuple[DataSet, ...]:
    """The data sets that a mount finds in a tree of n training files or shards, with all file orders."""
    return tuple(data_sets(index(n, data)))


@functools.lru_cache(maxsize=4)
def index(n: int, data: str = "train") -> Index:
    """The index of that tree."""
    return build(_shards(n) if data == "shards" else _images(n, uneven=data == "uneven"))


def _images(n: int, uneven: bool) -> list[Listing]:
    """train/ with n and val/ with a twentieth of that, in the same class directories; `uneven`: the largest class has
    twenty times the files of the smallest."""
    classes = [b"n%08d" % (1_440_764 + 617 * i) for i in range(min(CLASSES, n))]
    found = [_listing(b"", [b"train", b"val"], DIRECTORY)]
    for part, files in ((b"train", n), (b"val", n // VALIDATION)):
        found.append(_listing(part, classes, DIRECTORY))
        weights = np.linspace(1, 20, len(classes)) if uneven else np.ones(len(classes))
        ends = (files * np.cumsum(weights) / weights.sum()).round().astype(int)
        for at, wnid in enumerate(classes):
            count = int(ends[at] - (ends[at - 1] if at else 0))
            names = sorted(b"%s_%d.JPEG" % (wnid, 13 * number + at % 13) for number in range(count))
            found.append(_listing(part + b"/" + wnid, names, FILE))
    return found


def _shards(n: int) -> list[Listing]:
    return [_listing(b"", [b"train"], DIRECTORY), _listing(b"train", [b"%06d.tar" % at for at in range(n)], FILE)]


def _listing(path: bytes, names: Sequence[bytes], mode: int) -> Listing:
    lengths = np.fromiter(map(len, names), np.uint32, len(names))
    return Listing(path, records(1, DIRECTORY), b"".join(names), lengths, records(len(names), mode))


def _files(datasets: Sequence[DataSet], name: str, files: str, subset: Spec | None) -> NDArray[np.integer[Any]]:
    """The row of each sample."""
    dataset = next(one for one in datasets if one.name == name)
    rows = next(one.rows for one in dataset.orders if files in one.names)
    return rows if subset is None else rows[registry.subset(subset.sampler).samples(subset, len(rows))]


def spec_over(reading: Reading, datasets: Sequence[DataSet]) -> Spec:
    """The sampler of a reading over these data sets."""
    assert reading.spec is not None
    if not registry.sampler(reading.spec.sampler).by_class:
        return reading.spec
    orders = next(one.orders for one in datasets if one.name == "train")
    return reading.spec.with_option("classes", next(one.classes for one in orders if reading.files in one.names))


def epoch_rows(reading: Reading, datasets: Sequence[DataSet], epoch: int, rng: np.random.Generator) -> list[list[int]]:
    """The rows that each rank here reads in the epoch that comes so many after the first."""
    files = _files(datasets, "train", reading.files, reading.subset)
    if reading.spec is None:
        return [rng.permutation(files).tolist()]
    epoch = reading.start + (0 if reading.repeats else epoch)
    spec = spec_over(reading, datasets)
    dealt = [registry.order(spec, len(files), epoch, reading.world, rank) for rank in reading.ranks]
    return [files[order[order >= 0]].tolist() for order in dealt]


def epoch_opens(
    ranks: Sequence[Sequence[int]], loader: Loader, epoch: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows, process ids) of the opens of one epoch, the ranks at about the same speed. Workers are new in every
    epoch."""
    running = [(rank, loader.reads(order, rng)) for rank, order in enumerate(ranks)]
    rows: list[int] = []
    readers: list[int] = []
    while running:
        rank, stream = running[rng.integers(len(running))] if len(running) > 1 else running[0]
        row, worker = next(stream, (-1, 0))
        if row < 0:
            running.remove((rank, stream))
            continue
        rows.append(row)
        readers.append(1000 + 100 * rank + (10_000 * (epoch + 1) + worker if loader.workers else 0))
    return np.array(rows, np.int64), np.array(readers, np.int64)


def believed(reading: Reading, status: PlanStatus, datasets: Sequence[DataSet]) -> NDArray[np.int64]:
    """The rows of the epoch that a status speaks of, all ranks interleaved; empty when it speaks of none. (Of an order
    that was given it does not say which: that of the reading.)"""
    if status.sampler is None or status.dataset is None or status.files is None:
        return np.zeros(0, np.int64)
    family = registry.sampler(status.sampler)
    spec = Spec(status.sampler, status.seed or 0 if family.seeds is not None else 0, status.options)
    if reading.spec is not None and status.sampler == reading.spec.sampler == "explicit":
        spec = reading.spec
    subset = None if status.subset is None else Spec(*status.subset)
    files = _files(datasets, status.dataset, status.files, subset)
    samples = family.order(spec, len(files), status.epoch, status.world, status.ranks)
    return np.where(samples < 0, -1, files[samples]).astype(np.int64)


def is_right(reading: Reading, status: PlanStatus, datasets: Sequence[DataSet], truth: Sequence[Sequence[int]]) -> bool:
    """Whether a plan is locked and has the true order of every rank, to the end of the epoch; how it is called, and
    what it would have read after that, does not matter."""
    if status.state != "locked":
        return False
    rows = believed(reading, status, datasets)
    lanes = len(truth)
    if lanes > 1 and len(status.ranks) != lanes:  # one rank's order is also that of two that take turns
        return False
    each = [rows[lane::lanes] for lane in range(lanes)]
    return all(np.array_equal(mine[mine >= 0][: len(real)], real) for mine, real in zip(each, truth, strict=True))


def play(
    reading: Reading,
    follower: Follower,
    datasets: Sequence[DataSet],
    workers: int = 2,
    epochs: int = 3,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> Outcome:
    """Reads some epochs through the follower; `most`: opens of the first, then stop as soon as its order is known or
    those are over."""
    rng = rng or np.random.default_rng([_NOT_COMMON, workers])
    loader = Loader(reading.parallel, 1, 1) if reading.parallel else Loader(workers, 2, BATCH)
    # for others minutes would be spent to find nothing
    apart = reading.spec is not None and reading.spec.sampler in _APART
    outcome = Outcome()
    for epoch in range(epochs):
        truth = epoch_rows(reading, datasets, epoch, rng)
        rows, readers = epoch_opens(truth, loader, epoch, rng)
        foreseen = 0
        for begin, end in _chunks(outcome, len(rows) if most is None else min(most, len(rows))):
            foreseen += int(follower.observe(rows[begin:end], readers[begin:end]).sum())
            follower.settle(apart=apart)
            if outcome.opens is None and epoch == 0 and is_right(reading, follower.status(), datasets, truth):
                outcome.opens = end
                if most is not None:
                    break
        outcome.shares.append(foreseen / max(len(rows), 1))
        if reading.validation and most is None:
            _validate(follower, datasets, loader, epoch, rng)
        outcome.status = follower.status()
        if most is not None:
            break
    return outcome


def _validate(
    follower: Follower, datasets: Sequence[DataSet], loader: Loader, epoch: int, rng: np.random.Generator
) -> None:
    held = _files(datasets, "val", "image_folder", None).tolist()
    rows, readers = epoch_opens([held], loader, epoch, rng)
    for begin in range(0, len(rows), _CHUNK):
        follower.observe(rows[begin : begin + _CHUNK], readers[begin : begin + _CHUNK] + 5000)
        follower.settle()


def _chunks(outcome: Outcome, count: int) -> Iterator[tuple[int, int]]:
    """One open at a time at first and until the plan is known, then many."""
    begin = 0
    while begin < count:
        size = 1 if outcome.opens is None and begin < 1024 and not outcome.shares else _CHUNK
        yield begin, min(begin + size, count)
        begin += size


def follower_for(
    reading: Reading, datasets: Sequence[DataSet], seed: int | None, sampler: str = registry.AUTO
) -> Follower:
    """As a mount makes it that knows the world from the environment, and nothing of the loader."""
    return Follower(datasets, seed, sampler, worlds=[(reading.world, reading.ranks)])
