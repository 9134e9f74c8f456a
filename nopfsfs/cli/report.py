"""`nopfs report`: writes one page about a run, of a mount that is there, or from the report of one that is gone."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time

from nopfsfs.cli.error_exit import Commands
from nopfsfs.cli.settings import usage
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import read_mounts
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.state_dirs import real_mountpoint

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
    if importlib.util.find_spec("matplotlib") is None:
        raise usage("nopfs report needs matplotlib; install it: pip install 'nopfsfs[plot]'")
    if options.output == STDOUT and sys.stdout.isatty():
        raise usage("--output: a page is nothing for a terminal; name a file, or redirect the output")
    from nopfsfs.monitor import run_record  # with numpy

    fuse = {mount.mountpoint for mount in read_mounts() if mount.is_fuse}
    if real_mountpoint(options.run, fuse.__contains__) in fuse:
        run = run_record.ask_mount(locate_living(options.run, os.environ))
    else:
        run = run_record.read_report(options.run)
    from nopfsfs.monitor.report_page import page  # with matplotlib, which takes half a second

    text = page(run, time.time()).encode("utf-8", "backslashreplace")
    if options.output == STDOUT:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return Exit.OK
    try:
        with whole_file(options.output, 0o644) as file:
            file.write(text)
    except OSError as error:
        raise usage(f"--output: {options.output} cannot be written: {error.strerror}") from error
    return Exit.OK
