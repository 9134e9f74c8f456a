"""Opens that no plan explains: what is kept of them, and when everything is tried."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.search.unexplained_opens import Cohort, RowOwners

FILES, OPENS = 20_000, 20_000


def new_cohort() -> Cohort:
    return Cohort(RowOwners([DataSet(0, ".", (FileOrder(("image_folder",), np.arange(FILES)),))]), 0)


def tries(rows: list[int]) -> tuple[Cohort, int]:
    """A cohort that has opened these, and how often everything is tried."""
    cohort = new_cohort()
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


def test_an_epoch_begins_for_those_who_have_read_these_files_before_and_for_no_others() -> None:
    again = list(range(300, 308))
    read_on, ended, begun = new_cohort(), new_cohort(), new_cohort()
    search = cast(Any, object())
    for cohort, rows in (
        (read_on, [*range(400), *again]),
        (ended, range(400)),
        (begun, [*range(500, 520), *again]),
    ):
        for now, row in enumerate(rows):
            cohort.add(row, 1, now)
        assert cohort.full_due()
        cohort.full = search
    before = {id(cohort): (cohort.era, len(cohort.opens)) for cohort in (read_on, ended, begun)}
    for cohort in (read_on, ended, begun):
        cohort.begin_epoch(again)
    assert [row for row, _, _ in read_on.opens] == again
    assert read_on.era > before[id(read_on)][0]
    assert read_on.full is search, "it goes on where it is"
    assert not read_on.searched, "these opens are of another epoch"
    for cohort in (ended, begun):
        assert (cohort.era, len(cohort.opens)) == before[id(cohort)]
        assert cohort.searched


def test_of_so_many_files_that_the_first_opens_are_forgotten_an_epoch_begins_as_well() -> None:
    cohort = new_cohort()
    for now in range(70_000):
        cohort.add(now % FILES, 1, now)
    lately = [row for row, _, _ in cohort.opens][-8:]
    cohort.begin_epoch(lately)
    assert [row for row, _, _ in cohort.opens] == lately
