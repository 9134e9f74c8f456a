"""Pushes into the page cache of the mount, and drops from it: rows that stay there, and a window around the reader.

Pure. A row's pages are charged from the push, or the first demand read, until they are reported dropped. The kernel may
take pages earlier: then more is charged than is held, never less, until they are found gone. Pages ahead of the reader
are not dropped. Pages behind the reader are dropped when room is needed, those that are read again last first. No page
is dropped for a row that is read later than its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.next_use import NextUseOrder
from nopfsfs.policy.pending_reads import PendingReads

PUSHES_OUTSTANDING = 64  # few: an urgent push must not wait behind pushes for later reads
RESERVE_MOST = 32 << 20  # bytes of the window that pushes leave to demand reads, whose pages cannot be refused
DROP_AHEAD = 8  # room is made for this many files of the size that is needed


class Paged(IntEnum):
    """The part of a file that was given to the page cache."""

    NONE = 0
    WHOLE = 1
    SOME = 2
    LATE = 3  # some, or soon: its reader came before its push was reported; a push not done by then is useless


_NONE, _WHOLE, _SOME, _LATE = Paged


class PushScheduler:
    """Pushed rows and their charges. `charges` i64[n] and `paged` u8[n] are those of `NodePolicy`; `opened` holds the
    rows that are open now."""

    def __init__(
        self, charges: npt.NDArray[np.int64], paged: npt.NDArray[np.uint8], split: MemorySplit, opened: Container[int]
    ) -> None:
        n = len(charges)
        self._size, self.paged = charges, paged
        self._data = int(charges.sum())
        self._split = split
        self._open = opened
        self.pushing = np.zeros(n, np.bool_)
        self.home = np.zeros(n, np.bool_)
        # views for one row at a time, as in `NodePolicy`
        self._charge, self._paged_of = charges.data, paged.data
        self._is_pushing, self._is_home = self.pushing.data, self.home.data
        self.awaited = PendingReads()
        self.behind = NextUseOrder()  # closed rows, to be dropped when room is needed
        self._leaving: dict[int, int] = {}  # row: bytes; being dropped
        self._leaving_bytes = 0
        self._read_again: set[int] = set()  # rows read while they are being dropped
        # rows pushed since the last `rotate_recent`, and between the two before
        self._young: tuple[set[int], set[int]] = (set(), set())
        self.outstanding = 0
        self.used = 0
        self.homes_used = 0

    @property
    def bounded(self) -> bool:
        """True when not all of the data set may stay."""
        return self._split.page_homes < self._data

    @property
    def _limit(self) -> int:
        """Bytes up to which pushes may fill the page cache."""
        return self._split.pages - min((self._split.pages - self._split.page_homes) // 4, RESERVE_MOST)

    def recharge(self, row: int, more: int) -> None:
        """Count `more` bytes where the row is charged: its charge has changed. A row that has grown too large to stay
        does not stay any more."""
        all_could_stay = not self.bounded
        self._data += more
        if self._is_pushing[row] or self._paged_of[row] != _NONE:
            self.used += more
        if self._is_home[row]:
            self.homes_used += more
            if self.homes_used > self._split.page_homes:
                self._is_home[row] = False
                self.homes_used -= self._charge[row]
        if row in self._leaving:
            self._leaving[row] += more
            self._leaving_bytes += more
        if all_could_stay and self.bounded:  # until now, rows behind the reader were not recorded
            self._put_all_behind(np.flatnonzero(self.paged != _NONE).tolist())

    # ---- pushes -------------------------------------------------------------------------------------------

    def too_large(self, row: int) -> bool:
        """True when the row's pages neither may stay nor fit the window; such a row is never pushed."""
        size = self._charge[row]
        stays = self._is_home[row] or self.homes_used + size <= self._split.page_homes
        return bool(not stays and size > self._limit - self._split.page_homes)

    def may_push(self, row: int) -> bool:
        """True when there is room for the row now, and few enough pushes are under way."""
        size = self._charge[row]
        room = self._paged_of[row] != _NONE or self.used + size <= self._limit
        return bool(room and self.outstanding < PUSHES_OUTSTANDING)

    def has(self, row: int) -> bool:
        """True when the page cache holds the whole row, and the row is not being dropped."""
        return bool(self._paged_of[row] == _WHOLE and row not in self._leaving)

    def push(self, row: int, position: int) -> None:
        """Record that the row is being pushed for its read at `position`."""
        size = self._charge[row]
        if self._paged_of[row] == _NONE:
            self.used += size
        if not self._is_home[row] and self.homes_used + size <= self._split.page_homes:
            self._is_home[row] = True
            self.homes_used += size
        self._is_pushing[row] = True
        self.outstanding += 1
        self.keep(row, position)

    def keep(self, row: int, position: int) -> None:
        """Await the row's read at `position`: its pages are not behind the reader (any more)."""
        if not self._is_home[row]:
            self.behind.discard(row)
            self.awaited.expect(row, position)

    def pushed(self, row: int) -> None:
        if not self._end_push(row) and self._paged_of[row] == _NONE:
            self.used += self._charge[row]  # its command counted as lost, but was not
        self._paged_of[row] = _WHOLE
        self._young[0].add(row)
        self._put_behind(row)

    def push_failed(self, row: int) -> None:
        if self._end_push(row) and self._paged_of[row] == _NONE:
            self.used -= self._charge[row]
            self.awaited.read_done(row)
        if self._paged_of[row] == _LATE:
            self._paged_of[row] = _SOME
        self._put_behind(row)

    def adopt(self) -> None:
        """Take over the rows that another PushScheduler had pushed: `paged` says which."""
        self.paged[self.paged == _LATE] = _SOME
        for row in np.flatnonzero(self.paged != _NONE).tolist():
            size = self._charge[row]
            self.used += size
            if self._paged_of[row] == _WHOLE and self.homes_used + size <= self._split.page_homes:
                self._is_home[row] = True
                self.homes_used += size
            self._put_behind(row)

    def lost(self) -> None:
        """Reset the pushes and drops that the stager has not reported: its process died."""
        for row in np.flatnonzero(self.pushing).tolist():
            self.push_failed(row)
        again = list(self._leaving)
        self._leaving.clear()
        self._leaving_bytes = 0
        self._read_again.clear()
        for row in again:
            self._put_behind(row)

    # ---- the reader ---------------------------------------------------------------------------------------

    def read(self, row: int) -> bool:
        """Record that the server answered a READ, so that the page cache holds some of the row. Return True if the READ
        shows that the kernel had taken pages of the row. Soon after a push it does not: the push may have come after
        the READ."""
        if self._is_pushing[row]:
            self._paged_of[row] = _LATE
        elif self._paged_of[row] == _NONE:
            self.used += self._charge[row]
            self._paged_of[row] = _SOME
        elif row in self._leaving:
            self._read_again.add(row)
        elif self._paged_of[row] == _WHOLE and not any(row in some for some in self._young):
            self._paged_of[row] = _SOME
            return True
        return False

    def opened(self, row: int) -> None:
        """Record that a reader opened the row: a push that is not done yet would only be in its way."""
        if self._is_pushing[row]:
            self._paged_of[row] = _LATE

    def rotate_recent(self) -> None:
        """Rotate the sets of rows pushed lately; called every few seconds. A push from before the last call is done for
        certain."""
        self._young = (set(), self._young[0])

    def closed(self, row: int) -> None:
        """Record that the row's last reader has closed it."""
        self.awaited.read_done(row)
        self._put_behind(row)

    def advance(self, position: int) -> None:
        """Record that the reader is at `position` now."""
        self._put_all_behind(self.awaited.passed(position))

    def forget_expected(self) -> None:
        """Await no pushed row any more: another stream is followed."""
        self.behind.invalidate()
        self._put_all_behind(self.awaited.clear())

    # ---- room ---------------------------------------------------------------------------------------------

    def dropped(self, row: int) -> None:
        """Record that the row's pages are gone; if the row is being pushed again, they are about to come back."""
        self._leaving_bytes -= self._leaving.pop(row, 0)
        if self._paged_of[row] == _NONE:
            return
        if row in self._read_again:
            self._read_again.discard(row)  # before or after the drop: that is not known
            self._paged_of[row] = _SOME
            self._put_behind(row)
            return
        self._paged_of[row] = _NONE
        if not self._is_pushing[row]:
            self.used -= self._charge[row]

    def gone(self, row: int, cached: int) -> bool:
        """Record that the kernel has taken pages of the row and left `cached` bytes. Return True if that is news."""
        if self._paged_of[row] != _WHOLE or self._is_pushing[row] or row in self._leaving:
            return False
        self._paged_of[row] = _SOME if cached else _NONE
        if not cached:
            self.used -= self._charge[row]
            self.awaited.read_done(row)
            self.behind.discard(row)
        return True

    def make_room(self, size: int = 0, position: int = -1) -> list[int]:
        """Choose rows to drop now, so that `size` more bytes fit for a read at `position`; none of them is read before
        that. Their room is free when they are reported dropped."""
        rows: list[int] = []
        while self.used - self._leaving_bytes + DROP_AHEAD * size > self._limit:
            row = self.behind.pop_last_used(position)
            if row is None:
                break
            if self._droppable(row):
                self._leaving[row] = self._charge[row]
                self._leaving_bytes += self._charge[row]
                rows.append(row)
        return rows

    def resize(self, split: MemorySplit, furthest: Iterable[int]) -> None:
        """Set another budget. Rows that must leave do so in the order of `furthest`."""
        all_could_stay = not self.bounded
        self._split = split
        excess = self.used - self._leaving_bytes - self._limit
        track_all = self.bounded and all_could_stay  # until now, rows behind the reader were not recorded
        for row in furthest:
            if self.homes_used <= split.page_homes and excess <= 0 and not track_all:
                break
            size = self._charge[row]
            if self._is_home[row] and self.homes_used > split.page_homes:
                self._is_home[row] = False
                self.homes_used -= size
            if excess > 0:
                self.awaited.read_done(row)
            self._put_behind(row)
            excess -= size if row in self.behind else 0

    def _droppable(self, row: int) -> bool:
        if self._paged_of[row] == _NONE or self._is_home[row] or self._is_pushing[row] or row in self._leaving:
            return False
        return row not in self._open and row not in self.awaited

    def _put_behind(self, row: int) -> None:
        if self.bounded and self._droppable(row):
            self.behind.add(row)

    def _put_all_behind(self, rows: list[int]) -> None:
        for row in rows:
            self._put_behind(row)

    def _end_push(self, row: int) -> bool:
        if not self._is_pushing[row]:
            return False
        self._is_pushing[row] = False
        self.outstanding -= 1
        return True
