"""One typed, validated description of a mount. Nothing else parses options.

`MountConfig` is a frozen value that travels as JSON from `nopfs-mount` to the processes of the mount.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

DEFAULT_IO_TIMEOUT_S = 300.0  # longer than a parallel file system takes to fail over
DEFAULT_CONCURRENCY = 64
DEFAULT_EPOCHS = 16
DEFAULT_RECHECK_S = 900.0  # so long a right that was withdrawn at the source may hold here

Value = int | float | str  # of a sampler's option; bool is an int


@dataclass(frozen=True, slots=True)
class SubsetSpec:
    """The part of the files that a program reads: its name (`plan/samplers/registry.py`), its seed and options."""

    name: str
    seed: int | None = None
    options: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """One plan that a user said: which files are read, by which sampler, where it begins."""

    sampler: str  # a name of the registry; "explicit" with `order`
    root: str | None = None  # directory below the mount, "": the whole; None: not said
    files: str | None = None  # a name of dataset/file_orders.py; None: the sampler's usual
    seed: int | None = None  # None: the mount's, where the sampler takes one
    epoch: int = 0
    world_size: int | None = None
    ranks: tuple[int, ...] | None = None
    options: tuple[tuple[str, Value], ...] = ()  # as they were said: true stays true
    subset: SubsetSpec | None = None
    order: tuple[str, ...] = ()  # absolute paths of index arrays or lists of paths (dataset/order_files.py)
    repeats: bool = False  # whether `order` may name a file twice in an epoch
    inflight: int | None = None  # accesses that the loader has begun at most: workers x prefetch x batch + batch

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> PlanSpec:
        """From what `dataclasses.asdict` and JSON made of one."""
        subset = raw["subset"]
        return PlanSpec(**{
            **raw,
            "ranks": None if raw["ranks"] is None else tuple(raw["ranks"]),
            "options": _pairs(raw["options"]),
            "subset": subset and SubsetSpec(subset["name"], subset["seed"], _pairs(subset["options"])),
            "order": tuple(raw["order"]),
        })  # fmt: skip


def _pairs(raw: list[Any]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, value) for name, value in raw)


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """A directory to keep staged files in; `size` in bytes, None: what is free there, less a floor."""

    path: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """One guess of how many ranks the job has and which of them read through this mount."""

    size: int = 1
    ranks: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """All that a mount needs to know. Paths are absolute; sizes are bytes; times are seconds."""

    source: str
    mountpoint: str
    seed: int | None = None  # None: common ones are tried
    sampler: str = "auto"
    plans: tuple[PlanSpec, ...] = ()  # what the user said in full (--plan)
    worlds: tuple[World, ...] = (World(),)  # candidates, likeliest first; one if the user said so
    ram: int | None = None  # bytes for arena and page window; None: chosen at mount
    page_cache: int | None = None  # bytes of these for the page cache; None: chosen at mount
    disks: tuple[DiskSpec, ...] = ()
    uid: int | None = None  # read the source as this user (--user)
    gid: int | None = None
    groups: tuple[int, ...] = ()
    allow_other: bool = False
    follow_symlinks: bool = False
    rescan: bool = False
    index_dir: str = ""
    remember: bool = True  # the plans of the last job on this source, for the next mount (--remember)
    state_dir: str = ""  # this mount's own directory below the run directory
    log_file: str | None = None
    source_fs: tuple[int, int] | None = None  # type and id of the source's file system (system/file_system.py)
    foreground: bool = False
    io_timeout: float = DEFAULT_IO_TIMEOUT_S
    source_concurrency: int | None = None  # reads of the source in flight; None: see `in_flight`
    recheck: float = DEFAULT_RECHECK_S  # all files are looked at again within this time; 0: never
    expose: bool = False  # also what a directory above the source keeps from its users (--expose)
    calibration: str | None = None  # a file of `nopfs calibrate`: rates of the source and the tiers
    fast_path: bool = True  # answer hits before pyfuse3 sees them, where the system lets us
    servers: int | None = None  # processes that answer requests; None: by the number of cores
    signal: str = "auto"  # how the reader's progress is seen: open, tripwire, auto (docs/decisions/0006-signals.md)
    passthrough: str = "auto"  # reads of large files on disk inside the kernel: auto, on, off
    mount_options: tuple[str, ...] = ()  # further generic mount(8) options, e.g. noexec
    peers: bool = False  # whether this mount is one of several that MPI started
    nodes: int = 1  # how many these are
    node: int = 0  # which one this is
    placement: str = "homes"  # where samples live among them: homes, nopfs (docs/decisions/0008-policy.md)
    epochs: int = DEFAULT_EPOCHS  # that the job is likely to have; only the placement uses it

    @property
    def in_flight(self) -> int:
        """Reads of the source in flight."""
        return DEFAULT_CONCURRENCY if self.source_concurrency is None else self.source_concurrency

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> MountConfig:
        raw: dict[str, Any] = json.loads(text)
        raw["disks"] = tuple(DiskSpec(**d) for d in raw["disks"])
        raw["worlds"] = tuple(World(w["size"], tuple(w["ranks"])) for w in raw["worlds"])
        raw["plans"] = tuple(PlanSpec.from_dict(plan) for plan in raw["plans"])
        raw["groups"] = tuple(raw["groups"])
        raw["source_fs"] = tuple(raw["source_fs"]) if raw.get("source_fs") else None  # None: of an earlier release
        raw["mount_options"] = tuple(raw["mount_options"])
        return MountConfig(**raw)
