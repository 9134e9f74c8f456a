"""Upkeep of a kept cache by hand: list, verify, prune, remove. Mounts may use it meanwhile.

A removal is counted in a number of this process's own, as mounts count theirs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.directory_access import open_regular
from nopfsfs.tiers.kept_directory import KeptCache, charged, copies_in, remove_copy
from nopfsfs.tiers.kept_names import PART, CopyName

_NO_SOURCE = "0" * 32
_PIECE = 1 << 20


@dataclass(slots=True)
class KeptSource:
    """The copies of a source that are kept. `path`: "" where it is not known. `used`: the last use of one, s since
    1970."""

    name: str
    path: str
    in_use: bool
    files: int = 0
    bytes: int = 0
    used: float = 0.0


@dataclass(slots=True)
class Removal:
    """Counts of copies that were looked at and removed. `in_use`: paths of sources that stayed, as they are mounted."""

    looked: int = 0
    files: int = 0
    bytes: int = 0
    in_use: tuple[str, ...] = ()


class CacheUpkeep:
    """Acts on the cache that this user has in directory `path`. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.cache = KeptCache(path, make=False)
        self._counts = False

    def sources(self) -> list[KeptSource]:
        """All sources, most bytes first."""
        found = []
        in_use = self.cache.sources_in_use()
        for name in self.cache.source_names():
            one = KeptSource(name, self.cache.about(name), name in in_use)
            for _, _, st in self._copies(name):
                one.files += 1
                one.bytes += charged(st.st_size)
                one.used = max(one.used, st.st_mtime)
            found.append(one)
        return sorted(found, key=lambda one: -one.bytes)

    def verify(self) -> Removal:
        """Compare each copy with its sum, and remove those that are not what was written."""
        done = Removal()
        for source in self.cache.source_names():
            for name, below, _ in self._copies(source):
                if name.suffix == PART:
                    continue
                done.looked += 1
                with contextlib.suppress(FileNotFoundError):
                    if _sum(name, below) != name.check:
                        self._remove(name, below, done)
        return done

    def prune(self, to: int | None, older_s: float | None) -> Removal:
        """Remove copies that were not used for `older_s` seconds, and the least recently used ones above `to` bytes."""
        done, now = Removal(), time.time()
        every = [
            (st.st_mtime, st.st_size, name, source)
            for source in self.cache.source_names()
            for name, _, st in self._copies(source)
            if name.suffix != PART
        ]
        left = sum(charged(size) for _, size, _, _ in every)
        for used, size, name, source in sorted(every):
            done.looked += 1
            if (to is not None and left > to) or (older_s is not None and now - used > older_s):
                left -= charged(size)
                for below in self.cache.subdirectories(source, name.path[:2]):
                    self._remove(name, below, done)
        return done

    def remove(self, path: str | None) -> Removal:
        """Remove all copies of the source at `path`, None: of every source, but for sources that are mounted."""
        done, in_use = Removal(), self.cache.sources_in_use()
        for source in self.cache.source_names():
            about = self.cache.about(source)
            if path is not None and about != path:
                continue
            if source in in_use:
                done.in_use += (about or source,)
                continue
            for name, below, _ in self._copies(source):
                done.looked += 1
                self._remove(name, below, done)
        return done

    def _copies(self, source: str) -> Iterator[tuple[CopyName, int, os.stat_result]]:
        for below in self.cache.subdirectories(source):
            for name, entry in list(copies_in(below)):
                with contextlib.suppress(FileNotFoundError):
                    yield name, below, entry.stat(follow_symlinks=False)

    def _remove(self, name: CopyName, below: int, done: Removal) -> None:
        if not self._counts:
            self.cache.begin_number(_NO_SOURCE, 0)
            self._counts = True
        if freed := remove_copy(name, below):
            self.cache.add(-freed)
            done.files += 1
            done.bytes += freed


def _sum(name: CopyName, below: int) -> int:
    found, at = xxhash.xxh3_64(), 0
    with closing_fd(open_regular(os.path.basename(name.path), below)) as fd:
        while piece := os.pread(fd, _PIECE, at):
            found.update(piece)
            at += len(piece)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return found.intdigest()
