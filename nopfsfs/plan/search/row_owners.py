"""To which data set a row belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nopfsfs.plan.epoch_order import DataSet


class RowOwners:
    """The data set of each row: the smallest that holds the row. `of`: row -> index of a data set, -1 for none."""

    def __init__(self, datasets: Sequence[DataSet]) -> None:
        size = 1 + max(
            (int(order.rows.max()) for one in datasets for order in one.orders if len(order.rows)), default=-1
        )
        largest = [max((len(order.rows) for order in one.orders), default=0) for one in datasets]
        owner = np.full(size, -1, dtype=np.int16)
        # larger ones first, to be overwritten
        for index in sorted(range(len(datasets)), key=lambda index: (-largest[index], -index)):
            for order in datasets[index].orders:
                owner[order.rows] = index
        self.of: memoryview = owner.data
        self.total = int(np.count_nonzero(owner >= 0))  # files
        self._files = largest
        self._within = [
            tuple(sorted({int(who) for order in one.orders for who in np.unique(owner[order.rows])}))
            for one in datasets
        ]  # fmt: skip

    def __len__(self) -> int:
        return len(self._within)

    def files(self, index: int) -> int:
        """The number of files of a data set."""
        return self._files[index]

    def within(self, index: int) -> tuple[int, ...]:
        """The data sets whose rows that one holds, itself included."""
        return self._within[index]
