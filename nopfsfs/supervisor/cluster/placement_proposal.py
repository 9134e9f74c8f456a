"""Messages of the nodes of a cluster about where files live, checked; and the placement that each computes from them.

{"kind": "room", "ram": bytes, "disks": [bytes, ...], "whole_limit": bytes}     what a node has for files that stay
{"kind": "place", "number": 1, "rooms": [[ram, disk, ...] of each node], "limit": bytes, "placement": "homes",
 "epochs": 16, "what": {}}                                                      the leader's: a placement

`what` is read: {"root": row, "files": "image_folder", "sampler": ..., "seed": ..., "options": {}, "epoch": 3,
"world": 4, "subset": {"name": ..., "seed": ..., "options": {}}}; without a sampler the files are dealt out by a hash;
{}: all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.config import DiskSpec
from nopfsfs.dataset import file_orders
from nopfsfs.dataset.index import Index
from nopfsfs.placement.cluster_homes import METHODS, ClusterHomes, by_hash, extend
from nopfsfs.plan.epoch_order import DataSet, Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Sampler, Spec, Subset, Value
from nopfsfs.supervisor.cluster import read_sets
from nopfsfs.tiers.disk import FLOOR_BYTES

Ints = NDArray[np.int64]
ROOM_MOST = 1 << 60  # bytes
TIERS_MOST = 16
NUMBER_MOST = 1 << 53
EPOCHS_MOST = 1024
EPOCH_MOST = 1 << 31
WORLD_MOST = 1 << 20
TEXT_MOST = 4096  # characters of an option: a generator's state
OPTIONS_MOST = 64


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Room of a node for files that stay, in bytes; no file of more than `whole_limit` is kept whole."""

    ram: int
    disks: tuple[int, ...]
    whole_limit: int

    def to_message(self) -> dict[str, Any]:
        """Return the message."""
        return {"kind": "room", "ram": self.ram, "disks": list(self.disks), "whole_limit": self.whole_limit}

    @staticmethod
    def of_message(body: Mapping[str, Any]) -> NodeRoom:
        """Read a message. Raises ValueError."""
        disks = _list(body, "disks", TIERS_MOST)
        return NodeRoom(
            _number(body.get("ram"), "ram", 0, ROOM_MOST),
            tuple(_number(disk, "disks", 0, ROOM_MOST) for disk in disks),
            _number(body.get("whole_limit"), "whole_limit", 0, ROOM_MOST),
        )


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The files of an enumeration (`files`, of `dataset/file_orders.py`) of what lies below the directory `root`, or
    all where that is None; read as by `plan`, whose data set and order mean nothing, or nobody knows how."""

    root: int | None = None
    files: str = ""
    plan: Hypothesis | None = None

    @staticmethod
    def of(hypothesis: Hypothesis, datasets: Sequence[DataSet]) -> ReadSet:
        """Describe what the leader reads. Orders that no message holds are dealt out by a hash."""
        dataset = datasets[hypothesis.dataset]
        name = dataset.orders[hypothesis.order].names[0]
        if name in file_orders.ORDERS and hypothesis.spec.data is None:
            return ReadSet(dataset.key, name, hypothesis)
        names = [name for order in dataset.orders for name in order.names if name in file_orders.ORDERS]
        return ReadSet(dataset.key, names[0]) if names else ReadSet()

    def to_message(self) -> dict[str, Any]:
        """Return the part of a message."""
        if self.root is None:
            return {}
        said: dict[str, Any] = {"root": self.root, "files": self.files}
        plan = self.plan
        if plan is not None:
            said |= {"sampler": plan.spec.sampler, "epoch": plan.epoch, "world": plan.world}
            said |= _spec_message(registry.sampler(plan.spec.sampler), plan.spec)
            if plan.subset is not None:
                rule = registry.subset(plan.subset.sampler)
                said["subset"] = {"name": rule.name, **_spec_message(rule, plan.subset)}
        return said

    @staticmethod
    def of_message(said: Any, directories: int) -> ReadSet:
        """Read a part of a message. Raises ValueError."""
        if not isinstance(said, dict):
            raise ValueError("what: a table is expected")
        if not said:
            return ReadSet()
        root = _number(said.get("root"), "root", 0, directories - 1)
        files = said.get("files")
        if not isinstance(files, str) or files not in file_orders.ORDERS:
            raise ValueError("files: unknown")
        if "sampler" not in said:
            return ReadSet(root, files)
        spec = _spec_of(registry.sampler(str(said["sampler"])), said)
        subset = said.get("subset")
        if subset is not None:
            if not isinstance(subset, dict):
                raise ValueError("subset: a table is expected")
            subset = _spec_of(registry.subset(str(subset.get("name"))), subset)
        epoch = _number(said.get("epoch"), "epoch", 0, EPOCH_MOST)
        world = _number(said.get("world"), "world", 1, WORLD_MOST)
        return ReadSet(root, files, Hypothesis(0, 0, spec, epoch, world, (0,), subset))

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

    def to_message(self) -> dict[str, Any]:
        """Return the message."""
        return {
            "kind": "place", "number": self.number, "rooms": self.rooms.tolist(), "limit": self.limit,
            "placement": self.method, "epochs": self.epochs, "what": self.what.to_message(),
        }  # fmt: skip

    @staticmethod
    def of_message(body: Mapping[str, Any], nodes: int, directories: int) -> PlacementProposal:
        """Read a message. Raises ValueError."""
        rooms = _list(body, "rooms", nodes)
        classes = len(rooms[0]) if rooms and isinstance(rooms[0], list) else 0
        if len(rooms) != nodes or not 1 <= classes <= 1 + TIERS_MOST:
            raise ValueError("rooms: of each node those of some classes are expected")
        for one in rooms:
            if not isinstance(one, list) or len(one) != classes:
                raise ValueError("rooms: of each node as many classes are expected")
            for room in one:
                _number(room, "rooms", 0, ROOM_MOST)
        method = body.get("placement")
        if not isinstance(method, str) or method not in METHODS:
            raise ValueError("placement: unknown")
        return PlacementProposal(
            _number(body.get("number"), "number", 1, NUMBER_MOST),
            np.array(rooms, np.int64),
            _number(body.get("limit"), "limit", 0, ROOM_MOST),
            method,
            _number(body.get("epochs"), "epochs", 1, EPOCHS_MOST),
            ReadSet.of_message(body.get("what"), directories),
        )

    def with_classes(self, classes: int) -> PlacementProposal:
        """The same; nodes have no room in those that it did not speak of."""
        return replace(self, rooms=np.pad(self.rooms, ((0, 0), (0, max(0, classes - self.rooms.shape[1])))))

    def compute(self, before: ClusterHomes, rows: NDArray[np.integer[Any]], charges: Ints, node: int) -> ClusterHomes:
        """Compute the placement as `node` sees it; all nodes compute the same homes. `rows` of `ReadSet.rows`. May take a
        minute."""
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
        return extend(before, some, known.__getitem__, len(known), charges, rooms, node=node, method=self.method)


def _spec_message(of: Sampler | Subset, spec: Spec) -> dict[str, Any]:
    options = {name: bool(value) if of.options[name].kind is bool else value for name, value in spec.options}
    return {"seed": spec.seed, "options": options}


def _spec_of(of: Sampler | Subset, said: Mapping[str, Any]) -> Spec:
    options = said.get("options", {})
    if not isinstance(options, dict) or len(options) > OPTIONS_MOST:
        raise ValueError("options: a small table is expected")
    return registry.make_spec(of, _number(said.get("seed"), "seed", -(1 << 63), (1 << 64) - 1), _values(options))


def _values(options: dict[str, Any]) -> dict[str, Value]:
    for name, value in options.items():
        if isinstance(value, str) and len(value) > TEXT_MOST:
            raise ValueError(f"options.{name}: too long")
        if isinstance(value, int) and abs(value) >= 1 << 64:
            raise ValueError(f"options.{name}: too large")
    return options


def _number(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}: a whole number from {least} to {most} is expected")
    return value


def _list(body: Mapping[str, Any], name: str, most: int) -> list[Any]:
    found = body.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise ValueError(f"{name}: a list of at most {most} is expected")
    return found


def room_table(rooms: Sequence[NodeRoom]) -> NDArray[np.int64]:
    """i64[nodes, classes]: memory, then the disks; nodes with fewer have none there."""
    table = np.zeros((len(rooms), 1 + max(len(room.disks) for room in rooms)), np.int64)
    for node, room in enumerate(rooms):
        table[node, : 1 + len(room.disks)] = room.ram, *room.disks
    return table


def disk_rooms(disks: Sequence[DiskSpec]) -> tuple[int, ...]:
    """Bytes of each tier; of one without a size what is free there now."""
    rooms = []
    for disk in disks:
        room = disk.size or 0
        if disk.size is None:
            with contextlib.suppress(OSError):
                found = os.statvfs(disk.path)
                room = max(0, found.f_bavail * found.f_frsize - FLOOR_BYTES)
        rooms.append(room)
    return tuple(rooms)
