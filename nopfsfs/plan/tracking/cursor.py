"""The place of one rank in its access stream, as seen from what it opens.

Owns which places were opened and the window of the next K unopened ones. Knows no rows: a place is an index
into this epoch, or, from `length` on, into the epoch after it. Rules, in words, are in docs/plan.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNOPENED = b"\0"
_OPENED = 1
_ABANDONED = 2  # passed over; no longer among what comes next
_HIDDEN = 3  # read like all others, but it does not show when
_SLACK = 64
_HIDDEN_TAIL = bytes((_HIDDEN,))


class Step(IntEnum):
    """The place of an open relative to the window."""

    AHEAD = 0  # unopened, but beyond the window
    HIT = 1  # among the next K unopened
    REPEAT = 2  # opened before, and not far behind the window
    OLD = 3  # opened before, or passed over, far behind


class Cursor:
    """Follows one rank through this epoch and the beginning of the next.

    The window [lo, hi) holds `k` unopened places (fewer at the end of what is known); lo is the first of
    them. Hidden places are in none of that: it goes by those between them.
    Every call is O(1) on average: searches go forward only, by `bytearray.find`.
    """

    __slots__ = (
        "_accepts", "_aged", "_behind", "_lag", "_room", "_seen", "_slack", "_thin", "ahead_run", "hi", "k", "length",
        "lo", "opened",
    )  # fmt: skip

    def __init__(
        self, length: int, k: int, absent: Sequence[int] = (), hidden: NDArray[np.bool_] | None = None,
        lag: int = 0,
    ) -> None:  # fmt: skip
        """`absent`: places at which nothing is read; `hidden` b[length]: those whose opens do not show. `lag`: where
        closes do not show either, a file may still be read when the reader is so many places beyond it."""
        self.length = length
        self.k = k
        self._lag = lag
        self._thin = hidden is not None
        self._accepts = False  # hidden places may be seen to be opened after all
        # Beside 2 K, opens between two looks at what was never opened. Where few show, many more places lie between.
        self._slack = 16 if self._thin else _SLACK
        self.opened = bytearray(length)
        self._lack(absent, 0)
        self._hide(hidden, 0)
        self._behind = 0  # before here all that shows was read
        self.lo = 0
        self.hi = 0
        self.ahead_run = 0  # opens of the next epoch since the last one of this
        self._room = 0  # unopened places in the window
        self._seen = 0  # opens since the last check point
        # ends of the window at the last two check points
        self._aged = (0, 0)
        if absent or hidden is not None:
            self._advance()
        self._fill()

    @property
    def passed(self) -> int:
        """The first place that may not have been opened yet; where closes do not show, read to its end."""
        return max(0, (self._behind if self._thin else self.lo) - self._lag)

    @property
    def thin(self) -> bool:
        """True: there are places whose opens do not show, or did not."""
        return self._thin

    def unread(self) -> tuple[int, int]:
        """The number of places of this epoch that were not opened yet, as far as is known, and of those among them
        whose opens show."""
        show = self.opened.count(_UNOPENED, 0, self.length)
        return show + self.opened.count(_HIDDEN_TAIL, 0, self.length), show

    @property
    def reach(self) -> int:
        """K in places."""
        return self._lag if self._thin else self.k

    def take(self, place: int) -> Step:
        """An open of `place` (0 <= place < len(opened)). Changes nothing unless it is a hit."""
        opened = self.opened
        state = opened[place]
        if state == 0 and place < self.hi:
            opened[place] = _OPENED
            after = opened.find(_UNOPENED, self.hi)
            if after >= 0:
                self.hi = after + 1
            else:
                self._room -= 1
            if place == self.lo:
                self._advance()
            self._seen += 1
            if self._seen > 2 * self.k + self._slack:
                self._check()
            self.ahead_run = self.ahead_run + 1 if place >= self.length else 0
            return Step.HIT
        if state == _HIDDEN and self._accepts and place >= self._behind - 2 * self.reach:
            if place >= self.hi:
                return Step.AHEAD
            opened[place] = _OPENED
            return Step.HIT
        if state == 0:
            return Step.AHEAD
        near = state == _OPENED and place >= self.lo - 2 * self.reach
        return Step.REPEAT if near else Step.OLD

    def mark(self, place: int) -> None:
        """Note an open that was no hit, so that the window will step over its place."""
        if not self.opened[place]:
            if place < self.hi:
                raise ValueError(f"place {place} lies in the window: take it")
            self.opened[place] = _OPENED
            self._seen += 1
            if self._seen > 2 * self.k + self._slack:
                self._check()

    def already(self, place: int) -> None:
        """The place was opened before it could be seen to be next."""
        if self.opened[place]:
            return
        self.opened[place] = _OPENED
        if place < self.hi:
            self._room -= 1
            if place == self.lo:
                self._advance()
            self._fill()

    def widen(self, k: int) -> None:
        """From now on the window holds `k` unopened places; not fewer than it did."""
        if k > self.k:
            self.k = k
            self._fill()

    def filled(self) -> float:
        """The share of opened places in the first quarter of those up to the furthest that was opened. Most are opened
        where readers are apart. Where the others are not read at all, the share is as small as of all places."""
        quarter = (self.opened.rfind(_OPENED, self.lo) + 1 - self.lo) // 4
        return self.opened.count(_OPENED, self.lo, self.lo + quarter) / quarter if quarter > 0 else 0.0

    def extend(self, length: int, absent: Sequence[int] = (), hidden: NDArray[np.bool_] | None = None) -> None:
        """Make the next epoch's places known."""
        before = len(self.opened)
        self.opened.extend(bytes(length))
        self._lack(absent, before)
        self._hide(hidden, before)
        if self.lo == before:
            self._advance()
        self._fill()

    def _lack(self, absent: Sequence[int], base: int) -> None:
        for place in absent:
            self.opened[base + place] = _ABANDONED

    def _hide(self, hidden: NDArray[np.bool_] | None, base: int) -> None:
        if hidden is not None:
            states: NDArray[Any] = np.frombuffer(self.opened, dtype=np.uint8)[base : base + len(hidden)]
            states[hidden & (states == 0)] = _HIDDEN

    def lag_behind(self, lag: int) -> None:
        """A place may be read so many places after those that follow it."""
        self._lag = lag

    def show_all(self, k: int) -> None:
        """From now on all opens show. Which of the hidden places in the window were opened is not known. These places
        do not hold the window up, and may still be opened. The last place of the epoch does: the epoch is not over
        before that place was opened. From the next epoch on the window has `k` places."""
        self._accepts = self._thin
        known = min(self.hi, self.length - 1)
        self.opened[known:] = self.opened[known:].replace(_HIDDEN_TAIL, _UNOPENED)
        first = self.opened.find(_UNOPENED)
        self.lo = min(self.lo, first) if first >= 0 else self.lo
        self._room = self.opened.count(_UNOPENED, self.lo, self.hi)
        self.k = k
        self._fill()

    def so_far(self) -> bytes:
        """The opened places of this epoch, for `resume`: what does not show as far as all has that shows."""
        opened = bytes(self.opened[: self.length])
        if self._thin:
            behind = min(self._behind, self.length)
            opened = bytes((_OPENED,)) * behind + opened[behind:].replace(_HIDDEN_TAIL, _UNOPENED)
        return opened

    def resume(self, opened: bytes) -> None:
        """Mark those of the first places that were opened already (0: not), hidden or not."""
        states: NDArray[Any] = np.frombuffer(self.opened, dtype=np.uint8)[: len(opened)]
        states[np.frombuffer(opened, dtype=np.uint8) != 0] = _OPENED
        del states
        self.lo = self.hi = self._room = 0
        self._advance()
        self._fill()

    def consumed(self, first: int, last: int) -> NDArray[np.bool_]:
        """True for each of these places that was opened or passed over, bool[last - first]; fewer where they are not
        known."""
        states: NDArray[np.uint8] = np.frombuffer(bytes(self.opened[first:last]), dtype=np.uint8)
        if not self._thin and not self._lag:
            all_gone: NDArray[np.bool_] = states != 0
            return all_gone
        gone: NDArray[np.bool_] = (states != 0) & (states != _HIDDEN)
        gone[: max(0, self.passed - first)] = True
        return gone

    def abandon(self, below: int) -> None:
        """Pass over every unopened place before `below`."""
        if below <= self.lo:
            return
        skipped = self.opened.count(_UNOPENED, self.lo, min(below, self.hi))
        head = self.opened[self.lo : below]
        self.opened[self.lo : below] = head.replace(_UNOPENED, bytes((_ABANDONED,)))
        self._room -= skipped
        self.lo = self._behind = below
        self.hi = max(self.hi, below)
        self._advance()
        self._fill()

    def roll(self) -> None:
        """The next epoch becomes this one; what was left of this one is forgotten."""
        done = self.length
        self.abandon(done)
        del self.opened[:done]
        self.length = len(self.opened)
        if self._accepts:
            self._thin = self._accepts = False
            self._slack = _SLACK
        self.lo -= done
        self.hi -= done
        self._behind = max(0, self._behind - done)
        self._aged = (max(0, self._aged[0] - done), max(0, self._aged[1] - done))
        self.ahead_run = 0

    def _advance(self) -> None:
        before, first = self.lo, self.opened.find(_UNOPENED, self.lo)
        self.lo = first if first >= 0 else len(self.opened)
        self.hi = max(self.hi, self.lo)
        if self._accepts:  # a stray may have opened one far ahead: up to there hidden places are yet to be read
            hidden = self.opened.find(_HIDDEN_TAIL, before, self.lo)
            self._behind = hidden if hidden >= 0 else self.lo
        elif self._thin:
            seen = len(self.opened[before : self.lo].rstrip(_HIDDEN_TAIL))
            self._behind = before + seen if seen else self._behind

    def _fill(self) -> None:
        """Widen the window until it holds k unopened places or all that are known."""
        while self._room < self.k:
            found = self.opened.find(_UNOPENED, self.hi)
            if found < 0:
                return
            self.hi = found + 1
            self._room += 1

    def _check(self) -> None:
        """Pass over what has been in the window for two check points, at least 4 K opens, and was not
        opened.

        A loader opens all of the next K places within K opens, in whatever order. Files it never opens (it
        caches them itself, or fails on them) would otherwise fill the window.
        """
        self._seen = 0
        oldest, old = self._aged
        self.abandon(oldest)
        self._aged = (old, self.hi)
