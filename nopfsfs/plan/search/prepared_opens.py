"""Opens, prepared to be compared with many orders at a glance: do readers take like steps, or short ones? Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet
from nopfsfs.plan.search.candidates import FileList
from nopfsfs.plan.search.suspects import OpensView, Table

MIN_OPENS = 4
# A step is short that leads over at most this share of the order.
_SHORT = 1 / 16
# Where readers are not known: gaps between neighbouring places are small against those of as many random places.
_CLOSE = 1 / 4


class Glance:
    """The opens of a view, prepared to be compared with many orders."""

    def __init__(self, view: OpensView) -> None:
        last: dict[int, int] = {}
        pairs: list[tuple[int, int]] = []
        for at, reader in enumerate(view.together.tolist()):
            if reader:
                if reader in last:
                    pairs.append((last[reader], at))
                last[reader] = at
        self._before, self._after = np.array(pairs, np.int64).reshape(-1, 2).T
        self._unknown = view.together == 0

    def worthwhile(self, places: NDArray[np.int64], n: int) -> bool:
        """True: the places, int64[m], -1 for files that the order does not hold, look like those of a reader."""
        before, after = places[self._before], places[self._after]
        both = (before >= 0) & (after >= 0)
        steps = (after - before)[both]
        if len(steps) and (_too_many(steps, n) or _alike(steps, n)):
            return True
        mine = np.sort(places[self._unknown & (places >= 0)])
        if len(mine) < MIN_OPENS - 1:
            return False
        gaps = np.diff(mine)
        return bool(np.median(gaps) <= max(1.0, _CLOSE * n / len(mine))) or _alike(gaps, n)


def _too_many(steps: NDArray[np.int64], n: int) -> bool:
    """More short steps than random ones would be."""
    expected = 2 * _SHORT * len(steps)
    return bool(np.count_nonzero(np.abs(steps) <= n * _SHORT) >= expected + 2 * math.sqrt(expected) + 1)


def _alike(steps: NDArray[np.int64], n: int) -> bool:
    """More steps of the same length than by chance."""
    m = len(steps)
    again = m - len(np.unique(steps))
    return again >= max(1.0 if m < 8 else 2.0, 3 * m * m / n)


class PreparedOpens:
    """A view, prepared to be compared with many orders."""

    def __init__(self, view: OpensView, datasets: Sequence[DataSet]) -> None:
        self.view = view
        self.glance = Glance(view)
        self._datasets = datasets
        self._tables: dict[FileList, Table] = {}
        self._which: dict[FileList, NDArray[np.int16]] = {}

    def files(self, target: FileList) -> NDArray[np.integer[Any]]:
        """The row of each sample."""
        return self._datasets[target.dataset].orders[target.order].rows

    def samples(self, target: FileList, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples of rows, int64[m], -1: none."""
        if target not in self._tables:
            self._tables[target] = Table(self.files(target))
        return self._tables[target].places(rows)

    def readers(self, target: FileList) -> list[NDArray[np.int64]]:
        """By reader, the samples that it opened."""
        found = [self.samples(target, rows) for rows in self.view.lasts(len(self.view.rows))]
        return [samples[samples >= 0] for samples in found]

    def which(self, target: FileList) -> NDArray[np.int16]:
        """By sample, which of the opens it was, int16[n + 1], -1: none."""
        if target not in self._which:
            samples = self.samples(target, self.view.rows)
            self._which[target] = np.full(target.n + 1, -1, np.int16)
            self._which[target][samples] = np.arange(len(samples))
            self._which[target][-1] = -1
        return self._which[target]
