"""The cohorts for which everything is tried, at most two at a time, and which of their searches goes on now.

A search of everything goes on when its readers have ended, as others may follow them. Where others read by then, as new
workers of each epoch do, everything is tried for the newest as well. The newest may be where an epoch begins. Pure.
"""

from __future__ import annotations

from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import ENDED, Cohorts
from nopfsfs.plan.search.matching import Search


class ThoroughSearches:
    """The searches of everything that go on."""

    def __init__(self, cohorts: Cohorts) -> None:
        self._cohorts = cohorts
        self._last: Cohort | None = None  # whose turn was last

    def _running(self) -> list[tuple[Cohort, Search]]:
        """The oldest first."""
        return [(one, one.full) for one in self._cohorts.cohorts if one.full is not None]

    @property
    def first(self) -> Cohort | None:
        """The cohort whose search began first."""
        return next((one for one, _ in self._running()), None)

    def has_others(self, cohort: Cohort) -> bool:
        """True: everything is tried for another cohort."""
        return any(one is not cohort for one, _ in self._running())

    def may_begin(self, cohort: Cohort) -> bool:
        """True: everything may be tried for a cohort now."""
        ended, others = self._cohorts.ended, self._running()
        # An epoch may be shorter than the search of its beginning: if later ones took its place, none would be found.
        if cohort.full is not None or any(not search.past_beginnings for _, search in others[1:]):
            return False
        return not others or (not ended(cohort) and all(ended(one) for one, _ in others))

    def due(self) -> Cohort | None:
        """The newest cohort for which it is time to try everything; asking means that it is done."""
        newest_first = reversed(self._cohorts.cohorts)
        return next((one for one in newest_first if self.may_begin(one) and one.full_due()), None)

    def begin(self, cohort: Cohort, search: Search) -> None:
        """Begin a search; of two that go on the younger one makes way."""
        for one, _ in self._running()[1:]:
            one.leave_all()
        cohort.try_all(search)

    def next(self) -> tuple[Cohort, Search] | None:
        """The search that goes on now. What is quickly tried for the newest cohort comes first, then each in turn."""
        running = self._running()
        if not running:
            return None
        newest, search = running[-1]
        chosen = running[0] if search.past_beginnings and newest is self._last else running[-1]
        self._last = chosen[0]
        return chosen

    def rest_ended(self, dataset: int, now: int) -> None:
        """Let the searches for readers of a data set who have ended rest: a plan of it is certain. `now`: the mount's
        count of opens."""
        # readers who follow that plan are in no cohort any more: all opens of the mount count here
        for one in self._cohorts.cohorts:
            if now - one.last > ENDED and dataset in one.datasets()[:1]:
                one.rest()
