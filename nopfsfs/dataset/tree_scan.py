"""The scan of a source: directories in parallel, names as bytes, no Python object kept for a file.

- Hard links share a row. Devices, FIFOs and sockets are presented with their mode and never read from the source.
- Entries that cannot be read or vanish meanwhile are left out and counted. Only a failure of the root itself ends
  the scan.
- Links that leave the source stay links, or with `follow_symlinks` become the files and directories that they lead to.
  A directory that a followed link leads to from below itself is left out.
- With `previous`, a directory with the same inode, mtime and ctime is not listed again, and its files get no lstat.
  A file overwritten in place changes no directory: the fstat around every read detects such a change, not the scan.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nopfsfs.dataset.directory_scan import DirectoryContents, DirectoryScan, DirectoryTask, listing_of
from nopfsfs.dataset.index import UNSURE, Index
from nopfsfs.dataset.index_build import Acls, Listing, build
from nopfsfs.errors import Exit, NopfsError

THREADS = 16  # at most: hide the latency of a parallel file system
FIRST_THREADS = 2  # on a local file system the GIL is the limit: with more threads a scan was slower (16: by 40 %)
WAITING_SHARE = 0.7  # the number of threads doubles while the process uses less of one core than this
PROGRESS_S = 0.1

Failure = tuple[bytes, str]  # the path of an entry that could not be read, and the reason


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan. Its warnings say what was left out."""

    index: Index
    warnings: tuple[str, ...]  # one line for each kind of trouble
    dirs_reused: int  # directories that were not listed again


def scan(
    source: str | bytes,
    *,
    threads: int = THREADS,
    follow_symlinks: bool = False,
    previous: Index | None = None,
    progress: Callable[[int], None] | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> ScanResult:
    """Index the tree at `source`. `previous`: an index of this tree made with the same `follow_symlinks`; the result
    has this object itself if nothing changed. `progress` is called in the calling thread, with the number of entries
    found so far, about every 0.1 s and at the end.

    Raises NopfsError (Exit.SOURCE) if the source is missing, is no directory, or cannot be read."""
    root = os.path.abspath(os.fsencode(source))
    look = DirectoryScan(root, os.path.realpath(root), follow_symlinks, previous, clock_ns)
    share = ScanPool(look).run([DirectoryTask(b"", 0 if previous else -1)], threads, progress)
    return result_of(share.found, share.failures, previous, look.acls)


def result_of(
    found: Sequence[DirectoryContents], failed: Sequence[Failure], previous: Index | None, acls: Acls
) -> ScanResult:
    """The result of a scan, from all directories that were scanned and those that `failed`."""
    values = acls.values()
    failures = [*failed, *(failure for f in found for failure in f.vanished)]
    reused = sum(f.listing is None for f in found)
    if previous is not None and not failures and reused == len(found) == previous.n_dirs:
        unchanged = not any(f.moved for f in found)
        index = previous if unchanged else build((listing_of(f, previous) for f in found), values)
    else:
        unsure = {path.rpartition(b"/")[0] for path, _ in failures}
        index = build((_marked(listing_of(f, previous), unsure) for f in found), values)
    return ScanResult(index, _warnings(failures, sum(f.leaving for f in found)), reused)


def _warnings(failures: Sequence[Failure], leaving: int) -> tuple[str, ...]:
    lines = []
    if failures:
        path, why = min(failures)
        shown = os.fsdecode(path).encode(errors="backslashreplace").decode()
        lines.append(f"{len(failures)} left out that could not be read, for example {shown}: {why}")
    if leaving:
        lines.append(f"{leaving} symbolic links lead out of the source (--follow-symlinks follows them)")
    return tuple(lines)


def _marked(listing: Listing, unsure: set[bytes]) -> Listing:
    """The listing, marked UNSURE where an entry was left out, so that the next scan lists the directory again."""
    if listing.path in unsure:
        listing.own["flags"] |= UNSURE
    return listing


@dataclass(frozen=True, slots=True)
class Share:
    """The result of one run of a scan pool."""

    found: list[DirectoryContents]
    failures: list[Failure]  # directories that could not be scanned
    left: list[DirectoryTask]  # directories that another node scans


class ScanPool:
    """Threads that scan directories, the last found first, so that few wait at a time, however many there are in
    all. `mine`: True for a directory that this pool scans; None: the pool scans all."""

    def __init__(self, look: DirectoryScan, mine: Callable[[DirectoryTask], bool] | None = None) -> None:
        self._look = look
        self._mine = mine
        self._left: list[DirectoryTask] = []
        self._changed = threading.Condition()
        self._waiting: list[DirectoryTask] = []
        self._busy = 0
        self._found: list[DirectoryContents] = []
        self._failures: list[Failure] = []
        self._fatal: BaseException | None = None

    def run(self, tasks: Sequence[DirectoryTask], threads: int, progress: Callable[[int], None] | None) -> Share:
        """Scan everything at and below `tasks`. Raises NopfsError if the root of the tree is among them and fails."""
        self._waiting += tasks
        workers: list[threading.Thread] = []
        try:
            self._start(workers, max(1, min(threads, FIRST_THREADS)))
            while alive := [worker for worker in workers if worker.is_alive()]:
                busy = time.process_time()
                alive[0].join(PROGRESS_S)
                waiting = time.process_time() - busy < PROGRESS_S * WAITING_SHARE
                if waiting and self._fatal is None and alive[0].is_alive():
                    self._start(workers, min(threads - len(workers), len(workers)))
                if progress is not None:
                    progress(self._look.entries)
        except BaseException as error:
            self._end(error)
            raise
        finally:
            for worker in workers:
                worker.join()
        if self._fatal is not None:
            raise self._fatal
        if progress is not None:
            progress(self._look.entries)
        return Share(self._found, self._failures, self._left)

    def _start(self, workers: list[threading.Thread], more: int) -> None:
        for _ in range(more):
            worker = threading.Thread(target=self._work, name=f"scan-{len(workers)}", daemon=True)
            worker.start()
            workers.append(worker)

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._fatal = self._fatal or error
            self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            found: DirectoryContents | None = None
            try:
                found = self._look(task)
            except OSError as error:
                self._failed(task, error)
            except BaseException as error:
                self._end(error)
            with self._changed:
                self._busy -= 1
                if found is not None:
                    self._found.append(found)
                    self._add(found.children)
                if len(self._waiting) > 1 or not (self._waiting or self._busy):
                    self._changed.notify_all()

    def _add(self, children: list[DirectoryTask]) -> None:
        for child in children:
            (self._waiting if self._mine is None or self._mine(child) else self._left).append(child)

    def _next(self) -> DirectoryTask | None:
        with self._changed:
            while not self._waiting and self._busy and self._fatal is None:
                self._changed.wait()
            if self._fatal is not None or not self._waiting:
                return None
            self._busy += 1
            return self._waiting.pop()

    def _failed(self, task: DirectoryTask, error: OSError) -> None:
        why = error.strerror or "error"
        if task.path:
            with self._changed:
                self._failures.append((task.path, why))
        else:
            shown = os.fsdecode(self._look.root)
            self._end(NopfsError(Exit.SOURCE, f"cannot read the source {shown}: {why}"))
