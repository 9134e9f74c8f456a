"""The files that readers have open, as far as events show it. Pure.

The event of a close may never come: its server was killed, or belonged to an earlier supervisor. So a row without any
event while many other files were opened counts as closed, until it is read again. Other readers may have opened and
closed the row meanwhile. Then the opens that were never closed count as closed: whose reads came is not known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Opens of any file since the last event of a row, after which it is forgotten: more than readers have open at once.
# A row that is forgotten by mistake costs time, not more; a row that stays by mistake holds memory.
FORGOTTEN_AFTER = 1024
HALF_READ = 64  # files that may be half read at once where closes are not seen
LAST_BYTES = 2 << 12  # of a charge: a reader that leaves fewer unread has read all


@dataclass(slots=True)
class _OpenCount:
    count: int
    sign: int  # the number of opens of any file when it was last opened or read
    queued: int  # its number in the queue
    least: int  # the least `count` since `queued`
    closed: bool = False  # by a reader, since `queued`


class OpenFiles:
    """Open rows: each from its first open to its last close, or until it is forgotten."""

    def __init__(self) -> None:
        self._rows: dict[int, _OpenCount] = {}
        self._queue: deque[tuple[int, int]] = deque()  # (opens by then, row)
        self._forgotten: set[int] = set()
        self._opens = 0

    def __contains__(self, row: object) -> bool:
        return row in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, row: int) -> None:
        """Record that a reader opened the row."""
        self._opens += 1
        found = self._rows.get(row)
        if found is None:
            self._rows[row] = _OpenCount(1, self._opens, self._opens, 1)
            self._queue.append((self._opens, row))
            self._forgotten.discard(row)
        else:
            found.count += 1
            found.sign = self._opens

    def read(self, row: int) -> bool:
        """Record that a reader that had opened the row read from it; return True if the row was forgotten, and counts
        as open again."""
        found = self._rows.get(row)
        if found is not None:
            found.sign = self._opens
        elif row in self._forgotten:
            self.open(row)
            return True
        return False

    def read_unopened(self, row: int, left: int) -> list[int]:
        """Record a read where neither opens nor closes are seen: the row is open from its first READ until its end was
        read. `left`: bytes from the read to the end. Return the rows that are closed by that."""
        self._opens += 1
        self._rows.pop(row, None)
        if left < LAST_BYTES:
            return [row]
        self._rows[row] = _OpenCount(1, self._opens, self._opens, 1)  # the newest of the rows
        if len(self._rows) <= HALF_READ:
            return []
        oldest = next(iter(self._rows))
        del self._rows[oldest]
        return [oldest]

    def close(self, row: int) -> bool:
        """Record that a reader closed the row; return True unless others are known to have it open."""
        found = self._rows.get(row)
        if found is not None and found.count > 1:
            found.count -= 1
            found.least = min(found.least, found.count)
            found.closed = True
            return False
        self._rows.pop(row, None)
        self._forgotten.discard(row)
        return True

    def forget(self) -> list[int]:
        """Remove and return the rows that had no event for long."""
        gone: list[int] = []
        while self._queue and self._queue[0][0] + FORGOTTEN_AFTER < self._opens:
            queued, row = self._queue.popleft()
            found = self._rows.get(row)
            if found is None or found.queued != queued:
                continue  # the entry of an earlier open
            if found.closed:
                found.count -= found.least
            if found.sign + FORGOTTEN_AFTER < self._opens or not found.count:
                del self._rows[row]
                self._forgotten.add(row)
                gone.append(row)
            else:
                found.queued = self._opens  # so it is checked again later than necessary
                found.least, found.closed = found.count, False
                self._queue.append((self._opens, row))
        return gone

    def clear(self) -> list[int]:
        """Remove and return all rows: which are open is not known any more."""
        gone = list(self._rows)
        self._rows.clear()
        self._queue.clear()
        self._forgotten.clear()
        return gone
