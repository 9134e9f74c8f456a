"""Mounts whose daemon is dead: found without hanging, and cleared. Shared by nopfs-mount and nopfs-umount."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock

from nopfsfs.control.client import Connection, NoAnswer
from nopfsfs.control.process_list import Process, living, read_pids
from nopfsfs.fuse.mount_table import Mount, is_stale
from nopfsfs.fuse.mounting import NotMounted, unmount
from nopfsfs.system.state_dirs import find_state_dir, remove_state_dir
from nopfsfs.system.threads import is_stopped

_CONNECT_S = 1.0  # a listening socket accepts at once, even if no process takes the connection


def daemon_is_dead(mount: Mount, env: Mapping[str, str]) -> bool:
    """Return whether no process serves `mount` any more. A daemon that hangs is not dead."""
    state_dir = find_state_dir(mount.mountpoint, mount.owner, env)
    processes = read_pids(state_dir, owner=mount.owner)
    if living(processes):
        return False
    if is_stale(mount):
        return True
    # The kernel itself answers root where a mount is another user's alone: then the processes decide.
    return bool(processes) and not _listens(state_dir, mount.owner)


def _listens(state_dir: str, owner: int) -> bool:
    try:
        with Connection(state_dir, _CONNECT_S, owner):
            return True
    except NoAnswer:
        return False


def is_orphaned(state_dir: str, owner: int | None = None) -> bool:
    """True when a mount, of user `owner`, is served by processes whose supervisor is dead."""
    processes = read_pids(state_dir, owner=owner)
    living = {process.role.partition("-")[0] for process in processes if process.alive()}
    return "server" in living and "supervisor" not in living


def stopped_supervisor(state_dir: str, owner: int) -> Process | None:
    """Return the supervisor of a mount of user `owner` if a signal has stopped it: it answers nothing until it goes
    on."""
    found = (p for p in read_pids(state_dir, owner=owner) if p.role == "supervisor" and p.alive() and is_stopped(p.pid))
    return next(found, None)


def clear_stale(mount: Mount, env: Mapping[str, str]) -> None:
    """Unmount, lazily, a mount whose daemon is dead: its users can read nothing. Remove its state directory."""
    with suppress(NotMounted):  # another process was faster
        unmount(mount, lazy=True)
    remove_state_dir(find_state_dir(mount.mountpoint, mount.owner, env), mount.owner)


def sweep_run_dir(run_dir: str) -> None:
    """Remove the state directories of mounts that were killed, whatever their mountpoints. Never raises.

    A directory without a list of processes is being made; a locked one belongs to a mount that is starting. A run
    directory of another user is left alone, and so is what another user has put into this user's.
    """
    with suppress(OSError):
        run = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(run).st_uid == os.geteuid():
                for name in os.listdir(run):
                    _sweep(run, name)
        finally:
            os.close(run)


def _sweep(run: int, name: str) -> None:
    """Remove one state directory of a killed mount. `run`: descriptor of the run directory, which is this user's."""
    path = f"/proc/self/fd/{run}/{name}"
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            processes = read_pids(f"/proc/self/fd/{fd}", owner=os.geteuid())
            if os.fstat(fd).st_uid != os.geteuid() or not processes or living(processes):
                return
            flock(fd, LOCK_EX | LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
