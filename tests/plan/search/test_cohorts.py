"""Opens that no plan explains: what is kept of them, and when everything is tried."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import ENDED, Cohorts
from nopfsfs.plan.search.row_owners import RowOwners

FILES, OPENS = 20_000, 20_000


SEARCH = cast(Any, object())


def owners() -> RowOwners:
    return RowOwners([DataSet(0, ".", (FileOrder(("image_folder",), np.arange(FILES)),))])


def tries(rows: list[int]) -> tuple[Cohort, int]:
    """A cohort that has opened these, and how often everything is tried."""
    cohort = Cohort(owners(), 0)
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


def opened(rows: Iterable[int], cohorts: Cohorts, reader: int = 1, now: int = 0) -> Cohort:
    """The cohort of a reader that has opened these files, the first as the mount's open `now`."""
    for at, row in enumerate(rows, now):
        cohorts.join(reader, at).add(row, reader, at)
    found = cohorts.of(reader)
    assert found is not None
    return found


def files(cohort: Cohort) -> list[int]:
    return [row for row, _, _ in cohort.opens]


def test_readers_that_open_files_again_are_searched_for_anew() -> None:
    cohorts = Cohorts(owners())
    cohort = opened([*range(400), *range(300, 308)], cohorts)
    era = cohort.era
    cohorts.begin_epoch(cohort, range(300, 308))
    assert files(cohort) == list(range(300, 308))
    assert cohort.era > era
    assert cohorts.of(1) is cohort


@pytest.mark.parametrize("few", [20, 40, 64, 100])
def test_the_last_files_of_a_small_epoch_are_the_first_of_the_next(few: int) -> None:
    """The last of these files is opened just now."""
    cohorts = Cohorts(owners())
    order = list(range(few))
    cohort = opened([*order, *order[-2:], *order[:5]], cohorts)
    cohorts.begin_epoch(cohort, [*order[-2:], *order[:6]])
    assert len(cohort) <= 8
    assert files(cohort)[-5:] == order[:5]


def test_while_all_is_tried_for_what_they_opened_before_they_are_a_cohort_of_their_own() -> None:
    cohorts = Cohorts(owners())
    before = opened([*range(400), *range(300, 308)], cohorts)
    before.full, era = SEARCH, before.era
    cohorts.begin_epoch(before, range(300, 308))
    now = cohorts.of(1)
    assert now is not None
    assert now is not before
    assert (files(now), now.full, now.readers) == (list(range(300, 308)), None, {1})
    assert (before.full, before.era, before.readers) == (SEARCH, era, set())
    assert files(before)[:400] == list(range(400))
    opened(range(10), cohorts, reader=2, now=408)
    assert cohorts.of(2) is now, "nobody joins those who have ended"
    opened(range(ENDED), cohorts, now=418)
    assert cohorts.ended(before)
    assert not cohorts.ended(now)


@pytest.mark.parametrize(
    "rows",
    [range(400), [*range(20), *range(300, 308)], [row for row in range(400) for _ in range(2)]],
    ids=["ended", "new", "each file twice"],
)
def test_no_epoch_begins_for_readers_that_have_not_opened_these_files_before(rows: Iterable[int]) -> None:
    cohorts = Cohorts(owners())
    cohort = opened(rows, cohorts)
    cohort.try_all(SEARCH)
    era, count = cohort.era, len(cohort.opens)
    cohorts.begin_epoch(cohort, [*range(300, 304), *range(396, 400)])
    assert cohorts.cohorts == [cohort]
    assert (cohort.era, len(cohort.opens), cohort.full) == (era, count, SEARCH)


def test_no_epoch_begins_for_those_who_open_one_of_these_files_again() -> None:
    """Another job begins an epoch; this one is in the middle of its own."""
    cohorts = Cohorts(owners())
    cohort = opened([*range(400), *range(10, 30)], cohorts)
    cohorts.begin_epoch(cohort, [20, *range(300, 307)])
    assert len(cohort.opens) == 420


def test_of_so_many_files_that_the_first_opens_are_forgotten_an_epoch_begins_as_well() -> None:
    cohorts = Cohorts(owners())
    cohort = opened((at % FILES for at in range(70_000)), cohorts)
    lately = files(cohort)[-8:]
    cohorts.begin_epoch(cohort, lately)
    assert files(cohort) == lately


def test_a_cohort_for_which_all_is_tried_is_kept_whoever_comes() -> None:
    cohorts = Cohorts(owners())
    first = opened(range(16), cohorts)
    first.try_all(SEARCH)
    for reader in range(2, 40):
        opened(range(1000 * reader % FILES, 1000 * reader % FILES + 16), cohorts, reader, now=10_000 * reader)
    assert len(cohorts.cohorts) == 8
    assert cohorts.cohorts[0] is first
