"""The simulator against what was published.

python scripts/bench_sim.py    the tables of the thesis, published and simulated (two minutes)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import thesis_tables
from bench_entry import Entry
from lab import Progress
from thesis_tables import Scenario

from nopfsfs.policy.model import Cluster
from nopfsfs.sim import thesis


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


if __name__ == "__main__":
    for entry in thesis_entries():
        print(f"{entry.name:40}{entry.value:10.4g} {entry.unit}")
