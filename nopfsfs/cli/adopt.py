"""`nopfs adopt` and `nopfs upgrade`: start another supervisor for a mount, whose servers answer meanwhile."""

from __future__ import annotations

import argparse
import os

from nopfsfs.cli.error_exit import NOPFS, Commands, add_command, say
from nopfsfs.control.find_mount import Located, locate, locate_living
from nopfsfs.control.stale_mounts import is_orphaned, stopped_supervisor
from nopfsfs.errors import Exit, NopfsError


def add_adopt(commands: Commands) -> None:
    """Add `nopfs adopt`."""
    add_command(
        commands, "adopt", adopt, "take over a mount whose supervisor died",
        "Take over a mount whose supervisor died and whose servers serve on. What the mount holds is kept; "
        "the plan is found anew.",
    )  # fmt: skip


def add_upgrade(commands: Commands) -> None:
    """Add `nopfs upgrade`."""
    add_command(
        commands, "upgrade", upgrade, "let this version serve a mount",
        "Replace all processes of a mount by those of this version of nopfsfs. Open files stay open, reads wait for a "
        "moment. The plan is found anew.",
    )  # fmt: skip


def adopt(options: argparse.Namespace) -> int:
    """Take over one mount; return the exit code. Raises NopfsError."""
    located = locate(options.mountpoint, os.environ)
    _check_owner(located, "adopt")
    supervisor = stopped_supervisor(located.state_dir, located.owner)
    if supervisor is not None:
        raise NopfsError(
            Exit.BUSY_MOUNTPOINT,
            f"the supervisor of {located.path} is not dead but stopped; let it go on: kill -CONT {supervisor.pid}; "
            f"or end it and adopt again: kill -KILL {supervisor.pid}",
        )
    if not is_orphaned(located.state_dir, located.owner):
        raise NopfsError(Exit.BUSY_MOUNTPOINT, f"{located.path} has no living servers without a supervisor")
    from nopfsfs.control import takeover  # with numpy and trio: `nopfs status` needs neither

    takeover.adopt(located.state_dir)
    say(NOPFS, f"took over {located.path}")
    return Exit.OK


def upgrade(options: argparse.Namespace) -> int:
    """Replace the processes of one mount; return the exit code. Raises NopfsError."""
    located = locate_living(options.mountpoint, os.environ)
    _check_owner(located, "upgrade")
    from nopfsfs.control import takeover

    takeover.upgrade(located.state_dir)
    say(NOPFS, f"{located.path} is served by this version now")
    return Exit.OK


def _check_owner(located: Located, command: str) -> None:
    """Raise NopfsError with Exit.NO_RIGHT for the mount of another user, also for root. A supervisor has the rights of
    the user who starts it, and keeps its state in a directory of that user."""
    if located.owner == os.geteuid():
        return
    name = located.owner_name
    raise NopfsError(
        Exit.NO_RIGHT,
        f"{located.path} was mounted by {name}, and stays with that user; run nopfs {command} {located.path} as {name}",
    )
