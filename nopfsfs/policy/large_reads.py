"""Files that are never whole in memory, while they are read: the pages behind their reader are dropped. Pure."""

from __future__ import annotations

DROP_BYTES = 32 << 20  # so many are dropped at a time
KEEP_BYTES = 8 << 20


class LargeReads:
    """Those that are open, and up to which byte their pages were dropped."""

    def __init__(self) -> None:
        self._dropped: dict[int, int] = {}

    def read(self, row: int, end: int) -> int:
        """It was read up to byte `end`: up to which its pages are to be dropped now, 0 for none."""
        last = self._dropped.setdefault(row, 0)
        if end < last:
            self._dropped[row] = end
        elif end - last > DROP_BYTES:
            self._dropped[row] = end
            return end - KEEP_BYTES
        return 0

    def closed(self, row: int) -> bool:
        """All have closed it; whether it is one of these."""
        return self._dropped.pop(row, None) is not None
