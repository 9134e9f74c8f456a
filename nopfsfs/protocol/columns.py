"""Shared state of every file: where its bytes are. One row per inode, and one writer per column.

Writers publish the data first and the column that says so last. A reader of `tier` and `slot` may use the arena bytes
they name until the reader next lets others run. The stager reuses a slot only after the server has passed through its
event loop once more (`stager/extents.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from nopfsfs.system import shared_memory

log = logging.getLogger(__name__)
PAGED_LATE = 3  # in the column `paged`
HOME_HERE = 0xFFFF  # in the column `holder`
ACL_BYTES = 16 << 20  # for ACLs that differ from the index; each different one is kept once

# Of all that the processes of a mount share. Another number with every change of it: a supervisor that takes over a
# mount of another version must not take one column for another.
LAYOUT = 14
OTHER_VERSION = 64  # exit status of a process that knows another layout


def check_layout(numbers: Mapping[str, int]) -> None:
    """End a process that was started for a mount of another version, as happens after an installation: it would take
    one column for another. Raises SystemExit with OTHER_VERSION."""
    if numbers.get("layout", LAYOUT) != LAYOUT:
        log.error("another version of nopfsfs was installed since this mount was made: unmount, and mount anew")
        raise SystemExit(OTHER_VERSION)


class Tier(IntEnum):
    """The place from which the server can take a file's bytes without waiting. Values of the column `tier`.

    Compare `int(tier[row])`: numpy takes 50 times as long to compare one of its own numbers with a member."""

    NONE = 0
    RAM = 1  # whole, in the arena, at `slot`


class Columns:
    """The per-row columns. Arrays have length n; memory that was never written costs nothing.

    The stager writes these.
    - `tier` u8. `slot` i64: byte offset in the arena.
    - `check` u64: xxh3 of the bytes of this version that were staged last, 0: of none.
    - `disk` u8: 0, or 1 + number of the disk tier.
    - `backing` i32: what the copy on disk is registered as with the kernel (`fuse/passthrough.py`); 0: it is not; below
      0: withdrawn, and kept until no open uses it.
    - `version` u32: counts changes seen at the source, up to `inode_numbers.VERSION_LAST`.
    - `stale` u8: 1 while the old version is being forgotten; opens fail.
    - `new_size`, `new_mtime_ns`, `new_ctime_ns` i64[2n], `new_ino` u64[2n]: refreshed, at `new_place`, for rows with
      version > 0.
    - The rights of rows that have others than the index says (`tiers/rights.py`): `renewed` u32 (counts), `right_mode`,
      `right_uid`, `right_gid`, `right_acl` u32[2n], `acls` u8 and `acls_used` i64[1].

    The supervisor writes these.
    - `paged` u8: 1: the page cache was given the whole file; 2: some of it. 3: the same, and a push of the file that is
      not done yet would come too late.
    - `holder` u16: 1 + the node that has the row's home, where that is another one that may be asked; HOME_HERE where
      it is this one; 0: there is none.
    """

    def __init__(self, fd: int, n: int, *, writable: bool) -> None:
        found = shared_memory.arrays(shared_memory.attach(fd, writable=writable), columns_layout(n))
        self.tier: npt.NDArray[Any] = found["tier"]
        self.slot: npt.NDArray[Any] = found["slot"]
        self.check: npt.NDArray[Any] = found["check"]
        self.disk: npt.NDArray[Any] = found["disk"]
        self.backing: npt.NDArray[Any] = found["backing"]
        self.version: npt.NDArray[Any] = found["version"]
        self.stale: npt.NDArray[Any] = found["stale"]
        self.new_size: npt.NDArray[Any] = found["new_size"]
        self.new_mtime_ns: npt.NDArray[Any] = found["new_mtime_ns"]
        self.new_ctime_ns: npt.NDArray[Any] = found["new_ctime_ns"]
        self.new_ino: npt.NDArray[Any] = found["new_ino"]
        self.renewed: npt.NDArray[Any] = found["renewed"]
        self.right_mode: npt.NDArray[Any] = found["right_mode"]
        self.right_uid: npt.NDArray[Any] = found["right_uid"]
        self.right_gid: npt.NDArray[Any] = found["right_gid"]
        self.right_acl: npt.NDArray[Any] = found["right_acl"]
        self.acls: npt.NDArray[Any] = found["acls"]
        self.acls_used: npt.NDArray[Any] = found["acls_used"]
        self.paged: npt.NDArray[Any] = found["paged"]
        self.holder: npt.NDArray[Any] = found["holder"]

    @staticmethod
    def create(n: int) -> int:
        """A descriptor of fresh columns for n rows."""
        return shared_memory.create("columns", shared_memory.layout_size(columns_layout(n)))


def new_place(row: Any, version: Any) -> Any:
    """The place at which the columns `new_*` have a version of a row, or of each row of an array. The version after it
    stands in the other place, so what a reader finds belongs to its version unless the column `version` has moved
    meanwhile."""
    return 2 * row + (version & 1)


def columns_layout(n: int) -> shared_memory.Layout:
    """The columns' dtypes, n rows each."""
    return {
        "tier": ("u1", n), "slot": ("i8", n), "check": ("u8", n), "disk": ("u1", n),
        "backing": ("i4", n), "version": ("u4", n),
        "stale": ("u1", n), "new_size": ("i8", 2 * n), "new_mtime_ns": ("i8", 2 * n), "new_ctime_ns": ("i8", 2 * n),
        "new_ino": ("u8", 2 * n), "paged": ("u1", n), "holder": ("u2", n),
        "renewed": ("u4", n), "right_mode": ("u4", 2 * n), "right_uid": ("u4", 2 * n), "right_gid": ("u4", 2 * n),
        "right_acl": ("u4", 2 * n), "acls": ("u1", ACL_BYTES), "acls_used": ("i8", 1),
    }  # fmt: skip


class Metric(IntEnum):
    """Counters of supervisor, servers and stager; each process writes its own block. Times are nanoseconds."""

    # server
    OPENS = 0
    RAM_FILES = 1
    RAM_BYTES = 2
    DISK_FILES = 3
    DISK_BYTES = 4
    SOURCE_FILES = 5
    SOURCE_BYTES = 6
    OPENED_BYTES = 7
    WAIT_NS = 8
    WAITS = 9
    READ_ERRORS = 10
    DIRECT_READS = 11
    PEER_FILES = 12
    PEER_BYTES = 13
    RELEASES = 14
    TRIPWIRES = 15  # opens of tripwires, seen as LOOKUPs
    TRIPWIRE_BYTES = 16
    # stager
    ARENA_USED = 20
    DISK_USED = 21
    SOURCE_OPENS = 22
    SOURCE_READ_BYTES = 23
    STAGED_FILES = 24
    STAGED_BYTES = 25
    FETCHES_DONE = 26
    PUSHES_DONE = 27
    PUSHED_BYTES = 28
    SOURCE_ERRORS = 29
    CHANGED_FILES = 30
    CORRUPT_COPIES = 31
    DISK_ERRORS = 32
    NO_ROOM = 33
    DROPS_DONE = 34
    DISK_WRITES = 35
    EVICTIONS = 36
    PUSHER_THREAD = 37  # not a counter: the thread whose opens are the mount's own
    PUSHES_SPARED = 38  # the reader was there first
    KEPT_FILES = 39  # not a counter: 1 + the files of which mounts before had left copies on disk; 0: not known yet
    # stager: fetches, their bytes, and how long they took, one by one
    SOURCE_FETCHES = 44
    SOURCE_FETCHED_BYTES = 45
    SOURCE_FETCH_NS = 46
    DISK_FETCHES = 47
    DISK_FETCHED_BYTES = 48
    DISK_FETCH_NS = 49
    PEER_FETCHES = 50
    PEER_FETCHED_BYTES = 51
    PEER_FETCH_NS = 52
    PEER_REFUSED = 53  # the holder did not have it, or another version
    PEER_LATE = 54  # no answer in time
    PEER_CORRUPT = 55  # other bytes than the holder said
    LENT_FILES = 56  # to other nodes
    LENT_BYTES = 57
    # stager: the look again at what the source grants (`stager/rights_recheck.py`)
    RECHECK_LOOKED = 64  # looks at files and directories
    RECHECK_FOUND = 65  # looks that found a change
    RECHECK_FAILED = 66  # looks that had an error for an answer, or none
    RECHECK_POSITION = 67  # not a counter: files of this cycle that were looked at
    RECHECK_ENDED_S = 68  # not a counter: when the last complete cycle ended, seconds since 1970; 0: none has yet
    RECHECK_TOOK_MS = 69  # not a counter: how long that cycle took
    RECHECK_ANSWERED = 70  # not a counter: the last complete look that was asked for and is done
    RECHECK_STATE = 71  # not a counter: looks that wait without an answer, and RECHECK_SHUT
    # stager: what hangs now, but for the third and the fourth
    STUCK_READS = 78  # of the source
    SPARE_WORKERS = 79  # threads in the places of stuck ones
    STUCK_EVER = 80  # reads that were stuck, of the source or a disk tier
    DISK_LATE = 81  # copies on disk that were given up, and the source read instead
    LEFT_ALONE = 82  # files that are not prefetched for a while
    DISKS_BYPASSED = 83  # disk tiers that are not read for a while
    # stager: what was read of files that had just been written
    YOUNG_OPENS = 84  # opens of the source, to read parts again
    YOUNG_READ_BYTES = 85  # bytes that were read again
    YOUNG_PARTS = 88  # not a counter: parts that are to be read again and compared
    YOUNG_COMPARED = 89  # parts
    YOUNG_CHANGED = 90  # of these, those that held other bytes under the same times
    # stager: requests at the source (`protocol/source_metrics.py`). From here on SIZE_CLASSES metrics each:
    ENDED = 96  # requests that ended well, by size class
    ENDED_LOG2 = 103  # the sum of log2 of their durations in ns, in 2^-16
    YOUNG_ENDED = 110  # the same of those that also began since the last mark
    YOUNG_LOG2 = 117
    # and one each:
    ENDED_STEP = 124  # not a counter: odd while the sums above are being changed
    UNDER_WAY_NS = 125  # the integral of the requests under way, demands included
    SLOTS_WAITED_NS = 126  # the time in which some prefetch waited for a slot
    UNDER_WAY = 127  # not a counter: requests under way now
    DEMANDS_UNDER_WAY = 128  # not a counter: of these, those that a reader waits for
    SOURCE_LIMIT = 129  # not a counter: the requests that may be under way; 0: no stager has begun yet
    SOURCE_BANDWIDTH = 130  # not a counter: the bytes a second that may be read; 0: no bound
    # stager: copies by where they came from, as they were staged whole
    SECOND_READS = 132  # files that were read whole from the source although this version had been before
    STAGED_SOURCE_FILES = 133
    STAGED_SOURCE_BYTES = 134
    STAGED_DISK_FILES = 135
    STAGED_DISK_BYTES = 136
    STAGED_PEER_FILES = 137
    STAGED_PEER_BYTES = 138
    PUSHES_FAILED = 139  # those that were spared included
    # stager (`load_lanes.py`): choices against the usual order
    REROUTED_SLOW = 140
    REROUTED_DOWN = 141
    FETCHES_HEDGED = 142
    # supervisor
    OBSERVED = 40  # opens
    PREDICTED = 41  # opens that were foreseen; an estimate where few show
    SHOWN = 42  # not a counter: which opens servers see, and whether they refuse OPEN (`tripwires.Shown`)
    ARENA_NUMBER = 72  # not a counter: which arena the column `slot` speaks of
    TRIPWIRES_OBSERVED = 93
    TRIPWIRES_TELL_OF = 94  # opens beside `OPENS`, most of which did not show: an estimate
    TRIPWIRES_APART = 91  # not a counter: one file in so many is a tripwire; 0: as many as `Tripwires` has by itself
    QUIET = 92  # not a counter: 1 while the stager is to leave the mount alone, as a command is about to unmount it
    LIMIT_ASKED = 95  # not a counter: the limit that a command asked for; 0: none, -1: the tuner's
    LEAD_MS = 143  # not a counter: milliseconds of reading that are staged ahead; -1: not known
    BANDWIDTH_ASKED = 131  # not a counter: the bytes a second that a command asked for; 0: none, -1: no bound
    WEIGHT_ASKED = 58  # not a counter: thousandths of the weight that a command asked for; 0: none


RECHECK_SHUT = 1 << 16  # in RECHECK_STATE: a directory above the source keeps users out

SIZE_CLASSES = 7  # of requests at the source: up to 4 KiB x 4^k for k = 0..6; the last class has no upper end
# Counters of durations, `durations.BUCKETS` from each of these on: of READs that waited, in the blocks of servers, and
# of fetches of files that were read at once, in that of the stager.
READER_WAITS, SOURCE_FETCHES_TOOK, DISK_FETCHES_TOOK, PEER_FETCHES_TOOK = 144, 160, 176, 192

METRICS = 208
BLOCKS = 256  # processes of a mount that count: the stager, the supervisor, and servers
STAGER, SUPERVISOR, FIRST_SERVER = 0, 1, 2


class MetricBlock:
    """Block of int64 counters of a process, fast to count up: `block[Metric.OPENS] += 1`. Each block has one writer.
    The successor of a process that died counts on."""

    def __init__(self, fd: int, block: int = STAGER, *, writable: bool) -> None:
        memory = shared_memory.attach(fd, writable=writable)
        at = block * METRICS * 8
        self.block: memoryview = memoryview(memory)[at : at + METRICS * 8].cast("q")

    @staticmethod
    def create() -> int:
        return shared_memory.create("gauges", BLOCKS * METRICS * 8)


class ServerMetrics:
    """Sums of the counters of all servers."""

    def __init__(self, fd: int) -> None:
        memory = shared_memory.attach(fd, writable=False)
        self._blocks = np.frombuffer(memory, dtype="i8").reshape(BLOCKS, METRICS)[FIRST_SERVER:]

    def total(self) -> npt.NDArray[np.int64]:
        """i64[METRICS]."""
        total: npt.NDArray[np.int64] = self._blocks.sum(axis=0)
        return total

    def done(self, number: int) -> int:
        """The number of answers of a server and those before it in its place: opens, and reads that were staged."""
        return int(self._blocks[number, [Metric.OPENS, Metric.TRIPWIRES, Metric.RAM_FILES]].sum())
