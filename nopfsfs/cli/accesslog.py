"""`nopfs accesslog`: prints each open of a mount's files, or sums of them, while it runs."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nopfsfs.cli.error_exit import NOPFS, Parser, printable, say
from nopfsfs.cli.option_values import time_from
from nopfsfs.cli.settings import parsed
from nopfsfs.control.client import CALL_S, Connection, NoAnswer, understood
from nopfsfs.control.find_mount import Located, locate_living
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import is_in_place
from nopfsfs.system.proc import command_name

if TYPE_CHECKING:
    from nopfsfs.monitor.access_lines import OpensRecord

TIMES = ("1ms", "30d")  # the least and the most of --seconds
LATE_S = 0.5  # for opens to come that were made before the end: the supervisor looks at the rings each 80 ms or less
SILENT_S = 30.0  # without a record, of which there is one a second


def add_accesslog(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `nopfs accesslog`."""
    parser = commands.add_parser(
        "accesslog",
        help="print what is opened in a mount, by whom",
        description="Print a line for each file that is opened in a mount, until Ctrl-C: time, process, whether the\n"
        "mount foresaw it, and path. With --profile, print sums at the end.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument("--profile", action="store_true", help="print sums at the end in place of a line for each open")
    parser.add_argument("--seconds", metavar="N", help="how long to listen (default: until Ctrl-C)")
    parser.add_argument("--json", action="store_true", help="print an object on each line; with --profile, one object")
    parser.set_defaults(handler=accesslog)


def accesslog(options: argparse.Namespace) -> int:
    """Listen to one mount; return the exit code. Raises NopfsError."""
    limit_s = math.inf if options.seconds is None else parsed(time_from(*TIMES), options.seconds, "--seconds")
    from nopfsfs.monitor.access_lines import Profile

    located, profile = locate_living(options.mountpoint, os.environ), Profile()
    sample, began = False, time.monotonic()
    try:
        for record in _records(located, limit_s):
            if options.profile:
                profile.add(record)
            else:
                _print(record, sample=sample, as_json=options.json)
            sample = record.stand_for > 1 if record.opens else sample
    except KeyboardInterrupt:
        pass
    if options.profile:
        profile.seconds = min(time.monotonic() - began, limit_s)
        print(json.dumps(profile.figures()) if options.json else printable(profile.text(command_name)), flush=True)
    return Exit.OK


def _records(located: Located, limit_s: float) -> Iterator[OpensRecord]:
    """Yield records until `limit_s` seconds are over, or the mount has ended."""
    from nopfsfs.monitor.access_lines import OpensRecord

    with Connection(located.state_dir, CALL_S, located.owner) as connection, understood():
        connection.send("accesslog")
        try:
            end = float(connection.receive(CALL_S)["time"]) + limit_s
            last = time.monotonic() + limit_s + LATE_S
            while time.monotonic() < last:
                yield OpensRecord.read(connection.receive(SILENT_S)).until(end)
        except NoAnswer:
            if is_in_place(located.mount):
                raise
            say(NOPFS, f"{located.path} was unmounted")


def _print(record: OpensRecord, *, sample: bool, as_json: bool) -> None:
    from nopfsfs.monitor.access_lines import json_lines, text_lines

    lines = json_lines(record) if as_json else (printable(line) for line in text_lines(record, sample))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
