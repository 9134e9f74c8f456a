"""The simulator against what was published, our placement in it, and what it takes.

python scripts/bench_sim.py    the tables of the thesis, published and simulated (two minutes)
python scripts/bench_sim.py --simulate '{"cluster": "sc21", "dataset": "mnist", "epochs": 5, "nodes": 64}'
                               one simulation of our placement, in this process; JSON: seconds and peak memory
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import lab
import numpy as np
import sim_table
import thesis_tables
from bench_entry import Entry
from lab import Progress
from thesis_tables import Scenario

from nopfsfs.performance.model import Cluster
from nopfsfs.placement import methods
from nopfsfs.sim import thesis
from nopfsfs.sim.run import Simulation
from nopfsfs.sim.shipped import find_cluster, find_dataset, shipped_clusters, shipped_datasets
from nopfsfs.sim.training import Training
from nopfsfs.sim.training_orders import permutations

SHARE_NODES = (2, 4, 8, 16, 64)
SHARE_SAMPLES, SHARE_EPOCHS = 64_000, 90
COSTLY_NODES = 1024
TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Compared:
    """A simulation and what was published of it; None where the policy does not support it."""

    table: str
    name: str
    published: float | None
    simulated: float | None

    @property
    def error(self) -> float:
        """Of the simulated seconds, as a part of those published; infinite where one is missing."""
        if self.published is None or self.simulated is None:
            return 0.0 if self.published is self.simulated else float("inf")
        return self.simulated / self.published - 1

    def __str__(self) -> str:
        seconds = "".join("         –" if s is None else f"{s:10.2f}" for s in (self.published, self.simulated))
        return f"{self.table:6}{self.name:28}{seconds}{self.error:+9.2%}"


def thesis_entries() -> Iterator[Entry]:
    """sim/thesis/max_relative_error of scenarios S2 to S4, sim/thesis/{S1,sweep}/max_relative_error, and
    sim/thesis/seconds that all took. Prints each simulation."""
    began = time.perf_counter()
    found: dict[str, list[Compared]] = {}
    environments = thesis_tables.environments()
    steps = len(thesis_tables.SCENARIOS) * len(thesis_tables.POLICIES) + len(environments)
    with Progress(steps) as progress:
        progress.say(f"{'table':6}{'simulated':28}{'published':>10}{'here':>10}{'error':>9}")
        for done in comparisons(progress):
            found.setdefault(done.table, []).append(done)
            progress.say(str(done))
            progress.step()
    yield _largest("sim/thesis/S1", found["S1"])
    yield _largest("sim/thesis", [done for table in ("S2", "S3", "S4") for done in found[table]])
    yield _largest("sim/thesis/sweep", found["sweep"])
    seconds = time.perf_counter() - began
    yield Entry("sim/thesis/seconds", seconds, "s", [seconds])


def comparisons(progress: Progress) -> Iterator[Compared]:
    for scenario in thesis_tables.SCENARIOS:
        table = scenario.dataset.name
        for policy, published in scenario.published.items():
            progress.doing(f"{table}: {policy}")
            yield Compared(table, policy, published, simulated(policy, thesis_tables.CLUSTER, scenario))
    for name, (cluster, seconds) in thesis_tables.environments().items():
        progress.doing(f"sweep: {name}")
        yield Compared("sweep", name, seconds, simulated("nopfs", cluster, thesis_tables.S3))


def simulated(policy: str, cluster: Cluster, scenario: Scenario) -> float | None:
    try:
        return thesis.run(policy, cluster, scenario.dataset, scenario.training).seconds
    except thesis.NotSupported:
        return None


def _largest(name: str, compared: list[Compared]) -> Entry:
    errors = [abs(done.error) for done in compared]
    return Entry(f"{name}/max_relative_error", max(errors), "", errors)


def share_entries() -> Iterator[Entry]:
    """sim/homes/distinct_share/N*: the share of a data set that nodes keep whose storage is as large as it."""
    for nodes in SHARE_NODES:
        orders = permutations(Training(SHARE_EPOCHS, 1, drop_last=False), SHARE_SAMPLES, nodes, 1)
        room = np.full((nodes, 1), SHARE_SAMPLES // nodes, np.int64)
        placed = methods.homes(orders.readers, SHARE_EPOCHS, np.ones(SHARE_SAMPLES, np.int64), room)
        yield Entry(f"sim/homes/distinct_share/N{nodes}", placed.distinct_share, "", [placed.distinct_share])


def table_entries() -> Iterator[Entry]:
    """sim/homes/worst_ratio_to_{bound,nopfs} of all shipped clusters and data sets. Prints the tables."""
    cells = sim_table.matrix(shipped_clusters(), shipped_datasets(), sim_table.NODES)
    print("\n".join(sim_table.report(cells)))
    bound = [cell.of_bound for cell in cells if cell.fits]
    yield Entry("sim/homes/worst_ratio_to_bound", max(bound), "x", bound)
    nopfs = [cell.of_nopfs for cell in cells]
    yield Entry("sim/homes/worst_ratio_to_nopfs", max(nopfs), "x", nopfs)


def cost_entries(dataset: str, epochs: int) -> Iterator[Entry]:
    """sim/<dataset>/{seconds,peak_mb} of a simulation of 1,024 nodes, in a process of its own."""
    asked = {"cluster": "sc21", "dataset": dataset, "epochs": epochs, "nodes": COSTLY_NODES}
    found = json.loads(lab.run([sys.executable, __file__, "--simulate", json.dumps(asked)], TIMEOUT_S))
    for name, unit in (("seconds", "s"), ("peak_mb", "MB")):
        yield Entry(f"sim/{dataset}/{name}", found[name], unit, [found[name]])


def cost(cluster: str, dataset: str, epochs: int, nodes: int) -> dict[str, float]:
    """Of a simulation of our placement: seconds, and what this process took at most."""
    data, training = find_dataset(dataset)
    began = time.perf_counter()
    training = replace(training, epochs=epochs, drop_last=False)
    Simulation(replace(find_cluster(cluster), nodes=nodes), data, training).run("homes")
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", help="JSON: cluster, dataset, epochs, nodes")
    asked = parser.parse_args()
    if asked.simulate:
        print(json.dumps(cost(**json.loads(asked.simulate))))
        return
    for entry in thesis_entries():
        print(f"{entry.name:40}{entry.value:10.4g} {entry.unit}")


if __name__ == "__main__":
    main()
