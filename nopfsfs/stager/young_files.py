"""Files that were written just before they were read: read once more when they are old enough, and compared.

A comparison of times before and after a read shows a writer, but for three. The first writes within the same tick of
the file system's clock. The second writes on another machine while the times are in this machine's attribute cache. The
third writes through a mapping. Such a write changes the times when a page is first written to, and not again before the
page was written back. So what is read of a file whose mtime or ctime is younger than these take together is noted with
its checksum. When the file is old enough that part is read again. Other bytes under the same times are a change like
any other (`stager/changed_files.py`). All copies are withdrawn, those in the page cache of the mount included.

One thread reads, one part at a time, and others while the source holds it (`system/elastic_threads.py`). Safe in any
thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import xxhash

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.protocol.server_stager import YOUNG_S, YoungRead
from nopfsfs.system.descriptors import advise
from nopfsfs.system.elastic_threads import ElasticThreads
from nopfsfs.system.file_system import FileSystem
from nopfsfs.tiers.source import Changed, Identity, Source, check, close

log = logging.getLogger(__name__)
LOCAL_S = 40.0  # vm.dirty_expire 30 s, its writeback interval 5 s, and two ticks of FAT's clock
NETWORK_S = YOUNG_S  # the same on the writer's machine, and acregmax of NFS, 60 s
PARTS_MOST = 1 << 18  # noted at a time, each some 200 bytes
OTHERS_NS = 86_400 * 10**9  # other nodes have begun this long before this stager at most, and read then
RETRY_S = 10.0  # when the source does not answer well
_PIECE = 1 << 20
_MOST_READERS = 64  # threads, with those that wait for a source that does not answer
Take = Callable[[int], None]


class _Part(NamedTuple):
    """Bytes of a row that were read, in the order in which they are due."""

    due_ns: int
    number: int
    row: int
    version: int
    start: int
    length: int
    checksum: int


class YoungFiles:
    """Notes what is read of young files, and compares it later. `clock_ns`: ns since 1970."""

    def __init__(
        self, *, source: Source, columns: Columns, metrics: memoryview, file_system: FileSystem | None, n: int,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:  # fmt: skip
        self._source, self._columns, self._metrics, self._clock_ns = source, columns, metrics, clock_ns
        network = file_system is not None and file_system.is_network
        self.age_ns = int((NETWORK_S if network else LOCAL_S) * 1e9)
        self._sure = np.zeros(n, np.uint32)  # 1 + the version of the row that was compared well; 0: none was
        self._suspect: set[int] = set()  # rows that held other bytes under the same times: compared at any age
        self._parts: list[_Part] = []  # a heap
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        self._stopped = self._overflowed = False
        self._readers = ElasticThreads("young", 1, _MOST_READERS)
        self._held: set[int] = set()  # rows of which a part is being read
        self._open: Counter[tuple[int, int]] = Counter()  # by row and version: parts that were not compared yet
        # Rows whose bytes another read, here or on another node, perhaps when the file was young.
        self._read_by_others = columns.check != 0
        self._began_ns = clock_ns()
        self._tell_sure: Callable[[int, int], None] = lambda row, version: None

    # ---- noting -------------------------------------------------------------------------------------------

    def note(self, row: int, version: int, start: int, data: memoryview) -> None:
        """Note bytes of the row that were read."""
        if due := self._due(row, version):
            checksum = xxhash.xxh3_64_intdigest(data)
            self._add_new(_Part(due, next(self._numbers), row, version, start, len(data), checksum))

    def note_whole(self, row: int, version: int, length: int, checksum: int) -> None:
        """Note a whole file by its checksum."""
        self.note_read(YoungRead(row, version, 0, length, checksum))

    def note_own(self, row: int, version: int, length: int, checksum: int) -> None:
        """Note a whole file that was read from the source here."""
        self._read_by_others[row] = False
        self.note_whole(row, version, length, checksum)

    def note_arrived(self, row: int, version: int, length: int, checksum: int) -> None:
        """Note a whole file that another node has read."""
        identity = self._source.identity(row)
        newest = max(identity.mtime_ns, identity.ctime_ns)
        self._read_by_others[row] = newest >= self._began_ns - self.age_ns - OTHERS_NS
        self.note_whole(row, version, length, checksum)

    def is_sure(self, row: int, version: int) -> bool:
        """False while the bytes that were staged may be others than those of the file, under the same times."""
        return not self._read_by_others[row] and (row, version) not in self._open

    def note_read(self, read: YoungRead) -> None:
        """Note bytes by their checksum. Those of another version, or of no file, are passed over."""
        row = read.row
        if row >= len(self._sure) or self._columns.version[row] != read.version:
            return
        if read.start + read.length <= self._source.size(row) and (due := self._due(row, read.version)):
            part = _Part(due, next(self._numbers), row, read.version, read.start, read.length, read.checksum)
            self._add_new(part)

    def note_staged(self, index: Index) -> None:
        """Note the young files whose checksum a stager before this one has published. That stager's notes went with it,
        and the bytes may lie in the kernel's page cache."""
        columns = self._columns
        newest = np.maximum(index.mtime_ns, index.ctime_ns)
        known = (columns.check != 0) & ((columns.version != 0) | (newest >= self._clock_ns() - self.age_ns))
        for row in np.flatnonzero(known).tolist():
            self.note_whole(row, int(columns.version[row]), self._source.size(row), int(columns.check[row]))

    def _due(self, row: int, version: int) -> int:
        """The time when the row's file is old enough, ns since 1970; 0 when bytes that are read now are sure."""
        identity = self._source.identity(row)
        now = self._clock_ns()
        suspect = row in self._suspect
        newest = max(identity.mtime_ns, identity.ctime_ns)
        if newest < now - self.age_ns and not suspect:
            return 0
        if self._sure[row] == version + 1 and not suspect:
            return 0
        # Times ahead of our clock are taken for now: another clock, or a time that somebody set.
        return now + self.age_ns if suspect else min(newest, now) + self.age_ns

    def _add_new(self, part: _Part) -> None:
        with self._wake:
            self._open[part.row, part.version] += 1
        self._add(part)

    def _add(self, part: _Part) -> None:
        with self._wake:
            if len(self._parts) >= PARTS_MOST:
                if not self._overflowed:
                    log.warning("more than %d parts of files were read just after they were written", PARTS_MOST)
                self._overflowed = True
                return
            heapq.heappush(self._parts, part)
            self._metrics[Metric.YOUNG_PARTS] = len(self._parts)
            self._wake.notify()

    # ---- comparing ----------------------------------------------------------------------------------------

    def run(self, changed: Take, renew: Take, sure: Callable[[int, int], None] = lambda row, version: None) -> None:
        """Compare what is due until `stop`. `changed(row)` takes a file that is not the known one any more.
        `renew(row)` takes a file that looks as before and holds other bytes, `sure(row, version)` one that holds the
        same."""
        self._tell_sure = sure
        while (part := self._next()) is not None:
            self._readers.hand_over(partial(self._compare_apart, part, changed, renew))

    def stop(self) -> None:
        """End the threads after their present parts."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._readers.stop()

    def _next(self) -> _Part | None:
        with self._wake:
            while not self._stopped:
                wait_s = (self._parts[0].due_ns - self._clock_ns()) / 1e9 if self._parts else 60.0
                if self._parts and wait_s <= 0:
                    return self._pop()
                self._wake.wait(min(wait_s, 60.0))
        return None

    def _pop(self) -> _Part:
        part = heapq.heappop(self._parts)
        self._metrics[Metric.YOUNG_PARTS] = len(self._parts)
        return part

    def _compare_apart(self, part: _Part, changed: Take, renew: Take) -> None:
        """Compare a part, or put it off while the source holds a thread at another part of its row."""
        with self._wake:
            if part.row in self._held:
                self._add_again(part)
                return
            self._held.add(part.row)
        try:
            self._compare(part, changed, renew)
        finally:
            self._held.discard(part.row)

    def _compare(self, part: _Part, changed: Take, renew: Take) -> None:
        row = part.row
        if self._columns.version[row] != part.version or self._columns.stale[row]:
            return  # withdrawn already
        try:
            same = self._read(part) == part.checksum
        except Changed:
            changed(row)
            return
        except OSError as e:
            log.info("%r cannot be read again yet: %s", self._source.path(row), e)
            self._add_again(part)
            return
        self._count(Metric.YOUNG_COMPARED, 1)
        self._count(Metric.YOUNG_CHANGED, int(not same))
        if same:
            self._passed(part)
            return
        log.warning("%r was written to after it was read, and its times stayed the same", self._source.path(row))
        self._suspect.add(row)
        renew(row)

    def _count(self, metric: Metric, by: int) -> None:
        with self._wake:  # these have several writers here
            self._metrics[metric] += by

    def _add_again(self, part: _Part) -> None:
        self._add(part._replace(due_ns=self._clock_ns() + int(RETRY_S * 1e9)))

    def _passed(self, part: _Part) -> None:
        """Take bytes that are read from now on for sure; parts that were noted before are still compared."""
        self._suspect.discard(part.row)
        with self._wake:
            self._open[part.row, part.version] -= 1
            if sure := self._open[part.row, part.version] <= 0:
                del self._open[part.row, part.version]
        if sure:
            self._tell_sure(part.row, part.version)
        identity = self._source.identity(part.row)
        if max(identity.mtime_ns, identity.ctime_ns) > self._clock_ns():
            self._sure[part.row] = part.version + 1  # or each reading of it would be compared for ever

    def _read(self, part: _Part) -> int:
        """The checksum of what the file holds there now. Raises Changed, OSError."""
        fd, identity = self._source.open(part.row)
        try:
            self._count(Metric.YOUNG_OPENS, 1)
            # Pages that a network file system keeps may be as old as its attributes.
            advise(fd, os.POSIX_FADV_DONTNEED)
            return self._digest(fd, identity, part)
        finally:
            close(fd)

    def _digest(self, fd: int, identity: Identity, part: _Part) -> int:
        digest, at, end = xxhash.xxh3_64(), part.start, part.start + part.length
        view = memoryview(bytearray(min(_PIECE, part.length)))
        while at < end:
            got = os.preadv(fd, [view[: end - at]], at)
            if got == 0:
                raise Changed
            self._count(Metric.YOUNG_READ_BYTES, got)
            digest.update(view[:got])
            at += got
        check(fd, identity)
        return digest.intdigest()
