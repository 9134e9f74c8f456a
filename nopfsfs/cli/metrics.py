"""`nopfs metrics` and `nopfs exporter`: what mounts count, for Prometheus and whatever else reads OpenMetrics."""

from __future__ import annotations

import argparse
import os
import threading
from contextlib import ExitStack

from nopfsfs.cli.error_exit import Commands, add_command
from nopfsfs.cli.settings import need_package
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit

DEFAULT_LISTEN = "127.0.0.1:9814"


def add_metrics(commands: Commands) -> None:
    """Add `nopfs metrics`."""
    add_command(
        commands, "metrics", metrics, "print the metrics of a mount",
        "Print the metrics of a mount once, in the text format of OpenMetrics.",
    )  # fmt: skip


def add_exporter(commands: Commands) -> None:
    """Add `nopfs exporter`."""
    parser = commands.add_parser(
        "exporter",
        help="serve the metrics of all mounts of this node",
        description="Serve the metrics of all mounts of this node to Prometheus, until SIGTERM or Ctrl-C.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="ADDRESS", help=f"serve on a TCP port (default: {DEFAULT_LISTEN})")
    where.add_argument("--socket", metavar="PATH", help="serve on a unix(7) socket")
    where.add_argument("--textfile", metavar="DIR", help="write DIR/nopfs.prom for node_exporter, every 15 s")
    parser.set_defaults(handler=exporter)


def metrics(options: argparse.Namespace) -> int:
    """Print the metrics of one mount; return the exit code. Raises NopfsError."""
    need_package("nopfs metrics", "prometheus-client", "metrics")
    from nopfsfs.monitor.openmetrics import openmetrics_text
    from nopfsfs.monitor.scrape import MountAnswer

    located = locate_living(options.mountpoint, os.environ)
    print(openmetrics_text([MountAnswer(located.path, located.call("metrics"))]), end="", flush=True)
    return Exit.OK


def exporter(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises NopfsError."""
    need_package("nopfs exporter", "prometheus-client", "metrics")
    from nopfsfs.monitor import metrics_server
    from nopfsfs.monitor.openmetrics import registry_of
    from nopfsfs.monitor.scrape import Scraper
    from nopfsfs.system.node_memory import share_heap
    from nopfsfs.system.process_setup import handling, signals_to_end

    share_heap()  # a thread for each mount and each scrape
    ended = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(handling(signals_to_end(), lambda number, frame: ended.set()))
        scraper = Scraper()
        if options.textfile is not None:
            metrics_server.write_textfiles(options.textfile, scraper.scrape, ended)
            return Exit.OK
        registry = registry_of(scraper.scrape)
        if options.socket is not None:
            stack.enter_context(metrics_server.listening_at(options.socket, registry))
            print(f"serving at {options.socket}", flush=True)
        else:
            address = metrics_server.parse_address(options.listen or DEFAULT_LISTEN)
            port = stack.enter_context(metrics_server.listening(address, registry))
            print(f"serving at http://{address[0] or '*'}:{port}/metrics", flush=True)
        ended.wait()
    return Exit.OK
