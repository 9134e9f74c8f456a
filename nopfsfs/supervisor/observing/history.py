"""The history of a mount in bounded memory: each second of ten minutes, each 10 s of two hours, each minute of a week.

Pure. A row of a longer step is the mean of the rows within it, and of a few columns the most. About 1.2 MB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Of each column: files, bytes or errors a second, but for those that say otherwise.
COLUMNS = (
    "opens", "bytes", "page_cache", "ram", "disk", "peer", "source", "predicted",
    "wait_share",  # seconds that readers waited in one second, all readers together
    "wait_p50", "wait_p99",  # seconds, of the READs that waited
    "source_reads", "source_bytes", "errors",
    "fetches_in_flight", "limit", "slowdown",
    "slots_waited",  # share of the time in which a prefetch waited until fewer requests were under way at the source
    "source_expected",  # bytes a second that the source gives with as many requests under way as the limit allows
    "source_cap",  # bytes a second that may be read from it; not known: there is no cap
    "lead",  # seconds of reading that are fetched ahead
    "ram_bytes", "page_cache_bytes", "disk_bytes",  # in use
    "epoch",
    "position",  # share of the epoch that was read
    "cpu",  # processors that the mount's processes take
)  # fmt: skip
STEPS = {1: 600, 10: 720, 60: 10_080}  # seconds of a row: rows kept
_MOST = np.array([COLUMNS.index(name) for name in ("wait_p99", "epoch", "position")])

Row = npt.NDArray[np.float32]  # f4[len(COLUMNS)]; NaN: not known
Rows = npt.NDArray[np.float32]  # f4[k, len(COLUMNS)]


class History:
    """Rows by whole seconds of one clock that never goes back."""

    def __init__(self, now: float) -> None:
        self._rows = {step: np.zeros((count, len(COLUMNS)), np.float32) for step, count in STEPS.items()}
        self._first = self._next = int(now)  # the first second that there is a row of, and the one after the last

    def due(self, now: float) -> int:
        """The number of rows that `add` sets now: one for each second that is over and has none yet."""
        return max(0, int(now) - self._next)

    def add(self, now: float, row: Row) -> None:
        """Set the rows of all seconds since the last call to `row`: the means of that time."""
        first, self._next = self._next, max(int(now), self._next)
        self._extend(1, first, self._next, row)

    def _extend(self, step: int, first: int, end: int, row: Row) -> None:
        """Set the rows `first` .. `end` - 1, counted in steps, and those of longer steps that are complete by that."""
        longer = next((other for other in STEPS if other > step), None)
        ratio = longer // step if longer is not None else 1
        whole = -(-first // ratio) * ratio  # from here on, each row of the longer step has but this one row in it
        if longer is not None and first < whole <= end:
            self._set(step, first, whole, row)
            self._extend(longer, first // ratio, whole // ratio, self._mean(step, whole - ratio, whole))
            first = whole
        self._set(step, first, end, row)
        if longer is not None and whole // ratio < end // ratio:
            self._extend(longer, whole // ratio, end // ratio, row)

    def _set(self, step: int, first: int, end: int, row: Row) -> None:
        count = STEPS[step]
        self._rows[step][np.arange(max(first, end - count), end) % count] = row

    def _mean(self, step: int, first: int, end: int) -> Row:
        count, known_from = STEPS[step], self._first // step
        rows = self._rows[step][np.arange(max(first, known_from, end - count), end) % count]
        known = ~np.isnan(rows)
        number = known.sum(axis=0)
        mean = np.full(len(COLUMNS), np.nan, np.float32)
        np.divide(np.where(known, rows, 0).sum(axis=0), number, out=mean, where=number > 0)
        mean[_MOST] = np.fmax.reduce(rows[:, _MOST], axis=0)
        return mean

    def rows(self, step: int, since: float, most: int) -> tuple[float, Rows]:
        """(when the first of the rows began, the rows): the oldest `most` rows of `step` seconds that began at `since`
        or later, copied. Raises KeyError for a step that there is not."""
        count, end = STEPS[step], self._next // step
        first = max(self._first // step, end - count, -int(-since // step))
        end = max(first, min(end, first + most))
        return float(first * step), self._rows[step][np.arange(first, end) % count]
