"""Options of `nopfs simulate`, which computes how long a training takes with each policy on a cluster.
`cli/simulate.py` does the work."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nopfsfs.cli.error_exit import Commands
from nopfsfs.cli.option_values import long_option, parse_path, parse_seed, whole
from nopfsfs.cli.settings import parsed, usage
from nopfsfs.config import MAX_CONCURRENCY
from nopfsfs.text.units import parse_rate, parse_size

PLOTS = (".png", ".svg")
MOST_EPOCHS, MOST_BATCH, MOST_NODES = 10**6, 10**7, 65_534  # as in data set files; nodes are numbered in 16 bits
_SHARE = re.compile(r"\d*\.?\d+|\d+\.", re.ASCII)
_ONLY_MOUNT = ("calibration", "index_dir", "follow_symlinks")
_NOT_THESIS = ("order", "slice", "source_concurrency", "from_mount")
_NOT_TUNER = (
    "cluster", "dataset", "from_mount", *_ONLY_MOUNT, "nodes", "epochs", "batch", "order", "slice",
    "source_concurrency", "drop_last", "compute", "thesis", "plot", "sweep_ram", "sweep_disk",
)  # fmt: skip
MOST_MOUNTS = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The options of a simulation, checked as far as that needs no file and no mount."""

    cluster: str | None = None  # a name or a path, like `dataset`; both are given, or `mountpoint` alone
    dataset: str | None = None
    mountpoint: str | None = None
    calibration: str | None = None
    index_dir: str | None = None  # of the mount, as given to nopfs-mount
    follow_symlinks: bool = False
    policies: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    epochs: int | None = None
    batch: int | None = None
    seed: int | None = None
    drop_last: bool | None = None
    compute: float | None = None
    at_once: int | None = None
    order: str | None = None
    slice_share: float | None = None
    thesis: bool = False
    json: bool = False
    plot: str | None = None
    tuner: tuple[str, ...] = ()  # sources at which the limit of requests is tuned; then none of the above but three
    mounts: int = 1
    rams: tuple[int, ...] = ()
    disks: tuple[int, ...] = ()

    @property
    def sweeps(self) -> bool:
        return bool(self.rams or self.disks)


def add_simulate(commands: Commands, handler: Callable[[argparse.Namespace], int]) -> None:
    """Add `nopfs simulate`, carried out by `handler`."""
    parser = commands.add_parser(
        "simulate",
        usage="nopfs simulate CLUSTER DATASET [options] | --from-mount MOUNTPOINT [options] "
        "| --tuner SOURCE[,SOURCE...] [options]",
        help="how long a training takes with each policy",
        description="Print how long a training takes on a cluster with each policy, how long it waits for samples, and "
        "where these come from (docs/simulate.md).",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("cluster", metavar="CLUSTER", nargs="?", help="a name, such as sc21, or a TOML file")
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="a name, such as imagenet-1k, or a TOML file")
    parser.add_argument("--policy", metavar="NAME[,NAME...]", action="append", help="policies; all of them: all")
    for name, value, text in (
        ("nodes", "N[,N...]", "nodes, in place of the cluster's"),
        ("epochs", "N", "epochs, in place of the data set's"),
        ("batch", "N", "samples of one rank in a step"),
        ("seed", "N", "seed of the order"),
        ("order", "SAMPLER", "the order of a framework's sampler (nopfs plan --samplers)"),
        ("compute", "RATE", "what one rank trains on in a second, such as 100MB/s"),
        ("source-concurrency", "N", "files that a node has under way at the source"),
        ("slice", "SHARE", "part of the fastest storage class, 0 to 1, that homes leaves to Belady"),
    ):
        parser.add_argument(f"--{name}", metavar=value, help=text)
    parser.add_argument(
        "--drop-last", action=argparse.BooleanOptionalAction, help="leave out what fills no step of all ranks"
    )
    parser.add_argument("--thesis", action="store_true", help="as the simulator of NoPFS's predecessor does it")
    parser.add_argument("--json", action="store_true", help="print a list of records as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, .png or .svg")
    sweep = parser.add_argument_group("what should I buy")
    sweep.add_argument("--sweep-ram", metavar="SIZE[,SIZE...]", help="capacities of the fastest storage class")
    sweep.add_argument("--sweep-disk", metavar="SIZE[,SIZE...]", help="capacities of the last storage class")
    mount = parser.add_argument_group("of a running mount")
    mount.add_argument("--from-mount", metavar="MOUNTPOINT", help="its data set, on nodes like this one")
    mount.add_argument("--calibration", metavar="FILE", help="what nopfs calibrate measured, where it is not found")
    mount.add_argument("--index-dir", metavar="D", help="the index directory, where the mount was given one")
    mount.add_argument("--follow-symlinks", action="store_true", help="as for nopfs-mount")
    tuner = parser.add_argument_group("who tunes the limit of requests at the source")
    tuner.add_argument("--tuner", metavar="SOURCE[,SOURCE...]", help="the tuner beside its rivals: wide, small, smooth")
    tuner.add_argument("--mounts", metavar="N", help="mounts that share the source; 1 unless given")
    parser.set_defaults(handler=handler)


def parse(said: Mapping[str, Any]) -> SimulationRequest:
    """The request of the command line. Raises NopfsError."""
    _check_together(said)
    mountpoint = said.get("from_mount")
    if mountpoint == "":
        raise usage("--from-mount: the path is empty; name a mountpoint")
    return SimulationRequest(
        cluster=said.get("cluster"),
        dataset=said.get("dataset"),
        mountpoint=mountpoint,
        calibration=said.get("calibration"),
        index_dir=_one(said, "index_dir", parse_path),
        follow_symlinks=bool(said.get("follow_symlinks")),
        policies=tuple(said.get("policy", ())),
        nodes=_list(said, "nodes", whole(1, MOST_NODES)),
        epochs=_one(said, "epochs", whole(1, MOST_EPOCHS)),
        batch=_one(said, "batch", whole(1, MOST_BATCH)),
        seed=_one(said, "seed", parse_seed),
        drop_last=said.get("drop_last"),
        compute=_one(said, "compute", parse_rate),
        at_once=_one(said, "source_concurrency", whole(1, MAX_CONCURRENCY)),
        order=said.get("order"),
        slice_share=_one(said, "slice", _share),
        thesis=bool(said.get("thesis")),
        json=bool(said.get("json")),
        plot=_one(said, "plot", _plot),
        tuner=_list(said, "tuner", str),
        mounts=_one(said, "mounts", whole(1, MOST_MOUNTS)) or 1,
        rams=_list(said, "sweep_ram", parse_size),
        disks=_list(said, "sweep_disk", parse_size),
    )


def _check_together(said: Mapping[str, Any]) -> None:
    """Refuse options that do not go with each other."""
    if "tuner" in said:
        for name in _NOT_TUNER:
            if name in said:
                what = name.upper() if name in ("cluster", "dataset") else long_option(name)
                raise usage(f"{what}: does not go with --tuner; leave it out")
    elif "mounts" in said:
        raise usage("--mounts: goes with --tuner; leave it out")
    elif "from_mount" in said:
        if "cluster" in said:
            raise usage("--from-mount: takes the place of CLUSTER and DATASET; leave them out")
    elif "dataset" not in said:
        raise usage("name CLUSTER and DATASET, such as sc21 imagenet-1k, or --from-mount; see nopfs simulate --help")
    else:
        for name in _ONLY_MOUNT:
            if name in said:
                raise usage(f"{long_option(name)}: goes with --from-mount; leave it out")
    if "thesis" in said:
        for name in _NOT_THESIS:
            if name in said:
                raise usage(f"{long_option(name)}: is not in the thesis's simulator; leave out --thesis")


def _one(said: Mapping[str, Any], name: str, read: Callable[[str], T]) -> T | None:
    """The value of an option. Raises NopfsError that names it."""
    return parsed(read, said[name], long_option(name)) if name in said else None


def _list(said: Mapping[str, Any], name: str, read: Callable[[str], T]) -> tuple[T, ...]:
    """The values of a comma list, each once, in the given sequence."""
    found = _one(said, name, lambda text: tuple(dict.fromkeys(read(word.strip()) for word in text.split(","))))
    return found or ()


def _share(text: str) -> float:
    if not _SHARE.fullmatch(text) or not float(text) <= 1:
        raise ValueError(f"{text!r} is not a share: write a number from 0 to 1, such as 0.25")
    return float(text)


def _plot(text: str) -> str:
    path = os.path.abspath(text)
    if not path.endswith(PLOTS):
        raise ValueError(f"{text!r} ends neither in {' nor in '.join(PLOTS)}: the end says what is drawn")
    if os.path.isdir(path) or not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise ValueError(f"{text} cannot be written; name a file in a directory of yours")
    return path
