"""Commands to the stager, gathered until they are sent. Pure."""

from __future__ import annotations

from enum import IntEnum


class Do(IntEnum):
    """Kinds of commands to the stager; the numbers are those of `protocol.supervisor_stager.Order`."""

    FETCH = 1
    PUSH = 2
    DROP = 3
    EVICT = 4
    TO_DISK = 5
    OFF_DISK = 6
    CANCEL = 7
    COPY_LARGE = 22
    CHECK = 21


class CommandList:
    """Commands in the sequence in which they are sent: the kind, the rows, and a value."""

    def __init__(self) -> None:
        self._all: list[tuple[Do, list[int], int]] = []

    def add(self, do: Do, row: int, value: int = 0) -> None:
        """Add a command for one row. The row joins the last command if kind and value are the same."""
        if self._all and self._all[-1][0] == do and self._all[-1][2] == value:
            self._all[-1][1].append(row)
        else:
            self._all.append((do, [row], value))

    def add_all(self, do: Do, rows: list[int], value: int = 0) -> None:
        """Add a command for several rows. The caller must not change the list afterwards."""
        self._all.append((do, rows, value))

    def clear(self) -> None:
        """Discard all commands."""
        self._all.clear()

    def take(self) -> list[tuple[Do, list[int], int]]:
        """Return the commands and forget them."""
        result, self._all = self._all, []
        return result
