"""Disk tiers that keep their copies from mount to mount: the disk thread adopts what an earlier mount left, counts, and
makes room, in small steps."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from nopfsfs.protocol.columns import Columns, Metric, Tier
from nopfsfs.tiers.disk import Disks
from nopfsfs.tiers.kept_disk import KeptDisk

log = logging.getLogger(__name__)
TOLD_AT_ONCE, TOLD_PAUSE_S = 1024, 0.005  # events of adopted copies: the supervisor takes 4096 in that time
SPARE_PAUSE_S = 1.0  # between looks for staged files without a copy on disk
SPARE_AT_ONCE = 1024  # of these, looked at in one call: a millisecond
Step = Iterator[float]  # each value: seconds until the next


class KeptCopies:
    """The disks of `disks` that keep their copies. `ready`: set when what was kept is published, or nothing is. Only
    `take_sure` and `ready` may be used by several threads."""

    def __init__(
        self, disks: Disks, columns: Columns, metrics: memoryview, *,
        adopt: Callable[[list[int], int, list[int]], list[int]], report: Callable[[list[int], int], None],
        lose: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`adopt(rows, number, sums)` publishes copies and returns the rows that nobody uses. `report(rows, number)`
        tells the policy. `lose(number)` gives up a disk whose directory cannot be read, until it is reopened."""
        self._adopt_rows, self._report, self._lose = adopt, report, lose
        numbers = range(1, len(disks) + 1)
        self._disks = {number: disk for number in numbers if isinstance(disk := disks[number], KeptDisk)}
        self._steps: dict[int, Step] = {}  # under way, by disk
        self._sure: deque[tuple[int, int]] = deque()  # rows and versions
        self._not_ready = set(self._disks)
        self._looking: set[int] = set()  # disks that cannot take copies for a moment
        self.ready = threading.Event()
        self._columns, self._metrics = columns, metrics
        self._found = 0  # files of which earlier mounts had left copies
        self._not_counted = set(self._disks)  # disks whose copies are not in `_found`
        self._counts = False  # the metric says `_found`, not what a stager before this one has counted
        self._spare: deque[int] = deque()  # rows
        self._seen, self._spare_at = -1, 0.0
        self._say_if_ready()

    @property
    def any(self) -> bool:
        """True where a tier keeps its copies."""
        return bool(self._disks)

    @property
    def holds_orders(self) -> bool:
        """True while orders wait: it is not known yet what is there, or room is being made."""
        return bool(self._looking)

    def opened(self, number: int) -> None:
        """Begin to adopt what was kept on a disk that is open now."""
        if number in self._disks:
            self._looking.add(number)
            self._steps[number] = self._adopt(number, self._disks[number])

    def take_sure(self, row: int, version: int) -> bool:
        """Note that the copies of a row may be kept; False where none are."""
        if self._disks:
            self._sure.append((row, version))
        return bool(self._disks)

    def next_spare(self, staged: int) -> tuple[int, int] | None:
        """(row, disk): a row that stays in memory and has no copy on disk yet, for the next mount. The disk is the one
        to write it to. None where there is none now. `staged`: files that were staged so far. A disk may hold this
        up."""
        if not self._spare and staged != self._seen and time.monotonic() >= self._spare_at:
            self._seen, self._spare_at = staged, time.monotonic() + SPARE_PAUSE_S
            c = self._columns
            self._spare.extend(np.flatnonzero((c.tier == Tier.RAM) & (c.disk == 0) & (c.stale == 0)).tolist())
        if not self._spare:
            return None
        rooms = {number: room for number, disk in self._disks.items() if (room := disk.spare_room()) >= 0}
        if not rooms:
            self._spare.clear()
        for _ in range(min(SPARE_AT_ONCE, len(self._spare))):
            row = self._spare.popleft()
            for number, room in rooms.items():
                if self._disks[number].takes(row, room):
                    return row, number
        return None

    @property
    def spare_pause(self) -> float | None:
        """Seconds until `next_spare` may have a row; None without disks."""
        return (0.0 if self._spare else SPARE_PAUSE_S) if self._disks else None

    def step(self) -> float | None:
        """Do a little; return the seconds until the next step, None where nothing is to be done."""
        while self._sure:
            row, version = self._sure.popleft()
            for number, disk in self._disks.items():
                self._try(number, _settled(disk, row, version))
        pauses = []
        for number, disk in self._disks.items():
            if number not in self._steps and disk.wants_room():
                self._looking.add(number)
                self._steps[number] = (0.0 for _ in disk.make_room())
            if number in self._steps:
                pauses.append(self._try(number, self._steps[number]))
            elif not disk.is_open:
                self._is_ready(number)  # it is tried again, and nobody waits for that
        return min((pause for pause in pauses if pause is not None), default=None)

    def _try(self, number: int, step: Iterator[float | None]) -> float | None:
        """Do one step; return None at the last, and at a failure, after which the disk is opened anew."""
        try:
            return next(step)
        except StopIteration:
            pass
        except OSError as e:
            log.warning("disk tier %s: what is kept there cannot be looked at: %s", self._disks[number].path, e)
            self._lose(number)
        if self._steps.get(number) is step:
            del self._steps[number]
            self._looking.discard(number)
            self._is_ready(number)
        return None

    def _is_ready(self, number: int) -> None:
        self._not_ready.discard(number)
        self._say_if_ready()

    def _say_if_ready(self) -> None:
        if self._not_ready or self.ready.is_set():
            return
        if not self._metrics[Metric.KEPT_FILES]:  # else a stager before this one has counted
            self._metrics[Metric.KEPT_FILES] = 1 + self._found
            self._counts = True
        self.ready.set()

    def _adopt(self, number: int, disk: KeptDisk) -> Step:
        """Publish what was kept, count it, and tell the policy."""
        adopted: list[int] = []
        for rows, checks in disk.found():
            disk.unconfirmed(rows)
            unused = set(self._adopt_rows(rows, number, checks))
            for row in unused:
                disk.not_adopted(row)
            adopted += [row for row in rows if row not in unused]
            yield 0.0
        if number in self._not_counted:  # else the disk was lost, and has copies of this mount, too
            self._not_counted.discard(number)
            self._found += len(adopted)
        self._is_ready(number)
        if self._counts:  # also for a disk that opened late
            self._metrics[Metric.KEPT_FILES] = 1 + self._found
        log.info("disk tier %s has copies of %d files from earlier mounts", disk.path, len(adopted))
        for _ in disk.count():
            yield 0.0
        self._looking.discard(number)
        for start in range(0, len(adopted), TOLD_AT_ONCE):
            self._report(adopted[start : start + TOLD_AT_ONCE], number)
            yield TOLD_PAUSE_S


def _settled(disk: KeptDisk, row: int, version: int) -> Iterator[None]:
    """Keep a copy that is sure, in one step. Raises OSError."""
    disk.settle(row, version)
    yield
