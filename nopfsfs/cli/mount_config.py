"""Conversion of the options of `nopfs-mount` (`option_list.py`) into a MountConfig. The command line goes before -o,
then the configuration file, then the environment.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nopfsfs import __version__
from nopfsfs.cli.error_exit import Parser
from nopfsfs.cli.option_list import GROUPS, SETTINGS, MountOption
from nopfsfs.cli.option_values import long_option, parse_path
from nopfsfs.cli.settings import Layer, parsed, put, read_config, read_options, usage
from nopfsfs.config import MountConfig, PlanSpec, World
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import real_path
from nopfsfs.system.launcher import job_nodes, resolve_worlds
from nopfsfs.system.mpi_start import Launched, filled_in, resolve
from nopfsfs.system.state_dirs import default_index_dir, default_run_dir

_EPILOG = """\
examples:
  nopfs-mount /pfs/imagenet /mnt/fast --seed 42
  nopfs-mount /pfs/imagenet /mnt/fast --seed 42 --ram 64G --disk /local/scratch:800G
  nopfs-mount /pfs/imagenet /mnt/fast -o seed=42,ram=64G
  mount -t fuse.nopfs /pfs/imagenet /mnt/fast -o seed=42

Sizes: K, M, G, T are powers of 1024, KB, MB, GB, TB powers of 1000.
Exit codes, the configuration file and all options are described in docs/commands.md."""


@dataclass(frozen=True, slots=True)
class MountCall:
    """The parsed command line of `nopfs-mount`."""

    config: MountConfig
    check_only: bool = False  # mount(8)'s -f: do all but mount
    warning: str = ""  # one line, or nothing


def mount_parser(prog: str = "nopfs-mount") -> Parser:
    """Return the parser of the command line. Values stay text, which `settings.put` parses."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s SOURCE MOUNTPOINT [--seed N] [options]",
        description="Mount a read-only view of SOURCE that knows in which order a training job\n"
        "will read it. Returns when the mount answers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("source", metavar="SOURCE", help="the data set, a directory")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory")
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            _add(group, option)
    for flag in "-n", "-s", "-v":  # of mount(8)'s helpers: no mtab, sloppy, verbose
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    for flag in "-t", "-N":
        parser.add_argument(flag, metavar="X", help=argparse.SUPPRESS)
    return parser


def _add(group: argparse._ArgumentGroup, option: MountOption) -> None:
    said = _plain(option.help)
    if option.many:
        said += "; may be repeated"
    if option.default:
        said += f" (default: {_plain(option.default)})"
    if option.name == "version":
        group.add_argument(*option.flags, action="version", version=f"nopfsfs {__version__}", help=said)
    elif option.name == "help":
        group.add_argument(*option.flags, action="help", help=said)
    elif option.metavar:
        action = "append" if option.many else "store"
        group.add_argument(*option.flags, action=action, metavar=option.metavar, help=said)
    else:
        yes = argparse.BooleanOptionalAction if option.negative else "store_true"
        group.add_argument(*option.flags, action=yes, help=said)


def _plain(markdown: str) -> str:
    """Return the text without the marks of code and links."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", markdown).replace("`", "")


def parse_mount(argv: Sequence[str], env: Mapping[str, str], uid: int, prog: str = "nopfs-mount") -> MountCall:
    """Return the call that `argv`, the configuration file and `env` describe, for a mount by user `uid`. Raises
    NopfsError.

    Where `prog` is mount.SOMETHING, as mount(8) calls its helpers, `-f` means: do all but mount.
    """
    words = vars(mount_parser(prog).parse_args(argv))
    helper = prog.startswith("mount.")
    check_only = bool(helper and words.pop("foreground", False))
    line: Layer = {}
    for name, value in words.items():
        if name in SETTINGS:
            for text in value if isinstance(value, list) else [value]:
                put(line, name, _text(text), long_option(name))
    fstab, flags, file = read_options(words.get("o", ()))
    file = words.get("config", file)
    layers = {**(read_config(file) if file else {}), **fstab, **line}
    values = {name: given.value for name, given in layers.items()}
    if "ram" in values and values.get("page_cache", 0) > values["ram"]:
        origin = layers["page_cache"].origin
        raise usage(f"{origin}: the page cache cannot take more than the memory of ram; write a smaller size")
    peers, warning = resolve(values.pop("peers", "auto"), env)
    config = _build(words, values, flags, env, uid, peers)
    return MountCall(config, check_only, warning)


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _build(
    words: Mapping[str, Any],
    values: dict[str, Any],
    flags: tuple[str, ...],
    env: Mapping[str, str],
    uid: int,
    peers: Launched | None,
) -> MountConfig:
    worlds = resolve_worlds(values.pop("world_size", None), values.pop("ranks", None), env)
    plans = _plans(values, worlds)
    user = values.pop("user", None)
    who = find_user(user) if user is not None else None
    if who is not None and uid not in (0, who[0]):
        raise NopfsError(Exit.USER, f"--user {user}: only root can read as someone else; run as root, or leave it out")
    mountpoint = _mountpoint(filled_in(words["mountpoint"], peers))
    disks = tuple(replace(disk, path=filled_in(disk.path, peers)) for disk in values.pop("disk", ()))
    for name in values.keys() & {"log_file", "job_report"}:
        values[name] = filled_in(values[name], peers)
    if peers is not None:
        values |= {"peers": True, "nodes": peers.size, "node": peers.rank}
    defaults = {
        "allow_other": uid == 0,
        "index_dir": default_index_dir(uid, env),
        "job_nodes": job_nodes(env) if peers is None else peers.size,
        "disks": disks,
    }
    uid_gid_groups = () if who is None else zip(("uid", "gid", "groups"), who, strict=True)
    return MountConfig(
        source=parsed(parse_path, words["source"], "SOURCE"),
        mountpoint=mountpoint,
        worlds=worlds,
        plans=plans,
        run_dir=default_run_dir(uid, env),
        mount_options=flags,
        **{**defaults, **dict(uid_gid_groups), **values},
    )


def _plans(values: dict[str, Any], worlds: tuple[World, ...]) -> tuple[PlanSpec, ...]:
    """The plan of --sampler with --sampler-option, then those of --plan."""
    path, texts = values.pop("plan", None), values.pop("sampler_option", ())
    sampler, seed = values.get("sampler", "auto"), values.get("seed")
    if path is None and not texts and (sampler == "auto" or seed is None):
        return ()
    from nopfsfs.cli import plan_options
    from nopfsfs.registration import plan_file  # with all samplers: plain mounts need none of them

    said = plan_options.said_plan(sampler, seed, texts)
    if said is not None and len(worlds) == 1:
        said = replace(said, world_size=worlds[0].size, ranks=worlds[0].ranks)
    found = plan_file.read_plan_file(path).plans if path is not None else ()
    return found if said is None else (said, *found)


def _mountpoint(text: str) -> str:
    if not text:
        raise usage("MOUNTPOINT: the path is empty")
    return real_path(text)


def find_user(name: str) -> tuple[int, int, tuple[int, ...]]:
    """Return (uid, gid, groups) of a user name or number. Raises NopfsError with Exit.USER."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError) as error:
        raise NopfsError(Exit.USER, f"--user {name}: there is no such user; see getent passwd") from error
    return entry.pw_uid, entry.pw_gid, tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)))
