"""The files that readers have open, as far as one hears of it. Pure.

A close may never be heard of: the server that took it was killed, or it was one of a supervisor before. So a row of
which nothing was heard while many others were opened is taken for closed, until it is read again. Where others opened
and closed it meanwhile, what was never closed is taken for closed: whose reads there were is not known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Opens of any file, since the last sign of a row, after which it is forgotten: more than readers have open at once.
# One that is forgotten by mistake costs time, not more; one that is not holds memory.
FORGOTTEN_AFTER = 1024
HALF_READ = 64  # files that may be half read at once where closes are not seen
LAST_BYTES = 2 << 12  # of a charge: who has read up to there has read all


@dataclass(slots=True)
class _OpenCount:
    count: int
    sign: int  # how many opens there had been when it was last opened or read
    queued: int  # with which number it stands in the queue
    least: int  # of `count` since then
    closed: bool = False  # by somebody, since then


class OpenFiles:
    """A row is in it from its first open to its last close, or until it is forgotten."""

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
        """A reader opened it."""
        self._opens += 1
        found = self._rows.get(row)
        if found is None:
            self._rows[row] = _OpenCount(1, self._opens, self._opens, 1)
            self._queue.append((self._opens, row))
            self._forgotten.discard(row)
        else:
            found.count += 1
            found.sign = self._opens

    def read(self, row: int) -> None:
        """A reader that had opened it read from it."""
        found = self._rows.get(row)
        if found is not None:
            found.sign = self._opens
        elif row in self._forgotten:
            self.open(row)

    def read_unopened(self, row: int, left: int) -> list[int]:
        """A reader read from it, where neither opens nor closes are seen: it is open from its first READ until its end
        was read, of which there are `left` bytes. Rows that are closed by that."""
        self._opens += 1
        self._rows.pop(row, None)
        if left < LAST_BYTES:
            return [row]
        self._rows[row] = _OpenCount(1, self._opens, self._opens, 1)  # the last of them
        if len(self._rows) <= HALF_READ:
            return []
        oldest = next(iter(self._rows))
        del self._rows[oldest]
        return [oldest]

    def close(self, row: int) -> bool:
        """A reader closed it; whether it was the last that is known of."""
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
        """Rows of which nothing was heard for long; they are in it no more."""
        gone: list[int] = []
        while self._queue and self._queue[0][0] + FORGOTTEN_AFTER < self._opens:
            queued, row = self._queue.popleft()
            found = self._rows.get(row)
            if found is None or found.queued != queued:
                continue  # of an open before
            if found.closed:
                found.count -= found.least
            if found.sign + FORGOTTEN_AFTER < self._opens or not found.count:
                del self._rows[row]
                self._forgotten.add(row)
                gone.append(row)
            else:
                found.queued = self._opens  # looked at again later than it need be
                found.least, found.closed = found.count, False
                self._queue.append((self._opens, row))
        return gone

    def clear(self) -> list[int]:
        """Nothing is known any more; what was in it."""
        gone = list(self._rows)
        self._rows.clear()
        self._queue.clear()
        self._forgotten.clear()
        return gone
