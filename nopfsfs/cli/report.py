"""`nopfs report`: writes one page about a run, of a mount that is there, or from the report of one that is gone."""

from __future__ import annotations

import argparse
import os
import sys
import time

from nopfsfs.cli.error_exit import Commands
from nopfsfs.cli.settings import need_package, output_file, usage
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import find_mount, real_path

STDOUT = "-"


def add_report(commands: Commands) -> None:
    """Add `nopfs report`."""
    parser = commands.add_parser(
        "report",
        help="write a page about a run",
        description="Write one HTML page about a run: what its readers waited for, with curves and a table of epochs.",
    )
    parser.add_argument("run", metavar="MOUNTPOINT|REPORT.json", help="a mount, or what nopfs-umount --report wrote")
    parser.add_argument("--output", metavar="FILE", required=True, help="the page to write; -: to standard output")
    parser.set_defaults(handler=report)


def report(options: argparse.Namespace) -> int:
    """Write the page; return the exit code. Raises NopfsError; then nothing is written."""
    need_package("nopfs report", "matplotlib", "plot")
    if options.output == STDOUT and sys.stdout.isatty():
        raise usage("--output: a page is nothing for a terminal; name a file, or redirect the output")
    from nopfsfs.monitor import run_record  # with numpy

    mount = find_mount(real_path(options.run))
    if mount is not None and mount.is_fuse:
        run = run_record.ask_mount(locate_living(options.run, os.environ))
    else:
        run = run_record.read_report(options.run)
    from nopfsfs.monitor.report_page import page  # with matplotlib, which takes half a second

    text = page(run, time.time()).encode("utf-8", "backslashreplace")
    if options.output == STDOUT:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return Exit.OK
    with output_file(options.output, "--output") as file:
        file.write(text)
    return Exit.OK
