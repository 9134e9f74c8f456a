"""What the page cache of the mount was given, as far as the policy knows: what stays, and a window around the reader.

Pure. A row's pages are charged from the push, or the first demand read, until they are reported dropped. The kernel may
take pages earlier; then more is charged than is held, never less, until they are found gone. Pages ahead of the reader
are not dropped; those behind it are when room is needed, those first that are read again last, and none for the sake of
a row that is read later than itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.next_use import NextUseOrder
from nopfsfs.policy.pending_reads import PendingReads

PUSHES_OUTSTANDING = 64  # few: a push of what is needed now must not wait behind what is needed later
RESERVE_MOST = 32 << 20  # bytes of the window that pushes leave to demand reads, whose pages nobody can refuse
DROP_AHEAD = 8  # room is made for this many files of the size that is needed


class Paged(IntEnum):
    """How much of a file the page cache was given."""

    NONE = 0
    WHOLE = 1
    SOME = 2
    LATE = 3  # some, or about to be: its reader came before its push was reported, which is vain if not yet done


_NONE, _WHOLE, _SOME, _LATE = Paged


class PushScheduler:
    """`charges` i64[n] and `paged` u8[n] are those of the conductor, `opened` holds the rows that are open now."""

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
        # the same for one row at a time, as in the conductor
        self._charge, self._paged_of = charges.data, paged.data
        self._is_pushing, self._is_home = self.pushing.data, self.home.data
        self.awaited = PendingReads()
        self.behind = NextUseOrder()  # closed, to be dropped when room is needed
        self._leaving: dict[int, int] = {}  # row: bytes; being dropped
        self._leaving_bytes = 0
        self._read_again: set[int] = set()  # of those being dropped
        # pushed since the last `rotate_recent`, and the one before
        self._young: tuple[set[int], set[int]] = (set(), set())
        self.outstanding = 0
        self.used = 0
        self.homes_used = 0

    @property
    def bounded(self) -> bool:
        """Whether not all of the data set may stay."""
        return self._split.page_homes < self._data

    @property
    def _limit(self) -> int:
        """Bytes up to which pushes may fill the page cache."""
        return self._split.pages - min((self._split.pages - self._split.page_homes) // 4, RESERVE_MOST)

    def recharge(self, row: int, more: int) -> None:
        """The row's charge is another, by so many bytes: count that where it is charged. What has grown too large to
        stay stays no more."""
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
        if all_could_stay and self.bounded:  # until now, nobody noted what was behind the reader
            self._put_all_behind(np.flatnonzero(self.paged != _NONE).tolist())

    # ---- pushes -------------------------------------------------------------------------------------------

    def too_large(self, row: int) -> bool:
        """A row whose pages neither may stay nor fit the window is never pushed."""
        size = self._charge[row]
        stays = self._is_home[row] or self.homes_used + size <= self._split.page_homes
        return bool(not stays and size > self._limit - self._split.page_homes)

    def may_push(self, row: int) -> bool:
        """Whether there is room now."""
        size = self._charge[row]
        room = self._paged_of[row] != _NONE or self.used + size <= self._limit
        return bool(room and self.outstanding < PUSHES_OUTSTANDING)

    def has(self, row: int) -> bool:
        """Whether the page cache holds the whole row and will go on doing so for a while."""
        return bool(self._paged_of[row] == _WHOLE and row not in self._leaving)

    def push(self, row: int, position: int) -> None:
        """The row is being pushed for its reading at `position`."""
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
        """The row will be read at `position`: its pages are not behind the reader (any more)."""
        if not self._is_home[row]:
            self.behind.discard(row)
            self.awaited.expect(row, position)

    def pushed(self, row: int) -> None:
        if not self._end_push(row) and self._paged_of[row] == _NONE:
            self.used += self._charge[row]  # its order was given up for lost, and was not
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
        """Take over what another window had pushed: `paged` says what there is."""
        self.paged[self.paged == _LATE] = _SOME
        for row in np.flatnonzero(self.paged != _NONE).tolist():
            size = self._charge[row]
            self.used += size
            if self._paged_of[row] == _WHOLE and self.homes_used + size <= self._split.page_homes:
                self._is_home[row] = True
                self.homes_used += size
            self._put_behind(row)

    def lost(self) -> None:
        """What was asked of the stager and not reported is not being done: its process died."""
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
        """The server answered a READ: the page cache holds some of the row. Whether that shows that the kernel had
        taken pages of it: not soon after a push, which may have come after the READ."""
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
        """A reader has come to the row: a push of it that is not done yet would only be in its way."""
        if self._is_pushing[row]:
            self._paged_of[row] = _LATE

    def rotate_recent(self) -> None:
        """Call it every few seconds: what was pushed before the last time is done for certain."""
        self._young = (set(), self._young[0])

    def closed(self, row: int) -> None:
        """The row's last reader has closed it."""
        self.awaited.read_done(row)
        self._put_behind(row)

    def advance(self, position: int) -> None:
        """The reader is at `position` now."""
        self._put_all_behind(self.awaited.passed(position))

    def forget_expected(self) -> None:
        """Another stream is followed: nothing that was pushed is awaited any more."""
        self.behind.invalidate()
        self._put_all_behind(self.awaited.clear())

    # ---- room ---------------------------------------------------------------------------------------------

    def dropped(self, row: int) -> None:
        """The row's pages are gone (if it is being pushed again: are about to come back)."""
        self._leaving_bytes -= self._leaving.pop(row, 0)
        if self._paged_of[row] == _NONE:
            return
        if row in self._read_again:
            self._read_again.discard(row)  # before or after it was dropped: nobody knows
            self._paged_of[row] = _SOME
            self._put_behind(row)
            return
        self._paged_of[row] = _NONE
        if not self._is_pushing[row]:
            self.used -= self._charge[row]

    def gone(self, row: int, cached: int) -> bool:
        """The kernel was seen to have taken pages of the row, and left `cached` bytes. Whether that is news."""
        if self._paged_of[row] != _WHOLE or self._is_pushing[row] or row in self._leaving:
            return False
        self._paged_of[row] = _SOME if cached else _NONE
        if not cached:
            self.used -= self._charge[row]
            self.awaited.read_done(row)
            self.behind.discard(row)
        return True

    def make_room(self, size: int = 0, position: int = -1) -> list[int]:
        """Rows to drop now, so that `size` more bytes fit, which are read at `position`: none that is read before that.
        Their room comes when they are reported dropped."""
        rows: list[int] = []
        while self.used - self._leaving_bytes + DROP_AHEAD * size > self._limit:
            row = self.behind.furthest(position)
            if row is None:
                break
            if self._droppable(row):
                self._leaving[row] = self._charge[row]
                self._leaving_bytes += self._charge[row]
                rows.append(row)
        return rows

    def resize(self, split: MemorySplit, furthest: Iterable[int]) -> None:
        """Another budget. What must leave does so in the order of `furthest`."""
        all_could_stay = not self.bounded
        self._split = split
        excess = self.used - self._leaving_bytes - self._limit
        track_all = self.bounded and all_could_stay  # until now, nobody noted what was behind the reader
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
