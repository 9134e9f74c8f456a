"""Placements that the leader of a cluster proposes, as messages and as every node computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.config import DiskSpec
from nopfsfs.dataset import file_orders
from nopfsfs.dataset.index import Index
from nopfsfs.placement.cluster_homes import METHODS, ClusterHomes, CopiesByNode, by_hash, extend
from nopfsfs.plan.epoch_order import DataSet, Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, STRIDED_OPTION, Sampler, Spec, Subset
from nopfsfs.protocol.between_supervisors import NamedFiles, NamedOrder, NamedSpec, NodeRoom, ProposedPlacement
from nopfsfs.supervisor.cluster import read_sets
from nopfsfs.tiers.disk import free_bytes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The files of an enumeration (`files`, of `dataset/file_orders.py`) of what lies below the directory `root`, or
    all where that is None. The files are read as by `plan`, whose data set and order mean nothing, or nobody knows
    how."""

    root: int | None = None
    files: str = ""
    plan: Hypothesis | None = None

    @staticmethod
    def of(hypothesis: Hypothesis, datasets: Sequence[DataSet]) -> ReadSet:
        """Make the set that the leader names. Orders that no message holds are dealt out by a hash."""
        dataset = datasets[hypothesis.dataset]
        name = dataset.orders[hypothesis.order].names[0]
        if name in file_orders.ORDERS and hypothesis.spec.data is None:
            return ReadSet(dataset.key, name, hypothesis)
        names = [name for order in dataset.orders for name in order.names if name in file_orders.ORDERS]
        return ReadSet(dataset.key, names[0]) if names else ReadSet()

    def to_message(self) -> NamedFiles | None:
        """Make the part of a message that names these files."""
        if self.root is None:
            return None
        plan = self.plan
        if plan is None:
            return NamedFiles(self.root, self.files)
        subset = None if plan.subset is None else _named(registry.subset(plan.subset.sampler), plan.subset)
        sampler = _named(registry.sampler(plan.spec.sampler), plan.spec)
        return NamedFiles(self.root, self.files, NamedOrder(sampler, plan.epoch, plan.world, subset))

    @staticmethod
    def from_message(named: NamedFiles | None, directories: int) -> ReadSet:
        """Take the files from a part of a message. `directories`: how many there are. Raises ValueError."""
        if named is None:
            return ReadSet()
        if named.root >= directories:
            raise ValueError("root: there is no such directory")
        if named.files not in file_orders.ORDERS:
            raise ValueError("files: unknown")
        order = named.order
        if order is None:
            return ReadSet(named.root, named.files)
        spec = _spec(registry.sampler(order.sampler.name), order.sampler)
        subset = None if order.subset is None else _spec(registry.subset(order.subset.name), order.subset)
        return ReadSet(named.root, named.files, Hypothesis(0, 0, spec, order.epoch, order.world, (0,), subset))

    def rows(self, index: Index, datasets: Sequence[DataSet], charges: Ints) -> NDArray[np.integer[Any]]:
        """Return the row of each sample, integer[m]. May take seconds. Raises ValueError: no such part of the files."""
        if self.root is None:
            return np.flatnonzero(charges > 0)
        lists = [order for one in datasets if one.key == self.root for order in one.orders]
        known = (order.rows for order in lists if self.files in order.names)
        rows = next(known, None)
        if rows is None:
            rows = file_orders.ORDERS[self.files](index, self.root, None)
        if self.plan is not None and self.plan.subset is not None:
            subset = self.plan.subset
            rows = rows[registry.subset(subset.sampler).samples(subset, len(rows))]
        return rows


@dataclass(frozen=True, slots=True)
class PlacementProposal:
    """A placement that the leader has named. `rooms` i64[nodes, classes]; `limit`: the largest file that all nodes keep
    whole; bytes."""

    number: int
    rooms: Ints
    limit: int
    method: str
    epochs: int
    what: ReadSet

    def to_message(self) -> ProposedPlacement:
        """Make the message for the other nodes."""
        rooms: list[list[int]] = self.rooms.tolist()
        return ProposedPlacement(self.number, rooms, self.limit, self.method, self.epochs, self.what.to_message())

    @staticmethod
    def from_message(message: ProposedPlacement, nodes: int, directories: int) -> PlacementProposal:
        """Take the proposal from a message to `nodes` nodes. Raises ValueError."""
        rooms = message.rooms
        if len(rooms) != nodes or any(len(room) != len(rooms[0]) for room in rooms):
            raise ValueError("rooms: of each node those of as many classes are expected")
        if message.method not in METHODS:
            raise ValueError("method: unknown")
        what = ReadSet.from_message(message.what, directories)
        return PlacementProposal(
            message.number, np.array(rooms, np.int64), message.limit, message.method, message.epochs, what
        )

    def with_classes(self, classes: int) -> PlacementProposal:
        """The proposal for at least so many storage classes; nodes have no room in those that were added."""
        return replace(self, rooms=np.pad(self.rooms, ((0, 0), (0, max(0, classes - self.rooms.shape[1])))))

    def compute(
        self, before: ClusterHomes, rows: NDArray[np.integer[Any]], charges: Ints, node: int,
        kept: CopiesByNode | None = None,
    ) -> ClusterHomes:  # fmt: skip
        """Compute the placement as `node` sees it; all nodes compute the same homes. May take a minute. `rows` of
        `ReadSet.rows`; `kept`: copies of earlier mounts."""
        nodes = len(self.rooms)
        wanted = before.to_cover(rows, charges, self.limit)
        some = rows if wanted.all() else rows[wanted]
        known = None
        if self.what.plan is not None:
            known = read_sets.readers(self.what.plan, len(rows), nodes, self.epochs)
        if known is None:
            known = [by_hash(some, nodes)]
        elif len(some) < len(rows):
            known = [one[wanted] for one in known]
        rooms = np.minimum(self.rooms, int(charges.sum()))  # so that no sum of them is too large
        return extend(
            before, some, known.__getitem__, len(known), charges, rooms, node=node, method=self.method, kept=kept
        )


def _named(of: Sampler | Subset, spec: Spec) -> NamedSpec:
    known = {STRIDED: STRIDED_OPTION, **of.options}
    options = {name: bool(value) if known[name].kind is bool else value for name, value in spec.options}
    return NamedSpec(of.name, spec.seed, options)


def _spec(of: Sampler | Subset, named: NamedSpec) -> Spec:
    return registry.make_spec(of, named.seed, named.options)


def room_table(rooms: Sequence[NodeRoom]) -> NDArray[np.int64]:
    """i64[nodes, classes]: memory, then the disks; nodes with fewer have none there."""
    table = np.zeros((len(rooms), 1 + max(len(room.disks) for room in rooms)), np.int64)
    for node, room in enumerate(rooms):
        table[node, : 1 + len(room.disks)] = room.ram, *room.disks
    return table


def disk_rooms(disks: Sequence[DiskSpec], kept: Sequence[int]) -> tuple[int, ...]:
    """Bytes of each tier; of one without a size what is free there now, and the bytes of copies that were `kept`."""
    rooms = []
    for disk, there in zip(disks, kept, strict=True):
        room = disk.size or 0
        if disk.size is None:
            with contextlib.suppress(OSError):
                room = there + free_bytes(disk.path)
        rooms.append(room)
    return tuple(rooms)
