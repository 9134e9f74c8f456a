"""`nopfs recheck`: makes a mount check at once all rights at the source, and returns when the check is done."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from nopfsfs.cli.error_exit import Commands, add_command
from nopfsfs.cli.settings import parsed
from nopfsfs.control.client import call
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.units import format_duration, parse_duration

DEFAULT = "30m"  # a million files take less than half of that
FIRST_PAUSE_S, PAUSE_S = 0.02, 1.0  # between two requests: the first, and the longest
SILENT_S = 2.0  # a check that takes longer shows its progress

Progress = Callable[[Mapping[str, Any]], None]


def add_recheck(commands: Commands) -> None:
    """Add `nopfs recheck`."""
    parser = add_command(
        commands, "recheck", recheck, "look now at who may read what",
        "Look at once at the rights of all files and directories at the source, and return when what was withdrawn "
        "there no longer holds in the mount.",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="S", default=DEFAULT, help=f"how long to wait at most (default: {DEFAULT})"
    )


def recheck(options: argparse.Namespace) -> int:
    """Make one mount check all rights; return the exit code. Raises NopfsError."""
    limit_s = parsed(parse_duration, options.timeout, "--timeout")
    located = locate_living(options.mountpoint, os.environ)
    shown = _shown if sys.stderr.isatty() else lambda found: None
    found = look_now(located.state_dir, limit_s, shown, located.owner)
    files, directories = f"{found['files']:,} files", f"{found['directories']:,} directories"
    failed = f"; {found['failed']:,} could not be looked at" if found["failed"] else ""
    print(f"looked at {files} and {directories}: {found['found']:,} changes{failed}", flush=True)
    return Exit.OK


def look_now(
    state_dir: str, limit_s: float, progress: Progress = lambda found: None, owner: int | None = None
) -> dict[str, Any]:
    """Make the mount of `state_dir`, of user `owner`, check all rights. Return its answer when the check is done, with
    `looked`, `found` and `failed` counted from the call. Raises NopfsError: Exit.STUCK after `limit_s` seconds."""
    began = time.monotonic()
    first = found = call(state_dir, "recheck", owner=owner)
    pause = FIRST_PAUSE_S
    while not found["done"]:
        if time.monotonic() - began > limit_s:
            raise NopfsError(Exit.STUCK, f"not done after {format_duration(limit_s)}, and goes on; see nopfs status")
        if time.monotonic() - began > SILENT_S:
            progress(found)
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_S)
        found = call(state_dir, "recheck", owner=owner, number=first["number"])
    return {**found, **{key: found[key] - first[key] for key in ("looked", "found", "failed")}}


def _shown(found: Mapping[str, Any]) -> None:
    print(f"\r{found['position']:,} of {found['files']:,} files", end="\r", file=sys.stderr, flush=True)
