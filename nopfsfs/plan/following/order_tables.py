"""Tables of orders that opens are compared with: those that are kept, and those that are computed now or by a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from nopfsfs.plan.epoch_order import INLINE, DataSet, Hypothesis, files_of
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.search.candidates import SAID, Candidate, OrderHeads, candidate_of
from nopfsfs.plan.search.recently_used import RecentlyUsed
from nopfsfs.plan.search.suspects import Suspect, Table

# Tables of orders that are kept, to look at opens again.
_KEPT_BYTES = 64 << 20
# Files up to which all of the epoch that was read last is kept for a job that goes on with it: 12 bytes each.
_RESUMED_MOST = 2_000_000


class OrderTables:
    """The tables of candidates; those that were asked for last are kept."""

    def __init__(
        self, datasets: Sequence[DataSet], heads: OrderHeads, largest: int, resumed: Iterable[Candidate]
    ) -> None:
        """`heads`: where beginnings of orders are kept; `largest`: the largest world that was said; `resumed`: orders
        in the middle of which a job may begin."""
        self._datasets, self.heads, self._largest = datasets, heads, largest
        self._resumed = frozenset(resumed)
        self._tables: RecentlyUsed[Candidate, Table] = RecentlyUsed(_KEPT_BYTES)
        self._epochs = 0  # that have begun since no job ran

    def epoch_began(self) -> None:
        """Note that an epoch of a followed order has begun, and forget what was last asked for long ago."""
        self._tables.epoch_began()
        self._epochs += 1

    def no_job_runs(self) -> None:
        """Forget the beginnings of orders as well: jobs use them."""
        for _ in range(self._epochs):
            self.heads.epoch_began()
        self._epochs = 0

    def spread(self, spacing: int) -> None:
        """Compare orders further from now on: only one open in `spacing` shows."""
        self.heads.spacing = spacing
        self._tables.clear()

    def suspects(self, hypotheses: Sequence[Hypothesis]) -> list[Suspect]:
        """The hypotheses (likeliest first) whose tables are at hand, to be weighed."""
        found = []
        for nth, hypothesis in enumerate(hypotheses):
            candidate = candidate_of(hypothesis)
            table = self.table(candidate)
            if table is not None:
                found.append(Suspect(candidate, table, SAID + 2 * math.log2(nth + 1)))
        return found

    def kept(self, candidate: Candidate) -> Table | None:
        """The table of a candidate if it was computed before."""
        return self._tables.peek(candidate)

    def table(self, candidate: Candidate) -> Table | None:
        """The table of a candidate, computed now for a small data set; for a large one None until `job` has made it."""
        found = self._tables.get(candidate)
        if found is None and self.is_small(candidate):
            found = self.compute(candidate)
            self._tables.put(candidate, found)
        return found

    def is_small(self, candidate: Candidate) -> bool:
        """True: the table of a candidate is computed within milliseconds, or some tenths of a second."""
        files = self._datasets[candidate.dataset].orders[candidate.order].rows
        return len(files) <= INLINE and candidate.spec.number("offset") <= INLINE

    def compute(self, candidate: Candidate) -> Table:
        """All of a small order; the beginning of a large one, unless it may be read from its middle on."""
        files = files_of(candidate.hypothesis(), self._datasets)
        n = len(files)
        heads = OrderHeads(0, self.heads.spacing)
        whole = n <= (_RESUMED_MOST if candidate in self._resumed else INLINE)
        order = heads.whole(candidate, n) if whole else heads.full(candidate, n, self._largest)
        rows = np.where(order >= 0, files[order], -1)
        return Table(rows, len(rows) if whole else n)

    def job(self, wanted: Iterable[Candidate]) -> Iterator[BackgroundJob]:
        """The computation of the first table that is missing, if there is room for it."""
        for candidate in wanted:
            if candidate not in self._tables and self._tables.has_room:
                yield BackgroundJob(partial(self.compute, candidate), partial(self._tables.put, candidate))
                return
