"""`nopfs tune`: shows what the tuner of a mount decides, and why; sets the number of requests at the source."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from typing import Any

from nopfsfs.cli.error_exit import Parser
from nopfsfs.cli.option_values import parse_bandwidth, parse_weight, whole_or
from nopfsfs.cli.settings import parsed, usage
from nopfsfs.cli.status_text import print_record, tuning_text
from nopfsfs.config import MAX_CONCURRENCY
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.text.units import format_duration, format_size

SHOWN = 16  # decisions
SMALLEST_CLASS = 4096  # bytes of a request; each further class takes four times as many


def add_tune(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `nopfs tune`."""
    parser = commands.add_parser(
        "tune",
        help="how many requests a mount has under way at the source",
        description="Print how many requests a mount may have under way at its source, what the tuner knows of the\n"
        "source, and the last decisions. An option sets what it names until the unmount.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument(
        "--concurrency", metavar="N|auto", help="keep that number of requests, or let the tuner decide again"
    )
    parser.add_argument(
        "--bandwidth", metavar="RATE|none", help="bytes a second that this mount reads from the source at most"
    )
    parser.add_argument(
        "--weight", metavar="W|none", help="the claim of this mount beside others: 1 as a rule, less gives way to them"
    )
    parser.add_argument("--hold", action="store_true", help="keep the present number")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.set_defaults(handler=tune)


def tune(options: argparse.Namespace) -> int:
    """Show, or set, the requests at the source of one mount; return the exit code. Raises NopfsError."""
    request: dict[str, Any] = {}
    if options.concurrency is not None:
        number = parsed(whole_or("auto", 1, MAX_CONCURRENCY), options.concurrency, "--concurrency")
        request["concurrency"] = number or "auto"
    if options.hold:
        if options.concurrency is not None:
            raise usage("--hold: keeps the present number; leave --concurrency out")
        request["hold"] = True
    if options.bandwidth is not None:
        said = options.bandwidth
        request["bandwidth"] = said if said == "none" else parsed(parse_bandwidth, said, "--bandwidth")
    if options.weight is not None:
        said = options.weight
        request["weight"] = said if said == "none" else parsed(parse_weight, said, "--weight")
    located = locate_living(options.mountpoint, os.environ)
    record = located.call("tune", **request)
    print_record(record, lambda: tune_text(record), as_json=options.json)
    return Exit.OK


def tune_text(record: Mapping[str, Any]) -> str:
    """Return the text that `nopfs tune` prints."""
    lines = [f"source     {tuning_text(record)}"]
    if record.get("mode") == "auto":
        lines.append(f"tuner      {_tuner(record)}")
    lines += [*_class_lines(record), *_decision_lines(record)]
    return "\n".join(lines)


def _tuner(record: Mapping[str, Any]) -> str:
    lead = record.get("lead_seconds")
    weight = record.get("weight", 1.0)
    words = [
        f"weight {weight:g}" if weight != 1 else "",
        f"aim {record['aim']:.3g}" if record.get("aim") is not None else "",
        f"knee {record['knee']:.2g}" if record.get("knee") is not None else "",
        f"staged ahead {format_duration(lead)}" if lead is not None else "",
        "" if record.get("disciplined") else "the clock is not synchronised, so that the mount takes part in no drain",
    ]
    return ", ".join(word for word in words if word) or "begins"


def _class_lines(record: Mapping[str, Any]) -> list[str]:
    """A table of request sizes: how many ended, how long they took, and how long they take at the idle source."""
    ended, mean = record.get("ended") or (), record.get("mean_seconds") or ()
    base, evidence = record.get("base_seconds") or [None] * len(ended), record.get("evidence") or [0.0] * len(ended)
    lines = []
    for at, (count, took, idle, proven) in enumerate(zip(ended, mean, base, evidence, strict=True)):
        if not count:
            continue
        size = f"<= {format_size(SMALLEST_CLASS * 4**at)}" if at < len(ended) - 1 else "larger"
        known = f"{1e3 * idle:.3g} ms" if idle is not None else "-"
        said = "shown by a drain" if proven else "a guess" if idle is not None else ""
        lines.append(f"  {size:<12}{count:>12,}{1e3 * took:>10.3g} ms{known:>13}  {said}".rstrip())
    return [f"{'requests':<14}{'ended':>12}{'took':>13}{'idle':>13}", *lines] if lines else []


def _decision_lines(record: Mapping[str, Any]) -> list[str]:
    """The last decisions that changed the number, the latest first."""
    decisions = list(record.get("decisions") or ())[-SHOWN:]
    if record.get("mode") != "auto" or not decisions:
        return []
    lines = [
        f"  {time.strftime('%H:%M:%S', time.localtime(one['time'])):<12}{one['limit']:>8,}  {one['reason']:<6}"
        f"{one['slowdown']:>10.2f}{one['under_way']:>11,}"
        for one in reversed(decisions)
    ]
    return [f"{'decisions':<14}{'limit':>8}  {'why':<6}{'slowdown':>10}{'under way':>11}", *lines]
