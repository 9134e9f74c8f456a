"""What a simulation of a running mount takes: its data set, and a cluster of nodes like this one. Pure."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nopfsfs.dataset.index import Index
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.policy.budget import passage
from nopfsfs.policy.defaults import DEFAULTS, DISK, NETWORK, RAM, TEXT
from nopfsfs.policy.model import Cluster, StorageClass
from nopfsfs.sim.spec import DataSet, Training

EPOCHS, BATCH = 10, 64  # where nothing else is said
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FromMount:
    """`notes`: what was guessed, for people."""

    cluster: Cluster
    dataset: DataSet
    training: Training
    notes: tuple[str, ...]


def from_mount(
    status: Record, plan: Record, index: Index, calibration: Cluster | None, *, several: bool = False,
    disk: bool = False,
) -> FromMount:  # fmt: skip
    """`status`, `plan`: the mount's records; `index`: of its source; `calibration`: what was measured of it. `several`:
    other numbers of nodes than the plan's will be asked for; `disk`: other capacities of a disk, though there may be
    none. Raises NopfsError: there are no files."""
    dataset = dataset_of(index, str(status.get("source", "")))
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
    budget = status.get("budget") or {}
    cluster = with_budget(base, int(budget.get("ram", 0)), int(budget.get("disk", 0)), dataset, disk=disk)
    cluster = replace(cluster, nodes=nodes, ranks=ranks)
    seed = locked.get("seed")
    training = Training(EPOCHS, BATCH, drop_last=False, seed=seed if isinstance(seed, int) else Training(1, 1).seed)
    return FromMount(cluster, dataset, training, tuple(notes))


def dataset_of(index: Index, source: str) -> DataSet:
    """The regular files. Raises NopfsError with Exit.SOURCE: there are none."""
    sizes = index.size[index.mode & 0o170000 == stat.S_IFREG]
    if not len(sizes):
        raise NopfsError(Exit.SOURCE, f"{source} has no files; name a mount of a data set")
    sizes = sizes.clip(1)
    name = os.path.basename(source.rstrip("/")) or "/"
    return DataSet(name, len(sizes), float(sizes.mean()), float(sizes.std()), tuple(sizes.tolist()))


def with_budget(cluster: Cluster, ram: int, room: int, dataset: DataSet, *, disk: bool = False) -> Cluster:
    """The cluster with a mount's capacities on each node, `room` on disks: of the memory, a part is for files on their
    way, as the mount has it (`policy.budget`). `disk`: there is a class for it, even of no capacity."""
    way = min(passage(sum(dataset.sizes or ())), ram // 4)
    fastest = cluster.classes[0] if cluster.classes else RAM
    classes = [replace(fastest, capacity=(ram - way,))]
    if room or disk:
        slower: StorageClass = cluster.classes[1] if len(cluster.classes) > 1 else DISK
        classes.append(replace(slower, capacity=(room,)))
    staging = replace(cluster.staging, capacity=(way,))
    return replace(cluster, staging=staging, classes=tuple(classes))
