"""The files that one command names, to be dealt with one after the other, and what becomes of them. Pure."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.stream_scan import Rows

COUNTED_AT_ONCE = 1 << 16  # rows that are looked at together: a millisecond
DEALT_AT_ONCE = 2048  # rows that are dealt with in one call, each by itself: some milliseconds
UNDER_WAY_MOST = 4096  # rows of one request that are awaited
FAILURES_KEPT = 1000  # of one request: further failures are only counted


@dataclass
class Tally:
    """A number of files, and of their bytes."""

    files: int = 0
    bytes: int = 0


class FileRequest:
    """Base of the requests. `sizes` i64[n]: bytes of each row's file."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        self._sizes, self._size_of = sizes, sizes.data
        self._asked_for = np.zeros(len(sizes), np.bool_)
        self._parts: deque[Rows] = deque()
        self.asked = Tally()
        self.next_rows: list[int] = []  # the last comes first
        self.under_way: dict[int, int] = {}  # rows that are awaited
        self.complete = False  # True when no more rows are added
        self.failures: deque[tuple[int, int]] = deque()  # (row, errno), to be told; see `reason`

    @abstractmethod
    def tallies(self) -> dict[str, Tally]:
        """The counts by name; together they come to `asked` when the request is done."""

    @abstractmethod
    def give_up(self) -> None:
        """Count all that is not dealt with, which ends the request."""

    def reason(self, code: int) -> str:
        """The words for a number in `failures`."""
        return os.strerror(code)

    def retry(self) -> None:
        """Ask again for some rows of which the source did not answer; called every few seconds."""

    @property
    def reads(self) -> bool:
        """True while files are read for this request that are expected to come."""
        return any(self.under_way.values())

    @property
    def done(self) -> bool:
        """True when all that was asked for is dealt with."""
        return self.complete and not (self._parts or self.next_rows or self.under_way)

    def add(self, rows: Rows) -> None:
        """Name these rows, i64[k], after those before; each counts once. Rows must be of regular files."""
        rows = rows[~self._asked_for[rows]]
        if len(rows) > 1:  # two hard links are one row
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
        self._asked_for[rows] = True
        self.count_all(self.asked, rows)
        if len(rows):
            self._parts.append(rows)

    def take_part(self) -> Rows:
        """The next rows, i64[k]; none where all were taken."""
        if not self._parts:
            return np.zeros(0, np.int64)
        part = self._parts.popleft()
        if len(part) > COUNTED_AT_ONCE:
            self._parts.appendleft(part[COUNTED_AT_ONCE:])
        return part[:COUNTED_AT_ONCE]

    def count(self, tally: Tally, row: int) -> None:
        """Count a row among those with the same result."""
        tally.files += 1
        tally.bytes += self._size_of[row]

    def count_all(self, tally: Tally, rows: Rows) -> None:
        """Count these rows among those with the same result."""
        tally.files += len(rows)
        tally.bytes += int(self._sizes[rows].sum())

    def count_rest(self, tally: Tally) -> None:
        """Count all rows that are not dealt with, and deal with none of them any more."""
        for row in (*self.under_way, *self.next_rows):
            self.count(tally, row)
        for part in self._parts:
            self.count_all(tally, part)
        self._parts.clear()
        self.next_rows.clear()
        self.under_way.clear()
        self.complete = True

    def figures(self) -> dict[str, Any]:
        """The counts, each with `files` and `bytes`."""
        counts = {"asked": self.asked, **self.tallies()}
        return {name: {"files": tally.files, "bytes": tally.bytes} for name, tally in counts.items()}
