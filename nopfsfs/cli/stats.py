"""`nopfs stats`: prints a line each second of what a mount does, as dstat does of a machine. `nopfs top`: shows what
mounts do, on a screen that follows them."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence

from nopfsfs.cli.error_exit import Commands, add_command
from nopfsfs.cli.option_values import time_from, whole
from nopfsfs.cli.settings import need_package, parsed, usage
from nopfsfs.control.client import Record, understood
from nopfsfs.control.find_mount import locate, locate_living
from nopfsfs.errors import Exit

INTERVALS = ("100ms", "1h")  # the least and the most: the mount counts what is opened some 25 times a second
LINES_MOST = 10**9
LINES = 20  # after which a terminal gets the heading again


def add_stats(commands: Commands) -> None:
    """Add `nopfs stats`."""
    parser = add_command(
        commands, "stats", stats, "a line each second of what a mount does",
        "Print a line each second: opens, where they were served from, waits, the source, memory.",
    )  # fmt: skip
    parser.add_argument("--interval", metavar="S", default="1", help="time between two lines (default: 1s)")
    parser.add_argument("--count", metavar="N", help="number of lines (default: until Ctrl-C)")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")


def stats(options: argparse.Namespace) -> int:
    """Print lines for one mount; return the exit code. Raises NopfsError: also when the mount ends meanwhile."""
    interval_s = parsed(time_from(*INTERVALS), options.interval, "--interval")
    count = None if options.count is None else parsed(whole(1, LINES_MOST), options.count, "--count")
    from nopfsfs.monitor import stats_lines  # with numpy: bad options need none of it

    before = _figures(options.mountpoint)
    due = time.monotonic()
    if options.csv:
        print(stats_lines.csv_heading(), flush=True)
    for number in itertools.count() if count is None else range(count):
        if not options.csv and number % LINES == 0 and (number == 0 or sys.stdout.isatty()):
            print(stats_lines.heading(), flush=True)
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        after = _figures(options.mountpoint)
        with understood():
            line = stats_lines.stats_line(before, after)
            shown = stats_lines.csv(line, float(after["time"])) if options.csv else stats_lines.text(line)
        print(shown, flush=True)
        before = after
    return Exit.OK


def _figures(mountpoint: str) -> Record:
    return locate_living(mountpoint, os.environ).call("metrics")


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
    other = f"nopfs stats {' '.join(options.mountpoints[:1]) or 'MOUNTPOINT'}"
    need_package("nopfs top", "textual", "top", f"; or use {other}")
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
