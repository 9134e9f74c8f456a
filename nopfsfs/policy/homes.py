"""Where each file of a mount lives between its readings, and how much room there is for more. Pure.

Books only: what moves a file is the conductor's to decide and to order.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Home(IntEnum):
    """Where a file lives between its readings."""

    UNPLACED = 0
    RAM = 1
    DISK = 2
    STREAM = 3  # nowhere


# Bound once: looking a member of an enumeration up costs as much as the rest of a short call.
_UNPLACED, _RAM, _DISK, _STREAM = Home


class Homes:
    """`charges` i64[n]: what a copy of each file takes, bytes; `room`: for those in memory, `disk_room` by disk tier.
    `of` is a view of `home` u8[n] for one row at a time: a tenth of what an array takes for that."""

    def __init__(self, charges: npt.NDArray[np.int64], room: int, disk_room: list[int]) -> None:
        self.home = np.zeros(len(charges), np.uint8)
        self.of, self._charge = self.home.data, charges.data
        self.room = room
        self.used = 0
        self.uses_disk = True  # whether more files are to have their home there
        self._disk_room = list(disk_room)
        self._tier: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Bytes left in memory; less than none when the room has shrunk."""
        return self.room - self.used

    def tier(self, row: int) -> int:
        """1 + the number of the disk tier that is the row's home."""
        return self._tier[row]

    def place(self, row: int, *, disk: bool) -> None:
        """Give a row that has none its home: in memory while there is room, else on `disk`, else nowhere."""
        if self.of[row] != _UNPLACED:
            return
        self.of[row] = _STREAM
        if self._charge[row] <= self.free:
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
        """It has no home in memory until it is placed anew."""
        if self.of[row] == _RAM:
            self.leave(row)
            self.of[row] = _UNPLACED

    def place_on_disk(self, row: int) -> bool:
        """Its home is on the first disk tier with room, if there is one."""
        size = self._charge[row]
        for tier, room in enumerate(self._disk_room):
            if size <= room and self.uses_disk:
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
        """Its home is not on disk, if it was. `empty`: its room there is free again."""
        if self.of[row] == _DISK:
            self.of[row] = home
            tier = self._tier.pop(row)
            if empty:
                self._disk_room[tier - 1] += self._charge[row]

    def place_anew(self, rows: npt.NDArray[np.bool_]) -> None:
        """Those of these rows, b[n], that live nowhere get a home at their next use, if there is room by then."""
        self.home[(self.home == _STREAM) & rows] = _UNPLACED
