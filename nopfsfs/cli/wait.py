"""`nopfs wait`: returns when a mount answers. The mount may appear later, as after `mpirun ... nopfs-mount ... &`."""

from __future__ import annotations

import argparse
import os
import time

from nopfsfs.cli.error_exit import Commands, add_command
from nopfsfs.cli.settings import parsed
from nopfsfs.control.client import NoAnswer
from nopfsfs.control.find_mount import locate
from nopfsfs.control.stale_mounts import is_orphaned
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.bounded_run import probe_statvfs
from nopfsfs.text.units import parse_duration

DEFAULT = "60s"
LOOK_S = 0.1  # between two checks of the mount
CALL_S = 2.0  # for one answer: after this time the request is sent again


def add_wait(commands: Commands) -> None:
    """Add `nopfs wait`."""
    description = "Return when the mount at MOUNTPOINT answers, which need not be mounted yet."
    parser = add_command(commands, "wait", wait, "wait until a mount answers", description)
    parser.add_argument(
        "--timeout", metavar="S", default=DEFAULT, help=f"how long to wait at most (default: {DEFAULT})"
    )


def wait(options: argparse.Namespace) -> int:
    """Wait for one mount; return the exit code. Raises NopfsError with Exit.NOT_MOUNTED or Exit.STUCK when the mount
    does not answer in time."""
    limit_s = parsed(parse_duration, options.timeout, "--timeout")
    deadline = time.monotonic() + limit_s
    while True:
        try:
            await_answer(options.mountpoint, max(CALL_S / 4, min(CALL_S, deadline - time.monotonic())))
            return Exit.OK
        except NopfsError as error:
            if time.monotonic() >= deadline:
                raise NopfsError(error.exit_code, f"waited for {limit_s:.3g} s: {error.message}") from error
        time.sleep(max(0.0, min(LOOK_S, deadline - time.monotonic())))


def await_answer(mountpoint: str, limit_s: float) -> None:
    """Return if the mount answers now. Raises NopfsError."""
    located = locate(mountpoint, os.environ)
    if located.owner == os.geteuid() or os.geteuid() == 0:
        try:
            state = located.call("status", limit_s).get("state")
        except NoAnswer as error:
            # statvfs would prove nothing. Without a supervisor yet, the servers answer before all else is ready. Root
            # gets an answer of the kernel in the place of a user's daemon.
            if not is_orphaned(located.state_dir, located.owner) or located.owner != os.geteuid():
                raise NopfsError(Exit.STUCK, f"the mount at {located.path} does not answer: {error.message}") from error
        else:
            if state != "running":
                raise NopfsError(Exit.STUCK, f"the mount at {located.path} is {state}")
            return
    # A mount of another user, or one whose servers have no supervisor: check it by statvfs, as readers see it.
    if probe_statvfs(located.path, limit_s) != 0:
        raise NopfsError(Exit.STUCK, f"the mount at {located.path} does not answer; see nopfs status")
