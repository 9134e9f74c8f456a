"""A real `StagerState` over a real small tree, driven by hand, with a model server at its other end.

The model server takes messages in the order in which they were sent, as the real one does: it copies the bytes that an
answer names when it takes the answer, and lets a grace pass when it is asked to. Every answer is compared with what
the file held when it was indexed, or last refreshed.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol.columns import Columns, Metric, MetricBlock, Tier, new_place
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Answer, AskGrace, Demand
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.peer_exchange import PeerExchange
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import WorkerThreads
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.source import Identity, Source

PAGE = 4096
SMALL_BLOCK = PAGE  # so that files of some KiB have several


class Failing(Source):
    """A source that can be told to fail, and to let something else happen while a file is opened."""

    errors: dict[int, int]
    while_opening: Callable[[int], None]
    opens: dict[int, int]

    def prepare(self) -> None:
        self.errors, self.opens = {}, {}
        self.while_opening = lambda row: None

    def open(self, row: int) -> tuple[int, Identity]:
        self.opens[row] = self.opens.get(row, 0) + 1
        self.while_opening(row)
        if row in self.errors:
            raise OSError(self.errors[row], "told to fail")
        return super().open(row)


class NoDisks:
    def read(self, disk: int, row: int, into: memoryview) -> None:
        raise OSError(5, "no disk")


@dataclass
class Result:
    """What the model server got for one demand."""

    errno: int
    data: bytes
    origin: int


class Rig:
    """See the module. `changed` rows are refreshed by `refresh`, as the stager does it."""

    def __init__(
        self, root: Path, *, budget: int, whole_limit: int | None = None, range_budget: int = 0,
        disks: object | None = None, block: int = SMALL_BLOCK, concurrency: int = 4,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:  # fmt: skip
        self.root = root
        self.strays: list[int] = []
        self.index = scan(root).index
        n = self.index.n
        self.fds = [Columns.create(n), MetricBlock.create(), Ring.create("test"), arenas.create(budget)]
        self.columns = Columns(self.fds[0], n, writable=True)
        self.metrics = MetricBlock(self.fds[1], writable=True).block
        self.arena = Arena(self.fds[3], budget)
        self.source = Failing(os.fsencode(root), self.index, self.columns)
        self.source.prepare()
        self.messages: deque[Answer | AskGrace] = deque()
        self.results: dict[int, Result] = {}
        self.asked: dict[int, tuple[int, int, int, int]] = {}  # demand: row, version, offset, length
        self.changed: list[int] = []
        self.now = 1000.0  # the time of the stager's clock, in seconds
        self.contents = {(row, 0): self._file(row) for row in self.files}
        self.events = Ring(self.fds[2], writable=False)
        self.renewed: list[int] = []
        self.copies_lost: list[tuple[int, int]] = []  # (row, disk tier)
        self.young = YoungFiles(
            source=self.source, columns=self.columns, metrics=self.metrics, n=n, file_system=None,
            clock_ns=clock_ns,
        )  # fmt: skip
        self.state = StagerState(
            index=self.index, columns=self.columns, metrics=self.metrics, ring=Ring(self.fds[2], writable=True),
            arena=self.arena, source=self.source, concurrency=concurrency, answer=self.messages.append,
            ask_grace=self._ask_grace, block=block, range_block=block, clock=lambda: self.now, young=self.young,
        )  # fmt: skip
        reader = BlockReader(
            self.columns, self.metrics, self.arena, self.source, disks or NoDisks(),  # type: ignore[arg-type]
            withdraw_copy=self._withdraw_copy, young=self.young,
        )  # fmt: skip
        self.workers = WorkerThreads(self.state, reader, self.changed.append)
        self.exchange = PeerExchange(self.state)
        self.state.set_budget(budget, budget if whole_limit is None else whole_limit, range_budget)

    @property
    def files(self) -> list[int]:
        """Rows of regular files, in order of their paths."""
        return [row for row in range(self.index.n_dirs, self.index.n) if stat.S_ISREG(int(self.index.mode[row]))]

    def _withdraw_copy(self, row: int, disk: int) -> bool:
        self.copies_lost.append((row, disk))
        return self.state.withdraw_disk(row, disk) > 0

    def _ask_grace(self, number: int) -> bool:
        self.messages.append(AskGrace(number))
        return False

    def path(self, row: int) -> Path:
        return self.root / os.fsdecode(self.index.path(row))

    def _file(self, row: int) -> bytes:
        return self.path(row).read_bytes()

    def metric(self, metric: Metric) -> int:
        return int(self.metrics[metric])

    # ---- the server -----------------------------------------------------------------------------------------

    def demand(self, row: int, offset: int = 0, length: int = 1 << 20) -> int:
        """Ask as the server does for a handle of the present version; the demand's number."""
        number = len(self.asked) + 1
        self.asked[number] = (row, int(self.columns.version[row]), offset, length)
        self.state.demand(Demand(number, row, offset, length))
        return number

    def take(self, most: int = 1 << 30) -> None:
        """The server takes what was sent to it."""
        while self.messages and most:
            most -= 1
            answer = self.messages.popleft()
            if isinstance(answer, AskGrace):
                self.state.grace_passed(answer.number)
                continue
            assert answer.id not in self.results, "answered twice"
            data = bytes(self.arena.view[answer.arena : answer.arena + answer.length])
            self.results[answer.id] = Result(answer.errno, data, answer.origin)
            self._check(answer.id)

    def _check(self, number: int) -> None:
        """Never a wrong byte: what the handle's version held, unless the server would say ESTALE."""
        row, version, offset, length = self.asked[number]
        result = self.results[number]
        if result.errno or self.columns.version[row] != version:
            return
        expected = self.contents[row, version][offset : offset + length]
        assert expected.startswith(result.data), f"wrong bytes of row {row}"
        assert result.data or not expected, "nothing, and it is no end of file"

    def read(self, row: int, offset: int = 0, length: int = 1 << 20) -> Result:
        """Demand, and let everything happen that must, until it is answered."""
        number = self.demand(row, offset, length)
        self.run()
        return self.results[number]

    def staged(self, row: int) -> bytes | None:
        """What a server would find in the arena now."""
        if self.columns.tier[row] != Tier.RAM:
            return None
        slot = int(self.columns.slot[row])
        return bytes(self.arena.view[slot : slot + self.source.size(row)])

    # ---- the stager -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do all that waits to be done, and let the server take all that it is sent."""
        while self.workers.run_one() or self.messages:
            self.take()

    def refresh(self, row: int) -> None:
        """A file changed: forget it, take its new identity (`Stager._changed`, without a pusher)."""
        c = self.columns
        try:
            st = self.path(row).stat()
        except OSError:
            return
        if (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino) == self.source.identity(row):
            return
        c.stale[row] = 1
        self.state.forget(row)
        self.take_up(row)
        c.stale[row] = 0

    def take_up(self, row: int) -> None:
        """The file as it is now is the row's next version."""
        c, st = self.columns, self.path(row).stat()
        version = int(c.version[row]) + 1
        at = new_place(row, version)
        c.new_size[at], c.new_mtime_ns[at] = st.st_size, st.st_mtime_ns
        c.new_ctime_ns[at], c.new_ino[at] = st.st_ctime_ns, st.st_ino
        c.version[row] = version
        self.contents[row, version] = self._file(row)

    def told(self) -> list[tuple[Event, int]]:
        """Events of the ring since the last look: (what, row); strays are kept apart."""
        kinds, rows, _ = self.events.take()
        told = [(Event(kind), row) for kind, row in zip(kinds.tolist(), rows.tolist(), strict=True)]
        self.strays += [row for event, row in told if event == Event.STRAY]
        return [one for one in told if one[0] != Event.STRAY]

    def close(self) -> None:
        """End; and nothing is left over but what is published."""
        self.state.stop()
        for fd in self.fds:
            os.close(fd)

    def check_at_rest(self) -> None:
        """Everything was answered, and the arena holds what the columns say and range blocks, no more."""
        assert set(self.results) == set(self.asked), "not answered"
        assert not self.messages
        published = np.flatnonzero(self.columns.tier == Tier.RAM).tolist()
        for row in published:
            assert self.staged(row) == self.contents[row, int(self.columns.version[row])]
        whole = sum(-(-max(self.source.size(row), 1) // PAGE) * PAGE for row in published)
        assert whole <= self.arena.taken <= self.arena.used <= self.arena.budget
        self.state.evict(published)
        self.state.set_budget(self.arena.budget, 0, 0)
        self.run()
        assert self.arena.taken == 0
        assert self.metric(Metric.ARENA_USED) == self.arena.used


@contextmanager
def rig(root: Path, **options: object) -> Iterator[Rig]:
    made = Rig(root, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def content(number: int, size: int) -> bytes:
    """Bytes of which each tells file and place."""
    words = np.arange(-(-size // 8), dtype=np.uint64) + np.uint64(number << 40)
    return words.tobytes()[:size]


def write_files(root: Path, sizes: list[int]) -> list[Path]:
    """Files f00, f01, ... of these sizes."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [root / f"f{number:02}" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(content(number + 1, size))
    return paths


def open_files_below(root: Path) -> list[str]:
    """Descriptors of this process that lead below `root`."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith(str(root)):
            found.append(target)
    return found
