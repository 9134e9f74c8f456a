"""A plan that is found when its readers have ended leads to the epoch that others read by now."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from loader_model import Loader
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.order_tables import OrderTables
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.candidates import Candidate, OrderHeads
from tests.plan.following_jobs import IN_ORDER, SHUFFLED, epoch_opens, tree

FIRST, NOW = 1, 40
ONCE = 4  # tables that the event loop may compute in one go: of the plans that are likeliest by now


@dataclass
class Tables:
    """The orders whose tables were computed: by jobs, and in the follower's thread."""

    by_jobs: list[Candidate] = field(default_factory=list)
    at_once: list[Candidate] = field(default_factory=list)
    in_job: bool = False


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    seen, compute = Tables(), OrderTables.compute

    def counted(self: OrderTables, candidate: Candidate) -> object:
        (seen.by_jobs if seen.in_job else seen.at_once).append(candidate)
        return compute(self, candidate)

    monkeypatch.setattr(OrderTables, "compute", counted)
    return seen


def opens(part: DataSet, spec: Spec, epoch: int, count: int) -> NDArray[np.int64]:
    return epoch_opens(part, spec, epoch, Loader(2, 2, 16), np.random.default_rng(epoch))[:count]


def observe(follower: Follower, rows: NDArray[np.int64], reader: int) -> None:
    follower.observe(rows, np.full(len(rows), reader))


def found_late(follower: Follower, then: NDArray[np.int64], now: NDArray[np.int64], tables: Tables) -> int:
    """Readers come and end; while their plan is searched for, others come. Does all work; returns the most tables
    that were computed at once."""
    observe(follower, then, 7)
    first, most = True, 0
    while (job := follower.work()) is not None:
        tables.in_job = True
        job.run()
        tables.in_job = False
        if first:
            observe(follower, now, 8)
        before, first = len(tables.at_once), False
        follower.finish(job)
        most = max(most, len(tables.at_once) - before)
    return most


def test_the_epoch_that_is_read_by_now_is_found_by_one_job_for_each_epoch(tables: Tables) -> None:
    train, *rest = tree(1000)
    follower = Follower([train, *rest], None, heads=OrderHeads(1 << 26))
    most = found_late(follower, opens(train, SHUFFLED, FIRST, 400), opens(train, SHUFFLED, NOW, 100), tables)
    status = follower.status()
    assert (status.state, status.sampler, status.epoch) == ("locked", "distributed", NOW)
    assert most <= ONCE
    assert len(tables.by_jobs) >= NOW - FIRST


def test_no_epoch_is_computed_of_files_that_nobody_reads_by_now(tables: Tables) -> None:
    train, val, both = tree(1000)
    follower = Follower([train, val, both], None, heads=OrderHeads(1 << 26))
    found_late(follower, opens(train, SHUFFLED, FIRST, 400), opens(val, IN_ORDER, 0, 100), tables)
    assert follower.status().sampler == "sequential"
    assert not [one for one in (*tables.by_jobs, *tables.at_once) if one.dataset == 0 and one.epoch > FIRST + ONCE]
