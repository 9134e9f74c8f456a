"""Where each file of a mount lives between its readings, and how much room there is for more. Pure.

Books only: what moves a file is the conductor's to decide and to order. Where the nodes of a cluster share the files,
a placement says of some which of them are at home here (`cover`); the others live in what room is left.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class Home(IntEnum):
    """Where a file lives between its readings."""

    UNPLACED = 0
    RAM = 1
    DISK = 2
    STREAM = 3  # nowhere


# Bound once: looking a member of an enumeration up costs as much as the rest of a short call.
_UNPLACED, _RAM, _DISK, _STREAM = Home


# What the placement of a cluster says of a file here: 0, in memory; 1, 2, ...: on that disk tier; or
NOWHERE = -1  # it is not kept here, but in what room is left
UNCOVERED = -2  # nothing


class Homes:
    """`charges` i64[n]: what a copy of each file takes, bytes; `room`: for those in memory, `disk_room` by disk tier.
    `of` is a view of `home` u8[n] for one row at a time: a tenth of what an array takes for that. A home may be given
    before the file is there: its room is kept for it."""

    def __init__(self, charges: npt.NDArray[np.int64], room: int, disk_room: list[int]) -> None:
        self.home = np.zeros(len(charges), np.uint8)
        self._charges = charges
        self.of, self._charge = self.home.data, charges.data
        self.room = room
        self.used = 0
        self.uses_disk = True  # whether more files are to have their home there
        self._disk_room = list(disk_room)
        self._tier: dict[int, int] = {}
        self._said = np.zeros(len(charges), np.int8)  # what the placement says, less UNCOVERED: memory that is not used
        self._said_of = self._said.data

    @property
    def free(self) -> int:
        """Bytes left in memory; less than none when the room has shrunk."""
        return self.room - self.used

    def tier(self, row: int) -> int:
        """1 + the number of the disk tier that is the row's home."""
        return self._tier[row]

    def is_placed(self, row: int) -> bool:
        """Whether the cluster counts on it in the memory here: then nothing else takes its place there."""
        return self._said_of[row] == -UNCOVERED

    def recharge(self, row: int, more: int) -> None:
        """The row's charge is another, by so many bytes: count that where it has its home."""
        if self.of[row] == _RAM:
            self.used += more
        elif self.of[row] == _DISK:
            self._disk_room[self._tier[row] - 1] -= more

    def is_crowded(self, row: int) -> bool:
        """Whether the disk tier that is its home has less room than it needs."""
        return self._disk_room[self._tier[row] - 1] < 0

    def place(self, row: int, *, disk: bool) -> None:
        """Give a row that has none its home: in memory while there is room, else on `disk`, else nowhere; but as the
        placement of the cluster says, if that says on which disk."""
        if self.of[row] != _UNPLACED:
            return
        self.of[row] = _STREAM
        if self._said_of[row] > -UNCOVERED:
            self.place_on_disk(row)
        elif self._charge[row] <= self.free:
            self.take(row)
        elif disk:
            self.place_on_disk(row)

    def take(self, row: int) -> None:
        """Its home is in memory from now on."""
        self.of[row] = _RAM
        self.used += self._charge[row]

    def leave(self, row: int) -> None:
        """Its home is in memory no more."""
        self.of[row] = _STREAM
        self.used -= self._charge[row]

    def unplace(self, row: int) -> None:
        """It has no home in memory until it is placed anew, unless the cluster counts on it there."""
        if self.of[row] == _RAM and not self.is_placed(row):
            self.leave(row)
            self.of[row] = _UNPLACED

    def place_on_disk(self, row: int) -> bool:
        """Its home is on the first disk tier with room, if there is one; of what a placement covers, on the one that it
        says, if any."""
        size, said = self._charge[row], self._said_of[row] + UNCOVERED
        for tier, room in enumerate(self._disk_room):
            if size <= room and self.uses_disk and (said == UNCOVERED or said == tier + 1):
                self._disk_room[tier] -= size
                self._tier[row] = tier + 1
                self.of[row] = _DISK
                return True
        return False

    def is_on_disk(self, row: int, tier: int) -> None:
        """Its copy was found on that tier, perhaps another than the one with its room."""
        if self.of[row] == _DISK and self._tier[row] != tier:
            self._disk_room[self._tier[row] - 1] += self._charge[row]
            self._disk_room[tier - 1] -= self._charge[row]
            self._tier[row] = tier

    def leave_disk(self, row: int, home: Home, *, empty: bool) -> None:
        """Its home is not on disk, if it was. `empty`: its room there is free again. Until it is placed anew, that of
        one on which the cluster counts is kept for it."""
        if self.of[row] == _DISK and not (home == _UNPLACED and self._said_of[row] > -UNCOVERED):
            self.of[row] = home
            tier = self._tier.pop(row)
            if empty:
                self._disk_room[tier - 1] += self._charge[row]

    def place_anew(self, rows: npt.NDArray[np.bool_]) -> None:
        """Those of these rows, b[n], that live nowhere get a home at their next use, if there is room by then."""
        self.home[(self.home == _STREAM) & rows] = _UNPLACED

    # ---- the placement of a cluster -----------------------------------------------------------------------

    def apply_placement(self, local: npt.NDArray[np.int8], may: npt.NDArray[np.bool_]) -> Rows:
        """What a placement says of each row, i8[n]: UNCOVERED, NOWHERE, 0 or the number of a disk tier. What was
        covered stays as it was. Those that are to live here, and `may`, b[n], get their homes as far as there is room
        without the others; which, i64[m]. What is on disk already stays there, and what has its room lives in memory.
        These others may then have more than there is room for: see `spared` and `overflow`."""
        new = (self._said == 0) & (local > UNCOVERED)
        self._said[new] = np.where(may[new], local[new], NOWHERE) - UNCOVERED
        new &= may & (self.home != _DISK)
        memory = np.flatnonzero(new & (local == 0))
        first = self._cover_memory(memory)
        self._said[memory[len(first) :]] = NOWHERE - UNCOVERED  # the budget has shrunk since it was said
        tiers = range(len(self._disk_room) if self.uses_disk else 0)
        found = [self._cover_disk(np.flatnonzero(new & (local == tier + 1)), tier) for tier in tiers]
        rest = self._cover_memory(np.flatnonzero(new & (local > 0) & (self.home != _DISK)))
        return np.concatenate([first, *found, rest])

    def _cover_memory(self, rows: Rows) -> Rows:
        """The first of these rows live in memory, as many as fit; which."""
        placed = (self.home == _RAM) & (self._said == -UNCOVERED)
        placed[rows] = False
        rows = rows[np.cumsum(self._charges[rows]) <= self.room - self._bytes(placed)]
        self.used += self._bytes(rows[self.home[rows] != _RAM])
        self.home[rows], self._said[rows] = _RAM, -UNCOVERED
        return rows

    def _cover_disk(self, rows: Rows, tier: int) -> Rows:
        """The same of that tier."""
        room = self._disk_room[tier] + sum(self._charge[row] for row in self._squatters(tier))
        rows = rows[np.cumsum(self._charges[rows]) <= room]
        self.used -= self._bytes(rows[self.home[rows] == _RAM])
        self.home[rows] = _DISK
        self._tier.update(dict.fromkeys(rows.tolist(), tier + 1))
        self._disk_room[tier] -= self._bytes(rows)
        return rows

    def spared(self, rows: Rows) -> list[int]:
        """Those of some rows that live in memory without being placed there by the cluster."""
        placed = self._said[rows] == -UNCOVERED
        found: list[int] = rows[(self.home[rows] == _RAM) & ~placed].tolist()
        return found

    def overflow(self) -> list[int]:
        """Rows on disk that are not placed there, and have the room of others that are: so many as must go."""
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
        """Those of these rows, b[n], that live elsewhere do so no more: it is as if no placement had covered them."""
        gone = rows & (self._said == NOWHERE - UNCOVERED)
        self._said[gone] = 0
        self.place_anew(gone)
