"""`nopfs plan --dry-run`: the order in which a job would read a data set, without mounting anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.cli.error_exit import NOPFS, say
from nopfsfs.cli.mount import scan_bar
from nopfsfs.cli.option_values import long_option, parse_path, parse_seed, whole
from nopfsfs.cli.plan_options import said_options
from nopfsfs.cli.preflight import check_source
from nopfsfs.cli.settings import output_file, parsed, usage
from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.dataset import order_files
from nopfsfs.dataset.file_orders import candidate_roots, first_list
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_cache import open_or_scan
from nopfsfs.plan.samplers import registry
from nopfsfs.registration import plan_tables
from nopfsfs.registration.plan_file import explicit_order, read_plan_file
from nopfsfs.system.state_dirs import default_index_dir

HEAD, HEAD_MOST = 20, 10**12  # files that are printed without --head and --all; of --head
_AT_ONCE = 8192  # paths in one write
_NUMBERS = {
    "seed": parse_seed, "epoch": whole(0, plan_tables.EPOCH_MOST), "world_size": whole(1, plan_tables.WORLD_MOST),
}  # fmt: skip

Samples = NDArray[np.int64]


def dry_run(said: Mapping[str, Any]) -> int:
    """Print the order of each plan, one path relative to SOURCE in each line, or write it to --order-out; return the
    exit code. Raises NopfsError."""
    plans = _plans(said)
    head = None if said.get("all") else parsed(whole(0, HEAD_MOST), said["head"], "--head") if "head" in said else HEAD
    out = said.get("order_out")
    if "head" in said and said.get("all"):
        raise usage("--all: goes without --head")
    if out is not None and len(plans) > 1:
        raise usage(f"--order-out: {len(plans)} plans have {len(plans)} orders; write a file of one plan")
    silent = out is not None and not said.get("all") and "head" not in said
    index = open_index(said)
    for plan in plans:
        rows, samples = order_of(plan, index, said["path"], None if out is not None else head)
        if out is not None:
            with output_file(out, "--order-out") as file:
                np.save(file, samples)
        if silent:
            continue
        shown = len(samples) if head is None else min(head, len(samples))
        _print(index, rows, samples[:shown])
        if head == HEAD and "head" not in said and shown == HEAD:
            say(NOPFS, f"the first {HEAD}; --head N prints N of them, --all prints all")
    return 0


def _plans(said: Mapping[str, Any]) -> tuple[PlanSpec, ...]:
    """The plans of --plan, where other options replace values of the file; or the plan of the options alone."""
    table = {name: said[name] for name in ("sampler", "root", "files", "ranks") if name in said}
    table |= {name: parsed(one, said[name], long_option(name)) for name, one in _NUMBERS.items() if name in said}
    if os.path.isabs(table.get("root", "")):
        table["root"] = os.path.relpath(table["root"], os.path.abspath(said["path"]))
    texts = said.get("sampler_option", ())
    if "plan" in said:
        if texts or "sampler" in table:
            raise usage("--sampler: the plan file names it; leave one of the two out")
        tables = [{**plan, **table} for plan in read_plan_file(said["plan"]).tables]
    else:
        if "sampler" not in table:
            raise usage("--sampler: name it, or a plan file with --plan; nopfs plan --samplers lists samplers")
        tables = [{**table, "options": said_options(table["sampler"], texts)}]
    try:
        return plan_tables.parse_plans(tables)
    except plan_tables.PlanError as error:
        first, _, rest = error.key.partition(".")
        origin = f"--sampler-option {rest}" if first == "options" else long_option(first)
        raise usage(f"{origin}: {error.reason}") from error


def open_index(said: Mapping[str, Any]) -> Index:
    """The index of SOURCE, kept in the directory of nopfs-mount. A scan of more than two seconds shows a bar."""
    if not said["path"]:
        raise usage("SOURCE: the path is empty")
    source = os.path.abspath(said["path"])
    check_source(MountConfig(source=source, mountpoint=""))
    place = said["index_dir"] if "index_dir" in said else default_index_dir(os.geteuid(), os.environ)
    follow = bool(said.get("follow_symlinks"))
    with scan_bar(sys.stderr.isatty()) as progress:
        opened = open_or_scan(
            os.path.realpath(source), parse_path(place), follow_symlinks=follow, progress=progress
        )
    os.close(opened.fd)
    for warning in opened.result.warnings:
        say(NOPFS, warning)
    return opened.index


def order_of(plan: PlanSpec, index: Index, source: str, count: int | None) -> tuple[NDArray[np.int64], Samples]:
    """The file list (rows, int64[n]) of a plan, and samples of that list (int64[m]). The samples are those that the
    plan's ranks read in its epoch, position by position; at least the first `count`. Raises NopfsError with
    Exit.USAGE."""
    try:
        root = _root(plan, index)
        if plan.order:
            rows, epochs = explicit_order(plan, index, root, os.path.realpath(source), "")
            return rows, epochs[plan.epoch % len(epochs)]
        if plan.sampler == plan_tables.EXPLICIT:
            raise ValueError("order: is missing")
        return _computed(plan, index, root, count)
    except ValueError as error:
        raise usage(str(error)) from error


def _root(plan: PlanSpec, index: Index) -> int:
    if plan.root is not None:
        try:
            return order_files.directory(index, plan.root)
        except ValueError as error:
            raise ValueError(f"root: {error}") from error
    return int(candidate_roots(index)[0])


def _computed(plan: PlanSpec, index: Index, root: int, count: int | None) -> tuple[NDArray[np.int64], Samples]:
    family, spec, subset = registry.sampler(plan.sampler), plan_tables.spec_of(plan), plan_tables.subset_of(plan)
    rows = first_list(family.files if plan.files is None else (plan.files,), index, root)[1].astype(np.int64)
    chosen = None if subset is None else registry.subset(subset.sampler).samples(subset, len(rows))
    if plan.world_size is None and plan.ranks is not None and plan.ranks != (0,):
        raise ValueError("world_size: how many ranks has the job? Without, it is 1")
    world = plan.world_size or 1
    ranks = plan.ranks if plan.ranks is not None else tuple(range(world))
    n = len(rows) if chosen is None else len(chosen)
    each = None if count is None else -(-count // len(ranks))
    samples = family.order(spec, n, plan.epoch, world, ranks, each)
    samples = samples[samples >= 0]  # negative: a position at which a rank reads nothing
    return rows, samples if chosen is None else chosen[samples]


def _print(index: Index, rows: NDArray[np.int64], samples: Samples) -> None:
    for start in range(0, len(samples), _AT_ONCE):
        paths = [index.path(row) for row in rows[samples[start : start + _AT_ONCE]].tolist()]
        sys.stdout.buffer.write(b"\n".join(paths) + b"\n")
    sys.stdout.buffer.flush()  # inside `error_exit.run`, which ends silently on a broken pipe
