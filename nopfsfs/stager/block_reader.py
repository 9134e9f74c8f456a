"""Reading one block of a load into the arena: from a copy on disk if there is a good one, else from the source."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import xxhash

from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.stager.load import Load
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.source import Source, read_exactly

log = logging.getLogger(__name__)


class DiskReader(Protocol):
    """What is needed of the disk tiers."""

    def read(self, disk: int, row: int, into: memoryview) -> None: ...


class GivenUp(Exception):
    """The load has gone on without this read, which took too long."""


class Notes(Protocol):
    """Takes note of bytes that may change without a trace; see `stager/young_files.py`."""

    def note(self, row: int, version: int, start: int, data: memoryview, checksum: int | None = None) -> None: ...
    def note_whole(self, row: int, version: int, length: int, checksum: int) -> None: ...


class BlockReader:
    """Holds no lock: whoever runs a block is the only one to write its bytes."""

    def __init__(
        self, columns: Columns, gauge: memoryview, arena: Arena, source: Source, disks: DiskReader,
        copy_lost: Callable[[int, int], bool], young: Notes | None = None,
    ) -> None:  # fmt: skip
        """`copy_lost(row, disk)` withdraws a copy that is of no use; False when it was withdrawn before."""
        self._columns, self._gauge, self._arena, self._source, self._disks = columns, gauge, arena, source, disks
        self._copy_lost = copy_lost
        self._told: set[tuple[int, Metric]] = set()  # what was logged, by tier
        self._young = young

    def read(self, load: Load, block: int, still: Callable[[], bool] = lambda: True) -> None:
        """`still()`, asked when the disk has answered: whether the load waits for that still. Raises Changed, OSError,
        GivenUp."""
        start = block * load.block
        view = self._arena.view[load.arena + start : load.arena + min(load.length, start + load.block)]
        if load.from_disk:
            found = self._read_copy(load, view)
            if not still():
                raise GivenUp
            if found:
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
        """Whether the copy on disk could be read, and is what was written. One that is not is withdrawn."""
        try:
            self._disks.read(load.from_disk, load.row, view)
        except OSError as e:
            self._give_up(load, Metric.DISK_ERRORS, f"cannot be read: {e}")
            return False
        if xxhash.xxh3_64_intdigest(view) == int(self._columns.check[load.row]):
            return True
        self._give_up(load, Metric.CORRUPT_COPIES, "is corrupt")
        return False

    def _give_up(self, load: Load, counter: Metric, why: str) -> None:
        if not self._copy_lost(load.row, load.from_disk):
            return  # removed in good order while it was read
        self._gauge[counter] += 1
        if (load.from_disk, counter) not in self._told:  # a disk that fails has many
            self._told.add((load.from_disk, counter))
            log.log(
                logging.ERROR if counter == Metric.CORRUPT_COPIES else logging.WARNING,
                "a copy of %r on disk tier %d %s; reading the source. Further ones are counted: nopfs status",
                self._source.path(load.row), load.from_disk, why,
            )  # fmt: skip
