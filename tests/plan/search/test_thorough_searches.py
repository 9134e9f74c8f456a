"""For which cohorts everything is tried, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import ENDED, Cohorts
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.search.thorough_searches import ThoroughSearches

FILES = 4000


class Bench:
    """Cohorts of one reader each; `now`: opens of the mount."""

    def __init__(self) -> None:
        self.cohorts = Cohorts(RowOwners([DataSet(0, "", (FileOrder(("image_folder",), np.arange(FILES)),))]))
        self.searches = ThoroughSearches(self.cohorts)
        self.now = 0

    def reads(self, reader: int, count: int = 300) -> Cohort:
        for _ in range(count):
            self.now += 1
            found = self.cohorts.join(reader, self.now)
            found.add(self.now % FILES, reader, self.now)
        return found

    def begun(self, cohort: Cohort, *, past_beginnings: bool = True) -> Any:
        assert self.searches.due() is cohort
        search = cast(Any, SimpleNamespace(past_beginnings=past_beginnings))
        self.searches.begin(cohort, search)
        return search

    def turns(self, count: int) -> list[Cohort]:
        turns = [self.searches.next() for _ in range(count)]
        return [turn[0] for turn in turns if turn is not None]


def test_of_readers_that_read_at_the_same_time_one_is_searched_for() -> None:
    bench = Bench()
    first = bench.reads(1)
    bench.begun(first)
    bench.reads(2, ENDED // 2)
    bench.reads(1, 10)
    bench.reads(2, ENDED // 2)
    assert bench.searches.due() is None
    assert bench.turns(3) == [first] * 3


def test_who_comes_when_they_have_ended_is_searched_for_in_turn_and_its_beginning_first() -> None:
    bench = Bench()
    first = bench.reads(1)
    bench.begun(first)
    second = bench.reads(2)
    search = bench.begun(second, past_beginnings=False)
    assert bench.turns(3) == [second] * 3
    search.past_beginnings = True
    assert bench.turns(4) == [first, second, first, second]
    assert bench.searches.first is first


def test_of_two_that_have_ended_the_older_search_goes_on() -> None:
    bench = Bench()
    first = bench.reads(1)
    bench.begun(first)
    second = bench.reads(2)
    bench.begun(second)
    third = bench.reads(3)
    bench.begun(third)
    assert second.full is None
    assert set(map(id, bench.turns(4))) == {id(first), id(third)}
    assert bench.searches.due() is None, "it was tried for the second already"


def test_the_beginning_of_an_epoch_is_searched_for_to_its_end() -> None:
    """Where epochs are shorter than that takes, none would ever be found otherwise."""
    bench = Bench()
    first = bench.reads(1)
    bench.begun(first)
    second = bench.reads(2)
    search = bench.begun(second, past_beginnings=False)
    third = bench.reads(3)
    assert bench.searches.due() is None
    assert bench.turns(2) == [second] * 2
    search.past_beginnings = True
    bench.begun(third)
    assert second.full is None
    assert bench.searches.has_others(third)
    first.leave_all()
    assert not bench.searches.has_others(third)


def test_once_a_plan_is_certain_searches_for_those_who_have_ended_rest() -> None:
    bench = Bench()
    first = bench.reads(1)
    bench.begun(first)
    second = bench.reads(2)
    search = bench.begun(second)
    bench.searches.rest_ended(5, bench.now)
    assert first.full is not None, "they read something else"
    bench.searches.rest_ended(0, bench.now)
    assert (first.full, second.full) == (None, search)
    assert bench.turns(2) == [second, second]
    second.leave_all()
    assert bench.searches.due() is None
