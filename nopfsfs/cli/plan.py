"""`nopfs plan`: prints the plans of a mount, registers or drops plans, and prints orders without a mount."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from nopfsfs.cli.error_exit import Commands
from nopfsfs.cli.option_values import long_option, whole
from nopfsfs.cli.settings import parsed, usage
from nopfsfs.cli.status_text import print_record
from nopfsfs.control.client import Refused
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.text.units import format_ranks

REGISTER_S = 120.0  # orders of millions of files are read and computed before the answer
_SHOW_S = 30.0  # the answer may wait for a computation
_WIDTH = 100  # of the paragraph

Record = Mapping[str, Any]
_DRY = ("sampler", "seed", "epoch", "world_size", "ranks", "root", "files", "plan", "sampler_option", "head", "all")
_DRY_ONLY = (*_DRY, "order_out", "index_dir", "follow_symlinks")
_MOUNTED_ONLY = ("next", "json", "register", "forget")


def add_plan(commands: Commands) -> None:
    """Add `nopfs plan`."""
    parser = commands.add_parser(
        "plan",
        usage="nopfs plan MOUNTPOINT [--next N] [--json] | MOUNTPOINT --register FILE | MOUNTPOINT --forget |\n"
        "       --dry-run SOURCE [options] | --samplers",
        help="what will be read next",
        description="Print which plans a mount follows, register a plan, or print an order without mounting.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("path", metavar="MOUNTPOINT", nargs="?", help="of a mount; with --dry-run, the data set")
    parser.add_argument("--samplers", action="store_true", help="list samplers, subsets and their options")
    mounted = parser.add_argument_group("of a mount")
    mounted.add_argument("--next", metavar="N", help="also the next N files of each plan")
    mounted.add_argument("--json", action="store_true", help="print the record as JSON")
    mounted.add_argument("--register", metavar="FILE", help="register the plans of a plan file")
    mounted.add_argument("--forget", action="store_true", help="drop the plans that were registered")
    dry = parser.add_argument_group("without a mount")
    dry.add_argument("--dry-run", action="store_true", help="print the order in which a job would read a data set")
    dry.add_argument("--plan", metavar="FILE", help="a plan file")
    for name, value in ("sampler", "NAME"), ("seed", "N"), ("epoch", "N"), ("world-size", "N"), ("ranks", "LIST"):
        dry.add_argument(f"--{name}", metavar=value, help="as in a plan file")
    dry.add_argument("--sampler-option", metavar="NAME=VALUE", action="append", help="an option of the sampler")
    dry.add_argument("--root", metavar="DIR", help="directory of the data set, relative to SOURCE")
    dry.add_argument("--files", metavar="NAME", help="how the job lists its files (docs/plan-files.md)")
    dry.add_argument("--head", metavar="N", help="print the first N files (default: 20)")
    dry.add_argument("--all", action="store_true", help="print all")
    dry.add_argument("--order-out", metavar="FILE", help="write the order as .npy, indices of the listed files")
    dry.add_argument("--index-dir", metavar="D", help="where the index of the source is kept")
    dry.add_argument("--follow-symlinks", action="store_true", help="as for nopfs-mount")
    parser.set_defaults(handler=plan)


def plan(options: argparse.Namespace) -> int:
    """Run `nopfs plan` with these options; return the exit code. Raises NopfsError."""
    said = vars(options)
    if said.get("samplers"):
        print(samplers_text(), flush=True)
        return Exit.OK
    dry = bool(said.get("dry_run"))
    for name in _MOUNTED_ONLY if dry else _DRY_ONLY:
        if name in said:
            where = "is for a mount; leave out --dry-run" if dry else "goes with --dry-run SOURCE"
            raise usage(f"{long_option(name)}: {where}")
    if "path" not in said:
        raise usage(f"name {'SOURCE' if dry else 'MOUNTPOINT'}; see nopfs plan --help")
    if dry:
        from nopfsfs.cli.dry_run import dry_run  # with numpy and all samplers

        return dry_run(said)
    if "register" in said and "forget" in said:
        raise usage("--forget: goes without --register; call one after the other")
    if "register" in said:
        return _register(said["path"], said["register"])
    if "forget" in said:
        locate_living(said["path"], os.environ).call("forget", _SHOW_S)
        return Exit.OK
    return _show(said)


def _register(mountpoint: str, path: str) -> int:
    from nopfsfs.registration.plan_file import read_plan_file

    tables = read_plan_file(path).tables
    located = locate_living(mountpoint, os.environ)
    try:
        located.call("register", REGISTER_S, plans=tables)
    except Refused as error:
        raise usage(f"{path}: {error.reason}") from error
    return Exit.OK


def _show(said: Mapping[str, Any]) -> int:
    count = _count(said["next"]) if "next" in said else 0
    located = locate_living(said["path"], os.environ)
    try:
        record = located.call("plan", _SHOW_S, next=count)
    except Refused as error:
        raise usage(f"--next: {error.reason}") from error
    print_record(record, lambda: plan_text(record, located.path), as_json="json" in said)
    return Exit.OK


def _count(text: str) -> int:
    from nopfsfs.registration.plan_tables import NEXT_MOST  # with all samplers

    return parsed(whole(0, NEXT_MOST), text, "--next")


def plan_text(record: Record, mountpoint: str) -> str:
    """The plans of a mount as text for people. Fields that the record lacks are left out."""
    lines = [f"{mountpoint}: {record.get('state', 'none')}"]
    text = (record.get("explanation") or {}).get("text")
    lines += [*textwrap.wrap(text, _WIDTH, break_on_hyphens=False), ""] if text else []
    for followed in record.get("plans") or ():
        lines.append(f"{followed.get('dataset', '?')}: {', '.join(_words(followed))}")
        lines += [f"  {path}" for path in followed.get("next") or ()]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def _words(followed: Record) -> Iterator[str]:
    yield from (str(followed[name]) for name in ("state", "sampler") if followed.get(name))
    yield from (f"{name} {followed[name]}" for name in ("seed", "epoch") if followed.get(name) is not None)
    options = followed.get("options") or {}
    yield from (f"{name} = {value}" for name, value in (dict(options)).items() if name != "state")
    if followed.get("world", 1) != 1:
        yield f"ranks {format_ranks(followed.get('ranks') or ())} of {followed['world']}"
    if followed.get("length"):
        yield f"at {followed.get('position', 0):,} of {followed['length']:,}"


def samplers_text() -> str:
    """The list of all samplers and subsets with their options."""
    from nopfsfs.plan.samplers import registry

    lines = []
    for title, families in (("samplers", registry.SAMPLERS), ("subsets", registry.SUBSETS)):
        lines.append(f"{title}:")
        for family in families.values():
            seeds = "no seed" if family.seeds is None else f"seeds {family.seeds[0]} to {family.seeds[1]}"
            lines.append(f"  {family.name}: {family.summary} ({seeds})")
            for name, option in family.options.items():
                kind = "|".join(option.choices) if option.choices else option.kind.__name__
                lines.append(f"    {name} ({kind}, default {option.default!r}): {option.help}")
    return "\n".join(lines)
