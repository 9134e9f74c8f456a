"""`nopfs top`: shows what mounts do, on a screen that follows them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from nopfsfs.cli.mount_options import Commands
from nopfsfs.cli.settings import usage
from nopfsfs.control.find_mount import locate
from nopfsfs.errors import Exit


def add_top(commands: Commands) -> None:
    """Add `nopfs top`."""
    parser = commands.add_parser(
        "top",
        help="follow mounts on a screen",
        description="Follow mounts on a screen: a table, and curves of the one that is selected. Keys: q, s, n, p, ?.",
    )
    parser.add_argument("mountpoints", metavar="MOUNTPOINT", nargs="*", help="mounts (default: all of this user)")
    parser.set_defaults(handler=top)


def top(options: argparse.Namespace) -> int:
    """Show the mounts until a key ends it; return the exit code. Raises NopfsError."""
    if importlib.util.find_spec("textual") is None:
        other = f"nopfs stats {' '.join(options.mountpoints[:1]) or 'MOUNTPOINT'}"
        raise usage(f"nopfs top needs textual; install it: pip install 'nopfsfs[top]'; or use {other}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage("nopfs top needs a terminal; nopfs stats prints lines")
    find = _those(options.mountpoints) if options.mountpoints else _all
    from nopfsfs.monitor.top_screen import TopScreen  # with textual, which takes half a second

    TopScreen(find).run()
    return Exit.OK


def _those(paths: Sequence[str]) -> Callable[[], Sequence[str]]:
    """The mounts that are named, each once, as long as the screen is there. Raises NopfsError where one is none."""
    found = list(dict.fromkeys(locate(path, os.environ).path for path in paths))
    return lambda: found


def _all() -> Sequence[str]:
    from nopfsfs.monitor.scrape import own_mounts

    return sorted(mount.mountpoint for mount in own_mounts())
