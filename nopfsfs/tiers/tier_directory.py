"""The directory of one mount on a disk: made, marked, and removed, by descriptors alone.

Layout: PATH/.nopfs-tier-HOST-BOOT-MAKER-RANDOM/{marker,copies/ab/ROW}, where MAKER is PID.START.PIDNAMESPACE; earlier
releases wrote PID alone. The directory and its marker belong to whoever makes them, usually root; `copies` belongs to
the user who reads the source. So that user, who may own PATH, can put nothing in the place of `copies` before it is
handed over, and can forge no marker.

A directory is removed only when its name, its owner and its marker all say that a mount made it. All three must also
say that the process of that mount has ended. A process may end before it has written its marker. Then the name tells
all that the marker would, and the directory is removed if nothing is in it. A process of another boot of
this host has ended. On this boot, pid and start time show it, within one PID namespace. Of a process of another PID
namespace only a lock shows it, where the file system has locks; without one the directory stays. A lock that is held
is a sign of life anywhere. Directories of other hosts stay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.directory_access import open_directory, open_regular, unlink_files
from nopfsfs.system.proc import boot_id, has_ended, pid_namespace, start_time

log = logging.getLogger(__name__)
_MARKER, _COPIES = "marker", "copies"
_MARKER_MOST = 4096  # bytes
_TOOL = "nopfsfs disk tier 1"
_MAKER = r"([0-9]{1,10})(?:\.([0-9]{1,20})\.([0-9]{1,20}))?"
_NAME = re.compile(rf"\.nopfs-tier-([A-Za-z0-9._-]{{1,64}})-([0-9a-f]{{32}})-{_MAKER}-[0-9a-f]{{16}}")
_OLD_NAME = re.compile(r"nopfs-[a-z0-9_]{8}")  # as earlier releases made them, with a file `lock` in it
_SUBDIRECTORY, _ROW = re.compile("[0-9a-f]{2}"), re.compile("[0-9]{1,13}")
_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of the marker file: who made the directory. `start_time` in clock ticks since boot; `locked`: the maker
    holds a lock on the marker as long as it lives."""

    tool: str
    host: str
    boot: str
    pid: int
    start_time: int
    pid_namespace: int
    locked: bool

    def name(self) -> str:
        """A new name for the maker's directory."""
        maker = f"{self.pid}.{self.start_time}.{self.pid_namespace}"
        return f".nopfs-tier-{self.host}-{self.boot}-{maker}-{secrets.token_hex(8)}"


class TierDirectory:
    """A directory that this process made. Its descriptors are closed when the last thread that uses it lets it go."""

    def __init__(self, path: str, uid: int = -1, gid: int = -1) -> None:
        """Make a directory in `path`; `copies` for user `uid`, as in chown(2). Raises OSError, and leaves nothing."""
        self._fds = contextlib.ExitStack()
        marker = _own_marker()
        self.name = marker.name()
        with contextlib.ExitStack() as undo:
            self._parent = self._keep(os.open(path, _PATH_FLAGS))
            os.mkdir(self.name, 0o700, dir_fd=self._parent)
            undo.callback(_try_to(os.rmdir), self.name, dir_fd=self._parent)
            self._own = self._keep(open_directory(self.name, self._parent))
            self._mark(marker, undo)
            os.mkdir(_COPIES, 0o700, dir_fd=self._own)
            undo.callback(_try_to(os.rmdir), _COPIES, dir_fd=self._own)
            self.copies = self._keep(open_directory(_COPIES, self._own))
            if (uid, gid) != (-1, -1):
                os.fchown(self.copies, uid, gid)
            undo.pop_all()

    def _mark(self, content: Marker, undo: contextlib.ExitStack) -> None:
        """Write the marker, if the directory is the one that was made: another user may be able to rename it."""
        if os.listdir(self._own):
            raise _replaced()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        marker = self._keep(os.open(_MARKER, flags, 0o600, dir_fd=self._own))
        undo.callback(_try_to(os.unlink), _MARKER, dir_fd=self._own)
        made = os.fstat(self._own)
        # The new file shows who we are on this file system: not root, on one that squashes root.
        if made.st_uid != os.fstat(marker).st_uid or not _others_may_not_write(self._own):
            raise _replaced()
        _write_marker(content, marker)

    def _keep(self, fd: int) -> int:
        self._fds.callback(os.close, fd)
        return fd

    def __del__(self) -> None:
        self._fds.close()

    def vanished(self) -> bool:
        """Return whether somebody removed the directory."""
        try:
            return os.fstat(self.copies).st_nlink == 0
        except OSError as e:
            return e.errno == errno.ESTALE  # on a network file system

    def remove(self) -> None:
        """Remove the directory with all copies. What is not ours stays. A process that gave up the rights of the maker
        removes the copies alone."""
        with contextlib.suppress(OSError):
            _remove_subdirectories(self.copies)
            _remove(self.name, self._parent, self._own)


def clear_leftovers(path: str, uid: int | None = None) -> int:
    """Remove the directories that ended mounts left in directory `path`, of this user or of user `uid`. Return how many
    are gone. Raises OSError."""
    owners = {os.geteuid(), os.geteuid() if uid is None else uid}
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as parent:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
        return sum([_clear(name, parent, owners) for name in names])


def old_directories(path: str) -> list[str]:
    """Return the directories that an earlier release left in `path`. Nothing in them proves whose they are, or that
    they are not in use. Raises OSError."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as parent:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if _OLD_NAME.fullmatch(entry.name)]
        return [os.path.join(path, name) for name in names if _holds_lock(name, parent)]


def _holds_lock(name: str, parent: int) -> bool:
    with contextlib.suppress(OSError), closing_fd(open_directory(name, parent)) as home:
        os.close(open_regular("lock", home))
        return True
    return False


def this_host() -> str:
    """Return a name for this machine that holds over boots, of letters, digits, dots and dashes."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", os.uname().nodename)[:64]  # as long as the kernel lets it be
    if host.partition(".")[0] in ("", "localhost", "_none_"):  # many machines are called so
        with contextlib.suppress(OSError), open("/etc/machine-id") as file:
            host = f"{host[:40]}.{re.sub('[^0-9a-f]', '', file.read(64))[:16]}"
    return host or "unnamed"


# ---- removal ------------------------------------------------------------------------------------------------


def _clear(name: str, parent: int, owners: Collection[int]) -> bool:
    """Remove a directory if name, owner and marker allow that; True when it is gone."""
    try:
        own = open_directory(name, parent)
    except OSError:
        return False
    try:
        return os.fstat(own).st_uid in owners and _is_dead(name, own) and _remove(name, parent, own)
    except OSError as e:
        log.info("%s, left by a mount, cannot be removed: %s", name, e)
        return False
    finally:
        os.close(own)


def _is_dead(name: str, own: int) -> bool:
    """True when the marker proves that a mount made the directory, and has ended. The name is enough where the process
    ended before it had written the marker, and nothing else is there. Raises OSError."""
    try:
        fd = open_regular(_MARKER, own)
    except FileNotFoundError:
        unmarked = _unmarked(name, own)
        return unmarked is not None and _has_ended(unmarked, None)
    except OSError:
        return False  # not ours
    with closing_fd(fd):
        if os.fstat(fd).st_uid != os.fstat(own).st_uid:
            return False
        marker = _read_marker(fd, name) if os.fstat(fd).st_size else _unmarked(name, own)
        return marker is not None and _has_ended(marker, fd)


def _has_ended(marker: Marker, fd: int | None) -> bool:
    free = None if fd is None else _lock_is_free(fd)
    if free is False:
        return False
    if marker.boot != boot_id():
        return marker.host == this_host()
    if marker.pid_namespace == pid_namespace():
        return has_ended(marker.pid, marker.start_time)
    return free is True and marker.locked  # of another container: its pids mean nothing here


def _lock_is_free(fd: int) -> bool | None:
    """True when no process holds the lock; None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove(name: str, parent: int, own: int) -> bool:
    """Remove what a mount may have made in the directory `own`, and then the directory; True when it is gone. Other
    files stay, and then the directory and its marker do. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        _remove_copies(own)
    strange = sorted(set(os.listdir(own)) - {_MARKER})
    if strange:
        log.warning("%s, left by a mount, stays: it holds what no mount made, in %s", name, ", ".join(strange[:3]))
        return False
    if not _is_named(name, parent, own):
        return False  # moved away, by whom it may concern
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_MARKER, dir_fd=own)
    os.rmdir(name, dir_fd=parent)
    return True


def _remove_copies(own: int) -> None:
    """Raises OSError."""
    with closing_fd(open_directory(_COPIES, own)) as copies:
        # Where another user owns the directory, that user may have put somebody else's there.
        if os.fstat(own).st_uid in (os.geteuid(), os.fstat(copies).st_uid):
            _remove_subdirectories(copies)
    _try_to(os.rmdir)(_COPIES, dir_fd=own)


def _remove_subdirectories(copies: int) -> None:
    """Raises OSError when they cannot be listed."""
    owner = os.fstat(copies).st_uid
    with os.scandir(copies) as entries:
        names = [entry.name for entry in entries if _SUBDIRECTORY.fullmatch(entry.name)]
    for name in names:
        _try_to(_remove_subdirectory)(name, copies, owner)


def _remove_subdirectory(name: str, copies: int, owner: int) -> None:
    with closing_fd(open_directory(name, copies)) as fd:
        # Whoever owns a directory may remove all that is in it. Of one that was moved here, nothing is touched.
        if os.fstat(fd).st_uid == owner:
            low = int(name, 16)
            unlink_files(fd, lambda row: _ROW.fullmatch(row) is not None and int(row) & 0xFF == low)
    os.rmdir(name, dir_fd=copies)


def _is_named(name: str, parent: int, own: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(own))
    return False


# ---- markers ------------------------------------------------------------------------------------------------


def _own_marker() -> Marker:
    """Return what this process writes, before it holds a lock. Raises OSError."""
    pid = os.getpid()
    started = start_time(pid)
    if started is None:
        raise OSError(errno.ENOSYS, "/proc does not show when this process started")
    return Marker(_TOOL, this_host(), boot_id(), pid, started, pid_namespace(), locked=False)


def _unmarked(name: str, own: int) -> Marker | None:
    """Return the marker that the maker of a directory meant to write, if the name tells, and nothing else is there.
    Raises OSError."""
    with os.scandir(own) as entries:  # two tell: a user's own directory may hold any number
        found = {entry.name for entry in islice(entries, 2)}
    if not found <= {_MARKER} or not _others_may_not_write(own):
        return None
    named = _NAME.fullmatch(name)
    if named is None or named[4] is None:
        return None
    return Marker(_TOOL, named[1], named[2], int(named[3]), int(named[4]), int(named[5]), locked=False)


def _write_marker(marker: Marker, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        marker = replace(marker, locked=True)
    except OSError:
        pass  # this file system has no locks
    data = json.dumps(asdict(marker)).encode()
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, "the marker cannot be written")
    os.fsync(fd)  # or a power failure would leave copies that nobody may remove


def _read_marker(fd: int, name: str) -> Marker | None:
    """The marker, if it is whole and agrees with the directory's name. Raises OSError."""
    named = _NAME.fullmatch(name)
    data = os.pread(fd, _MARKER_MOST + 1, 0)
    if named is None or len(data) > _MARKER_MOST:
        return None
    try:
        marker = Marker(**json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = (marker.pid, marker.start_time, marker.pid_namespace)
    if marker.tool != _TOOL or not all(type(number) is int for number in numbers) or type(marker.locked) is not bool:
        return None
    told = (marker.host, marker.boot, str(marker.pid), str(marker.start_time), str(marker.pid_namespace))
    if any(part is not None and part != one for part, one in zip(named.groups(), told, strict=True)):
        return None
    return marker if 0 < marker.pid < 1 << 31 else None


def _others_may_not_write(fd: int) -> bool:
    return not stat.S_IMODE(os.fstat(fd).st_mode) & 0o022


def _replaced() -> OSError:
    return OSError(errno.EPERM, "others can replace or write a directory that is made there; name another place")


def _try_to(do: Callable[..., None]) -> Callable[..., None]:
    """Return `do` with every OSError ignored."""

    def attempt(*args: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):
            do(*args, **options)

    return attempt
