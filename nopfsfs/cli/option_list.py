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
    parse_bandwidth,
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
    whole_or,
)
from nopfsfs.config import DEFAULT_EPOCHS, DEFAULT_IO_TIMEOUT_S, DEFAULT_RECHECK_S, MAX_CONCURRENCY
from nopfsfs.text.units import parse_ranks

MAX_WORLD_SIZE = 1 << 20
MAX_SERVERS = 32  # each is a process
MAX_EPOCHS = 1 << 20


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
            more="N is a seed that `torch.manual_seed` takes: -2⁶³ to 2⁶⁴-1",
            default="the mount tries common seeds, then all below 10,428",
        ),
        Setting(
            name="sampler", metavar="NAME", parse=parse_sampler, toml='"distributed"',
            help="the job's [sampler](plan-files.md#samplers), such as `distributed`, `random`, `sequential`",
            default="`auto`: the opens show the sampler",
        ),
        Setting(
            name="sampler_option", metavar="NAME=VALUE", parse=parse_option, types=(str, list), many=True,
            toml='["drop_last=true"]',
            help="an option of the sampler that `--sampler` names, such as `drop_last=true`",
            default="the mount tries all usual configurations",
        ),
        Setting(
            name="plan", metavar="FILE", parse=parse_path, paths=True, toml='"plan.toml"',
            help="a [plan file](plan-files.md), which states in full what the job reads",
            more="A plan file can state several data sets, file orders, epochs, and orders of your own",
        ),
        Setting(
            name="remember", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="begin with the plans of the last job on SOURCE, and record those of this job for the next mount",
            more="[The record](plan.md#the-record-of-the-last-job) lies in the index directory. The options above take "
            "precedence over the record",
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
            default="from the environment, else all of `--world-size`",
        ),
    ),
    "where bytes are kept": (
        Setting(
            name="ram", metavar="SIZE", parse=parse_memory, types=(str, int), toml='"64G"  # or bytes',
            help="the memory for staged files, and for their pages in the kernel's page cache",
            default="half of the memory that is available and not promised to another mount; at most twice the data "
            "set, and a sixteenth of the data set more (32 MiB to 1 GiB) for files on their way",
        ),
        Setting(
            name="page_cache", metavar="SIZE", parse=parse_memory, types=(str, int), toml='"16G"  # or bytes',
            help="the part of this memory that pages in the kernel's page cache may take",
            default="the part that staged files leave",
        ),
        Setting(
            name="disk", metavar="PATH[:SIZE]", parse=parse_disk, types=(str, list), many=True, paths=True,
            toml='["/local/scratch:800G", "/local/nvme1"]',
            help="a directory on a local disk, for copies of files",
            default="no disk tier; without SIZE, the free space",
        ),
        Setting(
            name="disk_keep", metavar="HOW", parse=parse_flag, types=_FLAG, toml="false",
            help="keep the copies on disk for the next mount of SOURCE: `yes`, `no`",
            more="See [kept copies](#kept-copies). Where other users read through the mount, only root's copies are "
            "kept",
            default="`yes`",
        ),
        Setting(
            name="index_dir", metavar="D", parse=parse_path, paths=True, toml='"/var/cache/nopfsfs"',
            help="the directory that keeps the index of the source, and the record of the last job, between mounts",
            default="`/var/cache/nopfsfs` as root, else `$XDG_CACHE_HOME/nopfsfs`, `~/.cache/nopfsfs`, or the run "
            "directory",
        ),
    ),
    "the source": (
        Setting(
            name="user", metavar="U", parse=parse_name, toml='"alice"',
            help="read the source as this user, as a root-squashed file system refuses root",
            more="U is a name or a number. Only root can read as another user. The index then lies in a directory of "
            "that user below the index directory",
            default="the user who mounts",
        ),
        Setting(
            name="follow_symlinks", parse=parse_flag, types=_FLAG, toml="false",
            help="show symbolic links that leave the source as the files that they lead to",
            default="such links stay links",
        ),
        Setting(
            name="rescan", parse=parse_flag, types=_FLAG, toml="false",
            help="list every directory again, whatever the index says",
            default="only directories that changed",
        ),
        Setting(
            name="io_timeout", metavar="S", parse=parse_time, types=(str, int, float), toml='"5m"  # or seconds',
            help="the time after which a read of the source fails if the source does not answer",
            default=f"`{DEFAULT_IO_TIMEOUT_S:.0f}s`",
        ),
        Setting(
            name="recheck", metavar="TIME", parse=parse_recheck, types=(str, int, float, bool),
            toml='"15m"  # or "no"',
            help="the time within which the mount looks again who may read which file, and whether files that it holds "
            "have changed, `1m` to `7d`; with `no`, a right that is withdrawn at the source stays "
            "valid in the mount",
            more="The check runs in the background, and looks at directories within a minute "
            "([semantics](semantics.md#rights-that-change))",
            default=f"`{DEFAULT_RECHECK_S / 60:.0f}m`",
        ),
        Setting(
            name="expose", parse=parse_flag, types=_FLAG, toml="false",
            help="with `--allow-other`: mount a source although a directory above it keeps out some of those who could "
            "read it in the mount",
            default="such a source is refused, exit code 3",
        ),
        Setting(
            name="source_concurrency", metavar="N", parse=whole_or("auto", 1, MAX_CONCURRENCY), types=(str, int),
            toml='"auto"  # or 64',
            help=f"requests under way at the source, 1 to {MAX_CONCURRENCY}, or `auto`: [the tuner](tuner.md) decides",
            more="Reads that somebody waits for are never held back; prefetches have what these leave, and at least "
            "one. `auto` begins with [the calibration](#nopfs-calibrate), else with 4, and goes up to 256",
            default="`auto`",
        ),
        Setting(
            name="source_bandwidth", metavar="RATE", parse=parse_bandwidth, types=(str, int), toml='"2GB/s"',
            help="bytes a second that the job reads from the source at most, on [all its "
            "nodes](operations.md#nodes-of-a-job) together",
            more="Reads that somebody waits for are never held back; prefetches make up for them",
            default="no bound",
        ),
        Setting(
            name="job_nodes", metavar="N", parse=whole(1, MAX_WORLD_SIZE), types=(str, int), toml="16",
            help="the nodes of the job, each with a mount: what bounds the whole job is divided by N",
            default="the nodes that MPI, or the step of Slurm, has started; else `1`",
        ),
        Setting(
            name="policy", metavar="FILE", parse=parse_path, paths=True, toml='"policy.toml"',
            help="a policy file beside [the site's](operations.md#rules-of-a-site); the stricter of both counts",
            default="the site's alone, if there is one",
        ),
        Setting(
            name="calibration", metavar="FILE", parse=parse_path, paths=True, toml='"calibration.toml"',
            help="rates of the source and the tiers, as `nopfs calibrate` wrote them",
            more="The mount ignores a default file that belongs to another user than you, root and `--user`",
            default="the file that `nopfs calibrate` wrote for this source, if any",
        ),
    ),
    "how requests are answered": (
        Setting(
            name="servers", metavar="N", parse=whole(1, MAX_SERVERS), types=(str, int), toml="4",
            help=f"processes that answer requests, 1 to {MAX_SERVERS}; always one without the fast path",
            default="one for each four cores, at most four",
        ),
        Setting(
            name="fast_path", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="answer hits before pyfuse3 sees them",
            more="Without the fast path, a server that dies ends the mount, and `nopfs adopt` cannot take the mount "
            "over",
            default="where the system allows it",
        ),
        Setting(
            name="signal", metavar="HOW", parse=one_of("open", "tripwire", "auto"), toml='"auto"',
            help="how the mount [follows readers](#how-the-mount-follows-readers): `open`, `tripwire` (faster, but "
            "opens are estimated), `auto`",
            default="`auto`",
        ),
        Setting(
            name="passthrough", metavar="HOW", parse=one_of("auto", "on", "off"), toml='"auto"',
            help="let the kernel itself read large files that are in a disk tier: `auto`, `on`, `off`",
            more="`auto`: files of 1 MiB or more. `on`: files of any size. Both need Linux 6.9, root, the fast path, "
            "and a signal other than `tripwire`",
            default="`auto`",
        ),
    ),
    "with other nodes, by MPI": (
        Setting(
            name="peers", metavar="HOW", parse=one_of("auto", "on", "off"), toml='"auto"',
            help="form one cache with the mounts that MPI starts beside this one: `auto`, `on`, `off`",
            more="`auto`: where `mpirun` or `srun` started more than one, and mpi4py is installed. `on`: the mount "
            "fails elsewhere",
            default="`auto`",
        ),
        Setting(
            name="placement", metavar="HOW", parse=one_of("homes", "nopfs"), toml='"homes"',
            help="where samples live among the nodes: `homes`, or `nopfs`, as the NoPFS paper places them",
            more="With `homes`, the nodes read each sample from the source once",
            default="`homes`",
        ),
        Setting(
            name="epochs", metavar="N", parse=whole(1, MAX_EPOCHS), types=(str, int), toml="16",
            help="the number of epochs that the job is likely to have",
            more="The home of a sample is the node that reads the sample most often in these epochs",
            default=f"`{DEFAULT_EPOCHS}`",
        ),
    ),
    "running": (
        MountOption(
            name="config", metavar="FILE",
            help="a [configuration file](#configuration-file) in TOML; all other options take precedence over the file",
        ),
        MountOption(name="o", metavar="OPTIONS", many=True, help="settings and mount options, as in fstab"),
        Setting(
            name="foreground", short="-f", parse=parse_flag, types=_FLAG, toml="false",
            help="stay in the foreground, and unmount at SIGTERM or Ctrl-C",
            default="go to the background",
        ),
        Setting(
            name="log_file", metavar="F", parse=parse_path, paths=True, toml='"/var/log/nopfs.log"',
            help="the file for the log of the mount",
            more="F is a regular file of yours or of root, without a second name (hard link), or a file to be made. "
            "No part of the path is a link of another user",
            default="the terminal with `-f`, else the system's log, else the state directory",
        ),
        Setting(
            name="job_report", metavar="FILE", parse=parse_path, paths=True, toml='"report.json"',
            help="write the final record to this file when the mount ends, however it ends",
            more="[The record](#nopfs-umount) is that of `nopfs-umount --report`. The user of `--user` writes it, "
            "whole or not at all, and through no link of another user. FILE lies in a directory that is there",
            default="no report",
        ),
        Setting(
            name="allow_other", negative=True, parse=parse_flag, types=_FLAG, toml="true",
            help="let other users read what the source would let them read",
            more="For a user other than root, `/etc/fuse.conf` must say `user_allow_other`",
            default="on where root mounts",
        ),
        MountOption(name="debug", help="show where an error came from"),
        MountOption(name="version", help="print the version"),
        MountOption(name="help", short="-h", help="print this list"),
    ),
}  # fmt: skip

SETTINGS: Mapping[str, Setting] = {
    option.name: option for group in GROUPS.values() for option in group if isinstance(option, Setting)
}
