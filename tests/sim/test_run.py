"""A training simulated: what an outcome says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.performance.model import Cluster
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.run import PLACING, Simulation
from nopfsfs.sim.shipped import find_cluster, find_dataset
from nopfsfs.sim.training import SimDataSet, Training
from tests.examples import examples
from tests.sim.clusters import clusters

SIMULATION = Simulation(find_cluster("sc21"), find_dataset("mnist")[0], Training(3, 32, drop_last=False))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_outcome(policy: str) -> None:
    told: list[float] = []

    outcome = SIMULATION.run(policy, told.append)

    assert outcome.seconds is not None
    begin = ([0.0, *told])[-4]  # what is told before the epochs
    assert told[-3:] == pytest.approx([begin + (1 - begin) * done / 3 for done in (1, 2, 3)])
    assert told == sorted(told)
    assert (0 < begin <= PLACING) == (policy in ("nopfs", "homes", "belady", "mount"))
    assert outcome.record()["policy"] == policy
    assert sum(outcome.epoch_seconds) <= outcome.seconds * (1 + 1e-9)
    assert sum(outcome.served.values()) == pytest.approx(0.0 if policy == "perfect" else 1.0)
    assert 0 <= outcome.distinct_share <= 1
    assert len(outcome.source_reads_per_epoch) == 3


def test_a_samplers_order() -> None:
    dataset = SimDataSet("d", 1000, 100.0)
    outcome = Simulation(find_cluster("sc21"), dataset, Training(3, 4), order="distributed").run("homes")
    assert outcome.source_reads_per_epoch[0] == 1000 // 16 * 16


@settings(max_examples=examples(60))
@given(clusters(staging=200), st.integers(1, 60), st.integers(1, 3), st.integers(2, 6))
def test_homes_keep_no_less_than_nopfs(cluster: Cluster, samples: int, batch: int, epochs: int) -> None:
    """Of equal samples, more are kept somewhere."""
    simulation = Simulation(cluster, SimDataSet("d", samples, 10.0), Training(epochs, batch, drop_last=False))
    homes, nopfs = simulation.run("homes"), simulation.run("nopfs")
    assert homes.distinct_share >= nopfs.distinct_share
