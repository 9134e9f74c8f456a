"""Opens that no plan explains: what is kept of them, and when everything is tried."""

from __future__ import annotations

import random

import numpy as np

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.search.unexplained_opens import Cohort, RowOwners

FILES, OPENS = 20_000, 20_000


def tries(rows: list[int]) -> tuple[Cohort, int]:
    """A cohort that has opened these, and how often everything is tried."""
    owners = RowOwners([DataSet(0, ".", (FileOrder(("image_folder",), np.arange(FILES)),))])
    cohort = Cohort(owners, 0)
    found = 0
    for now, row in enumerate(rows):
        cohort.add(row, 1, now)
        found += cohort.full_due()
    return cohort, found


def test_a_few_files_that_are_read_for_hours_take_no_memory_and_are_searched_for_rarely() -> None:
    rng = random.Random(1)
    cohort, found = tries([rng.randrange(4) for _ in range(OPENS)])
    assert len(cohort) == 4
    assert len(cohort.opens) <= 400
    assert [row for row, *_ in cohort.opens][-1] in range(4)
    assert 3 <= found <= 7  # not at each doubling, and not never


def test_of_many_files_all_opens_are_kept_and_the_search_never_ends() -> None:
    cohort, found = tries(random.Random(2).sample(range(FILES), OPENS))
    assert len(cohort.opens) == OPENS
    assert 9 <= found <= 12
