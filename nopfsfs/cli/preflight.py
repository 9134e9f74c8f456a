"""Checks before a mount is started. Each failed check raises an error of its own, and no process has been started
yet.

Paths that may hang (a source on a dead file system, a stale mountpoint) are checked in child processes with a
time limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import platform
import stat
from collections.abc import Callable, Mapping

from nopfsfs.calibrate import calibrated
from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.control.job_report import why_not_written
from nopfsfs.control.stale_mounts import clear_stale, daemon_is_dead
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse import mounting
from nopfsfs.fuse.mount_table import Mount, find_mount
from nopfsfs.system import node_memory
from nopfsfs.system.bounded_run import answers, run_bounded
from nopfsfs.system.closed_above import gate, gates_above, keeps_out
from nopfsfs.system.trusted_path import open_for_append, trusted_parent
from nopfsfs.text.units import exact_size, format_size
from nopfsfs.tiers.disk import free_bytes
from nopfsfs.tiers.tier_directory import clear_leftovers

SOURCE_S = 30.0  # a parallel file system that fails over answers again within this time; a dead one never does
STRONGLY_ORDERED = ("x86_64",)  # in the words of platform.machine()
DISK_S = 30.0  # a busy disk, or one on the network, answers within this time
MIN_DISK = 64 << 20  # bytes free that make a disk tier worth having where no size was given

# Run by sh, so that any user can run it: the Python interpreter may lie in a directory that is closed to that user.
_LOOK = '[ -e "$1" ] || exit 10; [ -d "$1" ] || exit 11; [ -r "$1" ] && [ -x "$1" ] || exit 12'

Say = Callable[[str], None]


def preflight(config: MountConfig, env: Mapping[str, str], say: Say) -> MountConfig:
    """Return `config` with the source free of links and the settings from a calibration. Raises the NopfsError of the
    first check that fails.

    A stale mount of a dead daemon at the mountpoint is cleared, and `say` prints a line about it.
    """
    check_processor()
    check_source(config)
    config = dataclasses.replace(config, source=os.path.realpath(config.source))
    check_mountpoint(config, env, say)
    check_apart(config.source, config.mountpoint)
    check_reach(config)
    check_memory(config)
    config = check_disks(config, say)
    check_log_file(config)
    check_job_report(config, say)
    check_fuse(config)
    return calibrated.apply(config)


def check_processor() -> None:
    """Raise NopfsError with Exit.START on a processor whose cores may see the writes of others out of order. The stager
    publishes staged bytes by writing them first and their column last, without a barrier: Python has none for shared
    memory.
    """
    machine = platform.machine()
    if machine not in STRONGLY_ORDERED:
        message = f"nopfsfs does not run on {machine}, whose cores may see writes out of order; use an x86_64 machine"
        raise NopfsError(Exit.START, message)


def check_source(config: MountConfig) -> None:
    """Raise NopfsError with Exit.SOURCE unless the source is a directory that its reader may list and
    enter.
    """
    source = config.source
    other = config.uid is not None and config.uid != os.geteuid()
    who = {"user": config.uid, "group": config.gid, "extra_groups": config.groups} if other else {}
    done = run_bounded(["/bin/sh", "-c", _LOOK, "sh", source], SOURCE_S, cwd="/", **who)
    if done is None:
        raise _source(f"{source} did not answer within {SOURCE_S:.0f} s; check the file system that it is on")
    if done.code == 0:
        return
    reader = f"user {config.uid}" if other else "you"
    if done.code == 10:
        raise _source(_why_missing(source, reader))
    if done.code == 11:
        raise _source(f"{source} is not a directory; name the directory that holds the data set")
    if done.code == 12:
        raise _source(f"{source} cannot be read by {reader}; give the right, or name another reader with --user")
    raise NopfsError(Exit.INTERNAL, f"cannot look at {source}: {done.err.strip() or done.code}")


def _source(message: str) -> NopfsError:
    return NopfsError(Exit.SOURCE, f"the source {message}")


def _why_missing(source: str, reader: str) -> str:
    try:
        os.stat(source)  # the child process has just had an answer, so this call does not hang
    except FileNotFoundError:
        return f"{source} does not exist; check the path, and that its file system is mounted"
    except OSError as error:
        return f"{source} cannot be reached: {error.strerror}"
    return f"{source} cannot be reached by {reader}; a directory above it is closed to that user"


def check_mountpoint(config: MountConfig, env: Mapping[str, str], say: Say) -> None:
    """Raise NopfsError unless the mountpoint is an empty directory with nothing mounted on it. Clears stale
    mounts.
    """
    path = config.mountpoint
    while (mount := find_mount(path)) is not None:
        if not mount.is_nopfs or not daemon_is_dead(mount, env):
            raise NopfsError(Exit.BUSY_MOUNTPOINT, _in_the_way(mount))
        clear_stale(mount, env)
        say(f"cleared a stale mount at {path}: its daemon was dead")
    try:
        mode = os.lstat(path).st_mode
        empty = stat.S_ISDIR(mode) and not _has_entries(path)
    except FileNotFoundError:
        raise _mountpoint(f"{path} does not exist; make it: mkdir -p {path}") from None
    except OSError as error:
        raise _mountpoint(f"{path} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        raise _mountpoint(f"{path} is not a directory; name an empty directory")
    if not empty:
        raise _mountpoint(f"{path} is not empty, and its files would be hidden; name an empty directory")
    if not mounting.may_mount() and not os.access(path, os.W_OK):
        raise _mountpoint(f"{path} is not writable by you, which fusermount3 asks for; name a directory of yours")


def _mountpoint(message: str) -> NopfsError:
    return NopfsError(Exit.MOUNTPOINT, f"the mountpoint {message}")


def _has_entries(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is not None


def _in_the_way(mount: Mount) -> str:
    if mount.is_nopfs:
        path = mount.mountpoint
        return f"{path} is already mounted, from {mount.source}; unmount it: nopfs-umount {path}"
    if mount.fstype == "autofs":
        return f"{mount.mountpoint} is an automount, which waits for its own mount; leave x-systemd.automount out"
    return f"{mount.mountpoint} is already mounted ({mount.fstype}, from {mount.source}); name another directory"


def check_apart(source: str, mountpoint: str) -> None:
    """Raise NopfsError with Exit.MOUNTPOINT where one of the two lies inside the other, by any path."""
    if _contains(source, mountpoint):
        raise _mountpoint(f"{mountpoint} is inside the source {source}; name a directory outside")
    if _contains(mountpoint, source):
        raise _mountpoint(f"{mountpoint} contains the source {source} and would hide it; name another directory")


def _contains(outer: str, inner: str) -> bool:
    """Return whether `outer` is `inner` or above it. Inodes are compared, which sees through bind mounts."""
    wanted = os.stat(outer)
    while not os.path.samestat(os.stat(inner), wanted):
        if inner == "/":
            return False
        inner = os.path.dirname(inner)
    return True


def check_reach(config: MountConfig) -> None:
    """Raise NopfsError with Exit.SOURCE where other users could read through the mount files that a directory above the
    source keeps from them. Call it for a source that answers, with a path free of links."""
    if not config.allow_other or config.expose:
        return
    try:
        closed = keeps_out(gate(config.source), gates_above(config.source), gates_above(config.mountpoint))
    except OSError as error:
        raise _source(f"{config.source}: what is above it cannot be looked at: {error.strerror}") from error
    if closed is not None:
        raise _source(
            f"{config.source} lies below {closed.path}, which not all may enter who could read it in the mount; open "
            "that directory, mount with --no-allow-other, or with --expose to give it to them"
        )


def check_memory(config: MountConfig) -> None:
    """Raise NopfsError with Exit.USAGE for more memory than this node has: the unit is most likely wrong."""
    total = node_memory.of_node()
    for name, size in (("ram", config.ram), ("page-cache", config.page_cache)):
        if size is not None and total is not None and size > total:
            there = f"this node has {format_size(total)} of memory"
            raise NopfsError(Exit.USAGE, f"--{name} {exact_size(size)}: {there}; ask for less, or leave it out")


def check_disks(config: MountConfig, say: Say = lambda text: None) -> MountConfig:
    """Return the config with disks that have the room. Where copies that other users keep take some of it, the tier is
    smaller, and `say` prints a line about it. Raises NopfsError with Exit.DISK unless the directories can be written
    and have the room. Call it for a source that answers; `config` may lack a mountpoint."""
    for disk in config.disks:
        if not answers(disk.path, DISK_S):
            raise _disk(f"{disk.path} did not answer within {DISK_S:.0f} s; check the file system that it is on")
    return dataclasses.replace(config, disks=tuple(_check_disk(disk, config, say) for disk in config.disks))


def _check_disk(disk: DiskSpec, config: MountConfig, say: Say) -> DiskSpec:
    path = disk.path
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise _disk(f"{path}: {error.strerror}; make the directory, or name another") from error
    if not stat.S_ISDIR(mode):
        raise _disk(f"{path} is not a directory; name a directory")
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            raise _disk(f"{path} is on a read-only file system; name a directory elsewhere, or leave --disk out")
        raise _disk(f"{path} cannot be written by you; name a directory of yours")
    real = os.path.realpath(path)
    for other, name in ((config.source, "source"), (config.mountpoint, "mountpoint")):
        if other and _contains(other, real):
            raise _disk(f"{path} is inside the {name}; name a directory outside")
    if [os.path.realpath(d.path) for d in config.disks].count(real) > 1:
        raise _disk(f"{path} is named twice; name each directory once")
    kept = _kept(path, config)
    if _free(path) + kept < (disk.size or MIN_DISK):
        with contextlib.suppress(OSError):
            clear_leftovers(path, config.uid)  # files of a killed mount, which may take the room
    free, wanted = _free(path) + kept, disk.size or MIN_DISK
    if free >= wanted:
        return disk
    left = free_bytes(path) + kept
    if left >= MIN_DISK and _others_keep(path, config):
        say(
            f"--disk {path}: {format_size(left)} of {format_size(wanted)} can be had, as other users keep copies "
            "there; the tier takes that"
        )
        return dataclasses.replace(disk, size=left)
    raise _disk(f"{path} has no room for {format_size(wanted)}: {format_size(free)} free; ask for less, or make room")


def _others_keep(path: str, config: MountConfig) -> bool:
    """Return whether copies are kept in a directory that are not this mount's to use."""
    from nopfsfs.tiers.kept_directory import PREFIX, cache_name  # with numpy: other mounts need none of it

    own = cache_name(os.geteuid()) if config.keeps_copies(os.geteuid()) else ""
    with contextlib.suppress(OSError):  # of a directory that may not be listed
        return any(name.startswith(PREFIX) and name != own for name in os.listdir(path))
    return False


def _kept(path: str, config: MountConfig) -> int:
    """The bytes of copies that earlier mounts have kept in a directory. Raises NopfsError where it is another's."""
    if not config.keeps_copies(os.geteuid()) or config.uid not in (None, os.geteuid()):
        return 0
    from nopfsfs.tiers.kept_directory import KeptCache  # with numpy: other mounts need none of it

    try:
        return KeptCache(path, make=False).total() or 0
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _disk(f"{path}: {error.strerror}") from error


def _free(path: str) -> int:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def _disk(message: str) -> NopfsError:
    return NopfsError(Exit.DISK, f"the disk tier {message}")


def check_log_file(config: MountConfig) -> None:
    """Raise NopfsError with Exit.USAGE where the log file cannot be written. Creates no file."""
    path = config.log_file
    if path is None:
        return
    try:
        with trusted_parent(path) as (directory, name):
            there = True
            try:
                os.close(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))
            except FileNotFoundError:
                there = False
                if not os.access(f"/proc/self/fd/{directory}", os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
        if there:
            os.close(open_for_append(path))
    except OSError as error:
        raise NopfsError(
            Exit.USAGE,
            f"--log-file {path} cannot be written ({error.strerror}); name a file in a directory of yours",
        ) from error


def check_job_report(config: MountConfig, say: Say) -> None:
    """Say where the report of --job-report cannot be written. The mount is worth more than its report."""
    path = config.job_report
    why = None if path is None else why_not_written(path, config.uid)
    if why is not None:
        say(f"--job-report {path} cannot be written ({why}): the mount goes on without a report")


def check_fuse(config: MountConfig) -> None:
    """Raise NopfsError with Exit.NO_FUSE or Exit.NO_RIGHT where this system, or this user, cannot mount."""
    os.close(mounting.open_dev_fuse())  # fusermount3 opens it with the rights of its caller, too
    if mounting.may_mount():
        return
    if mounting.helper() is None:
        raise NopfsError(Exit.NO_RIGHT, "no right to mount: run as root, or apt-get install fuse3")
    if config.allow_other and not mounting.user_allow_other():
        raise NopfsError(
            Exit.NO_RIGHT,
            "no right to mount with --allow-other: leave it out, or put user_allow_other into /etc/fuse.conf",
        )
