"""Data set and cluster for the simulation of a running mount: its files, and nodes like this one. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.defaults import DEFAULTS, DISK, NETWORK, RAM, TEXT
from nopfsfs.performance.model import Cluster, StorageClass
from nopfsfs.policy.budget import charges, on_their_way
from nopfsfs.sim.training import SimDataSet, Training

EPOCHS, BATCH = 10, 64  # where the user gives none
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FromMount:
    """Cluster, data set and training of a mount. `notes`: the figures that were guessed, for people."""

    cluster: Cluster
    dataset: SimDataSet
    training: Training
    notes: tuple[str, ...]


def from_mount(
    status: Record, plan: Record, index: Index, calibration: Cluster | None, *, several: bool = False,
    disk: bool = False,
) -> FromMount:  # fmt: skip
    """Build the simulation's input. `status`, `plan`: the mount's records; `index`: of its source; `calibration`: as
    measured. `several`: numbers of nodes other than the plan's will be simulated; `disk`: so will other capacities of a
    disk, though there may be none. Raises NopfsError: there are no files."""
    sizes = index.size[(index.mode & 0o170000) == 0o100000]
    dataset = dataset_of(sizes, str(status.get("source", "")))
    locked: Record = next((one for one in plan.get("plans") or () if one.get("state") == "locked"), {})
    world, ranks = int(locked.get("world") or 1), max(1, len(locked.get("ranks") or (0,)))
    nodes = -(-world // ranks)
    base = calibration or DEFAULTS
    notes = []
    if calibration is None:
        notes.append(f"nobody measured the source (nopfs calibrate), these are defaults: {TEXT}")
    elif (several or nodes > 1) and math.isinf(base.network):
        base = replace(base, network=NETWORK)
        notes.append(f"the network was not measured, this is a default: {NETWORK / 1e6:,.0f} MB/s between two nodes")
    cluster = replace(with_budget(base, status.get("budget") or {}, sizes, disk=disk), nodes=nodes, ranks=ranks)
    seed = locked.get("seed")
    training = Training(EPOCHS, BATCH, drop_last=False, seed=seed if isinstance(seed, int) else Training(1, 1).seed)
    return FromMount(cluster, dataset, training, tuple(notes))


def dataset_of(sizes: NDArray[np.int64], source: str) -> SimDataSet:
    """The data set of files of these sizes, i64[F]. Raises NopfsError with Exit.SOURCE: there are none."""
    if not len(sizes):
        raise NopfsError(Exit.SOURCE, f"{source} has no files; name a mount of a data set")
    sizes = sizes.clip(1)
    name = os.path.basename(source.rstrip("/")) or "/"
    return SimDataSet(name, len(sizes), float(sizes.mean()), float(sizes.std()), sizes)


def with_budget(cluster: Cluster, budget: Record, sizes: NDArray[np.int64], *, disk: bool = False) -> Cluster:
    """The cluster with a mount's capacities on each node, divided as the mount divides them (`policy.budget`). A part
    of the memory is for files on their way. A mount charges a copy more than its bytes; here a capacity is bytes of
    data. `sizes` i64[F]: of the files; `disk`: there is a class for disks, even of no capacity."""
    data, charged = int(sizes.sum()), int(charges(sizes).sum())

    def bytes_of_data(room: int) -> int:
        return room * data // charged if charged else room

    ram, room = int(budget.get("ram", 0)), int(budget.get("disk", 0))
    way = min(ram, on_their_way(int(budget.get("total", ram)), charged))
    fastest = cluster.classes[0] if cluster.classes else RAM
    classes = [replace(fastest, capacity=(bytes_of_data(ram - way),))]
    if room or disk:
        slower: StorageClass = cluster.classes[1] if len(cluster.classes) > 1 else DISK
        classes.append(replace(slower, capacity=(bytes_of_data(room),)))
    staging = replace(cluster.staging, capacity=(bytes_of_data(way // 2),))
    return replace(cluster, staging=staging, classes=tuple(classes))
