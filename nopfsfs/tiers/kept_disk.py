"""A disk tier that keeps its copies: the next mount of the same source begins with them.

Several mounts share the directory (`kept_directory.py`). Only `read` and `open_copy` may be called by several threads
at once; all else is the disk thread's. Reasons: docs/decisions/0018-kept-copies.md.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from nopfsfs.system.descriptors import closed_on_error, closing_fd
from nopfsfs.system.directory_access import open_directory
from nopfsfs.tiers.disk import FLOOR_BYTES, Disk, DiskBusy, DiskFull, TierGone, free_bytes, is_nearly_full, write_all
from nopfsfs.tiers.kept_directory import SharedCache, begin_copy, charged, copies_in, remove_copy
from nopfsfs.tiers.kept_names import PART, YOUNG, CopyName, FoundCopies, KeptRows

USED_S = 3600.0  # a copy that was used within this is not removed while its source is mounted
RESERVE = 16  # one part in so many of the size is made free at once
CANDIDATES = 1 << 14  # copies that one look for room may remove
LOOK_AGAIN_S, LOOK_AGAIN_MOST_S = 60.0, 3600.0  # after a look that found nothing to remove
_ROWS = 2048  # that one step hashes
_REMOVED = 64  # copies that one step removes
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW

Adopted = tuple[list[int], list[int]]  # rows, and the sums of their copies


class _Candidate(NamedTuple):
    """A copy that may make room, in the order of its last use; `used` in ns since 1970."""

    used: int
    source: str
    name: CopyName


class KeptDisk(Disk):
    """A disk tier that keeps its copies. `is_sure(row, version)` is False while the file may change under the same
    times."""

    def __init__(self, path: str, limit: int | None, rows: KeptRows, is_sure: Callable[[int, int], bool]) -> None:
        super().__init__(path, limit)
        self._rows, self._is_sure = rows, is_sure
        self._cache: SharedCache | None = None
        self._checks = np.zeros(rows.index.n, np.uint64)  # of the copies that this mount knows; 0: none
        self._keys = np.zeros(rows.index.n, np.uint64)  # the first bytes of their keys
        self._young: set[int] = set()  # rows whose copies serve this mount only
        self._sparse: dict[int, tuple[CopyName, int]] = {}  # copies that are written by blocks, and their bytes
        self._wants_room = False
        self._pause_s, self._look_at = LOOK_AGAIN_S, 0.0

    # ---- opening and closing ------------------------------------------------------------------------------

    def open(self, uid: int = -1, gid: int = -1) -> None:
        """Open the cache of the user of this thread. Raises OSError with what to do."""
        self._forget()
        try:
            self._cache = SharedCache(self.path, self._rows.name, self._rows.root)
        except OSError:
            self.failed()
            raise
        self.worked()

    def close(self) -> None:
        """Leave the copies, but those that are not sure."""
        for row in list(self._young):
            self.remove(row)
        for row in list(self._sparse):
            self.drop_sparse(row)
        self._forget()

    def _forget(self) -> None:
        self._cache = None
        self._checks[:] = 0
        self._keys[:] = 0
        self._young.clear()
        self._sparse.clear()
        self.used = 0

    @property
    def is_open(self) -> bool:
        return self._cache is not None

    def is_gone(self) -> bool:
        """Return whether the tier was opened, and somebody removed its directory since."""
        cache = self._cache
        return cache is not None and cache.vanished()

    def _shared(self) -> SharedCache:
        cache = self._cache
        if cache is None:
            raise TierGone(errno.ENOENT, "the disk tier is not open")
        return cache

    # ---- what was kept ------------------------------------------------------------------------------------

    def found(self) -> Iterator[Adopted]:
        """The copies of this source that were kept, in steps; some steps bring none. `adopted` is told of those that
        are used. Raises OSError."""
        cache, listed = self._shared(), FoundCopies()
        for below in cache.subdirectories(cache.source):
            for name, _ in copies_in(below):
                if not name.suffix:
                    listed.add(name)
            yield [], []
        listed.sort()
        files = self._rows.files if len(listed) else np.zeros(0, np.int64)
        for start in range(0, len(files), _ROWS):
            rows, checks = [], []
            for row in files[start : start + _ROWS].tolist():
                key = self._rows.key_now(row)
                check = listed.check_of(key)
                if check is not None:
                    rows.append(row)
                    checks.append(check)
                    self._note(row, key, check)
            yield rows, checks

    def unconfirmed(self, rows: list[int]) -> None:
        """Note that the source is to be looked at before these copies are used."""
        self._rows.unconfirmed[rows] = 1

    def not_adopted(self, row: int) -> None:
        """Note that a copy that was found is not used."""
        self._checks[row] = self._keys[row] = 0

    def _note(self, row: int, key: bytes, check: int) -> None:
        self._checks[row] = check
        self._keys[row] = int.from_bytes(key[:8], "big")

    def count(self) -> Iterator[None]:
        """Count what the cache holds, in steps, and clear what dead writers left, if no other mount does. Raises
        OSError."""
        cache = self._shared()
        if cache.alone:
            total = 0
            for source in cache.source_names():
                for below in cache.subdirectories(source):
                    for name, entry in list(copies_in(below)):
                        if name.suffix:
                            remove_copy(name, below)
                        else:
                            total += charged(entry.stat(follow_symlinks=False).st_size)
                    yield
            cache.counted(total)
        self.used = cache.total() or 0

    # ---- copies -------------------------------------------------------------------------------------------

    def write(self, row: int, data: memoryview, version: int = 0) -> None:
        """Keep a copy of a row, as `Disk.write`."""
        cache = self._shared()
        key, check = self._rows.key(row, version), xxhash.xxh3_64_intdigest(data)
        if key is None or check != self._rows.staged_check(row):
            raise DiskBusy(errno.EAGAIN, "the file changed meanwhile")
        name = CopyName(key, check)
        young = not self._is_sure(row, version) and not self._is_there(cache, name, len(data))
        name = name._replace(suffix=YOUNG if young else "")
        if not self._is_there(cache, name, len(data)):
            self._write(cache, name, data)
        self._note(row, key, check)
        self._rows.unconfirmed[row] = 0
        (self._young.add if young else self._young.discard)(row)

    def spare_room(self) -> int:
        """Bytes that are free for copies of files that have their home in memory. The result is -1 where the source
        does not fit on this disk as a whole."""
        cache = self._cache
        room = self._whole_room(cache) if cache is not None and self.usable() else 0
        return -1 if self._rows.charged_bytes > room else max(0, room - self.used)

    def takes(self, row: int, room: int) -> bool:
        """True when the copy of a row fits in this part of the `spare_room`; where it does not, room is to be made."""
        fits = charged(self._rows.size(row)) <= room
        self._wants_room |= not fits
        return fits

    def _whole_room(self, cache: SharedCache) -> int:
        """Bytes that all copies may take: without a limit those that they take, and what is free, less the floor."""
        if self.limit is not None:
            return self.limit
        with contextlib.suppress(OSError):
            return self.used + free_bytes(cache.copies)
        return 0

    def _is_there(self, cache: SharedCache, name: CopyName, size: int) -> bool:
        """True when another mount has kept the copy; one that was cut is removed. Raises OSError."""
        try:
            st = os.stat(name.path, dir_fd=cache.copies, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if st.st_size == size:
            return True
        self._unlink(cache, cache.source, name)
        return False

    def _write(self, cache: SharedCache, name: CopyName, data: memoryview) -> None:
        size, part = charged(len(data)), name._replace(suffix=PART)
        with closing_fd(self._begin(cache, part, len(data))) as fd:  # the lock goes with it
            try:
                write_all(fd, data)
                self._rename(cache, part, name)
            except OSError:
                self._take_back(cache, part, size)
                raise
        self.used = cache.total() or 0

    def _begin(self, cache: SharedCache, part: CopyName, length: int) -> int:
        size = charged(length)
        self._reserve_room(cache, size)
        try:
            fd = begin_copy(part.path, cache.copies, length)
        except FileNotFoundError as e:
            raise TierGone(errno.ENOENT, f"its directory {cache.path} was removed") from e
        if fd is None:
            raise DiskBusy(errno.EAGAIN, "another mount writes this copy")
        with closed_on_error(fd):
            cache.add(size)
        return fd

    def _rename(self, cache: SharedCache, part: CopyName, name: CopyName) -> None:
        try:
            os.rename(part.path, name.path, src_dir_fd=cache.copies, dst_dir_fd=cache.copies)
        except FileNotFoundError as e:
            raise TierGone(errno.ENOENT, f"its directory {cache.path} was removed") from e

    def begin_sparse(self, row: int, version: int, size: int) -> int:
        """Begin a copy, as `Disk.begin_sparse`. The name of the `.part` has no sum yet."""
        cache, key = self._shared(), self._rows.key(row, version)
        if key is None:
            raise DiskBusy(errno.EAGAIN, "the file changed meanwhile")
        part = CopyName(key, 0, PART)
        fd = self._begin(cache, part, size)
        self._sparse[row] = part, charged(size)
        self.used = cache.total() or 0
        return fd

    def end_sparse(self, row: int, version: int, check: int) -> None:
        """Keep a copy, as `Disk.end_sparse`: it gets its name."""
        cache, (part, size) = self._shared(), self._sparse[row]
        if self._rows.key(row, version) != part.key:
            raise DiskBusy(errno.EAGAIN, "the file changed meanwhile")
        young = not self._is_sure(row, version)
        name = CopyName(part.key, check, YOUNG if young else "")
        there = self._is_there(cache, name, self._rows.size(row))  # by another mount meanwhile
        self._note(row, part.key, check)  # before: readers find the one name or the other
        (self._young.add if young else self._young.discard)(row)
        self._rows.unconfirmed[row] = 0
        if there:
            self._take_back(cache, part, size)
        else:
            self._rename(cache, part, name)
        del self._sparse[row]

    def drop_sparse(self, row: int) -> None:
        """Remove a copy, as `Disk.drop_sparse`."""
        cache, found = self._cache, self._sparse.pop(row, None)
        if found is not None and cache is not None:
            self._take_back(cache, *found)
            self.used = cache.total() or 0

    def _take_back(self, cache: SharedCache, part: CopyName, size: int) -> None:
        try:
            os.unlink(part.path, dir_fd=cache.copies)
        except FileNotFoundError:
            pass
        except OSError:
            return  # it goes on taking room
        cache.add(-size)

    def _reserve_room(self, cache: SharedCache, size: int) -> None:
        """Raises DiskFull, DiskBusy, OSError."""
        total = cache.total()
        if total is None:
            raise DiskBusy(errno.EAGAIN, "what the cache holds is being counted")
        if is_nearly_full(cache.copies, size) if self.limit is None else total + size > self.limit:
            self._wants_room = True
            raise (DiskBusy if self._may_look() else DiskFull)(errno.ENOSPC, "disk tier is full")

    def open_copy(self, row: int, flags: int = 0) -> int:
        """Return a descriptor of a row's copy. Raises TierGone, OSError."""
        cache = self._shared()
        first = YOUNG if row in self._young else ""
        if (sparse := self._sparse.get(row)) is not None:
            with contextlib.suppress(FileNotFoundError):  # it may get its name just now
                return os.open(sparse[0].path, flags | _READ, dir_fd=cache.copies)
        for suffix in (first, "" if first else YOUNG, first):  # it may get its name just now
            try:
                fd = os.open(self._name(row, suffix).path, flags | _READ, dir_fd=cache.copies)
            except FileNotFoundError:
                continue
            if time.time() - os.fstat(fd).st_mtime > USED_S / 2:
                with contextlib.suppress(OSError):
                    os.utime(fd)  # its last use
            return fd
        raise FileNotFoundError(errno.ENOENT, "the copy is gone")

    def remove(self, row: int) -> None:
        """Remove the copy of a row, if there is one. One that cannot be removed goes on taking room."""
        cache = self._cache
        if cache is None or not self._checks[row]:
            return
        name = self._name(row, YOUNG if row in self._young else "")
        self.not_adopted(row)
        self._young.discard(row)
        with contextlib.suppress(OSError):
            self._unlink(cache, cache.source, name)

    def settle(self, row: int, version: int) -> None:
        """Keep the young copy of a row for other mounts, as its file cannot change unseen any more. Raises OSError."""
        cache = self._cache
        if cache is None or row not in self._young or self._rows.key(row, version) is None:
            return
        young = self._name(row, YOUNG)
        try:
            os.rename(
                young.path, young._replace(suffix="").path, src_dir_fd=cache.copies, dst_dir_fd=cache.copies
            )  # fmt: skip
        except FileNotFoundError:
            return
        self._young.discard(row)

    def _name(self, row: int, suffix: str) -> CopyName:
        return CopyName(self._rows.key_now(row), int(self._checks[row]), suffix)

    def _unlink(self, cache: SharedCache, source: str, name: CopyName) -> int:
        """Remove a copy of a source; return the bytes. Raises OSError."""
        try:
            with (
                closing_fd(open_directory(source, cache.sources)) as fd,
                closing_fd(open_directory(name.path[:2], fd)) as below,
            ):
                freed = remove_copy(name, below)
        except FileNotFoundError:
            return 0
        if freed:
            cache.add(-freed)
            self.used = cache.total() or 0
        return freed

    # ---- room ---------------------------------------------------------------------------------------------

    def _may_look(self) -> bool:
        return time.monotonic() >= self._look_at

    def wants_room(self) -> bool:
        """True when `make_room` is to be called: a copy found no room, and there may be some that make it."""
        return self._wants_room and self.is_open and self._may_look()

    def make_room(self) -> Iterator[None]:
        """Remove the copies that were not used for longest, in steps. Raises OSError."""
        cache, freed = self._shared(), 0
        wanted = FLOOR_BYTES if self.limit is None else self.limit // RESERVE
        candidates: list[_Candidate] = []
        in_use, own = cache.sources_in_use(), np.sort(self._keys[self._keys > 0])
        for source in cache.source_names():
            for below in cache.subdirectories(source):
                more = list(self._candidates(below, source, source in in_use, own))
                candidates = heapq.nsmallest(CANDIDATES, candidates + more)
                yield
        for at, (_, source, name) in enumerate(candidates):
            if freed >= wanted:
                break
            freed += self._unlink(cache, source, name)
            if at % _REMOVED == 0:
                yield
        self._wants_room = False
        self._pause_s = LOOK_AGAIN_S if freed else min(2 * self._pause_s, LOOK_AGAIN_MOST_S)
        self._look_at = time.monotonic() + (0.0 if freed else self._pause_s)

    def _candidates(self, below: int, source: str, in_use: bool, own: npt.NDArray[np.uint64]) -> Iterator[_Candidate]:
        """The copies of a directory that may make room. `own`: the first bytes of the keys of copies that this mount
        uses, sorted."""
        newest = (time.time() - USED_S) * 1e9
        for name, entry in list(copies_in(below)):
            used = entry.stat(follow_symlinks=False).st_mtime_ns
            if name.suffix != PART and (not in_use or used < newest) and not _is_in(name.key, own):
                yield _Candidate(used, source, name)


def _is_in(key: bytes, sorted_keys: npt.NDArray[np.uint64]) -> bool:
    first = np.uint64(int.from_bytes(key[:8], "big"))
    at = int(np.searchsorted(sorted_keys, first))
    return at < len(sorted_keys) and bool(sorted_keys[at] == first)
