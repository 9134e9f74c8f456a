"""Lookup of a mount and its state from the path that a person wrote, without ever touching the mount."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nopfsfs.control.client import CALL_S, Command, Record, call
from nopfsfs.control.stale_mounts import daemon_is_dead, is_orphaned, state_dir_of, stopped_supervisor
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import Mount, find_mount, lies_in, read_mounts, real_path


@dataclass(frozen=True, slots=True)
class Located:
    """A nopfs mount: its real path, its line of mountinfo, and where its daemon keeps its state."""

    path: str
    mount: Mount
    state_dir: str

    @property
    def owner(self) -> int:
        """The user who mounted, as the kernel reports it and no file."""
        return self.mount.owner

    @property
    def owner_name(self) -> str:
        """The owner's name, for people: `alice`, or `#1234` for a user whom this node does not know."""
        try:
            return pwd.getpwuid(self.owner).pw_name
        except KeyError:
            return f"#{self.owner}"

    def call(self, command: Command, limit_s: float = CALL_S, **further: Any) -> Record:
        """Send one request to the daemon, as `control.client.call` does. Raises NoAnswer and Refused."""
        return call(self.state_dir, command, limit_s, owner=self.owner, **further)


def locate(path: str, env: Mapping[str, str]) -> Located:
    """Return the nopfs mount at `path`. Raises NopfsError with Exit.NOT_MOUNTED."""
    mounts = read_mounts()
    real = real_path(path, mounts)
    mount = find_mount(real, mounts)
    if mount is None:
        raise NopfsError(Exit.NOT_MOUNTED, f"nothing is mounted at {real}; mounts are listed by findmnt -t fuse.nopfs")
    if not mount.is_nopfs:
        raise NopfsError(Exit.NOT_MOUNTED, f"what is mounted at {real} is not nopfs but {mount.fstype}; use umount")
    return Located(real, mount, state_dir_of(mount, env))


def locate_living(path: str, env: Mapping[str, str]) -> Located:
    """Return the nopfs mount at `path`, whose daemon lives. Raises NopfsError with Exit.NOT_MOUNTED or Exit.STUCK."""
    located = locate(path, env)
    if daemon_is_dead(located.mount, env):
        raise NopfsError(
            Exit.STUCK, f"the daemon of {located.path} is dead; clear the mount: nopfs-umount {located.path}"
        )
    if is_orphaned(located.state_dir, located.owner):
        raise NopfsError(
            Exit.STUCK,
            f"the supervisor of {located.path} is dead, its servers serve on; take over: nopfs adopt {located.path}",
        )
    supervisor = stopped_supervisor(located.state_dir, located.owner)
    if supervisor is not None:
        raise NopfsError(
            Exit.STUCK,
            f"the supervisor of {located.path} is stopped, reads go on; let it go on: kill -CONT {supervisor.pid}; "
            f"or end the mount: nopfs-umount {located.path}",
        )
    return located


def find_mount_above(path: str) -> tuple[Located, str]:
    """The nopfs mount that a path is in, and the path relative to the mountpoint, "" for the mountpoint itself. Raises
    NopfsError with Exit.NOT_MOUNTED, or Exit.STUCK where the daemon is dead."""
    mounts = read_mounts()
    ours = {mount.mountpoint for mount in mounts if mount.is_nopfs}
    above = real = _real(path, mounts)
    while above not in ours:
        if above == os.path.dirname(above):
            message = f"{path} is in no nopfs mount; mounts are listed by findmnt -t fuse.nopfs"
            raise NopfsError(Exit.NOT_MOUNTED, message)
        above = os.path.dirname(above)
    return locate_living(above, os.environ), os.path.relpath(real, above) if real != above else ""


def _real(path: str, mounts: Iterable[Mount]) -> str:
    """The path with links resolved; as it is where it lies in a FUSE mount, unless that is the root of all: such a
    mount is not accessed."""
    absolute = os.path.abspath(path)
    fuse = (mount.mountpoint for mount in mounts if mount.is_fuse and mount.mountpoint != "/")
    return absolute if any(lies_in(absolute, one) for one in fuse) else real_path(absolute, mounts)
