"""Directories for the state of a mount, and for indexes: their names, and how to make them safe to use.

Root uses /run/nopfs; a user $XDG_RUNTIME_DIR/nopfs or, where that is missing (it often is on compute nodes),
/tmp/nopfs-UID. Outside a login session XDG_RUNTIME_DIR is not set. Then nothing is made in /run/user/UID: that goes
when the user's last session on the node ends, and the mount goes on. Each mount has a directory of its own in the run
directory, named after its mountpoint and its device number. Its supervisor removes it at the end; `nopfs-umount` does
where no process lives, and the next `nopfs-mount` where the mount is gone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.as_user import as_user, bytes_as_user, fd_as_user
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.trusted_path import MAX_LINKS

_FIND_S = 3.0  # for a look at directories of another user
_REMOVE_S = 5.0  # for the files of one mount to be removed
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100  # to make a directory where others are being removed


def user_run_dirs(uid: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the places where the mounts of user `uid` may keep state, best first. `env` is that of the
    caller.
    """
    if uid == 0:
        return ("/run/nopfs",)
    always, named = f"/tmp/nopfs-{uid}", f"{env.get('XDG_RUNTIME_DIR', '')}/nopfs"
    places = dict.fromkeys((named, always, f"/run/user/{uid}/nopfs"))  # the last: of a mount that a session has made
    return tuple(p for p in places if p == always or (p.startswith("/") and _owned(os.path.dirname(p), uid)))


def default_run_dir(uid: int, env: Mapping[str, str]) -> str:
    """Return the run directory of user `uid`; it need not exist yet."""
    return user_run_dirs(uid, env)[0]


def default_index_dir(uid: int, env: Mapping[str, str]) -> str:
    """Return where indexes are kept: /var/cache/nopfsfs, $XDG_CACHE_HOME/nopfsfs, ~/.cache/nopfsfs, or the
    run directory.
    """
    if uid == 0:
        return "/var/cache/nopfsfs"
    for base in (env.get("XDG_CACHE_HOME", ""), os.path.join(env.get("HOME", ""), ".cache")):
        if base.startswith("/"):
            return os.path.join(base, "nopfsfs")
    return os.path.join(default_run_dir(uid, env), "index")


def calibration_path(index_dir: str, source: str) -> str:
    """Return where `nopfs calibrate` writes what it measured of `source`, and a mount finds it."""
    key = hashlib.blake2b(os.fsencode(os.path.realpath(source)), digest_size=8).hexdigest()
    return os.path.join(index_dir, f"calibration-{key}.toml")


def trusted_users(reader: int | None = None) -> frozenset[int]:
    """Return the users whose calibrations are trusted: this user, root, and `reader`, as whom the source is read."""
    return frozenset({0, os.geteuid(), os.geteuid() if reader is None else reader})


def claim_dir_for(mountpoint: str, run_dir: str) -> str:
    """Return the directory that a command claims while it starts a mount at `mountpoint`, a real path (see
    `real_mountpoint`)."""
    return os.path.join(run_dir, hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).hexdigest())


def state_dir_for(mountpoint: str, minor: int, run_dir: str) -> str:
    """Return the state directory of the mount at `mountpoint`, a real path, with device number `minor`. Several mounts
    may have one path: those unmounted lazily that are still in use, and those of other mount namespaces."""
    return f"{claim_dir_for(mountpoint, run_dir)}-{minor}"


def find_state_dir(mountpoint: str, minor: int, owner: int, env: Mapping[str, str]) -> str:
    """Return the state directory of a mount made by user `owner`: the one that exists, else where it would be.

    A directory of another user is passed over: its socket cannot be trusted. The time is bounded, whatever another user
    has put there.
    """

    def find() -> bytes:
        dirs = [state_dir_for(mountpoint, minor, run_dir) for run_dir in user_run_dirs(owner, env)]
        return os.fsencode(next((d for d in dirs if _owned(d, owner)), dirs[0]))

    try:
        return os.fsdecode(bytes_as_user(owner, find, _FIND_S))
    except OSError:
        return state_dir_for(mountpoint, minor, f"/tmp/nopfs-{owner}")  # the caller finds nothing there


def _owned(path: str, uid: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid


def make_private_dir(path: str, uid: int, *, parents: bool = True) -> None:
    """Make directory `path`, mode 0700. An existing one is used only if it is a directory of `uid`, and is closed to
    others.

    Raises NopfsError: in /tmp, another user can have been there first. Without `parents` also FileNotFoundError, where
    the directory above is missing.
    """
    try:
        if parents:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        if not parents and isinstance(error, FileNotFoundError):
            raise
        message = f"cannot make {path}, for the mount's state: {error.strerror}"
        raise NopfsError(Exit.START, message) from error
    foreign = NopfsError(
        Exit.START, f"{path} is someone else's; have it removed, or set XDG_RUNTIME_DIR to one of yours"
    )
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise foreign from error
    with closing_fd(fd):  # by descriptor: another user may replace what is at the path at any moment
        found = os.fstat(fd)
        if found.st_uid != uid:
            raise foreign
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(fd, 0o700)


def make_state_dir(state_dir: str, uid: int, fill: Callable[[str], None]) -> None:
    """Make a mount's directory, in place of one that an earlier mount with the same device number has left.

    `fill` puts a file into the directory, whose path it is given. So the directory is never empty, and the earlier
    mount, which may be ending just now, cannot remove it (`StateDir.remove`). Raises NopfsError.
    """
    made = _new_dir(state_dir, uid)
    before = f"{made}.before"
    try:
        fill(made)
        with suppress(FileNotFoundError):
            os.rename(state_dir, before)
        os.rename(made, state_dir)
    except OSError as error:
        message = f"cannot make {state_dir}, for the mount's state: {error.strerror}"
        raise NopfsError(Exit.START, message) from error
    finally:
        for left in (made, before):
            shutil.rmtree(left, ignore_errors=True)


def _new_dir(beside: str, uid: int) -> str:
    """Make the run directory, and a directory beside `beside` with a name of its own. Raises NopfsError."""
    run_dir, name = os.path.split(beside)
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # the mount that ends last removes the run directory, perhaps just now
            make_private_dir(run_dir, uid)
            return tempfile.mkdtemp(prefix=f"{name}.", dir=run_dir)
    raise NopfsError(Exit.START, f"cannot make {run_dir}, for the mount's state: it is removed again and again")


@contextmanager
def claimed_mountpoint(mountpoint: str, run_dir: str, uid: int) -> Iterator[None]:
    """Claim `mountpoint` inside the `with` block, so that of two commands that start on it one is refused. Raises
    NopfsError."""
    claim = claim_dir_for(mountpoint, run_dir)
    with claimed_dir(claim, uid):
        _clear_unfinished(claim)
        try:
            yield
        finally:
            _remove_empty(claim)


@contextmanager
def claimed_dir(path: str, uid: int) -> Iterator[None]:
    """Make directory `path`, where it is missing, and claim it inside the `with` block. Raises NopfsError."""
    with closing_fd(_claim(path, uid)):
        yield


def _claim(path: str, uid: int) -> int:
    """Return the descriptor of a directory that this process holds. Raises NopfsError.

    Whoever claimed it before, and the mount that ends last, may remove it just now: then it is made again."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError), ExitStack() as failed:
            make_private_dir(os.path.dirname(path), uid)
            make_private_dir(path, uid, parents=False)
            fd = os.open(path, _DIRECTORY)
            failed.callback(os.close, fd)
            try:
                flock(fd, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise NopfsError(
                    Exit.BUSY_MOUNTPOINT, "another nopfs-mount is starting on this mountpoint; wait for it"
                ) from None
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                failed.pop_all()
                return fd
    raise NopfsError(Exit.START, f"cannot make {path}, for the mount's state: it is removed again and again")


def _clear_unfinished(claim: str) -> None:
    """Remove what `make_state_dir` has left in the run directory, which is this user's, where its process was killed.
    No other process makes such a directory for this mountpoint while this one holds the claim."""
    run_dir, name = os.path.split(claim)
    for other in os.listdir(run_dir):
        if other.startswith(f"{name}-") and "." in other:
            shutil.rmtree(os.path.join(run_dir, other), ignore_errors=True)


def _remove_empty(path: str) -> None:
    """Remove directory `path` if it is empty, and then the run directory, with the last one."""
    with suppress(OSError):
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))


class StateDir:
    """The state directory of one mount, held by descriptor: a later mount may have its own at the same path. One that
    cannot be opened counts as removed.

    `owner`: the user whose mount that is. Root acts as that user, who may have put anything in the path."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        self._path, self._owner = path, os.geteuid() if owner is None else owner
        self._fd = -1
        with suppress(OSError):
            self._fd = fd_as_user(self._owner, lambda: os.open(path, _DIRECTORY), _FIND_S)

    @property
    def here(self) -> str:
        """A path that leads this process to the directory itself."""
        return f"/proc/self/fd/{self._fd}/."

    def is_in_place(self) -> bool:
        """Return whether the directory is still there, and its path leads to it."""

        def look() -> bytes:
            return b"1" if os.path.samestat(os.stat(self._path), os.fstat(self._fd)) else b""

        try:
            return bytes_as_user(self._owner, look, _FIND_S) == b"1"
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the directory with what is in it, and the run directory with the last one. Never raises."""
        if self._fd >= 0:
            as_user(self._owner, self._remove, _REMOVE_S)

    def _remove(self) -> None:
        for name in os.listdir(self._fd):
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)
        _remove_empty(self._path)  # that of a later mount is never empty

    def close(self) -> None:
        """Hold it no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def real_mountpoint(path: str, is_mountpoint: Callable[[str], bool]) -> str:
    """Return `path` absolute and free of links, never touching a directory for which `is_mountpoint` is true.

    `os.path.realpath` would ask the mount for its root's attributes, and hang if its daemon does.
    """
    todo = [part for part in reversed(os.path.join(os.getcwd(), path).split("/")) if part]
    done = "/"
    links = 0
    while todo:
        part = todo.pop()
        if part in (".", ".."):
            done = os.path.dirname(done) if part == ".." else done
            continue
        step = os.path.join(done, part)
        target = None if is_mountpoint(step) else _link(step)
        links += target is not None
        if target is None or links > MAX_LINKS:
            done = step
            continue
        todo += [part for part in reversed(target.split("/")) if part]
        done = "/" if target.startswith("/") else done
    return done


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
