"""`nopfs stats`: prints a line each second of what a mount does, as dstat does of a machine."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time

from nopfsfs.cli.mount_options import Commands, add_command
from nopfsfs.cli.settings import parsed
from nopfsfs.control.client import Record
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.units import parse_duration

LEAST_S, MOST_S = 0.1, 3600.0  # of --interval: the mount counts what is opened some 25 times a second
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
    interval_s, count = _interval(options.interval), _count(options.count)
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
        try:
            line = stats_lines.stats_line(before, after)
            shown = stats_lines.csv(line, float(after["time"])) if options.csv else stats_lines.text(line)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            message = "the daemon's figures are not understood; it may be of another release"
            raise NopfsError(Exit.INTERNAL, message) from error
        print(shown, flush=True)
        before = after
    return Exit.OK


def _figures(mountpoint: str) -> Record:
    return locate_living(mountpoint, os.environ).call("metrics")


def _interval(text: str) -> float:
    seconds = parsed(parse_duration, text, "--interval")
    if not LEAST_S <= seconds <= MOST_S:
        raise NopfsError(Exit.USAGE, f"--interval: {text} is not from {LEAST_S:g} s to {MOST_S:g} s")
    return seconds


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) <= 9 or int(text) == 0:
        raise NopfsError(Exit.USAGE, f"--count: {text!r} is no number of lines")
    return int(text)
