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
