"""The typed, validated description of a mount, with its plans, disks and worlds.

`MountConfig` is a frozen value that travels from `nopfs-mount` to the processes of the mount.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_IO_TIMEOUT_S = 300.0  # longer than a parallel file system takes to fail over
FIRST_CONCURRENCY = 4  # requests under way at the source with which the tuner begins
MAX_CONCURRENCY = 1024  # requests under way at the source that a user may ask for; each is a thread and a descriptor
DEFAULT_EPOCHS = 16
DEFAULT_RECHECK_S = 900.0  # the longest time for which a right that is withdrawn at the source holds in the mount

Value = bool | int | float | str  # of a sampler's option


@dataclass(frozen=True, slots=True)
class SubsetSpec:
    """The part of the files that a program reads: its name (`plan/samplers/registry.py`), its seed and options."""

    name: str
    seed: int | None = None
    options: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """A plan that a user states: which files are read, by which sampler, and where the reading begins."""

    sampler: str  # a name of the registry; "explicit" with `order`
    root: str | None = None  # directory below the mount, "": the whole; None: not stated
    files: str | None = None  # a name of dataset/file_orders.py; None: the sampler's usual
    seed: int | None = None  # None: the mount's, where the sampler takes one
    epoch: int = 0
    world_size: int | None = None
    ranks: tuple[int, ...] | None = None
    options: tuple[tuple[str, Value], ...] = ()  # as the user wrote them: a bool stays a bool
    subset: SubsetSpec | None = None
    order: tuple[str, ...] = ()  # absolute paths of index arrays or lists of paths (dataset/order_files.py)
    repeats: bool = False  # True when `order` may name a file twice in an epoch
    inflight: int | None = None  # accesses that the loader has begun at most: workers x prefetch x batch + batch


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """A directory to keep staged files in. `size`: bytes; None: what is free there, less a floor."""

    path: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """A candidate for the number of ranks of the job, and for those of them that read through this mount."""

    size: int = 1
    ranks: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """The settings of a mount. Paths are absolute; sizes are bytes; times are seconds."""

    source: str
    mountpoint: str
    seed: int | None = None  # None: common ones are tried
    sampler: str = "auto"
    plans: tuple[PlanSpec, ...] = ()  # stated in full: --plan, or --sampler with its options
    worlds: tuple[World, ...] = (World(),)  # candidates, likeliest first; only one if the user named it
    ram: int | None = None  # bytes for arena and page window; None: chosen at mount
    page_cache: int | None = None  # bytes of these for the page cache; None: chosen at mount
    disks: tuple[DiskSpec, ...] = ()
    disk_keep: bool = True  # copies in `disks` outlive the mount (--disk-keep); see `keeps_copies`
    uid: int | None = None  # read the source as this user (--user)
    gid: int | None = None
    groups: tuple[int, ...] = ()
    allow_other: bool = False
    follow_symlinks: bool = False
    rescan: bool = False
    index_dir: str = ""
    remember: bool = True  # begin with the plans of the last job on this source, keep those of this one (--remember)
    run_dir: str = ""  # the user's directory for the state of mounts
    state_dir: str = ""  # this mount's own directory below the run directory; known when it is mounted
    log_file: str | None = None
    job_report: str | None = None  # where the final record goes, written as `uid` (--job-report)
    source_fs: tuple[int, int] | None = None  # type and id of the source's file system (system/file_system.py)
    foreground: bool = False
    io_timeout: float = DEFAULT_IO_TIMEOUT_S
    source_concurrency: int = 0  # requests under way at the source; 0: the tuner decides (docs/tuner.md)
    source_bandwidth: int | None = None  # bytes a second that all nodes of the job read from the source; None: no bound
    policy: str | None = None  # a policy file beside the site's (--policy)
    calibrated_concurrency: int | None = None  # the number with which the tuner begins
    recheck: float = DEFAULT_RECHECK_S  # the stager checks all files again within this time; 0: never
    expose: bool = False  # show the source also to users whom a directory above it keeps out (--expose)
    calibration: str | None = None  # a file of `nopfs calibrate`: rates of the source and the tiers
    fast_path: bool = True  # answer hits before pyfuse3 sees them, where the system allows it
    servers: int | None = None  # processes that answer requests; None: by the number of cores
    signal: str = "auto"  # how the reader's progress is seen: open, tripwire, auto (docs/decisions/0006-signals.md)
    passthrough: str = "auto"  # reads of large files on disk inside the kernel: auto, on, off
    mount_options: tuple[str, ...] = ()  # further generic mount(8) options, e.g. noexec
    peers: bool = False  # True when this mount is one of several that MPI started
    nodes: int = 1  # the number of these mounts, one on each node
    node: int = 0  # the number of this node, from 0
    job_nodes: int = 1  # nodes of the job, whose mounts share what bounds the whole job, joined by MPI or not
    placement: str = "homes"  # how homes of files are chosen: homes, nopfs (docs/decisions/0008-policy.md)
    epochs: int = DEFAULT_EPOCHS  # epochs that the job is likely to have; only the placement uses them

    @property
    def bandwidth_here(self) -> int:
        """Bytes a second that this node reads from the source; 0: no bound."""
        return 0 if self.source_bandwidth is None else max(1, self.source_bandwidth // max(1, self.job_nodes))

    def keeps_copies(self, uid: int) -> bool:
        """True where copies on disk outlive the mount that user `uid` starts. Where others read through the mount, only
        what root has kept is used."""
        reader = uid if self.uid is None else self.uid
        return self.disk_keep and (reader == 0 or not self.allow_other)

    @property
    def first_limit(self) -> int:
        """Requests that may be under way at the source when the mount begins."""
        return self.source_concurrency or self.calibrated_concurrency or FIRST_CONCURRENCY
