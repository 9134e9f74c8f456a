"""Mounts whose daemon is dead: found without hanging, and cleared. Shared by nopfs-mount and nopfs-umount."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress

from nopfsfs.control.client import Connection, NoAnswer
from nopfsfs.control.process_list import Process, living, read_pids
from nopfsfs.fuse.mount_table import Mount, is_in_place, is_stale
from nopfsfs.fuse.mounting import NotMounted, unmount
from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.proc import is_stopped
from nopfsfs.system.state_dirs import StateDir, find_state_dir

_CONNECT_S = 1.0  # a listening socket accepts at once, even if no process takes the connection


def state_dir_of(mount: Mount, env: Mapping[str, str]) -> str:
    """Return the state directory of `mount`, which need not exist."""
    return find_state_dir(mount.mountpoint, mount.minor, mount.owner, env)


def held_state_dir(mount: Mount, env: Mapping[str, str]) -> StateDir:
    """Return the state directory of `mount`, held; closed where the mount is gone."""
    state = StateDir(state_dir_of(mount, env), mount.owner)
    if not is_in_place(mount):  # its device number may be another mount's by now, and the directory, too
        state.close()
    return state


def daemon_is_dead(mount: Mount, env: Mapping[str, str]) -> bool:
    """Return whether no process serves `mount` any more. A daemon that hangs is not dead."""
    state_dir = state_dir_of(mount, env)
    processes = read_pids(state_dir, owner=mount.owner)
    if living(processes):
        return False
    if is_stale(mount):
        return True
    # The kernel itself answers root where a mount is another user's alone: then the processes decide.
    return bool(processes) and not life_lock.is_held(state_dir, mount.owner) and not _listens(state_dir, mount.owner)


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
    with closing(held_state_dir(mount, env)) as state:
        with suppress(NotMounted):  # another process was faster
            unmount(mount, lazy=True)
        state.remove()


def sweep_run_dir(run_dir: str) -> None:
    """Remove the state directories of mounts that were killed, whatever their mountpoints. Never raises.

    A directory without a list of processes belongs to a mount that is starting. Processes of which this one cannot see
    the ids live as long as their lock is held. A run directory of another user is left alone, and so is what another
    user has put into this user's.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), closing_fd(os.open(run_dir, flags)) as run:
        if os.fstat(run).st_uid == os.geteuid():
            for name in os.listdir(run):
                _sweep(run, name)


def _sweep(run: int, name: str) -> None:
    """Remove one state directory of a killed mount. `run`: descriptor of the run directory, which is this user's."""
    with suppress(OSError), closing(StateDir(f"/proc/self/fd/{run}/{name}")) as state:
        processes = read_pids(state.here, owner=os.geteuid())
        dead = bool(processes) and not living(processes) and not life_lock.is_held(state.here)
        if dead and os.stat(state.here).st_uid == os.geteuid():
            state.remove()
