"""Measured figures as the model takes them. Pure: the figures of the parts in, a `Cluster` and JSON out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nopfsfs.performance import fit
from nopfsfs.performance.cluster_file import class_name
from nopfsfs.performance.fit import Bandwidth, Latency, Level
from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.policy.budget import passage

Figures = Mapping[str, Any]
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """Figures of a source. `seen` files were found, all of the source where `whole`. `read` of them were read;
    `skipped` files and directories could not be, such as `why`. `median`, `smallest`, `largest`: bytes of a file."""

    seen: int
    whole: bool
    read: int
    skipped: int
    why: str
    median: float
    smallest: int
    largest: int
    levels: tuple[Level, ...]
    first_bytes: Level | None
    large: Level | None
    latency: Latency
    at_once: int
    bandwidth: Bandwidth


@dataclass(frozen=True, slots=True)
class MeasuredStorage:
    """Bytes per second by number of threads, of memory or a disk tier, in pieces of `piece` bytes. `name`: a disk
    tier's path. `in_memory`: the disk tier lies in memory, as on tmpfs."""

    name: str
    capacity: int
    piece: int
    read: Points
    write: Points
    in_memory: bool = False

    @property
    def threads(self) -> int:
        """The smallest number of threads that read about as fast as can be."""
        return fit.knee(self.read)

    def as_class(self, name: str, capacity: int) -> StorageClass:
        """Make the model's storage class. Raises ValueError where nothing was read or written in the time."""
        return StorageClass(name, (capacity,), self.threads, fit.curve(self.read), fit.curve(self.write))


@dataclass(frozen=True, slots=True)
class Measured:
    """All measured figures."""

    source: MeasuredSource
    ram: MeasuredStorage
    disks: tuple[MeasuredStorage, ...]

    def cluster(self, name: str) -> Cluster:
        """Make a cluster of one node with one rank. `compute` cannot be measured here. Until the user sets it, it is
        the read rate of memory, so that nothing waits for the training. There are no peers: no `network`."""
        way = min(passage(self.ram.capacity), self.ram.capacity // 4)  # as `budget.split` computes it
        classes = [disk.as_class(class_name(disk.name), disk.capacity) for disk in self.disks]
        disks = sorted(classes, key=lambda one: -one.read_rate)
        ram = self.ram.as_class("ram", self.ram.capacity - way)
        found = self.source
        # files that the source works on at a time: fewer than it takes to keep it busy
        at_once = max(1, round(fit.overlap(found.levels)))
        rate = max(1.0, found.bandwidth.rate)  # bytes per second; all files but one may be empty
        source = SourceModel(Curve.flat(rate), latency=found.latency.seconds, at_once=at_once)
        staging = self.ram.as_class("staging", way)
        return Cluster(name, 1, ram.read_rate, float("inf"), source, staging, (ram, *disks))

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON: bytes, seconds, bytes per second; unknown ones are null."""
        found = self.source
        return {
            "source": {
                "files_seen": found.seen, "all_seen": found.whole, "files_read": found.read,
                "files_skipped": found.skipped, "median_size": found.median,
                "smallest_size": found.smallest, "largest_size": found.largest,
                "latency": found.latency.seconds,
                "latency_error": found.latency.error if found.latency.fitted else None,
                "latency_from": "sizes" if found.latency.fitted else "first bytes",
                "stream": _finite(found.latency.stream), "at_once": found.at_once,
                "overlap": fit.overlap(found.levels),
                "rate": found.bandwidth.rate, "rate_is_least": found.bandwidth.least,
                "levels": [_level(level) for level in found.levels],
                "first_bytes": _level(found.first_bytes), "large_files": _level(found.large),
            },
            "ram": _storage(self.ram),
            "disks": [{**_storage(disk), "in_memory": disk.in_memory} for disk in self.disks],
        }  # fmt: skip


def source_of(raw: Figures) -> MeasuredSource:
    """Make the figures of a source from those of `source_meter.SourceMeter`."""
    levels = tuple(Level(*level) for level in raw["levels"])
    heads, large = (Level(*raw[name]) if raw[name] else None for name in ("heads", "large"))
    alone = np.array(raw["alone"], np.float64).reshape(-1, 2)
    return MeasuredSource(
        **{name: raw[name] for name in ("seen", "whole", "read", "skipped", "why", "median", "smallest", "largest")},
        levels=levels,
        first_bytes=heads,
        large=large,
        latency=fit.latency_of(alone[:, 0], alone[:, 1], np.array(raw["first"], np.float64)),
        at_once=fit.knee([(level.at_once, level.files) for level in levels]),
        bandwidth=fit.bandwidth(levels, heads, large),
    )


def disk_of(raw: Figures, name: str, in_memory: bool) -> MeasuredStorage:
    """Make the figures of a disk tier from those of `disk_meter.DiskMeter`."""
    read, write = _points(raw["read"]), _points(raw["write"])
    return MeasuredStorage(name, raw["capacity"], raw["size"], read, write, in_memory)


def memory_of(raw: Figures, capacity: int) -> MeasuredStorage:
    """Make the figures of memory from those of `memory_meter.MemoryMeter`."""
    return MeasuredStorage("ram", capacity, raw["piece"], _points(raw["read"]), _points(raw["write"]))


def _points(raw: Any) -> Points:
    return tuple((int(x), float(rate)) for x, rate in raw)


def _finite(rate: float) -> float | None:
    return rate if rate < float("inf") else None


def _level(level: Level | None) -> dict[str, float] | None:
    return None if level is None else {"at_once": level.at_once, "files": level.files, "bytes": level.bytes}


def _storage(found: MeasuredStorage) -> dict[str, Any]:
    rows = {"read": dict(found.read), "write": dict(found.write)}
    return {"name": found.name, "capacity": found.capacity, "piece": found.piece, "threads": found.threads, **rows}
