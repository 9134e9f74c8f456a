"""`nopfs cache`: lists, verifies, prunes and removes the copies that `--disk` keeps between mounts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING

from nopfsfs.cli.error_exit import Commands, printable
from nopfsfs.cli.settings import parsed, usage
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from nopfsfs.tiers.kept_upkeep import CacheUpkeep, KeptSource, Removal

_ACTIONS = ("ls", "verify", "prune", "rm")


def add_cache(commands: Commands) -> None:
    """Add `nopfs cache`."""
    parser = commands.add_parser(
        "cache",
        help="what is kept on a disk between mounts",
        description="List, verify, prune or remove the copies of files that mounts with --disk DIR keep.",
        usage="nopfs cache ls|verify|prune|rm DIR [--to SIZE] [--older TIME] [--source PATH] [--json]",
    )
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|verify|prune|rm")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--to", metavar="SIZE", help="prune: leave at most this, those that were used last")
    parser.add_argument("--older", metavar="TIME", help="prune: remove what was not used for so long, such as 30d")
    parser.add_argument("--source", metavar="PATH", help="rm: of this source only (default: of all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=cache)


def cache(options: argparse.Namespace) -> int:
    """Act on a kept cache; return the exit code. Raises NopfsError."""
    prunes = options.action == "prune"
    if prunes != (options.to is not None or options.older is not None):
        raise usage("prune needs --to or --older, and only prune takes them")
    if options.source is not None and options.action != "rm":
        raise usage("--source is for rm")
    to = parsed(parse_size, options.to, "--to") if options.to is not None else None
    older_s = parsed(parse_duration, options.older, "--older") if options.older is not None else None
    from nopfsfs.tiers.kept_upkeep import CacheUpkeep  # with numpy: bad options need none of it

    directory = os.path.abspath(options.directory)
    try:
        upkeep = CacheUpkeep(directory)
        if options.action == "ls":
            return _listed(upkeep, as_json=options.json)
        if prunes:
            done = upkeep.prune(to, older_s)
        elif options.action == "verify":
            done = upkeep.verify()
        else:
            done = upkeep.remove(None if options.source is None else os.path.realpath(options.source))
    except FileNotFoundError:
        message = f"{directory} holds no kept copies of user {os.geteuid()}; name the PATH of --disk"
        raise NopfsError(Exit.DISK, message) from None
    except OSError as error:
        raise NopfsError(Exit.DISK, f"{directory}: {error.strerror or error}") from error
    return _said(done, options.action, as_json=options.json)


def _listed(upkeep: CacheUpkeep, *, as_json: bool) -> int:
    found = upkeep.sources()
    if as_json:
        record = {"directory": upkeep.cache.path, "sources": [dataclasses.asdict(one) for one in found]}
        print(json.dumps(record, indent=2), flush=True)
    else:
        lines = [f"{'files':>9}  {'bytes':>8}  {'last used':>9}  source", *map(_line, found)]
        print(printable("\n".join(lines)), flush=True)
    return Exit.OK


def _line(one: KeptSource) -> str:
    ago = format_duration(round(max(0.0, time.time() - one.used))) if one.files else "-"
    path = (one.path or one.name) + (" (mounted)" if one.in_use else "")
    return f"{one.files:>9,}  {format_size(one.bytes):>8}  {ago:>9}  {path}"


def _said(done: Removal, action: str, *, as_json: bool) -> int:
    """Print what was done. A source that is mounted keeps its copies, and `rm` fails."""
    if as_json:
        print(json.dumps(dataclasses.asdict(done), indent=2), flush=True)
    else:
        print(
            f"{action}: looked at {done.looked:,} copies, removed {done.files:,} ({format_size(done.bytes)})",
            flush=True,
        )
    if done.in_use:
        raise NopfsError(Exit.DISK, f"{', '.join(done.in_use)} stays: it is mounted; unmount it first")
    return Exit.OK
