"""Commands to the stager, gathered until they are sent. Pure."""

from __future__ import annotations

from nopfsfs.protocol.supervisor_stager import StagerCommand


class CommandList:
    """Commands in the sequence in which they are sent: the kind, the rows, and a value."""

    def __init__(self) -> None:
        self._all: list[tuple[StagerCommand, list[int], int]] = []

    def add(self, command: StagerCommand, row: int, value: int = 0) -> None:
        """Add a command for one row. The row joins the last command if kind and value are the same."""
        if self._all and self._all[-1][0] == command and self._all[-1][2] == value:
            self._all[-1][1].append(row)
        else:
            self._all.append((command, [row], value))

    def add_all(self, command: StagerCommand, rows: list[int], value: int = 0) -> None:
        """Add a command for several rows. The caller must not change the list afterwards."""
        self._all.append((command, rows, value))

    def clear(self) -> None:
        """Discard all commands."""
        self._all.clear()

    def take(self) -> list[tuple[StagerCommand, list[int], int]]:
        """Return the commands and forget them."""
        result, self._all = self._all, []
        return result
