"""The schedule by which rows are looked at again. Pure: the caller says what time it is.

Directories and files are one stream each. A stream goes round its rows in their order, evenly over its period, so that
no row waits longer than one round. Rows that are in use go in front of that, from what the round leaves of the rate.
The highest rate may not be enough for a round in its period. Then the rows in use get half of that rate and keep to the
period, and the others take what it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
RATE = 1000.0  # looks a second in all, at most
DIRECTORIES_S = 60.0  # directories that are in use are looked at within this
BURST = 25.0  # looks that each stream may make at once, after it had to wait
ROUND_SHARE = 0.9  # of the period in which a round is made: the rest is for looks that take long
_DIRECTORY_RATE = 0.5 * RATE - BURST
NEVER = math.inf


def file_rate(n_dirs: int) -> float:
    """Looks at files a second, at most: what directories leave."""
    wanted = n_dirs / (ROUND_SHARE * DIRECTORIES_S)
    return RATE - 2 * BURST - min(wanted, _DIRECTORY_RATE)


def round_s(n_dirs: int, n_files: int, period_s: float) -> float:
    """Seconds that it takes to look at all files again."""
    share = 0.5 if n_files > file_rate(n_dirs) * ROUND_SHARE * period_s else 1.0
    return max(ROUND_SHARE * period_s, n_files / (share * file_rate(n_dirs)))


class Rounds:
    """Rows `rows` (i64[k]), each looked at once in `period_s` seconds (infinite: only when asked for), at most `rate` a
    second. `in_use()` gives rows that go in front."""

    def __init__(self, rows: Rows, period_s: float, rate: float, in_use: Callable[[], Rows], now: float) -> None:
        self._rows, self._rate, self._in_use = rows, rate, in_use
        self._round_s = ROUND_SHARE * period_s
        self._too_many = len(rows) > rate * self._round_s
        self._tokens, self._at = 0.0, now
        self.place = 0  # in the round: how many rows were given out
        self._under_way = self._hurry = False
        self.began = self.took_s = 0.0  # of the present round, and of the last complete one
        self._due = now if period_s < NEVER else NEVER  # when the next round begins
        self._front: Rows = np.zeros(0, np.int64)
        self._front_place, self._front_began, self._front_due = 0, now, self._due
        self.rounds = 0  # complete ones

    def begin(self, now: float) -> None:
        """Begin a round now, and make it as fast as the rate allows."""
        self._begin(now)
        self._hurry = True

    def _begin(self, now: float) -> None:
        self._under_way, self.place, self.began = True, 0, now
        self._due = now + self._round_s

    def take(self, now: float) -> list[int]:
        """Rows to be looked at now."""
        self._tokens = min(BURST, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        if not self._under_way and now >= self._due:
            self._begin(now)
        front = self._take_front(now) if self._too_many else []
        ahead = self._take_round(now)
        return front + ahead + ([] if self._too_many else self._take_front(now))

    def _take_round(self, now: float) -> list[int]:
        if not self._under_way:
            return []
        span_s = 0.0 if self._hurry else self._round_s
        end = min(_even(len(self._rows), now - self.began, span_s), self.place + int(self._tokens))
        rows: list[int] = self._rows[self.place : end].tolist()
        self.place += len(rows)
        self._tokens -= len(rows)
        if self.place == len(self._rows):
            self.rounds += 1
            self.took_s = now - self.began
            if self._hurry and self._round_s < NEVER:
                self._due = now  # evenly again from now on: then no row waits longer than one round
            self._under_way = self._hurry = False
        return rows

    def _take_front(self, now: float) -> list[int]:
        if self._hurry:
            return []
        if self._front_place == len(self._front) and now >= self._front_due:
            self._front, self._front_place = self._in_use(), 0
            self._front_began, self._front_due = now, now + self._round_s
        room = self._tokens / 2 if self._too_many else self._tokens
        end = _even(len(self._front), now - self._front_began, self._round_s)
        rows: list[int] = self._front[self._front_place : min(end, self._front_place + int(room))].tolist()
        self._front_place += len(rows)
        self._tokens -= len(rows)
        return rows


def _even(count: int, passed_s: float, span_s: float) -> int:
    """The number of `count` rows that are to be done when `passed_s` of `span_s` have passed."""
    return count if passed_s >= span_s else max(0, math.ceil(count * passed_s / span_s))


class Schedule:
    """The streams of a tree: directories are rows 0..n_dirs-1, `files` are i64[k]."""

    def __init__(
        self, n_dirs: int, files: Rows, period_s: float, now: float, *,
        dirs_in_use: Callable[[], Rows], files_in_use: Callable[[], Rows],
    ) -> None:  # fmt: skip
        """`period_s`: within which each file is looked at; infinite: none is unless it is asked for."""
        rate = file_rate(n_dirs)
        self.directories = Rounds(
            np.arange(n_dirs), min(period_s, DIRECTORIES_S) if period_s < NEVER else NEVER, _DIRECTORY_RATE,
            dirs_in_use, now,
        )  # fmt: skip
        self.files = Rounds(files, period_s, rate, files_in_use, now)
        self._requested = self._serving = self.given_out = 0
        self._awaits = (0, 0)

    def request(self, number: int) -> None:
        """Look at everything once, beginning with the next `take` or, if it is at such a request, when that is done."""
        self._requested = max(self._requested, number)

    def take(self, now: float) -> list[int]:
        """Rows to be looked at now, directories first. `given_out` is the last request all rows of which were."""
        if self.given_out == self._serving < self._requested:
            self._serving = self._requested
            self._awaits = (self.directories.rounds + 1, self.files.rounds + 1)
            self.directories.begin(now)
            self.files.begin(now)
        rows = self.directories.take(now) + self.files.take(now)
        if self.directories.rounds >= self._awaits[0] and self.files.rounds >= self._awaits[1]:
            self.given_out = self._serving
        return rows
