"""Reading the source without a tier, for a server that has no stager to ask, or whose stager has no room."""

from __future__ import annotations

import errno
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import trio

from nopfsfs.system.elastic_limiter import ElasticLimiter
from nopfsfs.tiers.source import IDLE_S, Changed, Identity, Source, close, read_exactly

DIRECT_FILES = 32  # source files that are kept open
DIRECT_THREADS, DIRECT_THREADS_MOST = 64, 320  # the second while reads are stuck at a source that does not answer
CLOSING_THREADS, CLOSING_THREADS_MOST = 16, 64
Note = Callable[[bytearray, Identity], None]


class DirectReader:
    """Reads rows, and keeps their files open between reads. Thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._done: deque[int] = deque()  # descriptors to be closed
        # Two limits: a source where closing hangs must not keep others from reading.
        self._readers = ElasticLimiter(DIRECT_THREADS, DIRECT_THREADS_MOST)
        self._closers = ElasticLimiter(CLOSING_THREADS, CLOSING_THREADS_MOST)
        self._idle: threading.Timer | None = None  # closes files that nobody reads

    async def read(self, row: int, offset: int, length: int, note: Note = lambda data, identity: None) -> bytearray:
        """Bytes of the indexed version; `note` gets them in the thread that has read them. Raises OSError (ESTALE when
        the file changed)."""
        try:
            return await self._readers.run(self._read, row, offset, length, note)
        finally:
            self._close_done()

    def holds(self, row: int) -> bool:
        """True while the row's source file is kept open."""
        return row in self._open

    async def release(self, row: int) -> None:
        """Keep the row's source file open no longer: a handle of the row was closed."""
        if row not in self._open:
            return
        with self._lock:
            done = self._retire(row)
        if done is not None:
            # In a thread, and in no hurry: closing may wait for the source.
            await self._closers.run(close, done.fd)

    def _close_done(self) -> None:
        """Close what is out of use, while nobody waits for that: it may be on another target than what is read."""
        while self._done:
            trio.lowlevel.spawn_system_task(self._closers.run, close, self._done.popleft())

    def _read(self, row: int, offset: int, length: int, note: Note) -> bytearray:
        file = self._acquire(row)
        try:
            # Where the file ends by its identity; to find less is a change.
            data = bytearray(max(0, min(length, file.identity.size - offset)))
            read_exactly(file.fd, file.identity, memoryview(data), offset)
            note(data, file.identity)
        except Changed:
            with self._lock:
                if self._open.get(row) is file:
                    self._retire(row)  # in use, by this thread: it is closed below
            raise OSError(errno.ESTALE, "changed at the source") from None
        finally:
            with self._lock:
                file.users -= 1
                file.used_s = time.monotonic()
                done = file.done
                self._close_idle_later()
            if done:
                self._done.append(file.fd)
        return data

    def _acquire(self, row: int) -> _OpenFile:
        with self._lock:
            file = self._open.get(row)
            if file is not None and file.identity == self._source.identity(row):
                file.users += 1
                return file
        try:
            file = _OpenFile(*self._source.open(row))
        except Changed:
            raise OSError(errno.ESTALE, "changed at the source") from None
        file.users = 1
        with self._lock:
            surplus = [self._retire(row)]
            self._open[row] = file
            while len(self._open) > DIRECT_FILES:
                surplus.append(self._retire(next(iter(self._open))))
        self._done.extend(old.fd for old in surplus if old is not None)
        return file

    def _close_idle_later(self) -> None:
        """Start the timer that closes files that nobody reads, though nobody closed the last handle (lock held)."""
        if self._idle is None and self._open:
            timer = threading.Timer(IDLE_S, self._close_idle)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # the system has no thread for us: the next read, or release, sees to it
                return
            self._idle = timer

    def _close_idle(self) -> None:
        before_s = time.monotonic() - IDLE_S
        with self._lock:
            idle = [row for row, file in self._open.items() if not file.users and file.used_s < before_s]
            closing = [self._retire(row) for row in idle]
            self._idle = None
            self._close_idle_later()
        for file in closing:
            if file is not None:
                close(file.fd)

    def _retire(self, row: int) -> _OpenFile | None:
        """Keep the row's file open no longer (lock held). Return the file if it is to be closed now."""
        file = self._open.pop(row, None)
        if file is None:
            return None
        file.retired = True
        return file if file.done else None


class _OpenFile:
    """A source file kept open between direct reads. The thread that finds it done, under the lock, closes it."""

    def __init__(self, fd: int, identity: Identity) -> None:
        self.fd = fd
        self.identity = identity
        self.users = 0
        self.used_s = 0.0  # when it was last used, by time.monotonic()
        self.retired = False

    @property
    def done(self) -> bool:
        """Retired and out of use."""
        return self.retired and not self.users
