"""Orders to the stager, gathered until they are sent. Pure."""

from __future__ import annotations

from enum import IntEnum


class Do(IntEnum):
    """Orders to the stager; the numbers are those of `fetch.wire.Order`."""

    FETCH = 1
    PUSH = 2
    DROP = 3
    EVICT = 4
    TO_DISK = 5
    OFF_DISK = 6
    CANCEL = 7


class CommandList:
    """In order: what is to be done, the rows, and a value."""

    def __init__(self) -> None:
        self._all: list[tuple[Do, list[int], int]] = []

    def add(self, do: Do, row: int, value: int = 0) -> None:
        """One row, together with those before it where they are told the same."""
        if self._all and self._all[-1][0] == do and self._all[-1][2] == value:
            self._all[-1][1].append(row)
        else:
            self._all.append((do, [row], value))

    def add_all(self, do: Do, rows: list[int]) -> None:
        """Several rows; the list is given away."""
        self._all.append((do, rows, 0))

    def clear(self) -> None:
        """Nothing is to be done."""
        self._all.clear()

    def take(self) -> list[tuple[Do, list[int], int]]:
        """What is to be done; from now on it is not."""
        result, self._all = self._all, []
        return result
