"""A training over a cluster of mounts on one slow source: what the source was asked, how long epochs took, where the
samples came from, and where the simulator says that they come from.

Where from, of the mounts: what their stagers fetched from the source, from their disks and from other nodes, of all
that was read; the rest was there, in memory. A mount goes on into the next epoch before one ends, with small data sets
by a whole epoch. So figures are taken when nothing more is fetched ahead, and those of several epochs together are
compared: as much of them belongs to later ones as was there when they began.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench_agree
import lab
import numpy as np
from cluster import Readers, cluster
from demo import slow_source
from lab import COMMANDS, Epoch, LabError
from slow_source import SlowSource

from nopfsfs.policy import budget

SEED = 42
TIMED, COMPARED = 3, 4  # epochs
PLANNED = 16  # epochs that placements are made for: then those that are compared are alike
CLASSES = 10
WHERE = ("local", "disk", "peer", "source")
REST_S, REST_LIMIT_S = 0.3, 60.0  # between two looks whether all is fetched
TIMES = 3  # as often alike
Shares = dict[str, float]  # by WHERE


@dataclass(frozen=True)
class Mounts:
    """Those of all nodes, by node, and their status records."""

    mountpoints: Sequence[Path]
    statuses: Callable[[], list[dict[str, Any]]]


@dataclass
class Run:
    """A training, by epoch: `opens` of the source by its end, seconds, the shares of its reads, and those of the
    simulator."""

    files: int
    opens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)
    simulated: list[Shares] = field(default_factory=list)

    def later(self) -> tuple[Shares, Shares]:
        """Shares of all epochs from the second on, of the mounts and of the simulator."""
        ours, theirs = ({where: float(np.mean([one[where] for one in of[1:]])) for where in WHERE}
                        for of in (self.shares, self.simulated))  # fmt: skip
        return ours, theirs

    def differences(self) -> Shares:
        """Of these, in points."""
        ours, theirs = self.later()
        return {where: 100 * abs(ours[where] - theirs[where]) for where in WHERE}


def make_files(root: Path, files: int, size: int) -> Path:
    """A folder of class folders, with files of about so many bytes."""
    rng = np.random.default_rng(7)
    for number in range(files):
        path = root / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(size + int(rng.integers(-size // 10, size // 10))))
    return root


def room(tree: Path, share: float) -> list[str]:
    """Options with which a node has room for that share of the data, and for a hundredth in the page cache."""
    sizes = np.array([path.stat().st_size for path in tree.rglob("*.jpg")])
    data = int(budget.charges(sizes).sum())
    window = data // 100
    return ["--ram", str(bench_agree.memory_for(int(share * data), data, window)), "--page-cache", str(window)]


@contextlib.contextmanager
def mounts(source: Path, base: Path, nodes: int, *options: object, implementation: str = "mpich") -> Iterator[Mounts]:
    """Mounts of a source; one alone is none of MPI's."""
    if nodes == 1:
        with lab.nopfs_mount(source, base / "node0", *options) as alone:
            yield Mounts([alone.path], lambda: [alone.status()])
        return
    with cluster(source, base, nodes, *options, implementation=implementation) as made:
        yield Mounts(made.mountpoints, made.statuses)
        if made.unmount():
            raise LabError(f"mpirun failed; see {made.log}")


def fetched(statuses: Sequence[Mapping[str, Any]]) -> Shares:
    """Files that all stagers fetched so far, by where from."""
    return {where: sum(one["stager"][f"{where}_fetches"] for one in statuses) for where in WHERE[1:]}


def at_rest(made: Mounts) -> Shares:
    """The same when nothing more is fetched ahead."""
    seen: list[Shares] = []
    by = time.monotonic() + REST_LIMIT_S
    while len(seen) < TIMES or seen[-TIMES:].count(seen[-1]) < TIMES:
        if time.monotonic() > by:
            raise LabError(f"the mounts do not come to rest: {seen[-TIMES:]}")
        time.sleep(REST_S)
        seen.append(fetched(made.statuses()))
    return seen[-1]


def shares(before: Shares, after: Shares, reads: int) -> Shares:
    """Of so many reads."""
    found = {where: (after[where] - before[where]) / reads for where in WHERE[1:]}
    return {"local": 1 - sum(found.values()), **found}


def simulate(mountpoint: Path, nodes: int, policy: str) -> list[Shares]:
    """What `nopfs simulate` says of the mount's cluster, by epoch."""
    said = lab.run(
        [COMMANDS / "nopfs", "simulate", "--from-mount", mountpoint, "--policy", policy, "--nodes", nodes, "--json",
         "--order", "distributed", "--epochs", PLANNED, "--seed", SEED]
    )  # fmt: skip
    return [simulated_shares(reads) for reads in json.loads(said)[0]["reads_per_epoch"]]


def simulated_shares(reads: Mapping[str, int]) -> Shares:
    total = sum(reads.values())
    return {where: reads.get({"local": "ram"}.get(where, where), 0) / total for where in WHERE}


def seconds_of(done: Sequence[Epoch]) -> float:
    """Of an epoch that all begin together. A DataLoader's workers were started, but have read nothing, when a rank
    begins to count; the last batch ends it."""
    return max(one.seconds for one in done)


def train_timed(tree: Path, place: Path, nodes: int, share: float, files: int) -> Run:
    """Epochs that follow each other, as those of a job do."""
    run = Run(files)
    options = ("--seed", SEED, *room(tree, share))
    with slow_source(tree, place / "source") as source, mounts(source.path, place, nodes, *options) as made:
        with Readers(made.mountpoints, epochs=TIMED) as readers:
            for _ in range(TIMED):
                _one(run, source, readers)
                readers.go_on()
        at_rest(made)
        run.opens[-1] = source.counters(files=False).opens
    return run


def train_directly(tree: Path, place: Path, nodes: int, files: int, epochs: int) -> Run:
    """The same, read from the slow source by all."""
    run = Run(files)
    with slow_source(tree, place / "source") as source, Readers([source.path] * nodes, epochs=epochs) as readers:
        for _ in range(epochs):
            _one(run, source, readers)
            readers.go_on()
    return run


def train_compared(
    tree: Path, place: Path, nodes: int, share: float, files: int, *, placement: str = "homes", epochs: int = COMPARED
) -> Run:  # fmt: skip
    """The first epochs of a long training, each begun when all is fetched ahead for it, beside the simulator."""
    run = Run(files)
    options = ("--seed", SEED, "--placement", placement, "--epochs", PLANNED, *room(tree, share))
    with slow_source(tree, place / "source") as source, mounts(source.path, place, nodes, *options) as made:
        before: Shares = dict.fromkeys(WHERE[1:], 0)
        with Readers(made.mountpoints, epochs=epochs) as readers:
            for _ in range(epochs):
                _one(run, source, readers)
                after = at_rest(made)
                run.opens[-1] = source.counters(files=False).opens
                run.shares.append(shares(before, after, files))
                before = after
                readers.go_on()
        run.simulated = simulate(made.mountpoints[0], nodes, placement)[:epochs]
    return run


def _one(run: Run, source: SlowSource, readers: Readers) -> None:
    done = readers.epoch()
    if sum(one.files for one in done) != run.files:
        raise LabError(f"{sum(one.files for one in done)} files were read, not {run.files}")
    run.seconds.append(seconds_of(done))
    run.opens.append(source.counters(files=False).opens)
