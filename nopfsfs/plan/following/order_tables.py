"""Tables of orders that opens are compared with: those that are kept, and those that are computed now or by a job."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from nopfsfs.plan.epoch_order import INLINE, DataSet, Hypothesis, files_of
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.search.candidates import SAID, Candidate, OrderHeads, candidate_of
from nopfsfs.plan.search.suspects import Suspect, Table

# Tables of orders that are kept, to look at opens again: so many bytes, and those that were asked for in so many epochs
# of followed orders. The orders of epochs that are over would fill the room in the end.
_KEPT_BYTES = 64 << 20
_KEPT_EPOCHS = 8
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
        # With the epoch in which each was asked for last; last is what was asked for last.
        self._tables: OrderedDict[Candidate, tuple[Table, int]] = OrderedDict()
        self._epochs = 0
        self._bytes = 0

    def epoch_began(self) -> None:
        """Note that an epoch of a followed order has begun, and forget what was last asked for long ago."""
        self._epochs += 1
        while self._tables and next(iter(self._tables.values()))[1] <= self._epochs - _KEPT_EPOCHS:
            self._drop_oldest()

    def spread(self, spacing: int) -> None:
        """Compare orders further from now on: only one open in `spacing` shows."""
        self.heads.spacing = spacing
        self._tables.clear()
        self._bytes = 0

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
        return self._tables[candidate][0] if candidate in self._tables else None

    def table(self, candidate: Candidate) -> Table | None:
        """The table of a candidate, computed now for a small data set; for a large one None until `job` has made it."""
        found = self.kept(candidate)
        if found is not None:
            self._tables.move_to_end(candidate)
            self._tables[candidate] = found, self._epochs
            return found
        if not self.is_small(candidate):
            return None
        found = self.compute(candidate)
        self._keep(candidate, found)
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

    def _keep(self, candidate: Candidate, table: Table) -> None:
        self._tables[candidate] = table, self._epochs
        self._bytes += table.nbytes
        while self._bytes > _KEPT_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (gone, _) = self._tables.popitem(last=False)
        self._bytes -= gone.nbytes

    def job(self, wanted: Iterable[Candidate]) -> Iterator[BackgroundJob]:
        """The computation of the first table that is missing, if there is room for it."""
        for candidate in wanted:
            if candidate not in self._tables and 2 * self._bytes < _KEPT_BYTES:
                yield BackgroundJob(partial(self.compute, candidate), partial(self._keep, candidate))
                return
