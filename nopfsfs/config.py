"""One typed, validated description of a mount. Nothing else parses options.

`MountConfig` is a frozen value that travels as JSON from `nopfs-mount` to the processes of the mount.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

DEFAULT_IO_TIMEOUT_S = 300.0  # longer than a parallel file system takes to fail over

SAMPLERS = ("auto", "distributed", "random", "sequential")  # of --sampler


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
    seed: int | None = None  # None: a plain cache
    sampler: str = "auto"
    worlds: tuple[World, ...] = (World(),)  # candidates, likeliest first; one if the user said so
    ram: int | None = None  # bytes for arena and page window; None: chosen at mount
    disks: tuple[DiskSpec, ...] = ()
    uid: int | None = None  # read the source as this user (--user)
    gid: int | None = None
    groups: tuple[int, ...] = ()
    allow_other: bool = False
    follow_symlinks: bool = False
    rescan: bool = False
    index_dir: str = ""
    state_dir: str = ""  # this mount's own directory below the run directory
    log_file: str | None = None
    foreground: bool = False
    io_timeout: float = DEFAULT_IO_TIMEOUT_S
    source_concurrency: int = 64  # reads of the source in flight
    fast_path: bool = True  # answer hits before pyfuse3 sees them, where the system lets us
    mount_options: tuple[str, ...] = ()  # further generic mount(8) options, e.g. noexec

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> MountConfig:
        raw: dict[str, Any] = json.loads(text)
        raw["disks"] = tuple(DiskSpec(**d) for d in raw["disks"])
        raw["worlds"] = tuple(World(w["size"], tuple(w["ranks"])) for w in raw["worlds"])
        raw["groups"] = tuple(raw["groups"])
        raw["mount_options"] = tuple(raw["mount_options"])
        return MountConfig(**raw)
