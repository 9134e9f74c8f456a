"""Opens that are kept until a plan explains them, in 16 bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

Open = tuple[int, int, int]  # row, reader, the mount's count of opens

_LOW = (1 << 32) - 1
_SLACK = 4096  # forgotten ones that may lie before the first


class KeptOpens:
    """The last opens, oldest first, at most `most`. A deque of tuples would take ten times the memory. A mount would
    then grow for hours while somebody reads what no plan explains. Rows and readers are below 2^32."""

    def __init__(self, opens: Iterable[Open] = (), *, most: int) -> None:
        self._most = most
        self._who = array("Q")  # row, and the reader in the upper half
        self._at = array("Q")
        self._first = 0
        for one in opens:
            self.append(one)

    def __len__(self) -> int:
        return len(self._at) - self._first

    def __iter__(self) -> Iterator[Open]:
        return map(self._open, range(self._first, len(self._at)))

    def __reversed__(self) -> Iterator[Open]:
        return map(self._open, range(len(self._at) - 1, self._first - 1, -1))

    @property
    def oldest(self) -> Open:
        """Raises IndexError where there is none."""
        return self._open(self._first)

    def append(self, one: Open) -> None:
        """Keep an open, in place of the oldest one if there are as many as may be."""
        row, reader, at = one
        self._who.append(row | reader << 32)
        self._at.append(at)
        if len(self) > self._most:
            self.popleft()

    def popleft(self) -> Open:
        """Forget the oldest one, and return it. Raises IndexError."""
        one = self.oldest
        self._first += 1
        if self._first > _SLACK or self._first == len(self._at):
            del self._who[: self._first], self._at[: self._first]
            self._first = 0
        return one

    def _open(self, at: int) -> Open:
        who = self._who[at]
        return who & _LOW, who >> 32, self._at[at]
