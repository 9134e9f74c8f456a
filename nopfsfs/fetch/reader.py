"""Reading one block of a load into the arena: from a copy on disk if there is a good one, else from the source."""

from __future__ import annotations

import logging
from typing import Protocol

import xxhash

from nopfsfs.fetch.loads import Load
from nopfsfs.fetch.source import Source, read_exactly
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.columns import Columns, Gauge

log = logging.getLogger(__name__)


class DiskReader(Protocol):
    """What is needed of the disk tiers."""

    def read(self, disk: int, row: int, into: memoryview) -> None: ...


class Notes(Protocol):
    """Takes note of bytes that may change without a trace; see `stager/young_files.py`."""

    def note(self, row: int, version: int, start: int, data: memoryview, checksum: int | None = None) -> None: ...
    def note_whole(self, row: int, version: int, length: int, checksum: int) -> None: ...


class BlockReader:
    """Holds no lock: whoever runs a block is the only one to write its bytes."""

    def __init__(
        self, columns: Columns, gauge: memoryview, arena: Arena, source: Source, disks: DiskReader,
        young: Notes | None = None,
    ) -> None:
        self._columns, self._gauge, self._arena, self._source, self._disks = columns, gauge, arena, source, disks
        self._young = young

    def read(self, load: Load, block: int) -> None:
        """Raises Changed, OSError."""
        start = block * load.block
        view = self._arena.view[load.arena + start : load.arena + min(load.length, start + load.block)]
        if load.from_disk:
            if self._read_copy(load, view):
                return
            load.from_disk = 0
        fd, identity = load.file.ensure()
        read_exactly(fd, identity, view, load.start + start)
        if load.whole and len(load.blocks) == 1:
            load.checksum = xxhash.xxh3_64_intdigest(view)
            if self._young is not None:
                self._young.note_whole(load.row, load.version, load.length, load.checksum)
        elif self._young is not None:
            self._young.note(load.row, load.version, load.start + start, view)

    def complete(self, load: Load) -> None:
        """The checksum of a whole load that was read in several blocks."""
        if len(load.blocks) > 1:
            load.checksum = xxhash.xxh3_64_intdigest(self._arena.view[load.arena : load.arena + load.length])

    def _read_copy(self, load: Load, view: memoryview) -> bool:
        """Whether the copy on disk could be read, and is what was written."""
        try:
            self._disks.read(load.from_disk, load.row, view)
        except OSError as e:
            self._gauge[Gauge.DISK_ERRORS] += 1
            log.warning("cannot read a copy on disk: %s; reading the source", e)
            return False
        if xxhash.xxh3_64_intdigest(view) == int(self._columns.check[load.row]):
            return True
        self._gauge[Gauge.CORRUPT_COPIES] += 1
        log.error("copy of %r on disk is corrupt; reading the source", self._source.path(load.row))
        return False
