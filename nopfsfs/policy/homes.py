"""The home of each file of a mount between its reads, and the room for further homes. Pure.

`Homes` only keeps the books: `NodePolicy` decides which files move and adds the commands. Where the nodes of a cluster
share the files, a placement names the files with their home on this node (`apply_placement`). The other files get a
home in the room that is left.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.placement.methods import NOWHERE, UNCOVERED

Rows = npt.NDArray[np.int64]


class Home(IntEnum):
    """The place where a file stays between its reads."""

    UNPLACED = 0
    RAM = 1
    DISK = 2
    STREAM = 3  # nowhere


# Bound once: looking a member of an enumeration up costs as much as the rest of a short call.
_UNPLACED, _RAM, _DISK, _STREAM = Home


class Homes:
    """The homes of all files. `charges` i64[n]: bytes that a copy of each file takes. `room`: bytes for homes in
    memory; `disk_room`: bytes by disk tier. `of` is a view of `home` u8[n] for one row at a time, at a tenth of an
    array's cost. A file may get its home before it is staged: the room is then reserved. `keeps_large`: files that are
    never staged whole may have their home on disk."""

    def __init__(
        self, charges: npt.NDArray[np.int64], room: int, disk_room: list[int], *, keeps_large: bool = False
    ) -> None:
        self.home = np.zeros(len(charges), np.uint8)
        self._charges = charges
        self.of, self._charge = self.home.data, charges.data
        self.room = room
        self.used = 0
        self.uses_disk = True  # True while more files may get their home on disk
        self.keeps_large = keeps_large
        self._disk_room = list(disk_room)
        self._disks_are_short = int(charges.sum()) > sum(disk_room)  # they have no room for all files
        self._tier: dict[int, int] = {}
        self._said = np.zeros(len(charges), np.int8)  # the placement's number less UNCOVERED: 0 costs no memory
        self._said_of = self._said.data

    @property
    def free(self) -> int:
        """Bytes left in memory; negative when the room has shrunk."""
        return self.room - self.used

    def tier(self, row: int) -> int:
        """The number of the disk tier that is the row's home: 1, 2, ..."""
        return self._tier[row]

    def is_elsewhere(self, row: int) -> bool:
        """True when the placement gives the row no home on this node."""
        return self._said_of[row] == NOWHERE - UNCOVERED

    def is_placed(self, row: int) -> bool:
        """True when the placement gives the row its home in memory here: no other row may take that room."""
        return self._said_of[row] == -UNCOVERED

    def recharge(self, row: int, more: int) -> None:
        """Count `more` bytes where the row has its home: the row's charge has changed."""
        if self.of[row] == _RAM:
            self.used += more
        elif self.of[row] == _DISK:
            self._disk_room[self._tier[row] - 1] -= more

    def is_crowded(self, row: int, *, large: bool = False) -> bool:
        """True when the disk tier that is the row's home has less room than its files need. `large`: the row is never
        staged whole, and may have to leave for that."""
        return self._disk_room[self._tier[row] - 1] < 0 or (large and not self.keeps_large)

    def place(self, row: int, *, disk: bool) -> None:
        """Give a row without a home one: in memory while there is room, else on `disk`, else nowhere. A row for which
        the placement names a disk tier may only get its home there."""
        if self.of[row] != _UNPLACED:
            return
        self.of[row] = _STREAM
        if self._said_of[row] > -UNCOVERED:
            self.place_on_disk(row)
        elif self._charge[row] <= self.free:
            self.take(row)
        elif disk:
            self.place_on_disk(row)

    def place_large(self, row: int) -> None:
        """Give a row without a home one that is never staged whole: on disk, or nowhere."""
        self.of[row] = _STREAM
        if self.keeps_large:
            self.place_on_disk(row)

    def take(self, row: int) -> None:
        """Make memory the row's home."""
        self.of[row] = _RAM
        self.used += self._charge[row]

    def leave(self, row: int) -> None:
        """Take away the row's home in memory; the row streams."""
        self.of[row] = _STREAM
        self.used -= self._charge[row]

    def unplace(self, row: int) -> None:
        """Take away the row's home in memory until it is placed anew, unless the placement gives the row that home."""
        if self.of[row] == _RAM and not self.is_placed(row):
            self.leave(row)
            self.of[row] = _UNPLACED

    def place_on_disk(self, row: int) -> bool:
        """Make the first disk tier with room the row's home; return False when there is none. A row that a placement
        covers may only go to the tier that the placement names, if any."""
        for tier in range(1, len(self._disk_room) + 1):
            if self._may_place(row, tier):
                self._reserve(row, tier)
                return True
        return False

    def _may_place(self, row: int, tier: int) -> bool:
        """True when the disk tier has room for the row, and no placement puts the row elsewhere."""
        said = self._said_of[row] + UNCOVERED
        return self.uses_disk and self._charge[row] <= self._disk_room[tier - 1] and said in (UNCOVERED, tier)

    def claim(self, row: int, tier: int) -> bool:
        """Make disk tier 1, 2, … the home of a row that has none in memory; return False when there is no room."""
        if self.of[row] == _DISK:
            self.is_on_disk(row, tier, whole=False)
            return True
        if self.of[row] == _RAM or tier > len(self._disk_room) or not self._may_place(row, tier):
            return False
        self._reserve(row, tier)
        return True

    def is_on_disk(self, row: int, tier: int, *, whole: bool) -> None:
        """Record that a copy of the row was found on that disk tier. A home on another disk tier moves there. `whole`:
        the row may be staged whole.

        Where the disk tiers have no room for all files, a row without a home may get its home there, if there is room.
        No placement may cover the row. An earlier mount left the copy, so the home takes the place of no other file.
        Memory is left to files without a copy.
        """
        has_none = self.of[row] == _UNPLACED and self._said_of[row] == 0
        if self.of[row] == _DISK and self._tier[row] != tier:
            self._disk_room[self._tier[row] - 1] += self._charge[row]
            self._reserve(row, tier)
        elif has_none and self._disks_are_short and (whole or self.keeps_large) and self._may_place(row, tier):
            self._reserve(row, tier)

    def _reserve(self, row: int, tier: int) -> None:
        self._disk_room[tier - 1] -= self._charge[row]
        self._tier[row] = tier
        self.of[row] = _DISK

    def leave_disk(self, row: int, home: Home, *, empty: bool) -> None:
        """Replace the row's home on disk, if it has one, by `home`. `empty`: the row's room there is free again. With
        UNPLACED, a row that the placement puts on disk keeps home and room until it is placed anew."""
        if self.of[row] == _DISK and not (home == _UNPLACED and self._said_of[row] > -UNCOVERED):
            self.of[row] = home
            tier = self._tier.pop(row)
            if empty:
                self._disk_room[tier - 1] += self._charge[row]

    def place_anew(self, rows: npt.NDArray[np.bool_]) -> None:
        """Let those of these rows, b[n], whose home is nowhere get one at their next use, if there is room by then."""
        self.home[(self.home == _STREAM) & rows] = _UNPLACED

    # ---- the placement of a cluster -----------------------------------------------------------------------

    def apply_placement(self, local: npt.NDArray[np.int8], may: npt.NDArray[np.bool_]) -> Rows:
        """Apply a placement: `local` i8[n] is UNCOVERED, NOWHERE, 0 or the number of a disk tier. Rows that were
        covered before stay as they are. The new rows with a home here that are in `may`, b[n], get it as far as there
        is room. Rows that no placement put there do not count. Return the rows that got a home, i64[m]. A row that is
        on disk stays there; a row that finds no room on its disk tier gets its home in memory. The rows that no
        placement put there may then have more than there is room for: see `spared` and `overflow`."""
        new = (self._said == 0) & (local > UNCOVERED)
        self._said[new] = np.where(may[new], local[new], NOWHERE) - UNCOVERED
        new &= may & (self.home != _DISK)
        memory = np.flatnonzero(new & (local == 0))
        first = self._cover_memory(memory)
        self._said[memory[len(first) :]] = NOWHERE - UNCOVERED  # the budget has shrunk since the placement was made
        tiers = range(len(self._disk_room) if self.uses_disk else 0)
        found = [self._cover_disk(np.flatnonzero(new & (local == tier + 1)), tier) for tier in tiers]
        rest = self._cover_memory(np.flatnonzero(new & (local > 0) & (self.home != _DISK)))
        return np.concatenate([first, *found, rest])

    def _cover_memory(self, rows: Rows) -> Rows:
        """Make memory the home of the first of these rows, as many as fit; return them."""
        placed = (self.home == _RAM) & (self._said == -UNCOVERED)
        placed[rows] = False
        rows = rows[np.cumsum(self._charges[rows]) <= self.room - self._bytes(placed)]
        self.used += self._bytes(rows[self.home[rows] != _RAM])
        self.home[rows], self._said[rows] = _RAM, -UNCOVERED
        return rows

    def _cover_disk(self, rows: Rows, tier: int) -> Rows:
        """Make that disk tier the home of the first of these rows, as many as fit; return them."""
        room = self._disk_room[tier] + sum(self._charge[row] for row in self._squatters(tier))
        rows = rows[np.cumsum(self._charges[rows]) <= room]
        self.used -= self._bytes(rows[self.home[rows] == _RAM])
        self.home[rows] = _DISK
        self._tier.update(dict.fromkeys(rows.tolist(), tier + 1))
        self._disk_room[tier] -= self._bytes(rows)
        return rows

    def spared(self, rows: Rows) -> list[int]:
        """The rows of `rows` that have their home in memory without a placement."""
        placed = self._said[rows] == -UNCOVERED
        found: list[int] = rows[(self.home[rows] == _RAM) & ~placed].tolist()
        return found

    def overflow(self) -> list[int]:
        """Rows on disk that no placement put there, and that must leave so that the placed rows of their tier have
        room."""
        found = []
        for tier, room in enumerate(self._disk_room):
            for row in self._squatters(tier) if room < 0 else ():
                if room >= 0:
                    break
                found.append(row)
                room += self._charge[row]
        return found

    def _squatters(self, tier: int) -> list[int]:
        rows = np.flatnonzero((self.home == _DISK) & (self._said < -UNCOVERED))
        return [row for row in rows.tolist() if self._tier[row] == tier + 1]

    def _bytes(self, rows: Rows | npt.NDArray[np.bool_]) -> int:
        return int(self._charges[rows].sum())

    def withdraw_placement(self, rows: npt.NDArray[np.bool_]) -> None:
        """Forget that a placement gave those of these rows, b[n], a home elsewhere: they count as not covered."""
        gone = rows & (self._said == NOWHERE - UNCOVERED)
        self._said[gone] = 0
        self.place_anew(gone)
