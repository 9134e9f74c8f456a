"""Conversion of the options of `nopfs-mount` into a MountConfig. The command line goes before -o, then the
configuration file, then the environment.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nopfsfs import __version__
from nopfsfs.cli.settings import SETTINGS, Layer, parse_path, put, read_config, usage
from nopfsfs.config import DEFAULT_EPOCHS, DEFAULT_IO_TIMEOUT_S, MountConfig, PlanSpec, World
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import read_mounts
from nopfsfs.system.launcher import resolve_worlds
from nopfsfs.system.mpi_start import Launched, filled_in, resolve
from nopfsfs.system.state_dirs import default_index_dir, default_run_dir, real_mountpoint, state_dir_for

# Options of mount(8) and fstab(5) that mean nothing to a read-only file system. mount(8) always passes `rw`, and
# mount.fuse3 passes `dev,suid`: an error would forbid every call through them.
_IGNORED = frozenset(
    re.findall(
        r"\S+",
        """
        defaults rw ro auto noauto nofail _netdev _rnetdev user nouser users group owner default_permissions
        exec suid nosuid dev nodev sync async dirsync silent loud mand nomand iversion noiversion
        atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime nolazytime
        """,
    )
)
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "context=", "fscontext=", "defcontext=", "rootcontext=")
_KERNEL_FLAGS = ("noexec", "nosymfollow")

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
    debug: bool = False
    check_only: bool = False  # mount(8)'s -f: do all but mount
    warning: str = ""  # one line, or nothing


class Parser(argparse.ArgumentParser):
    """An argument parser that raises NopfsError, with one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        """Raise NopfsError with Exit.USAGE."""
        raise usage(f"{message}; see {self.prog} --help")


def mount_parser(prog: str = "nopfs-mount") -> Parser:
    """Return the parser of the command line. Values stay text, which `settings` parses."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s SOURCE MOUNTPOINT [--seed N] [options]",
        description="Mount a read-only view of SOURCE that knows in which order a training job\n"
        "will read it. Returns when the mount answers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("source", metavar="SOURCE", help="the data set, a directory")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory")
    _add_plan_options(parser.add_argument_group("what will be read"))
    _add_tier_options(parser.add_argument_group("where bytes are kept"))
    _add_source_options(parser.add_argument_group("the source"))
    _add_peer_options(parser.add_argument_group("with other nodes, by MPI"))
    _add_running_options(parser.add_argument_group("running"))
    return parser


def _add_plan_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", metavar="N", help="the seed of the job's sampler; without it, common ones are tried")
    group.add_argument(
        "--sampler", metavar="NAME", help="auto, distributed, random, ... (docs/plan-files.md; default: auto)"
    )
    group.add_argument(
        "--sampler-option", metavar="NAME=VALUE", action="append", help="an option of the sampler; may be repeated"
    )
    group.add_argument("--plan", metavar="FILE", help="a plan file: what is read, in full")
    group.add_argument(
        "--remember",
        action=argparse.BooleanOptionalAction,
        help="begin with what the last job on SOURCE read, and keep what this one reads for the next (default: yes)",
    )
    group.add_argument("--world-size", metavar="N", help="ranks of the whole job (default: from the environment)")
    group.add_argument("--ranks", metavar="LIST", help="the ranks that read through this mount, such as 0-3,6")


def _add_tier_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ram", metavar="SIZE", help="memory to use (default: half of what is available)")
    group.add_argument("--page-cache", metavar="SIZE", help="how much of it the page cache of the mount may take")
    group.add_argument(
        "--disk",
        metavar="PATH[:SIZE]",
        action="append",
        help="a local directory to keep files in; may be repeated",
    )
    group.add_argument("--index-dir", metavar="D", help="where the index of the source is kept between mounts")


def _add_source_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--user", metavar="U", help="read the source as this user (a root-squashed PFS refuses root)")
    group.add_argument("--follow-symlinks", action="store_true", help="show links that leave the source as files")
    group.add_argument("--rescan", action="store_true", help="list every directory again, whatever the index says")
    group.add_argument(
        "--io-timeout",
        metavar="S",
        help=f"a read of the source fails after S (default: {DEFAULT_IO_TIMEOUT_S:.0f}s)",
    )
    group.add_argument(
        "--recheck",
        metavar="TIME",
        help="look again within TIME at who may read which file; no: a right that is withdrawn holds on (default: 15m)",
    )
    group.add_argument(
        "--expose",
        action="store_true",
        help="let others read a source that a directory above it keeps from them (with --allow-other)",
    )
    group.add_argument(
        "--source-concurrency", metavar="N", help="reads of the source in flight (default: as calibrated, or 64)"
    )
    group.add_argument("--calibration", metavar="FILE", help="rates, of nopfs calibrate (default: found by the source)")
    group.add_argument("--servers", metavar="N", help="processes that answer requests (default: one for four cores)")
    group.add_argument(
        "--fast-path",
        action=argparse.BooleanOptionalAction,
        help="answer hits before pyfuse3 sees them (default: where the system allows it)",
    )
    group.add_argument(
        "--signal",
        metavar="HOW",
        help="how the reader is followed: open, tripwire (faster, figures are estimates), auto (default: auto)",
    )
    group.add_argument(
        "--passthrough",
        metavar="HOW",
        help="let the kernel read large files from the disk tier by itself: auto, on, off (default: auto)",
    )


def _add_peer_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--peers", metavar="HOW", help="be one cache with the other mounts of mpirun or srun: auto, on, off"
    )
    group.add_argument("--placement", metavar="HOW", help="where samples live: homes, nopfs (default: homes)")
    group.add_argument(
        "--epochs", metavar="N", help=f"epochs that the job is likely to have, for nopfs (default: {DEFAULT_EPOCHS})"
    )


def _add_running_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--config", metavar="FILE", help="settings in TOML; what is said elsewhere comes first")
    group.add_argument("-o", metavar="OPTIONS", action="append", help="the same and mount(8)'s, as in fstab")
    group.add_argument("-f", "--foreground", action="store_true", help="stay in the foreground")
    group.add_argument("--log-file", metavar="F", help="where the mount logs")
    group.add_argument(
        "--allow-other",
        action=argparse.BooleanOptionalAction,
        help="let other users read, as far as the source would let them (default: when root)",
    )
    group.add_argument("--debug", action="store_true", help="show where an error came from")
    group.add_argument("--version", action="version", version=f"nopfsfs {__version__}")
    for flag in "-n", "-s", "-v":  # of mount(8)'s helpers: no mtab, sloppy, verbose
        group.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    for flag in "-t", "-N":
        group.add_argument(flag, metavar="X", help=argparse.SUPPRESS)


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
                put(line, name, _text(text), f"--{name.replace('_', '-')}")
    fstab, flags, file = _fstab_layer(words.get("o", ()))
    file = words.get("config", file)
    layers = {**(read_config(file) if file else {}), **fstab, **line}
    values = {name: given.value for name, given in layers.items()}
    if "ram" in values and values.get("page_cache", 0) > values["ram"]:
        origin = layers["page_cache"].origin
        raise usage(f"{origin}: the page cache cannot take more than the memory of ram; write a smaller size")
    peers, warning = resolve(values.pop("peers", "auto"), env)
    config = _build(words, values, flags, env, uid, peers)
    return MountCall(config, bool(words.get("debug")), check_only, warning)


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _fstab_layer(groups: Sequence[str]) -> tuple[Layer, tuple[str, ...], str | None]:
    """Return the contents of `-o`: settings, flags for the kernel, and a configuration file."""
    layer: Layer = {}
    flags: dict[str, None] = {}
    config = None
    for option in (o for group in groups for o in split_options(group)):
        key, equals, value = option.partition("=")
        name = key.replace("-", "_")
        if option in _KERNEL_FLAGS:
            flags[option] = None
        elif option in _IGNORED or option.startswith(_IGNORED_PREFIXES):
            continue
        elif name == "config" and value:
            config = value
        elif name in SETTINGS and (equals or bool in SETTINGS[name].types):
            put(layer, name, value if equals else "yes", f"-o {key}")
        elif name.startswith("no_") and name[3:] in SETTINGS and bool in SETTINGS[name[3:]].types and not equals:
            put(layer, name[3:], "no", f"-o {key}")
        else:
            hint = "needs a value" if name in SETTINGS else "no such option; quote a value that has commas"
            raise usage(f"-o {option}: {hint}; see nopfs-mount --help")
    return layer, tuple(flags), config


def split_options(text: str) -> Iterator[str]:
    """Yield the options of a comma-separated list. A comma in double quotes or after a backslash belongs to its option:
    `ranks="0-3,6"`.
    """
    word = ""
    quoted = escaped = False
    for char in text:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            if word:
                yield word
            word = ""
        else:
            word += char
    if quoted or escaped:
        raise usage(f"-o {text}: {'a quote is not closed' if quoted else 'it ends in a backslash'}")
    if word:
        yield word


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
    if "log_file" in values:
        values["log_file"] = filled_in(values["log_file"], peers)
    if peers is not None:
        values |= {"peers": True, "nodes": peers.size, "node": peers.rank}
    defaults = {
        "allow_other": uid == 0,
        "index_dir": default_index_dir(uid, env),
        "disks": disks,
    }
    uid_gid_groups = () if who is None else zip(("uid", "gid", "groups"), who, strict=True)
    return MountConfig(
        source=_argument("SOURCE", words["source"]),
        mountpoint=mountpoint,
        worlds=worlds,
        plans=plans,
        state_dir=state_dir_for(mountpoint, default_run_dir(uid, env)),
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


def _argument(name: str, text: str) -> str:
    try:
        return parse_path(text)
    except ValueError as error:
        raise usage(f"{name}: {error}") from error


def _mountpoint(text: str) -> str:
    if not text:
        raise usage("MOUNTPOINT: the path is empty")
    fuse = {mount.mountpoint for mount in read_mounts() if mount.is_fuse}
    return real_mountpoint(text, fuse.__contains__)


def find_user(name: str) -> tuple[int, int, tuple[int, ...]]:
    """Return (uid, gid, groups) of a user name or number. Raises NopfsError with Exit.USER."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError) as error:
        raise NopfsError(Exit.USER, f"--user {name}: there is no such user; see getent passwd") from error
    return entry.pw_uid, entry.pw_gid, tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)))
