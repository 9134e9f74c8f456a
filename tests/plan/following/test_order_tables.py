"""Which tables of orders are kept: those that are asked for, not those of epochs that are over."""

from __future__ import annotations

import gc

import numpy as np

from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.order_tables import OrderTables
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.search.candidates import Candidate, OrderHeads
from nopfsfs.plan.search.suspects import Table
from tests.plan.following_jobs import SEED, SHUFFLED, tree

EPOCHS = 60
AT_ONCE = 40  # tables of some epochs, and of what they are compared with


def test_what_nobody_asks_for_is_forgotten_after_some_epochs() -> None:
    tables = OrderTables(tree(train=500), OrderHeads(), 1, ())
    asked, once = (Candidate(0, 0, SHUFFLED, epoch) for epoch in (0, 1))
    tables.table(once)
    for _ in range(20):
        tables.epoch_began()
        tables.table(asked)
    assert tables.kept(asked) is not None
    assert tables.kept(once) is None


def test_beginnings_of_orders_that_no_search_asks_for_are_forgotten_while_no_job_runs() -> None:
    heads = OrderHeads()
    tables = OrderTables(tree(train=500), heads, 1, ())
    first = heads.first(Candidate(0, 0, SHUFFLED, 0), 500, 1)
    for _ in range(20):
        tables.epoch_began()
    assert heads.first(Candidate(0, 0, SHUFFLED, 0), 500, 1) is first, "a job may use it now"
    for _ in range(20):
        tables.epoch_began()
        tables.no_job_runs()
    assert heads.first(Candidate(0, 0, SHUFFLED, 0), 500, 1) is not first


def test_a_job_of_many_epochs_keeps_a_few_tables() -> None:
    (part,) = tree(train=300, val=0)
    follower = Follower([part], SEED)
    before = tables_alive()
    for epoch in range(EPOCHS):
        follower.observe(part.orders[0].rows[registry.order(SHUFFLED, 300, epoch)], np.full(300, 7))
        follower.settle()
    assert follower.status().epoch in {EPOCHS - 1, EPOCHS}
    assert tables_alive() - before <= AT_ONCE


def tables_alive() -> int:
    gc.collect()
    return sum(type(one) is Table for one in gc.get_objects())  # isinstance() would ask the objects of others
