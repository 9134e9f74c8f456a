"""The mount against its simulator: one training loop on a slow source, with room for a part of the data set, and the
same in the simulator with what `nopfs calibrate` measured.

    python scripts/bench_agree.py      (or make bench BENCH='sim/mount/*')

The mount begins without a seed, so that it stages nothing before the loop reads. What the loop takes without waiting,
the simulator's `compute`, is measured on a mount of a local copy in which everything is staged: the loop, and what a
hit costs. The mount goes on into the next epoch before one ends, the last included: its opens are counted for the
epoch that they are made for. The source takes few files at a time, because it runs on the processors of the loop: what
it delivers would depend on what the loop does.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import lab
import numpy as np
from bench_entry import Entry, median_entry
from lab import COMMANDS, Epoch, Progress
from slow_source import SlowSource

from nopfsfs.performance.cluster_file import read_cluster
from nopfsfs.performance.model import Cluster
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.policy import budget
from nopfsfs.sim.run import Outcome, Simulation
from nopfsfs.sim.training import SimDataSet, Training

FILES, CLASSES, MEAN, SIGMA = 2000, 10, 110_000, 40_000
SHARES = (30, 60, 100)  # percent of the data set that has a home in memory
EPOCHS, BATCH, SEED = 6, 64, 42
WARM_EPOCHS = 15  # of half a second
OPEN_S, READ_S, AT_ONCE, BANDWIDTH = 0.005, 0.002, 2, 400e6  # the demo's, and fewer at a time
PAGE_CACHE = 4 << 20
MEASURE_S = 15


@dataclass(frozen=True)
class Run:
    """Opens of the source in each epoch, and its epochs."""

    opens: list[int]
    epochs: list[Epoch]


def make_files(root: Path) -> np.ndarray:
    """A folder of class folders; the sizes, i64[FILES]."""
    rng = np.random.default_rng(7)
    sizes = np.maximum(1000, rng.normal(MEAN, SIGMA, FILES)).astype(np.int64)
    for number, size in enumerate(sizes.tolist()):
        path = root / "train" / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(size))
    return sizes


def memory_for(homes: int, data: int, page_cache: int = PAGE_CACHE) -> int:
    """The --ram with which files of so many bytes, as they are charged, have a home."""
    low, high = 0, 4 * (homes + data + budget.passage(data))
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if budget.split(middle, data, page_cache).homes < homes else (low, middle)
    return high


def mounted(source: SlowSource, place: Path, calibration: Path, ram: int) -> Run:
    opens: list[int] = []
    source.reset()
    options = ["--ram", ram, "--page-cache", PAGE_CACHE, "--calibration", calibration]

    def count(_: Epoch) -> None:
        epochs = len(opens) + 1  # no file is opened twice for one: what was opened more often was for the next
        opens.append(sum(min(file.opens, epochs) for file in source.counters().files.values()))

    with lab.nopfs_mount(source.path, place / "mount", *options) as mount:
        epochs = lab.train(mount.path / "train", "bytes", EPOCHS, count, step=True)
    return Run(np.diff(opens, prepend=0).tolist(), epochs)


def simulated(measured: Cluster, sizes: np.ndarray, homes: int, data: int, compute: float) -> Outcome:
    """The same in the simulator: the room for homes is less by what copies are charged beside their bytes."""
    total = int(sizes.sum())
    split = budget.split(memory_for(homes, data), data, PAGE_CACHE)
    ram, staging = measured.classes[0], measured.staging
    cluster = replace(
        measured, compute=compute, classes=(replace(ram, capacity=(int(split.homes * total / data) + 1,)),),
        staging=replace(staging, capacity=(split.stream,)),
    )  # fmt: skip
    # Of files that are read as often the simulator keeps those with the lower number, the mount those that it reads
    # first: so they are numbered in the order in which the loop, which goes class by class, reads them first.
    listed = np.argsort(np.arange(len(sizes)) % CLASSES, kind="stable")
    numbered = sizes[listed[order(Spec("distributed", SEED), len(sizes), 0)]]
    dataset = SimDataSet("mount", len(sizes), float(sizes.mean()), float(sizes.std()), numbered)
    training = Training(EPOCHS, BATCH, drop_last=False, seed=SEED)
    return Simulation(cluster, dataset, training, order="distributed").run("mount")


def entries() -> Iterator[Entry]:
    """sim/mount/SHARE/...: the largest differences of an epoch's reads and seconds, relative to the simulated ones."""
    with (
        lab.place() as place, tempfile.TemporaryDirectory(dir=place) as backing, Progress(2 + len(SHARES)) as progress
    ):  # fmt: skip
        sizes = make_files(Path(backing))
        data = int(budget.charges(sizes).sum())
        with (
            lab.local_copy(Path(backing)) as local,
            SlowSource(
                Path(backing), place / "source", open_latency=OPEN_S, read_latency=READ_S, bandwidth=BANDWIDTH,
                concurrent=AT_ONCE, attr_timeout=60.0,
            ) as source,
        ):  # fmt: skip
            progress.doing("a mount of a local copy")
            with lab.nopfs_mount(local, place / "mount", "--seed", SEED, "--page-cache", PAGE_CACHE) as mount:
                warm = lab.train(mount.path / "train", "bytes", 1 + WARM_EPOCHS)[1:]
            compute = sizes.sum() / statistics.median(epoch.seconds for epoch in warm)
            progress.step()
            progress.doing("nopfs calibrate")
            calibration = place / "calibration.toml"
            lab.run(
                [COMMANDS / "nopfs", "calibrate", source.path, "--seconds", MEASURE_S, "--output", calibration], 120
            )
            measured = read_cluster(os.fspath(calibration))
            progress.step()
            for share in SHARES:
                progress.doing(f"room for {share} %")
                homes = data * share // 100
                real = mounted(source, place, calibration, memory_for(homes, data))
                model = simulated(measured, sizes, homes, data, float(compute))
                yield from compared(share, real, model)
                progress.step()


def compared(share: int, real: Run, model: Outcome) -> Iterator[Entry]:
    """How far an epoch's reads are from the simulated ones, and the seconds of the first and, as medians, of the
    others."""
    assert model.seconds is not None
    reads = [
        abs(a - b) / max(b, FILES * (100 - share) / 100, 1)
        for a, b in zip(real.opens, model.source_reads_per_epoch, strict=True)
    ]
    took, expected = [epoch.seconds for epoch in real.epochs], list(model.epoch_seconds)
    later = statistics.median(took[1:]) / statistics.median(expected[1:])
    seconds = [took[0] / expected[0] - 1, later - 1]
    yield Entry(f"sim/mount/{share}/reads_error", max(reads), "", reads)
    yield Entry(f"sim/mount/{share}/seconds_error", max(seconds, key=abs), "", seconds)
    yield median_entry(f"sim/mount/{share}/reads", "", [float(opens) for opens in real.opens])
    yield median_entry(f"sim/mount/{share}/seconds", "s", took)


if __name__ == "__main__":
    for entry in entries():
        print(entry)
