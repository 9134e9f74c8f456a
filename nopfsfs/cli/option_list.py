"""The options of `nopfs-mount`, each declared once. The command line, `-o`, the configuration file and the tables of
docs/commands.md (`scripts/options_table.py`) are made from this list.

Texts are Markdown for the tables; `--help` shows them without its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nopfsfs.cli.option_values import (
    long_option,
    one_of,
    parse_disk,
    parse_flag,
    parse_memory,
    parse_name,
    parse_option,
    parse_path,
    parse_recheck,
    parse_sampler,
    parse_seed,
    parse_time,
    whole,
)
from nopfsfs.config import DEFAULT_CONCURRENCY, DEFAULT_EPOCHS, DEFAULT_IO_TIMEOUT_S, DEFAULT_RECHECK_S
from nopfsfs.text.units import parse_ranks

MAX_WORLD_SIZE = 1 << 20
MAX_SERVERS = 32  # each is a process
MAX_EPOCHS = 1 << 20
MAX_CONCURRENCY = 1024  # reads of the source in flight; each is a thread and a descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """An option of the command line."""

    name: str  # with `_` between words
    short: str = ""  # a second flag, such as `-f`
    metavar: str = ""  # of its value; none for yes or no
    help: str  # one sentence
    more: str = ""  # further sentences, for docs/commands.md only
    default: str = ""  # what holds without the option
    many: bool = False  # may be given several times; the value is a tuple
    negative: bool = False  # `--no-NAME` exists, too

    @property
    def flags(self) -> tuple[str, ...]:
        """The words of the command line, such as `-f` and `--foreground`."""
        word = f"-{self.name}" if len(self.name) == 1 else long_option(self.name)
        return (self.short, word) if self.short else (word,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(MountOption):
    """An option that `-o` and the configuration file take too, by its name."""

    parse: Callable[[str], Any]  # raises ValueError
    types: tuple[type, ...] = (str,)  # of TOML, which a configuration file may use
    paths: bool = False  # in a configuration file, a value is relative to the directory of that file
    toml: str  # an example of a value, in TOML


_FLAG = (str, bool)

GROUPS: Mapping[str, tuple[MountOption, ...]] = {
    "what will be read": (
        Setting(
            name="seed", metavar="N", parse=parse_seed, types=(str, int), toml="42",
            help="the seed of the job's sampler",
            more="It is what `torch.manual_seed` takes, -2⁶³ to 2⁶⁴-1",
            default="common seeds are tried",
        ),
        Setting(
            name="sampler", metavar="NAME", parse=parse_sampler, toml='"distributed"',
            help="the job's [sampler](plan-files.md#samplers), such as `distributed`, `random`, `sequential`",
            default="`auto`: the opens show which",
        ),
        Setting(
            name="sampler_option", metavar="NAME=VALUE", parse=parse_option, types=(str, list), many=True,
            toml='["drop_last=true"]',
            help="an option of that sampler, such as `drop_last=true`",
            default="all usual configurations are tried",
        ),
        Setting(
            name="plan", metavar="FILE", parse=parse_path, paths=True, toml='"plan.toml"',
            help="a [plan file](plan-files.md), which states in full what is read",
            more="It can state several data sets, file orders, epochs, and orders of your own",
        ),
        Setting(
            name="remember", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="begin with what the last job on SOURCE read, and record what this job reads for the next mount",
            more="[The record](plan.md#the-record-of-the-last-job) is in the index directory. The options above come "
            "before it",
            default="`--remember`",
        ),
        Setting(
            name="world_size", metavar="N", parse=whole(1, MAX_WORLD_SIZE), types=(str, int), toml="16",
            help="the number of ranks of the whole job",
            default="[from the environment](#ranks-from-the-environment)",
        ),
        Setting(
            name="ranks", metavar="LIST", parse=parse_ranks, types=(str, int, list),
            toml='"0-7"  # or [0, 1, 2, 3, 4, 5, 6, 7]',
            help="the ranks that read through this mount, such as `0-3,6`",
            default="from the environment; all of `--world-size`",
        ),
    ),
    "where bytes are kept": (
        Setting(
            name="ram", metavar="SIZE", parse=parse_memory, types=(str, int), toml='"64G"  # or bytes',
            help="memory for staged files and for their pages in the kernel's page cache",
            default="half of what is available, at most the data set in each of the two",
        ),
        Setting(
            name="page_cache", metavar="SIZE", parse=parse_memory, types=(str, int), toml='"16G"  # or bytes',
            help="the part of this memory that the kernel's page cache of the mount may take",
            more="Files on their way to a reader may need up to a quarter of the memory, which the page cache does not "
            "get. The rest is for staged files",
            default="what `--ram` leaves beside the staged files",
        ),
        Setting(
            name="disk", metavar="PATH[:SIZE]", parse=parse_disk, types=(str, list), many=True, paths=True,
            toml='["/local/scratch:800G", "/local/nvme1"]',
            help="a directory on a local disk, to keep files in",
            more="The part after the last colon is the size, unless it holds a slash. End a path that has a colon with "
            "one more",
            default="no disk tier; without SIZE, what is free",
        ),
        Setting(
            name="index_dir", metavar="D", parse=parse_path, paths=True, toml='"/var/cache/nopfsfs"',
            help="where the index of the source, and the record of the last job on it, are kept between mounts",
            default="`/var/cache/nopfsfs` as root, else `$XDG_CACHE_HOME/nopfsfs`, `~/.cache/nopfsfs`, or the run "
            "directory",
        ),
    ),
    "the source": (
        Setting(
            name="user", metavar="U", parse=parse_name, toml='"alice"',
            help="read the source as this user: a root-squashed file system refuses root",
            more="The user is given by name or number. Only root can read as somebody else. The index is then kept in "
            "a directory of that user's below the index directory",
            default="the user who mounts",
        ),
        Setting(
            name="follow_symlinks", parse=parse_flag, types=_FLAG, toml="false",
            help="show symbolic links that leave the source as the files that they lead to",
            default="they stay links",
        ),
        Setting(
            name="rescan", parse=parse_flag, types=_FLAG, toml="false",
            help="list every directory again, whatever the index says",
            default="only changed ones",
        ),
        Setting(
            name="io_timeout", metavar="S", parse=parse_time, types=(str, int, float), toml='"5m"  # or seconds',
            help="the time after which a read of the source that gets no answer fails",
            default=f"`{DEFAULT_IO_TIMEOUT_S:.0f}s`",
        ),
        Setting(
            name="recheck", metavar="TIME", parse=parse_recheck, types=(str, int, float, bool),
            toml='"15m"  # or "no"',
            help="check again within TIME who may read which file. `no`: never, so that a right that is withdrawn at "
            "the source holds on in the mount",
            more="The check runs in the background: of every file within TIME (`1m` to `7d`), of every directory "
            "within a minute ([semantics](semantics.md#rights-that-change))",
            default=f"`{DEFAULT_RECHECK_S / 60:.0f}m`",
        ),
        Setting(
            name="expose", parse=parse_flag, types=_FLAG, toml="false",
            help="with `--allow-other`: mount a source that a directory above it keeps from some of those who could "
            "read it in the mount",
            default="refused, exit code 3",
        ),
        Setting(
            name="source_concurrency", metavar="N", parse=whole(1, MAX_CONCURRENCY), types=(str, int), toml="64",
            help=f"reads of the source in flight, 1 to {MAX_CONCURRENCY}",
            default=f"as calibrated, else `{DEFAULT_CONCURRENCY}`",
        ),
        Setting(
            name="calibration", metavar="FILE", parse=parse_path, paths=True, toml='"calibration.toml"',
            help="rates of the source and the tiers, as `nopfs calibrate` wrote them",
            more="The default is not used where the file belongs to another user than you, root and `--user`",
            default="what it wrote for this source, if it did",
        ),
    ),
    "how requests are answered": (
        Setting(
            name="servers", metavar="N", parse=whole(1, MAX_SERVERS), types=(str, int), toml="4",
            help=f"processes that answer requests, 1 to {MAX_SERVERS}; one without the fast path",
            default="one for each four cores, at most four",
        ),
        Setting(
            name="fast_path", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="answer hits before pyfuse3 sees them",
            more="Without it, a server that dies ends the mount, and nobody can take it over",
            default="where the system allows it",
        ),
        Setting(
            name="signal", metavar="HOW", parse=one_of("open", "tripwire", "auto"), toml='"auto"',
            help="how the reader is followed: `open`, `tripwire` (faster, but opens are estimated), `auto`",
            more="`open`: each open is seen. `tripwire`: the kernel is told to open files by itself, and one file in "
            "some shows how far the reader has come. `auto`: `open` until the plan has held for a while, `tripwire` "
            "from then on; while somebody reads what no plan explains, all opens are seen again. It stays with `open` "
            "where files are passed through, where arena or page cache do not hold all files, and without the fast "
            "path; `nopfs status` says so",
            default="`auto`",
        ),
        Setting(
            name="passthrough", metavar="HOW", parse=one_of("auto", "on", "off"), toml='"auto"',
            help="let the kernel itself read large files that are in a disk tier: `auto`, `on`, `off`",
            more="`auto`: from the size on at which that is faster. It takes Linux 6.9 and root, and any signal but "
            "`tripwire`",
            default="`auto`",
        ),
    ),
    "with other nodes, by MPI": (
        Setting(
            name="peers", metavar="HOW", parse=one_of("auto", "on", "off"), toml='"auto"',
            help="be one cache with the mounts that MPI starts with this one: `auto`, `on`, `off`",
            more="`auto`: where `mpirun` or `srun` started more than one, and mpi4py is there",
            default="`auto`",
        ),
        Setting(
            name="placement", metavar="HOW", parse=one_of("homes", "nopfs"), toml='"homes"',
            help="where samples live among the nodes: `homes`, or `nopfs`, as the NoPFS paper places them",
            more="With `homes`, each sample is read from the source once",
            default="`homes`",
        ),
        Setting(
            name="epochs", metavar="N", parse=whole(1, MAX_EPOCHS), types=(str, int), toml="16",
            help="the number of epochs that the job is likely to have",
            more="A sample's home is the node that reads it most often in these",
            default=f"`{DEFAULT_EPOCHS}`",
        ),
    ),
    "running": (
        MountOption(
            name="config", metavar="FILE",
            help="a [configuration file](#configuration-file) in TOML; all other options come before it",
        ),
        MountOption(name="o", metavar="OPTIONS", many=True, help="settings and mount options, as in fstab"),
        Setting(
            name="foreground", short="-f", parse=parse_flag, types=_FLAG, toml="false",
            help="stay in the foreground, and unmount at SIGTERM or Ctrl-C",
            default="go to the background",
        ),
        Setting(
            name="log_file", metavar="F", parse=parse_path, paths=True, toml='"/var/log/nopfs.log"',
            help="where the mount logs",
            more="The file is a regular one of yours or root's with one name, or is made. The path goes through no "
            "link of another user",
            default="the terminal with `-f`, else the system's log, else the state directory",
        ),
        Setting(
            name="allow_other", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="let other users read what the source would let them read",
            more="A user needs `user_allow_other` in `/etc/fuse.conf` for it",
            default="when root",
        ),
        MountOption(name="debug", help="show where an error came from"),
        MountOption(name="version", help="print the version"),
        MountOption(name="help", short="-h", help="print this list"),
    ),
}  # fmt: skip

SETTINGS: Mapping[str, Setting] = {
    option.name: option for group in GROUPS.values() for option in group if isinstance(option, Setting)
}
