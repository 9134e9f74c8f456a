"""The thread that notifies the kernel which attributes and ACLs it must ask for anew.

The thread does nothing else, and nothing waits for it. Each row is notified twice, `AGAIN_S` apart. A server may have
read the old rights before they were renewed, and may answer a lookup with them after the first notification.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.tiers import page_cache

log = logging.getLogger(__name__)
AGAIN_S = 15.0  # a server that hangs with an answer is killed before: after 10 s without a sign of life
_VERSIONS = 16  # before the present one, which are notified, too
_SLEEP_S = 60.0  # a limit, as every wait has one


class AttributeNotices:
    """`run` is the body of its thread. The other methods may be called from any thread and return at once."""

    def __init__(self, fuse_fd: int, columns: Columns) -> None:
        self._fuse_fd, self._version = fuse_fd, columns.version
        self._changed = threading.Condition()
        self._new: deque[int] = deque()
        self._again: deque[tuple[float, int]] = deque()  # due (time.monotonic), row
        self.given = self._told = 0  # rows that were queued, and those of which the kernel was notified
        self._stopped = False

    def add(self, row: int) -> None:
        """Queue a row."""
        with self._changed:
            self._new.append(row)
            self.given += 1
            self._changed.notify()

    def told(self, given: int) -> bool:
        """True when the kernel was notified of the first `given` rows that were queued."""
        return self._told >= given

    def stop(self) -> None:
        """End the thread after its present notification."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Notify the kernel of each row until `stop`."""
        while (task := self._next()) is not None:
            row, first = task
            try:
                # Versions before this one, too: an O_PATH descriptor may still be opened anew.
                last = int(self._version[row])
                for version in range(max(0, last - _VERSIONS), last + 1):
                    page_cache.forget_attributes(self._fuse_fd, inode_of(row, version))
            except OSError as e:
                log.debug("telling the kernel of row %d: %s", row, e)  # the connection is going away
            if first:
                self._told += 1

    def _next(self) -> tuple[int, bool] | None:
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if self._new:
                    row = self._new.popleft()
                    self._again.append((now + AGAIN_S, row))
                    return row, True
                if self._again and self._again[0][0] <= now:
                    return self._again.popleft()[1], False
                self._changed.wait(min(self._again[0][0] - now, _SLEEP_S) if self._again else _SLEEP_S)
            return None
