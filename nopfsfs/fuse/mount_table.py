"""Mounts and their holders, from /proc; settings and the end of a FUSE connection, in /sys.

Nothing here touches a mountpoint in this process: with a daemon that hangs, this process would hang, too.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from nopfsfs.fuse.connection import BACKGROUND, CONGESTION
from nopfsfs.system.bounded_run import probe_statvfs, run_bounded
from nopfsfs.system.directory_access import mount_of
from nopfsfs.system.proc import command_name
from nopfsfs.system.state_dirs import real_mountpoint

FSTYPE = "fuse.nopfs"
CONNECTIONS = "/sys/fs/fuse/connections"
PROBE_S = 2.0  # a living daemon answers statfs from memory; a daemon that is busy for longer counts as hung
READ_AHEAD_KIB = 1024  # one READ, which is 1 MiB at most; less costs a tenth of the speed, more gains nothing
HOLDERS_S = 5.0  # for a look at all processes of a large node
_ABORT_S = 5.0  # for the helper that mounts the control file system in a namespace of its own
_ESCAPE = re.compile(r"\\([0-7]{3})")

# The control file system is not mounted in every container: mount it where nobody else sees it.
_ABORT_PRIVATELY = 'mount -t fusectl fusectl "$1" && echo 1 > "$1/$2/abort"'


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo."""

    mount_id: int
    major: int
    minor: int
    root: str
    mountpoint: str
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """Fields that stay the same for as long as it is mounted; options may change."""
        return self.mount_id, self.major, self.minor, self.root, self.fstype, self.source

    @property
    def is_nopfs(self) -> bool:
        return self.fstype == FSTYPE

    @property
    def is_fuse(self) -> bool:
        return self.fstype in ("fuse", "fuseblk") or self.fstype.startswith("fuse.")

    @property
    def owner(self) -> int:
        """The uid of the user who mounted it; 0 where the file system does not say."""
        found = (o.partition("=")[2] for o in self.super_options if o.startswith("user_id="))
        return int(next(found, "0"))


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that keeps a mount busy: `what` is `cwd`, `root`, `exe`, `mmap PATH` or `open PATH`."""

    pid: int
    command: str
    what: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a /proc/PID/mountinfo, in its order: of two at one place, the later is on top."""
    # Not `splitlines`: a name may hold what that takes for an end of line too; the kernel escapes only the newline.
    return tuple(_parse_line(line) for line in text.split("\n") if line)


def _parse_line(line: str) -> Mount:
    fields = line.split(" ")
    separator = fields.index("-", 6)  # after any number of optional fields
    major, _, minor = fields[2].partition(":")
    fstype, source, *rest = fields[separator + 1 :]
    return Mount(
        mount_id=int(fields[0]),
        major=int(major),
        minor=int(minor),
        root=_unescape(fields[3]),
        mountpoint=_unescape(fields[4]),
        options=tuple(fields[5].split(",")),
        fstype=fstype,
        source=_unescape(source),
        super_options=tuple(rest[0].split(",")) if rest else (),
    )


def _unescape(field: str) -> str:
    """Undo mountinfo's octal escapes. `field` is as from os.fsdecode; escapes stand for single bytes."""
    return os.fsdecode(_ESCAPE.sub(lambda m: chr(int(m[1], 8)), os.fsencode(field).decode("latin-1")).encode("latin-1"))


def read_mounts() -> tuple[Mount, ...]:
    """Return what is mounted in this process's namespace."""
    with open("/proc/self/mountinfo", "rb") as file:
        return parse_mountinfo(os.fsdecode(file.read()))


def real_path(path: str, mounts: Iterable[Mount] | None = None) -> str:
    """Return `path` absolute and free of links. No mountpoint of FUSE is touched."""
    fuse = {mount.mountpoint for mount in (read_mounts() if mounts is None else mounts) if mount.is_fuse}
    return real_mountpoint(path, fuse.__contains__)


def find_mount(mountpoint: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """Return the topmost mount at exactly `mountpoint` (a real path), or None."""
    found = [mount for mount in (read_mounts() if mounts is None else mounts) if mount.mountpoint == mountpoint]
    return found[-1] if found else None


def find_mount_of(mountpoint: str, minor: int) -> Mount | None:
    """Return the mount with device number `minor` at exactly `mountpoint`, also below another one, or None."""
    return find_mount(mountpoint, (mount for mount in read_mounts() if (mount.major, mount.minor) == (0, minor)))


def is_in_place(mount: Mount) -> bool:
    """Return whether `mount` itself is what its mountpoint shows: it is still mounted, and nothing over it. The kernel
    gives the numbers of a mount that has ended to a later one, so kind and source are compared as well."""
    found = find_mount(mount.mountpoint)
    return found is not None and found.identity == mount.identity


def find_covering(path: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """Return the mount that `path` (a real path) lies on, or None."""
    found = None
    for mount in read_mounts() if mounts is None else mounts:
        if lies_in(path, mount.mountpoint) and (found is None or len(mount.mountpoint) >= len(found.mountpoint)):
            found = mount
    return found


def lies_in(path: str, directory: str) -> bool:
    """Return whether a path is that of a directory, or of something below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_stale(mount: Mount, limit_s: float = PROBE_S) -> bool:
    """Return whether the daemon of FUSE mount `mount` is dead. A hanging daemon is not: see `probe_statvfs`.

    The kernel itself answers root's request on a user's mount: ask then whether the daemon's processes live.
    """
    return probe_statvfs(mount.mountpoint, limit_s) == errno.ENOTCONN


def set_read_ahead(mount: Mount) -> bool:
    """Set how far ahead of a reader the kernel reads a file of the mount; INIT cannot set more than 128 KiB.

    Return False where that is not allowed: it takes root, and a sysfs that may be written."""
    return _write(f"/sys/class/bdi/{mount.major}:{mount.minor}/read_ahead_kb", READ_AHEAD_KIB)


def set_background(mount: Mount) -> None:
    """Set how many READs ahead of readers may wait for answers before others wait in the kernel, where that is allowed.
    For a mount whose INIT pyfuse3 has answered, which leaves it at 12."""
    if _write(f"{CONNECTIONS}/{mount.minor}/max_background", BACKGROUND):
        _write(f"{CONNECTIONS}/{mount.minor}/congestion_threshold", CONGESTION)


def _write(path: str, number: int) -> bool:
    """Write a number to a file of the kernel; return whether the kernel has taken it."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        file.write(b"%d" % number)
        return True
    return False


def abort_connection(minor: int) -> bool:
    """Abort the FUSE connection of the mount with device minor `minor`; return whether the kernel was told.

    All its requests, sent and to come, then fail with ENOTCONN, and those that waited for one wake up.
    """
    if _write(f"{CONNECTIONS}/{minor}/abort", 1):
        return True
    if os.geteuid() != 0 or os.path.ismount(CONNECTIONS):
        return False
    script = ["unshare", "-m", "sh", "-c", _ABORT_PRIVATELY, "sh", CONNECTIONS, str(minor)]
    try:
        done = run_bounded(script, _ABORT_S)
    except OSError:
        return False
    return done is not None and done.code == 0


class HeldConnection:
    """The FUSE connection of a mount, held to be aborted later, when its number may be that of another mount."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._fd = -1
        with suppress(OSError):  # fusectl is not mounted, or the mount is another user's
            self._fd = os.open(f"{CONNECTIONS}/{mount.minor}/abort", os.O_WRONLY | os.O_CLOEXEC)
        if not is_in_place(mount):
            self.close()

    def abort(self, *, in_use: bool) -> bool:
        """Abort the connection as `abort_connection` does, unless it has ended.

        `in_use`: the mount was detached lazily while readers use it, who now wait. It is in mountinfo no more, but its
        number is its own as long as they wait."""
        if self._fd < 0:
            return (in_use or is_in_place(self._mount)) and abort_connection(self._mount.minor)
        try:
            os.write(self._fd, b"1")
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holders(mount: Mount, ignore: Iterable[int] = (), limit_s: float = HOLDERS_S) -> tuple[Holder, ...]:
    """Return the processes that keep `mount` busy, without the pids in `ignore`.

    Reads links and tables in /proc only; only root sees the processes of other users. Returns those found so far after
    `limit_s` seconds: the kernel lets nobody look at a process for as long as it changes its memory map.
    """
    found: list[Holder] = []
    thread = threading.Thread(target=_find_holders, args=(mount, set(ignore), found), daemon=True)
    thread.start()
    thread.join(limit_s)
    return tuple(found)


def _find_holders(mount: Mount, skip: set[int], found: list[Holder]) -> None:
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        what = next(_uses(pid, mount), None) if pid not in skip else None
        if what is not None:
            found.append(Holder(pid, command_name(pid) or "?", what))


def _uses(pid: int, mount: Mount) -> Iterator[str]:
    """Yield how `pid` uses the mount: not at all when it ends meanwhile, or may not be seen."""
    base = f"/proc/{pid}"
    for name in ("cwd", "root", "exe"):
        with suppress(OSError):
            if lies_in(os.readlink(f"{base}/{name}"), mount.mountpoint):
                yield name
    with suppress(OSError):
        for fd in os.listdir(f"{base}/fd"):
            with suppress(OSError):  # mount ids are exact in any namespace
                if mount_of(fd, pid) == mount.mount_id:
                    yield f"open {os.readlink(f'{base}/fd/{fd}')}"
    with suppress(OSError), open(f"{base}/maps", "rb") as maps:
        device = f"{mount.major:02x}:{mount.minor:02x}".encode()
        for line in maps:
            fields = line.rstrip(b"\n").split(maxsplit=5)
            if len(fields) == 6 and fields[3] == device:
                yield f"mmap {os.fsdecode(fields[5])}"
