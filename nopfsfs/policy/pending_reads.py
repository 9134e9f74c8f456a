"""Rows that were staged or pushed ahead of a read, until the read comes or the reader has passed the row. Pure."""

from __future__ import annotations

from collections import deque

PASSED_BY = 1024  # positions behind the reader's first unopened position, after which a file counts as passed


class PendingReads:
    """Rows whose read is awaited: from `expect` until `read_done`, `passed` or `clear`. Of several reads, the last is
    awaited. After `restart` a row is awaited until `take_former`, unless `expect` finds it in the new stream."""

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}  # by row: the reader's position by which the row was surely read
        self._queue: deque[tuple[int, int]] = deque()  # (limit, row)
        self._former: dict[int, None] = {}  # rows of the stream before, not found in this one so far
        self._slack = PASSED_BY

    def __contains__(self, row: int) -> bool:
        return row in self._limits or row in self._former

    def __len__(self) -> int:
        return len(self._limits) + len(self._former)

    def expect(self, row: int, position: int) -> None:
        """Await the read of the row at this stream position."""
        limit = position + self._slack
        self._former.pop(row, None)
        if self._limits.get(row) != limit:
            self._limits[row] = limit
            self._queue.append((limit, row))

    def expire_at_position(self) -> None:
        """Count all that lies behind the reader's position as read: from now on, and for all awaited rows."""
        self._limits = {row: limit - self._slack for row, limit in self._limits.items()}
        self._queue = deque((limit - self._slack, row) for limit, row in self._queue)
        self._slack = 0

    def read_done(self, row: int) -> None:
        """Await the row no longer: it was read."""
        self._limits.pop(row, None)
        self._former.pop(row, None)

    def passed(self, position: int) -> list[int]:
        """Remove and return the rows that the reader, now at `position`, has passed."""
        gone: list[int] = []
        while self._queue and self._queue[0][0] < position:
            limit, row = self._queue.popleft()
            if self._limits.get(row) == limit:
                del self._limits[row]
                gone.append(row)
        return gone

    def restart(self) -> None:
        """Follow another stream. It may read the awaited rows as well: they are awaited on."""
        self._former.update(dict.fromkeys(self._limits))
        self._limits.clear()
        self._queue.clear()

    def take_former(self) -> list[int]:
        """Remove and return the rows of the stream before that were not found in this one."""
        gone = list(self._former)
        self._former.clear()
        return gone

    def clear(self) -> list[int]:
        """Remove and return all awaited rows."""
        self.restart()
        return self.take_former()
