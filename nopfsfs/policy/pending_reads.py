"""Rows that were brought ahead of their reading, until it comes or the reader has passed it by. Pure."""

from __future__ import annotations

from collections import deque

PASSED_BY = 1024  # positions behind the reader's first unopened one, after which a file was passed by


class PendingReads:
    """A row is in it from `expect` until `met`, `passed` or `clear`. Of its readings to come the last is awaited."""

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}  # by row: the reader's position by which it was surely read
        self._queue: deque[tuple[int, int]] = deque()  # (limit, row)
        self._slack = PASSED_BY

    def __contains__(self, row: int) -> bool:
        return row in self._limits

    def __len__(self) -> int:
        return len(self._limits)

    def expect(self, row: int, position: int) -> None:
        """The row will be read at this stream position."""
        limit = position + self._slack
        if self._limits.get(row) != limit:
            self._limits[row] = limit
            self._queue.append((limit, row))

    def expire_at_position(self) -> None:
        """From now on, and for all that is awaited: what lies behind the reader's position was read."""
        self._limits = {row: limit - self._slack for row, limit in self._limits.items()}
        self._queue = deque((limit - self._slack, row) for limit, row in self._queue)
        self._slack = 0

    def read_done(self, row: int) -> None:
        """The row was read."""
        self._limits.pop(row, None)

    def passed(self, position: int) -> list[int]:
        """Rows that the reader, now at `position`, has passed by; they are awaited no longer."""
        gone: list[int] = []
        while self._queue and self._queue[0][0] < position:
            limit, row = self._queue.popleft()
            if self._limits.get(row) == limit:
                del self._limits[row]
                gone.append(row)
        return gone

    def clear(self) -> list[int]:
        """Await nothing; what was awaited."""
        gone = list(self._limits)
        self._limits.clear()
        self._queue.clear()
        return gone
