"""A stager and a reader made of sets: what the policy orders is done, in any order and with any failures that chance
picks, and what happens is reported to it. After each step its books are compared with the truth.
"""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.copy_flags import EVICTING, STAGED, Copy, Hold
from nopfsfs.policy.fetch_scheduler import FETCHES_OUTSTANDING
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.push_scheduler import PUSHES_OUTSTANDING, Paged
from nopfsfs.protocol.supervisor_stager import StagerCommand


class World:
    """`stream`: rows in the order in which they will be read. `sizes` by row."""

    def __init__(
        self, sizes: list[int], stream: list[int], split: MemorySplit, *, disk: list[int] | None = None, seed: int = 0,
        fail: float = 0.0, foretold: bool = True, passes: tuple[int, ...] = (), make: type[NodePolicy] = NodePolicy,
    ) -> None:  # fmt: skip
        """`foretold`: whether the next use of a row is known. `passes`: rows that the kernel reads by itself where they
        are on disk. `make`: the class of the policy."""
        self.sizes = np.array(sizes, np.int64)
        self.stream = np.array(stream, np.int64)
        self.disk = disk or []
        self.make = make
        self.policy = make(self.sizes, np.zeros(len(sizes), np.uint8), split, self.disk)
        self.foretold = foretold
        self._foretell()
        self.passes = frozenset(passes)
        self._let_pass()
        self.chance = random.Random(seed)
        self.fail = fail
        self.position = 0
        self.fetches: deque[int] = deque()
        self.pusher: deque[tuple[StagerCommand, int]] = deque()
        self.disk_work: deque[tuple[int, int]] = deque()  # row and tier; 0: it is to leave
        self.staged: set[int] = set()
        self.pages: set[int] = set()
        self.dropped: set[int] = set()  # some time
        self.on_disk: dict[int, int] = {}  # the tier of each
        self.open: list[int] = []
        self.passing: set[int] = set()  # offered to other nodes
        self.new_sizes: dict[int, int] = {}  # of files that changed, until that is seen
        self.events: deque[tuple[str, int]] = deque()  # of the stager, not yet seen
        self.server: deque[tuple[str, int]] = deque()
        self.demands = 0  # reads that found nothing ready
        self.shows = True  # opens and closes
        self.fetched: list[int] = []
        self.of_source = 0  # of these, from there
        self.pushes = 0
        self.reads = 0  # that the page cache did not answer

    def upcoming(self, start: int, count: int) -> np.ndarray:
        return self.stream[start : start + count]

    def next_uses(self, rows: np.ndarray) -> np.ndarray:
        ahead = self.stream[self.position :]
        found = [np.flatnonzero(ahead == row)[:1].tolist() for row in rows.tolist()]
        return np.array([self.position + at[0] if at else -1 for at in found], np.int64)

    def _let_pass(self) -> None:
        self.policy.let_pass(np.isin(np.arange(len(self.sizes)), list(self.passes)))

    def _foretell(self) -> None:
        if self.foretold:
            self.policy.foresee(self.next_uses)

    # ---- the supervisor -------------------------------------------------------------------------------------

    def supervise(self) -> bool:
        """One turn of its loop; whether anything was ordered."""
        c = self.policy
        self._see()
        before = c.residency.stream_used
        c.advance(self.position, len(self.stream), self.upcoming)
        assert c.residency.stream_used <= max(before, c.split.stream), "what streams is fetched without room for it"
        orders = c.take_commands()
        for do, rows, value in orders:
            self._obey(do, rows, value)
        self.check()
        return bool(orders)

    def _see(self) -> None:
        """Take the events there are."""
        c = self.policy
        self._see_stager()
        while self.server:
            what, row = self.server.popleft()
            if what == "read":
                c.read(row, int(self.sizes[row]))
            else:
                getattr(c, what)(row)

    def _see_stager(self) -> None:
        while self.events:
            what, row = self.events.popleft()
            if what == "cancelled":
                self.policy.fetch_failed(row, cancelled=True)
            elif what == "changed":
                self.policy.changed(row, self.new_sizes.pop(row, None))
            elif what == "on_disk":
                self.policy.on_disk(row, self.on_disk.get(row, 1))
            elif what == "tier_failed":
                self.policy.off_disk(row, again=True)
            else:
                getattr(self.policy, what)(row)

    def replace_supervisor(self, split: MemorySplit) -> None:
        """It hands over to another, which adopts what is staged and what the page cache was given; the stager that
        goes with it leaves no copies on disk. Who has what open is not known to the other."""
        for queue in (self.fetches, self.pusher, self.disk_work):
            queue.clear()
        self.on_disk.clear()
        self._see()
        self.passing.clear()
        self.policy = self.make(self.sizes, self.policy.pushes.paged, split, self.disk)
        self._foretell()
        self._let_pass()
        self.policy.adopt(np.isin(np.arange(len(self.sizes)), list(self.staged)))
        self.policy.stager_restarted()
        self.check()
        for do, rows, value in self.policy.take_commands():  # there is no plan yet
            self._obey(do, rows, value)
        self.policy.restart(self.position)

    def _obey(self, do: StagerCommand, rows: list[int], value: int) -> None:
        if do == StagerCommand.FETCH:
            self.fetches.extend(rows)
        elif do == StagerCommand.CANCEL:
            while self.fetches:
                self.events.append(("cancelled", self.fetches.popleft()))
        elif do == StagerCommand.EVICT:
            for row in rows:
                self.staged.discard(row)
                self.events.append(("evicted", row))
        elif do in (StagerCommand.TO_DISK, StagerCommand.OFF_DISK):
            self.disk_work.extend((row, value if do == StagerCommand.TO_DISK else 0) for row in rows)
        else:
            self.pusher.extend((do, row) for row in rows)

    # ---- the stager -----------------------------------------------------------------------------------------

    def work(self) -> bool:
        """One thing that a stager does, picked by chance; whether there was one."""
        queues = [q for q in (self.fetches, self.pusher, self.disk_work) if q]
        if not queues:
            return False
        queue = self.chance.choice(queues)
        fails = self.chance.random() < self.fail
        if queue is self.fetches:
            row = self.fetches.popleft()
            if row not in self.staged and not fails:
                self.fetched.append(row)
                self.of_source += row not in self.on_disk
                self.staged.add(row)
            self.events.append(("staged" if row in self.staged else "fetch_failed", row))
        elif queue is self.disk_work:
            row, tier = self.disk_work.popleft()
            if not tier:
                if self.on_disk.pop(row, None):
                    self.events.append(("off_disk", row))
            elif row not in self.on_disk and (fails or row not in self.staged or not self._fits(row, tier)):
                self.events.append(("tier_failed" if fails else "off_disk", row))
            else:
                self.on_disk.setdefault(row, tier)
                self._check_disks()
                self.events.append(("on_disk", row))
                if row in self.passes:
                    self.events.append(("kernel_reads", row))
        else:
            do, row = self.pusher.popleft()
            if do == StagerCommand.DROP:
                self.pages.discard(row)
                self.dropped.add(row)
                self.events.append(("dropped", row))
            elif fails or row not in self.staged or self.policy.pushes.paged[row] == Paged.LATE:
                self.events.append(("push_failed", row))
            else:
                self.pages.add(row)
                self.pushes += 1
                self.events.append(("pushed", row))
        return True

    def change(self, row: int, size: int) -> None:
        """The file changes: all that there is of it is withdrawn, then it is said how large it is."""
        if row in self.passing:
            return
        if row in self.staged:
            self.staged.discard(row)
            self.events.append(("evicted", row))
        if self.on_disk.pop(row, None):
            self.events.append(("off_disk", row))
        self.pages.discard(row)
        self.new_sizes[row] = size
        self.events.append(("changed", row))
        self._see_stager()  # nothing is offered to others that is about to go

    def evict(self, count: int) -> None:
        """The kernel takes pages back."""
        for row in self.chance.sample(sorted(self.pages), min(count, len(self.pages))):
            self.pages.discard(row)

    def look(self) -> None:
        """The pusher, when it has nothing else to do, looks at all that is believed to be there."""
        if not self.pusher:
            self._see()
            for row in np.flatnonzero(self.policy.pushes.paged == Paged.WHOLE).tolist():
                if row not in self.pages:
                    self.policy.pages_lost(row, 0)
            self.policy.rotate_recent()
            self.check()

    def restart_stager(self) -> None:
        """It dies: what it was to do is lost, what it had published is kept, copies on disk are not."""
        for queue in (self.fetches, self.pusher, self.disk_work):
            queue.clear()
        self._see_stager()  # what it had said, it had said
        self.on_disk.clear()
        self.policy.stager_restarted()
        self.policy.restart(self.position)

    # ---- the reader -----------------------------------------------------------------------------------------

    def read_next(self, hold: bool = False) -> None:
        """Open, read and close the next file of the stream (`hold`: leave it open)."""
        if self.position >= len(self.stream):
            return
        row = int(self.stream[self.position])
        self.position += 1
        if self.shows:
            self.server.append(("opened", row))
        passed = row in self.passes and row in self.on_disk
        if row not in self.pages and not passed:
            if row not in self.staged:
                self.demands += 1
                if self.sizes[row] <= self.policy.split.whole_limit:
                    self.staged.add(row)
                    self.events.append(("staged", row))
            self.pages.add(row)
            self.reads += 1
            self.server.append(("read", row))
        if not self.shows:
            return
        self.open.append(row)
        if not hold:
            self.close_one()

    def close_one(self) -> None:
        if self.open:
            self.server.append(("released", self.open.pop(0)))

    def hide(self) -> None:
        """From now on the kernel opens files by itself: only READs are seen."""
        self.shows = False
        self.policy.without_closes()

    def skip(self, count: int) -> None:
        """The reader passes by some files."""
        self.position = min(len(self.stream), self.position + count)

    def settle(self) -> None:
        """Until nothing is left to do at this position."""
        for _ in range(10_000):
            while self.work():
                pass
            before = self._scanned()
            if not self.supervise() and not self.events and not self.work() and self._scanned() == before:
                return
        raise AssertionError("it never comes to rest")

    def _scanned(self) -> tuple[int, int]:
        return self.policy.fetches.at, self.policy.pushes.at

    # ---- the cluster ----------------------------------------------------------------------------------------

    def place(self, local: list[int]) -> None:
        """What its placement says of each row here."""
        c = self.policy
        before = c.residency.homes._said.copy()
        c.apply_placement(np.array(local, np.int8), c.held()[::-1])
        assert (c.residency.homes._said[before > 0] == before[before > 0]).all(), "what was covered has changed"
        self.check()

    def pass_on(self, row: int) -> None:
        """It lives elsewhere, and is offered there."""
        if self.policy.residency.is_staged(row) and self.policy.offer(row):
            self.passing.add(row)

    def passed(self) -> None:
        """What was offered was taken, or nobody has come for it."""
        for row in sorted(self.passing):
            self.policy.end_offer(row)
        self.passing.clear()

    # ---- what must hold -------------------------------------------------------------------------------------

    def _fits(self, row: int, tier: int) -> bool:
        """As the tier itself sees to."""
        taken = sum(int(self.sizes[other]) for other, on in self.on_disk.items() if on == tier)
        return taken + int(self.sizes[row]) <= self.disk[tier - 1]

    def _check_disks(self) -> None:
        for tier, room in enumerate(self.disk, 1):
            assert sum(int(self.sizes[row]) for row, on in self.on_disk.items() if on == tier) <= room

    def check(self) -> None:
        c, r, w = self.policy, self.policy.residency, self.policy.pushes
        size, n = self.sizes, len(self.sizes)

        def holds(reason: Hold) -> list[int]:
            return np.flatnonzero(r.holds & reason).tolist()

        assert not n or not (r.holds[r.state & (STAGED | EVICTING) == STAGED] == 0).any(), "staged without a reason"
        assert holds(Hold.HOME) == np.flatnonzero(r.home == Home.RAM).tolist()
        assert holds(Hold.OPEN) == sorted(c.open._rows)
        assert holds(Hold.PENDING) == [row for row in range(n) if row in c.fetches._pending]
        assert holds(Hold.OFFERED) == sorted(self.passing)
        assert set(holds(Hold.NEW)) <= set(r._new)
        assert holds(Hold.UNDECIDED) == sorted(r._undecided)
        assert r.homes.used == size[r.home == Home.RAM].sum() <= max(c.split.homes, 0)
        assert r.stream_used == size[r.state & Copy.STREAM != 0].sum()
        assert r.offered_bytes == size[list(self.passing)].sum()
        assert all(r.is_staged(row) for row in self.passing), "what is offered was let go"
        at = np.array([r.homes._tier.get(row, 0) for row in range(n)])
        for tier, room in enumerate(self.disk, 1):
            assert size[at == tier].sum() + r.homes._disk_room[tier - 1] <= room
        assert c.fetches.outstanding == np.count_nonzero(r.state & Copy.FETCHING) <= FETCHES_OUTSTANDING
        assert w.outstanding == len(holds(Hold.PUSHING)) <= PUSHES_OUTSTANDING
        assert w.used == size[(w.paged != Paged.NONE) | (r.holds & Hold.PUSHING != 0)].sum()
        assert w.homes_used == size[w.home].sum() <= max(c.split.page_homes, 0)
