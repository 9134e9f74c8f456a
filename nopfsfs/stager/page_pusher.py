"""The pusher: one thread that puts staged files into the mount's page cache, drops them, and invalidates changed ones.
When there is nothing else to do, the thread looks at what the kernel has kept of them.

The pusher does nothing else, because the kernel may block it for as long as a READ is unanswered. It takes the lock of
`StagerState` only for moments, and nothing waits for it. It touches the mount through a detached copy of the mount, so
that `umount` never finds the mount busy because of it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque

import numpy as np

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import PAGED_LATE, Columns, Metric
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager.state import StagerState
from nopfsfs.tiers import page_cache
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
QUIET_LOOK_S = 0.05  # between looks at whether the mount is to be left alone still
INVALIDATE, CLOSE_TREE = -1, -2  # beside the commands; these two touch no file of the mount
Task = tuple[int, int, int]  # what, row, value


class PagePusher:
    """Owns the queue of page cache work and the descriptor of the mount's tree. `run` is its thread's body."""

    def __init__(
        self, *, fuse_fd: int, tree_fd: int, mountpoint: bytes, index: Index, columns: Columns, metrics: memoryview,
        state: StagerState, source: Source, supervisor: memoryview,
    ) -> None:  # fmt: skip
        """`supervisor`: the supervisor's block of metrics."""
        self._fuse_fd, self._tree_fd, self._mountpoint = fuse_fd, tree_fd, mountpoint
        self._index, self._columns, self._state, self._source = index, columns, state, source
        self._metrics = metrics
        self._urgent: deque[Task] = deque()  # changed rows, and drops: reads go on while they wait, and fill more
        self._queue: deque[Task] = deque()
        self._to_see: deque[Task] = deque()  # looked at when the queue is empty
        self._wake = threading.Condition()
        self._stopped = self._leaving = False
        self._supervisor = supervisor

    def command(self, what: int, rows: list[int], value: int = 0) -> None:
        """Queue work, until `leave_mount`; returns at once. Drops are done before pushes: no row is to be dropped while
        it is pushed."""
        with self._wake:
            if not self._leaving:
                queue = self._urgent if what == StagerCommand.DROP else self._queue
                queue.extend((what, row, value) for row in rows)
                self._wake.notify()

    def look_at(self, rows: list[int]) -> None:
        """Report what the page cache holds of these rows when nothing else is left to do; forget earlier requests."""
        with self._wake:
            self._to_see.clear()
            if not self._leaving:
                self._to_see.extend((StagerCommand.LOOK, row, 0) for row in rows)
                self._wake.notify()

    def invalidate(self, row: int) -> None:
        """Make the kernel forget a changed row, before all other work."""
        with self._wake:
            self._urgent.appendleft((INVALIDATE, row, 0))
            self._wake.notify()

    @property
    def holds_tree(self) -> bool:
        """True while the descriptor of the mount's tree is open, which keeps the mount alive."""
        return self._tree_fd >= 0

    def leave_mount(self) -> None:
        """Close the tree after the present task, and touch no file of the mount any more. Changed rows are still
        invalidated: after a lazy unmount the mount goes on for its users."""
        with self._wake:
            self._leaving = True
            changed = [task for task in self._urgent if task[0] == INVALIDATE]
            self._urgent = deque([(CLOSE_TREE, 0, 0), *changed])
            self._queue.clear()
            self._to_see.clear()
            self._wake.notify()

    def stop(self) -> None:
        """End the thread after its present task."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def run(self) -> None:
        self._metrics[Metric.PUSHER_THREAD] = threading.get_native_id()
        try:
            while True:
                with self._wake:
                    while (task := self._next()) is None and not self._stopped:
                        self._wake.wait(timeout=QUIET_LOOK_S if self._quiet else 60)
                if task is None:
                    return
                self._do(*task)
        finally:
            self._close_tree()

    def _close_tree(self) -> None:
        if self._tree_fd >= 0:
            os.close(self._tree_fd)
            self._tree_fd = -1

    @property
    def _quiet(self) -> bool:
        """True while the files of the mount are to be left alone. The supervisor sets that in shared memory. A message
        could be lost on a stager that hangs or is replaced, and the mount would be without pushes for good."""
        return self._supervisor[Metric.QUIET] != 0

    def _next(self) -> Task | None:
        """The next task, if there is one that may be done now (lock held)."""
        queue = self._urgent or self._queue or self._to_see
        if self._stopped or not queue or (self._quiet and queue[0][0] not in (INVALIDATE, CLOSE_TREE)):
            return None
        return queue.popleft()

    def _do(self, what: int, row: int, value: int) -> None:
        try:
            if what == StagerCommand.PUSH:
                self._push(row)
            elif what == StagerCommand.DROP:
                self._drop(row, value)
            elif what == StagerCommand.LOOK:
                self._look(row)
            elif what == CLOSE_TREE:
                self._close_tree()
            else:
                self._invalidate(row)
        except OSError as e:
            # The connection is going away, or the row is: neither is an error of ours to report twice.
            log.debug("page cache work on row %d: %s", row, e)
            self._failed(what, row, value)
        except Exception:
            log.exception("page cache work on row %d failed", row)
            self._failed(what, row, value)

    def _push(self, row: int) -> None:
        if self._columns.paged[row] == PAGED_LATE:
            self._metrics[Metric.PUSHES_SPARED] += 1
            self._failed(StagerCommand.PUSH, row, 0)
            return
        version = int(self._columns.version[row])
        pinned = self._state.pin(row)
        if pinned is None:
            self._failed(StagerCommand.PUSH, row, 0)
            return
        try:
            # Unchanged before and after the pin: then the bytes are of this version, and no other inode gets them.
            if self._columns.version[row] != version:
                raise OSError(errno.ESTALE, "changed at the source")
            self._store(row, inode_of(row, version), pinned.data)
        finally:
            pinned.data.release()
            self._state.unpin(pinned.slot)
        self._metrics[Metric.PUSHES_DONE] += 1
        size = self._source.size(row)
        self._metrics[Metric.PUSHED_BYTES] += size
        self._state.publish(Event.PUSHED, row, size)

    def _store(self, row: int, inode: int, data: memoryview) -> None:
        try:
            page_cache.push(self._fuse_fd, inode, data)
        except FileNotFoundError:
            # The kernel does not know this inode yet: looking its path up makes it known.
            os.stat(self._path(row), dir_fd=self._dir(), follow_symlinks=False)
            page_cache.push(self._fuse_fd, inode, data)

    def _path(self, row: int) -> bytes:
        """The row in the mount: below the detached copy where there is one, else by its path."""
        path = self._index.path(row)
        return path if self._tree_fd >= 0 else os.path.join(self._mountpoint, path)

    def _dir(self) -> int | None:
        return self._tree_fd if self._tree_fd >= 0 else None

    def _failed(self, what: int, row: int, value: int) -> None:
        """Report that the work is over. The kernel reclaims what it holds by itself."""
        if what == StagerCommand.PUSH:
            self._metrics[Metric.PUSHES_DONE] += 1
            self._metrics[Metric.PUSHES_FAILED] += 1
            self._state.publish(Event.PUSH_FAILED, row)
        elif what == StagerCommand.DROP and not value:
            self._state.publish(Event.DROPPED, row, self._source.size(row))

    def _drop(self, row: int, value: int) -> None:
        page_cache.drop(self._dir(), self._path(row), 0, value)
        self._metrics[Metric.DROPS_DONE] += 1
        if not value:
            self._state.publish(Event.DROPPED, row, self._source.size(row))

    def _look(self, row: int) -> None:
        try:
            cached = page_cache.cached(self._dir(), self._path(row))
        except page_cache.Unmeasurable as e:
            self._to_see.clear()
            self._state.publish(Event.UNMEASURED, row, e.errno or 0)
            return
        event = Event.PRESENT if cached >= self._source.size(row) else Event.LACKING
        self._state.publish(event, row, cached)

    def _invalidate(self, row: int) -> None:
        """Let the new version be opened, and make the kernel look all names of the row up anew."""
        self._columns.stale[row] = 0
        for entry in np.flatnonzero(self._index.entry_row == row).tolist():
            directory = inode_of(int(self._index.entry_parent[entry]), 0)
            page_cache.forget_name(self._fuse_fd, directory, self._index.name(entry))
        self._state.publish(Event.CHANGED, row, self._source.size(row))
