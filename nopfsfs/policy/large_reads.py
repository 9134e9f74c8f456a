"""Files that are too large to be staged whole: while one is read, the pages behind its reader are dropped. Pure."""

from __future__ import annotations

DROP_BYTES = 32 << 20  # read until pages are dropped again
KEEP_BYTES = 8 << 20  # behind the reader; they stay


class LargeReads:
    """The large files that are open, each with the end of the read from which the next drop is counted."""

    def __init__(self) -> None:
        self._dropped: dict[int, int] = {}

    def read(self, row: int, end: int) -> int:
        """Record a read up to byte `end`; return the byte up to which pages are to be dropped now, 0 for none."""
        last = self._dropped.setdefault(row, 0)
        if end < last:
            self._dropped[row] = end
        elif end - last > DROP_BYTES:
            self._dropped[row] = end
            return end - KEEP_BYTES
        return 0

    def closed(self, row: int) -> bool:
        """Record that all readers have closed the row; return True if it was a large file that was read."""
        return self._dropped.pop(row, None) is not None
