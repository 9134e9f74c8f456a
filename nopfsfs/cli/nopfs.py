"""`nopfs`: inspects and controls mounts, calibrates, simulates. Each sub-command is a function that adds its parser and
names its handler.

`nopfs SOURCE MOUNTPOINT -o ...` mounts, since mount.fuse3 calls the program of `mount -t fuse.nopfs` with these words.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from nopfsfs import __version__
from nopfsfs.cli.accesslog import add_accesslog
from nopfsfs.cli.adopt import add_adopt, add_upgrade
from nopfsfs.cli.cache import add_cache
from nopfsfs.cli.calibrate import add_calibrate
from nopfsfs.cli.doctor import add_doctor
from nopfsfs.cli.error_exit import NOPFS, Commands, Parser, add_command, run
from nopfsfs.cli.file_copies import add_check, add_drop, add_warm
from nopfsfs.cli.metrics import add_exporter, add_metrics
from nopfsfs.cli.plan import add_plan
from nopfsfs.cli.policy import add_policy
from nopfsfs.cli.recheck import add_recheck
from nopfsfs.cli.report import add_report
from nopfsfs.cli.settings import need_package
from nopfsfs.cli.simulate_options import add_simulate, parse
from nopfsfs.cli.stats import add_stats, add_top
from nopfsfs.cli.status_text import print_record, status_text
from nopfsfs.cli.tune import add_tune
from nopfsfs.cli.wait import add_wait
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit

Handler = Callable[[argparse.Namespace], int]


def add_status(commands: Commands) -> None:
    """Add `nopfs status`."""
    description = "Print what a mount is doing: its plan, where reads were served from, what it uses."
    parser = add_command(commands, "status", status, "what a mount does", description)
    parser.add_argument("--json", action="store_true", help="print the whole record as JSON")


def status(options: argparse.Namespace) -> int:
    """Print the status of one mount; return the exit code."""
    located = locate_living(options.mountpoint, os.environ)
    record = located.call("status")
    text = partial(status_text, record, located.mount.source, located.path)
    print_record(record, text, as_json=options.json)
    return Exit.OK


def simulate(options: argparse.Namespace) -> int:
    """Simulate; return the exit code. Raises NopfsError."""
    request = parse(vars(options))
    if request.plot is not None:
        need_package("--plot:", "matplotlib", "plot")
    from nopfsfs.cli.simulate import run as carry_out  # with numpy: bad options need none of it

    return carry_out(request)


COMMANDS: tuple[Callable[[Commands], None], ...] = (
    add_status,
    add_stats,
    add_top,
    add_metrics,
    add_exporter,
    add_report,
    add_accesslog,
    add_doctor,
    add_wait,
    add_recheck,
    add_warm,
    add_drop,
    add_check,
    add_tune,
    add_policy,
    add_plan,
    partial(add_simulate, handler=simulate),
    add_adopt,
    add_upgrade,
    add_calibrate,
    add_cache,
)


def nopfs_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog=NOPFS, description="Look at nopfs mounts.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"nopfsfs {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for add in COMMANDS:
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and "/" in words[0]:
        from nopfsfs.cli import mount

        return mount.main(words)

    def body() -> int:
        options = nopfs_parser().parse_args(words)
        handler: Handler = options.handler
        return handler(options)

    return run(NOPFS, body, debug="--debug" in words)


if __name__ == "__main__":
    sys.exit(main())
