"""The work of `nopfs simulate`: reads the files or the mount, simulates, prints, draws."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from nopfsfs.cli.dry_run import open_index
from nopfsfs.cli.error_exit import NOPFS, say
from nopfsfs.cli.mount import progress_bar
from nopfsfs.cli.settings import output_file, parsed, usage
from nopfsfs.cli.simulate_options import SimulationRequest
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.performance.cluster_file import read_cluster
from nopfsfs.performance.model import Cluster
from nopfsfs.plan.samplers import registry
from nopfsfs.sim import table
from nopfsfs.sim.compare import Experiment, check, names
from nopfsfs.sim.from_mount import FromMount, from_mount
from nopfsfs.sim.run import Outcome
from nopfsfs.sim.shipped import find_cluster, find_dataset
from nopfsfs.sim.sweep import Point, cheapest, clusters, sweep
from nopfsfs.system.state_dirs import calibration_path, default_index_dir, trusted_users
from nopfsfs.text.toml_table import ForeignFile

PLAN_S = 30.0  # the answer may wait for a computation
SWEPT = ("homes",)  # the policy of a sweep over capacities without --policy
SWEPT_AS_THESIS = ("nopfs",)

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """The inputs of a simulation, with one cluster for each number of nodes."""

    clusters: list[Cluster]
    experiment: Experiment
    policies: list[str]
    total_bytes: int
    notes: tuple[str, ...]

    def header(self, cluster: Cluster, outcomes: Sequence[Outcome]) -> str:
        bound = next((one.bound_seconds for one in outcomes if one.seconds is not None), None)
        experiment = self.experiment
        return table.header(
            cluster, experiment.dataset, self.total_bytes, experiment.training, as_thesis=experiment.as_thesis,
            bound=bound,
        )  # fmt: skip


def run(asked: SimulationRequest) -> int:
    """Simulate and print; return the exit code. Raises NopfsError."""
    if asked.tuner:
        _tune(asked)
        return Exit.OK
    setup = _setup(asked)
    if asked.json:
        for note in setup.notes:
            say(NOPFS, note)
    if asked.sweeps:
        _sweep(asked, setup)
    else:
        _compare(asked, setup)
    return Exit.OK


def _setup(asked: SimulationRequest) -> SimulationInputs:
    usual: dict[str, Any] = {} if not asked.sweeps else {"usual": SWEPT_AS_THESIS if asked.thesis else SWEPT}
    policies = names(asked.policies, as_thesis=asked.thesis, **usual)
    if asked.sweeps and (len(policies) > 1 or len(asked.nodes) > 1):
        what = f"--policy: {len(policies)} policies" if len(policies) > 1 else "--nodes: several numbers"
        raise usage(f"{what} are too many for a sweep of capacities; write one")
    if asked.order is not None and asked.order not in registry.SAMPLERS:
        raise usage(f"--order: {asked.order!r} is not a sampler: choose among {', '.join(registry.SAMPLERS)}")
    given = _of_mount(asked) if asked.mountpoint is not None else _of_files(asked)
    said: dict[str, Any] = {name: getattr(asked, name) for name in ("epochs", "batch", "seed", "drop_last")}
    training = replace(given.training, **{name: value for name, value in said.items() if value is not None})
    cluster = given.cluster
    if asked.compute is not None:
        cluster = replace(cluster, compute=asked.compute)
    if asked.at_once is not None:
        cluster = replace(cluster, source=replace(cluster.source, at_once=asked.at_once))
    all_clusters = [replace(cluster, nodes=nodes) for nodes in asked.nodes or (cluster.nodes,)]
    for one in all_clusters:
        check(one, given.dataset)
        if one.nodes > 1 and math.isinf(one.network):
            raise usage(
                f"--nodes {one.nodes}: cluster {cluster.name} does not say how fast its network is; "
                'write network = "10000 MB/s" in its file'
            )
    experiment = Experiment(given.dataset, training, asked.order, asked.slice_share, asked.thesis)
    total = int(given.dataset.draw().sum())
    return SimulationInputs(all_clusters, experiment, policies, total, given.notes)


def _of_files(asked: SimulationRequest) -> FromMount:
    assert asked.cluster is not None
    assert asked.dataset is not None
    return FromMount(find_cluster(asked.cluster), *find_dataset(asked.dataset), ())


def _of_mount(asked: SimulationRequest) -> FromMount:
    assert asked.mountpoint is not None
    located = locate_living(asked.mountpoint, os.environ)
    status = located.call("status")
    plan = located.call("plan", PLAN_S, next=0)
    source, place = str(status["source"]), asked.index_dir or default_index_dir(os.geteuid(), os.environ)
    index = open_index({"path": source, "index_dir": place, "follow_symlinks": asked.follow_symlinks})
    calibration = _calibration(asked.calibration, place, source)  # the index was opened: the source answers
    several = any(nodes > 1 for nodes in asked.nodes)
    return from_mount(status, plan, index, calibration, several=several, disk=bool(asked.disks))


def _calibration(named: str | None, place: str, source: str) -> Cluster | None:
    """The cluster of the named calibration, else of the one that `nopfs calibrate` has written to its usual place. None
    without a calibration, or where that at the usual place belongs to a user who is not trusted."""
    path = named or calibration_path(place, source)
    if named is None and not os.path.lexists(path):
        return None
    try:
        return read_cluster(path, trusted_users() if named is None else None)
    except ForeignFile:
        return None


# ---- policies ---------------------------------------------------------------------------------------------


def _compare(asked: SimulationRequest, setup: SimulationInputs) -> None:
    found: list[tuple[Cluster, list[Outcome]]] = []
    with _bar(len(setup.clusters)) as show:
        for at, cluster in enumerate(setup.clusters):
            found.append((cluster, setup.experiment.outcomes(cluster, setup.policies, _after(show, at))))
    everything = [one for _, outcomes in found for one in outcomes]
    if asked.plot is not None:
        _plot(asked.plot, setup, everything)
    if asked.json:
        _print_json([_record(one, setup) for one in everything])
    else:
        parts = [f"{setup.header(cluster, outcomes)}\n{table.policies(outcomes)}" for cluster, outcomes in found]
        print("\n\n".join([*_notes(setup), *parts]), flush=True)


def _plot(path: str, setup: SimulationInputs, outcomes: Sequence[Outcome]) -> None:
    from nopfsfs.sim import plot

    several = len(setup.clusters) > 1
    draw = plot.by_nodes if several else plot.bars
    picture = draw(outcomes, _title(setup, nodes=not several), path[-3:])
    with output_file(path, "--plot") as file:
        file.write(picture)


# ---- capacities -------------------------------------------------------------------------------------------


def _sweep(asked: SimulationRequest, setup: SimulationInputs) -> None:
    [cluster], [policy] = setup.clusters, setup.policies
    total = len(list(clusters(cluster, asked.rams, asked.disks)))
    done = 0
    with _bar(total) as show:

        def run_one(changed: Cluster) -> Outcome:
            nonlocal done
            [outcome] = setup.experiment.outcomes(changed, [policy], _after(show, done))
            done += 1
            return outcome

        points = sweep(cluster, asked.rams, asked.disks, run_one)
    best = cheapest(points)
    classes = [one.name for one in cluster.classes]
    if asked.plot is not None:
        from nopfsfs.sim import plot

        picture = plot.swept(points, best, classes, f"{policy}: {_title(setup)}", asked.plot[-3:])
        with output_file(asked.plot, "--plot") as file:
            file.write(picture)
    if asked.json:
        _print_json([_record(point.outcome, setup) | _capacities(point, point is best) for point in points])
    else:
        # The bound depends on the capacities: the header has that of the best.
        head = setup.header(cluster, [best.outcome] if best is not None else [])
        print("\n\n".join([*_notes(setup), f"{head}\n{table.grid(points, best, policy, classes)}"]), flush=True)


def _capacities(point: Point, best: bool) -> dict[str, Any]:
    return {"ram_bytes": point.ram, "disk_bytes": point.disk, "cheapest": best}


# ---- the limit of requests at the source ------------------------------------------------------------------


def _tune(asked: SimulationRequest) -> None:
    from nopfsfs.sim.tuning import limit_table

    names = [word.strip() for text in asked.policies for word in text.split(",")]
    policies = list(dict.fromkeys(names)) or list(limit_table.USUAL)
    for name in policies:
        parsed(limit_table.tuner_of, name, "--policy")
    for name in asked.tuner:
        parsed(limit_table.source_of, name, "--tuner")
    with _bar(len(asked.tuner) * len(policies)) as show:
        found = limit_table.simulated(asked.tuner, policies, asked.mounts, asked.seed or 0, show)
    if asked.json:
        _print_json([one.record() for one in found])
    else:
        print(limit_table.text(found), flush=True)


# ---- output -----------------------------------------------------------------------------------------------


def _record(outcome: Outcome, setup: SimulationInputs) -> dict[str, Any]:
    training = setup.experiment.training
    more = {"mode": "thesis" if setup.experiment.as_thesis else "physical", "epochs": training.epochs,
            "batch": training.batch, "seed": training.seed}  # fmt: skip
    return outcome.record() | more


def _print_json(records: list[dict[str, Any]]) -> None:
    print(json.dumps(records, indent=2), flush=True)


def _notes(setup: SimulationInputs) -> list[str]:
    return ["\n".join(f"note: {note}" for note in setup.notes)] if setup.notes else []


def _title(setup: SimulationInputs, *, nodes: bool = True) -> str:
    cluster, experiment = setup.clusters[0], setup.experiment
    where = f"{cluster.name}, {table.layout(cluster)}" if nodes else cluster.name
    return f"{experiment.dataset.name} on {where}, {experiment.training.epochs:,} epochs"


def _after(show: Progress, done: int) -> Progress:
    return lambda share: show(done + share)


def _bar(total: int) -> AbstractContextManager[Progress]:
    """A function that takes how many runs are done, and shows that on a terminal."""
    style = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return progress_bar(sys.stderr.isatty(), desc="simulating", total=total, bar_format=style)
