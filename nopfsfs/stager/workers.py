"""Records of the stager's worker threads: the work of each and since when, which are stuck, how many more are needed.

A read that has begun cannot be taken back: the kernel holds the thread until the source answers. A worker that takes
far longer than reads usually take counts as stuck, and another thread takes its place, up to `SPARE_MOST` in all. When
the source answers, the surplus ends. The caller holds its own lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from statistics import median

from nopfsfs.stager.load import Load
from nopfsfs.tiers.source_slots import ReadLane

SPARE_MOST = 256  # threads in the places of stuck ones, or for demands that none takes
STUCK_LEAST_S, STUCK_MOST_S = 1.0, 10.0
STUCK_TIMES = 16  # as long as reads usually take
DISK_LIMIT_S = 1.5  # for a copy on disk: with a look and the read of a healthy source, 2 s
LAST_READS = 64  # reads that say what is usual
FILE_MOST = 16  # workers at one file: more gain nothing, and all of them may get stuck there
DEVICE_MOST = 16  # stuck reads of a device of which no other read ends: then it is prefetched from no more


class Worker:
    """A worker thread. `urgent`: it serves only demands. `load`: None while it waits or closes a file."""

    __slots__ = (
        "busy", "device", "disk", "given_on", "into", "lane", "load", "lost", "row", "since", "stuck", "urgent",
    )  # fmt: skip

    def __init__(self, *, urgent: bool) -> None:
        self.urgent = urgent
        self.busy = self.stuck = False
        self.load: Load | None = None
        self.row = self.device = -1
        self.disk = 0  # the tier whose copy is being read
        self.into = (0, 0)  # the part of the arena that it reads into
        self.lost = -1  # the extent that it may still write, though its load has gone on without it
        self.lane: ReadLane | None = None  # as what its read counts, until its next step; None: it does not count
        self.given_on = False  # its slot was given to another, as it is stuck
        self.since = 0.0


class Workers:
    """All workers. `threads`: how many there are to be, (others, urgent) by `Worker.urgent`; `urgent_most`: how many
    urgent ones there may be where demands find nobody. `device_of`: the device of a row, of `devices`."""

    def __init__(self, clock: Callable[[], float], device_of: Callable[[int], int], devices: int) -> None:
        self._clock, self._device_of, self._devices = clock, device_of, devices
        self.threads = [0, 0]
        self.urgent_most = 0
        self._all: set[Worker] = set()
        self._count, self._idle, self._stuck = [0, 0], [0, 0], [0, 0]
        self._at: dict[int, int] = {}  # workers by row, of files that are read in several blocks
        self._stuck_at: Counter[int] = Counter()  # by device
        self._ends = [0] * devices  # by device: reads that have succeeded since the last look
        self._ended_at = [0.0] * devices  # when one had, at least
        self._looked_at = 0.0
        self._took: deque[float] = deque(maxlen=LAST_READS)
        self._served = -1  # demands taken before the last look, if some waited then
        self._stuck_after = STUCK_LEAST_S
        self.exhausted = False  # all threads are stuck, and there are no more
        self._found = 0

    # ---- one worker ---------------------------------------------------------------------------------------

    def enter(self, worker: Worker) -> None:
        self._all.add(worker)
        self._count[worker.urgent] += 1

    def leave(self, worker: Worker) -> None:
        self._all.discard(worker)
        self._count[worker.urgent] -= 1

    def begin(self, worker: Worker, load: Load | None, block: int = 0) -> None:
        """Note that the worker begins to read that block of the load, or to close a file."""
        worker.busy, worker.load, worker.since = True, load, self._clock()
        if load is not None:
            worker.disk, worker.into = 0 if load.unconfirmed else load.from_disk, load.extent_of(block)
            if len(load.blocks) > 1 or not load.whole:  # else it is the only one
                worker.row = load.row
                self._at[worker.row] = self._at.get(worker.row, 0) + 1

    def end(self, worker: Worker) -> int:
        """Note that the worker is done; return the row that has room for another worker now, or -1."""
        if not worker.busy:
            return -1
        worker.busy, worker.load = False, None
        self._not_stuck(worker)
        row, worker.row = worker.row, -1
        if row >= 0:
            self._at[row] -= 1
            if not self._at[row]:
                del self._at[row]
        return row

    def _not_stuck(self, worker: Worker) -> None:
        if worker.stuck:
            worker.stuck = False
            self._stuck[worker.urgent] -= 1
            self._stuck_at[worker.device] -= 1

    def confirmed(self, worker: Worker, load: Load) -> None:
        """Note that the source has answered for the load's copy on disk: the worker now begins to read that."""
        self._not_stuck(worker)
        load.unconfirmed, load.confirmed = False, True
        worker.disk, worker.since = load.from_disk, self._clock()

    def may_rest(self, worker: Worker) -> bool:
        """True when the worker is to wait for work; False when it is surplus."""
        return self._idle[worker.urgent] < max(1, self.threads[worker.urgent])

    def rest(self, worker: Worker, does: bool) -> None:
        self._idle[worker.urgent] += 1 if does else -1

    # ---- rows and devices ---------------------------------------------------------------------------------

    def has_room(self, row: int) -> bool:
        """True when one more worker may read the file."""
        return self._at.get(row, 0) < FILE_MOST

    def took(self, row: int, seconds: float) -> None:
        """Note that a block of the row was read from the source."""
        self._took.append(seconds)
        self._ends[self._device_of(row) if self._devices > 1 else 0] += 1

    def was_long(self, seconds: float) -> bool:
        return seconds >= self._stuck_after

    def device_hangs(self, row: int) -> bool:
        """True when reads of the row's device are stuck, and none has ended of late, though others' may."""
        if self._devices == 1:
            return False
        device = self._device_of(row)
        stuck = self._stuck_at[device]
        return stuck >= DEVICE_MOST and self._clock() - self._ended_at[device] >= self._stuck_after

    # ---- looks --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a worker reads or closes a file."""
        return any(worker.busy for worker in self._all)

    @property
    def stuck(self) -> int:
        return sum(self._stuck)

    @property
    def spare(self) -> int:
        """The number of threads above `threads`."""
        return max(0, sum(self._count) - sum(self.threads))

    def look(self) -> list[Worker]:
        """Find the workers that have got stuck since the last look."""
        if self._took:
            self._stuck_after = min(max(STUCK_LEAST_S, STUCK_TIMES * median(self._took)), STUCK_MOST_S)
        now = self._clock()
        for device, ends in enumerate(self._ends):
            if ends:
                self._ends[device], self._ended_at[device] = 0, self._looked_at
        self._looked_at = now
        found = [worker for worker in self._all if worker.busy and not worker.stuck and self._is_late(worker, now)]
        for worker in found:
            worker.stuck = True
            worker.device = self._device_of(worker.load.row) if worker.load is not None else -1
            self._stuck[worker.urgent] += 1
            self._stuck_at[worker.device] += 1
        self._found += len(found)
        return found

    def _is_late(self, worker: Worker, now: float) -> bool:
        return now - worker.since >= (DISK_LIMIT_S if worker.disk else self._stuck_after)

    def stuck_while_others_end(self) -> list[Worker]:
        """Workers that are stuck at a load, where reads have ended that began after theirs: not the whole source is
        stuck."""
        last = max(self._ended_at)
        return [w for w in self._all if w.stuck and w.load is not None and last > w.since]

    def again(self, worker: Worker) -> None:
        """Note that the disk has answered; if its copy is of no use, the worker now begins to read the source."""
        worker.disk, worker.since = 0, self._clock()

    def take_found(self) -> int:
        """The number of workers that have got stuck since the last call."""
        found, self._found = self._found, 0
        return found

    def lacking(self, waiting: int) -> tuple[int, int]:
        """(others, urgent): as `missing`, of the threads that nothing stuck is the reason for. A limit that rises needs
        more, and so do demands that meet no idle worker."""
        alone = waiting - sum(self._idle)
        if alone > 0 and self.threads[True] < self.urgent_most:
            self.threads[True] = min(self.urgent_most, max(self.threads[True], self._count[True] + alone))
        others, urgent = (max(0, self.threads[kind] - self._count[kind]) for kind in (False, True))
        return others, urgent

    def missing(self, waiting: int, served: int) -> tuple[int, int]:
        """(others, urgent): the numbers of threads to be started now. `waiting`: demands that no worker has taken;
        `served`: demands that were ever taken. When demands wait, and none was taken since the last look, there are
        too few threads."""
        need = [self.threads[kind] - (self._count[kind] - self._stuck[kind]) for kind in (False, True)]
        if waiting and served == self._served and not any(self._idle):
            need[True] = max(need[True], waiting)
        room = max(0, SPARE_MOST - self.spare)
        self.exhausted = not room and bool(waiting) and served == self._served
        self._served = served if waiting else -1
        urgent = min(max(0, need[True]), room)
        return min(max(0, need[False]), room - urgent), urgent
