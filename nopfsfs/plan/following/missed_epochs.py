"""The search for the epoch that is read by now of a plan that was found when its own readers had ended.

Owns the plan, and the cohort of readers who came since and may read one of its next epochs. Each epoch's table is a job
of its own: for some samplers a table of 200,000 files takes seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from nopfsfs.plan.epoch_order import Hypothesis, successor
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.following.order_tables import OrderTables
from nopfsfs.plan.following.search_budget import Budget
from nopfsfs.plan.search.candidates import SAID, candidate_of
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import Cohorts
from nopfsfs.plan.search.suspects import LOCK, SURE, Suspect, Table

# Epochs that may have gone by until an order is found.
_EPOCHS_MISSED = 64


class MissedEpochs:
    """At most one plan at a time: the one that was found last. Not thread-safe."""

    def __init__(
        self, tables: OrderTables, cohorts: Cohorts, budget: Budget, proven: Callable[[Suspect, Cohort], None]
    ) -> None:
        """`proven` takes an order that a cohort's opens prove."""
        self._tables, self._cohorts, self._budget, self._proven = tables, cohorts, budget, proven
        self._cohort: Cohort | None = None
        self._hypothesis: Hypothesis | None = None  # the epoch that is looked at next
        self._era = self._left = 0

    def look_for(self, cohorts: Sequence[Cohort], hypothesis: Hypothesis) -> None:
        """From now on compare the newest of these cohorts that reads the data set with this epoch and those that follow
        it."""
        cohort = next((one for one in reversed(cohorts) if hypothesis.dataset in one.datasets()), None)
        if cohort is not None and self._tables.is_small(candidate_of(hypothesis)):
            self._cohort, self._hypothesis = cohort, hypothesis
            self._era, self._left = cohort.era, _EPOCHS_MISSED

    def jobs(self) -> Iterator[BackgroundJob]:
        """The computation of the next epoch's table, if there is one to compare."""
        if self._hypothesis is None or not self._budget.left:
            return
        cohort = self._cohort
        if cohort is None or cohort.era != self._era or cohort not in self._cohorts.cohorts or not self._left:
            self._cohort = self._hypothesis = None
            return
        self._left -= 1
        candidate, tables, era = candidate_of(self._hypothesis), self._tables, self._era
        self._hypothesis = successor(self._hypothesis)

        def run() -> tuple[Table, float]:
            begun = time.thread_time()
            table = tables.compute(candidate)
            return table, time.thread_time() - begun

        def deliver(result: tuple[Table, float]) -> None:
            table, seconds = result
            self._budget.spend(seconds)
            suspect = Suspect(candidate, table, SAID + math.log2(_EPOCHS_MISSED), part=SURE)
            suspect.weigh(cohort.view())
            if suspect.worth >= LOCK and cohort.era == era and cohort in self._cohorts.cohorts:
                if self._cohort is cohort:
                    self._left = 0
                self._proven(suspect, cohort)

        yield BackgroundJob(run, deliver)
