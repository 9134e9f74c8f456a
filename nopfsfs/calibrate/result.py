"""What was measured, as the model takes it. Pure: the figures of the parts in, a `Cluster` and JSON out."""

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
    """`seen` files were found, all of the source where `whole`; `read` of them were read, `skipped` could not be, such
    as `why`. `median`, `smallest`, `largest`: bytes of a file."""

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
    """Bytes per second with so many threads, in pieces of `piece` bytes. `name`: a disk tier's path. `in_memory`: the
    disk tier is none."""

    name: str
    capacity: int
    piece: int
    read: Points
    write: Points
    in_memory: bool = False

    @property
    def threads(self) -> int:
        """The fewest that read about as fast as can be."""
        return fit.knee(self.read)

    def as_class(self, name: str, capacity: int) -> StorageClass:
        """Raises ValueError where nothing was read or written in the time."""
        return StorageClass(name, (capacity,), self.threads, fit.curve(self.read), fit.curve(self.write))


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was found out."""

    source: MeasuredSource
    ram: MeasuredStorage
    disks: tuple[MeasuredStorage, ...]

    def cluster(self, name: str) -> Cluster:
        """One node with one rank. `compute` cannot be measured here: it is what memory delivers, so that nothing waits
        for the training, until the user sets it. There are no peers: no `network`."""
        way = min(passage(self.ram.capacity), self.ram.capacity // 4)  # as `budget.split` has it
        classes = [disk.as_class(class_name(disk.name), disk.capacity) for disk in self.disks]
        disks = sorted(classes, key=lambda one: -one.read_rate)
        ram = self.ram.as_class("ram", self.ram.capacity - way)
        found = self.source
        # what the source works on at a time, which is less than what keeps it busy
        at_once = max(1, round(fit.overlap(found.levels)))
        rate = max(1.0, found.bandwidth.rate)  # bytes per second; files may be empty but for one
        source = SourceModel(Curve.flat(rate), latency=found.latency.seconds, at_once=at_once)
        staging = self.ram.as_class("staging", way)
        return Cluster(name, 1, ram.read_rate, float("inf"), source, staging, (ram, *disks))

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Bytes, seconds, bytes per second; what is not known is null."""
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
    """From what `source.SourceReader` found."""
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
    """From what `storage.DiskMeter` found."""
    read, write = _points(raw["read"]), _points(raw["write"])
    return MeasuredStorage(name, raw["capacity"], raw["size"], read, write, in_memory)


def memory_of(raw: Figures, capacity: int) -> MeasuredStorage:
    """From what `memory.MemoryMeter` found."""
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
