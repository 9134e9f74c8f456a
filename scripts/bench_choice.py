"""Where files are fetched from when a disk becomes much slower than the source, or another node hangs: a stager's state
and its threads, without FUSE. Every byte is compared.

    make bench BENCH='choice/*'

Eight readers read one file after the other. All files have a copy on disk, or live on another node. Reads of the disk
and of the source take as long as the benchmark says: the disk first a fraction of the source's time, then TIMES as
long, then as before. A thread stands for the peer process: it brings files after FAST_S, and while the node hangs it
says that they are late after two seconds, as the peer process does.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lab
import xxhash
from bench_entry import Entry, median_entry
from lab import Progress

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import Columns, Metric, MetricBlock
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.server_stager import Answer, AskGrace, Demand
from nopfsfs.protocol.stager_peer import SILENT_S, LeaseStatus, Record, RecordKind
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.peer_exchange import PeerExchange
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import WorkerThreads
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.source import Identity, Source

FILES, FILE_BYTES, READERS = 256, 100_000, 8
SOURCE_S, FAST_S, TIMES = 0.005, 0.001, 20
HEALTHY_S, LEFT_S, MEASURED_S, BACK_MOST_S, STAYS_S = 4.0, 10.0, 5.0, 30.0, 1.0
HUNG_S, NODE, LOOK_S = 12.0, 1, 0.002
ANSWER_S = 10.0  # for one file


class _SlowedSource(Source):
    """A source whose opens take SOURCE_S."""

    def open(self, row: int) -> tuple[int, Identity]:
        time.sleep(SOURCE_S)
        return super().open(row)


class _SlowedDisk:
    """The copies on disk: the files themselves, after `seconds`."""

    def __init__(self, paths: dict[int, Path]) -> None:
        self.seconds = FAST_S
        self._paths = paths

    def read(self, disk: int, row: int, into: memoryview) -> None:
        time.sleep(self.seconds)
        into[:] = self._paths[row].read_bytes()


class _Peer:
    """The loop of a stager with its peer process, and that process, in a thread. It hangs while `hangs` is set."""

    def __init__(self, state: StagerState, view: memoryview, contents: dict[int, bytes]) -> None:
        self._state, self._view, self._contents = state, view, contents
        self._socket, end = sequenced_pair()
        self._socket.setblocking(False)
        self._exchange = PeerExchange(state)
        self._exchange.attach(end)
        self.hangs, self._ended = threading.Event(), threading.Event()
        self._asks: dict[int, tuple[float, Record]] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        link, _, _ = self._exchange.wants()
        assert link is not None
        with selectors.DefaultSelector() as selector:
            selector.register(link.socket, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._ended.is_set():
                selector.select(LOOK_S)
                self._take()
                self._answer(time.monotonic())
                self._exchange.attend(link)
                self._state.check_limits()
        self._socket.close()
        link.socket.close()

    def _take(self) -> None:
        try:
            while True:
                kind, records = stager_peer.unpack(self._socket.recv(stager_peer.MESSAGE_MAX))
                if kind == RecordKind.ASK:
                    self._asks |= {record[0]: (time.monotonic(), record) for record in records}
                elif kind == RecordKind.GIVE_UP:
                    for (number,) in records:
                        self._asks.pop(number, None)
                    self._send(RecordKind.FREED, records)
        except BlockingIOError:
            pass

    def _answer(self, now: float) -> None:
        records: list[Record] = []
        for number, (asked, (_, row, extent, length, *_)) in list(self._asks.items()):
            content = self._contents[row]
            if self.hangs.is_set():
                if now >= asked + SILENT_S:
                    records.append((number, 0, LeaseStatus.LATE, 0))
            elif now >= asked + FAST_S:
                self._view[extent : extent + length] = content
                records.append((number, xxhash.xxh3_64_intdigest(content), LeaseStatus.OK, 0))
        for record in records:
            del self._asks[record[0]]
        if records:
            self._send(RecordKind.GOT, records)

    def _send(self, kind: RecordKind, records: Sequence[Record]) -> None:
        for message in stager_peer.pack(kind, records):
            self._socket.send(message)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Stage:
    """Files with copies on disk, or on another node, a stager's state over them, and readers. `waits`: when each read
    began, and its seconds."""

    def __init__(self, root: Path, *, on_disk: bool) -> None:
        index = scan(str(root)).index
        self._rows = list(range(index.n_dirs, index.n))
        paths = {row: root / os.fsdecode(index.path(row)) for row in self._rows}
        self._contents = {row: path.read_bytes() for row, path in paths.items()}
        budget = 4 * FILES * FILE_BYTES
        self._fds = [Columns.create(index.n), MetricBlock.create(), Ring.create("bench"), arenas.create(budget)]
        columns = Columns(self._fds[0], index.n, writable=True)
        self._metrics = MetricBlock(self._fds[1], writable=True).block
        self._arena = Arena(self._fds[3], budget)
        source, self.disk = _SlowedSource(os.fsencode(root), index, columns), _SlowedDisk(paths)
        self._answers: queue.SimpleQueue[Answer | AskGrace] = queue.SimpleQueue()
        self._events = Ring(self._fds[2], writable=False)
        self._state = StagerState(
            index=index, columns=columns, metrics=self._metrics, ring=Ring(self._fds[2], writable=True),
            arena=self._arena, source=source, concurrency=READERS, answer=self._answers.put, ask_grace=self._ask_grace,
        )  # fmt: skip
        self._state.set_budget(budget, budget, 0)
        reader = BlockReader(
            columns, self._metrics, self._arena, source, self.disk,  # type: ignore[arg-type]
            withdraw_copy=lambda row, disk: False,
        )  # fmt: skip
        WorkerThreads(self._state, reader, changed=lambda row: None).start(READERS, READERS)
        for row, content in self._contents.items():
            if on_disk:
                columns.check[row] = xxhash.xxh3_64_intdigest(content)
                self._state.publish_disk(row, 1, 0)
            else:
                columns.holder[row] = 1 + NODE
        self.peer = _Peer(self._state, self._arena.view, self._contents)
        self._reading: dict[int, tuple[int, float]] = {}  # by demand: the row, and when it began
        self.waits: list[tuple[float, float]] = []
        self._number = 0

    def _ask_grace(self, number: int) -> bool:
        self._answers.put(AskGrace(number))
        return False

    def _staged(self) -> tuple[int, int]:
        """Files that came from disk or node, and from the source, so far."""
        metrics = self._metrics
        near = metrics[Metric.STAGED_DISK_FILES] + metrics[Metric.STAGED_PEER_FILES]
        return near, metrics[Metric.STAGED_SOURCE_FILES]

    def read(self, until: Callable[[], bool]) -> tuple[int, int]:
        """Let the readers read; files that came from disk or node, and from the source, meanwhile."""
        before = self._staged()
        while not until():
            self._begin()
            self._take(self._answers.get(timeout=ANSWER_S))
        near, source = (now - then for now, then in zip(self._staged(), before, strict=True))
        return near, source

    def _begin(self) -> None:
        while len(self._reading) < READERS:
            self._number += 1
            row = self._rows[self._number % FILES]
            self._reading[self._number] = row, time.monotonic()
            self._state.demand(Demand(self._number, row, 0, FILE_BYTES))

    def _take(self, answer: Answer | AskGrace) -> None:
        if isinstance(answer, AskGrace):
            self._state.grace_passed(answer.number)
            return
        row, began = self._reading.pop(answer.id)
        self.waits.append((began, time.monotonic() - began))
        if answer.errno or self._arena.view[answer.arena : answer.arena + answer.length] != self._contents[row]:
            raise SystemExit(f"row {row}: error {answer.errno}, or wrong bytes")
        self._state.evict([row])
        self._events.take()

    def close(self) -> None:
        self.peer.close()
        self._state.stop()
        for fd in self._fds:
            os.close(fd)


@contextmanager
def stage(*, on_disk: bool) -> Iterator[Stage]:
    with lab.place() as place:
        for number in range(FILES):
            (place / f"{number:03}").write_bytes(os.urandom(FILE_BYTES))
        made = Stage(place, on_disk=on_disk)
        try:
            yield made
        finally:
            made.close()


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def disk_entries() -> Iterator[Entry]:
    """choice/slow_disk/share_from_it, after ten seconds; how long it takes until the disk, fast again, is read alone;
    and the files that came from the source while the disk was fast: none."""
    with stage(on_disk=True) as made, Progress(4) as progress:
        progress.doing("a healthy disk")
        _, from_source = made.read(_after(HEALTHY_S))
        progress.step()
        progress.doing("a slow disk")
        made.disk.seconds = TIMES * SOURCE_S
        made.read(_after(LEFT_S))
        progress.step()
        disk, source = made.read(_after(MEASURED_S))
        progress.step()
        progress.doing("a fast disk")
        made.disk.seconds = FAST_S
        began = back_at = time.monotonic()
        while time.monotonic() < began + BACK_MOST_S and time.monotonic() < back_at + STAYS_S:
            if made.read(_after(STAYS_S / 10))[1]:
                back_at = time.monotonic()
        progress.step()
    yield median_entry("choice/slow_disk/share_from_it", "", [disk / (disk + source)])
    yield median_entry("choice/slow_disk/seconds_until_back", "s", [back_at - began])
    yield median_entry("choice/slow_disk/source_reads_before", "", [float(from_source)])


def node_entries() -> Iterator[Entry]:
    """choice/hung_node/demand_p99 and the longest demand, from the moment on at which the node hangs; the files that
    came from the source before: none; and how long it takes until the node, healthy again, is asked alone."""
    with stage(on_disk=False) as made, Progress(3) as progress:
        progress.doing("a healthy node")
        _, from_source = made.read(_after(HEALTHY_S))
        progress.step()
        progress.doing("a node that hangs")
        since = time.monotonic()
        made.peer.hangs.set()
        made.read(_after(HUNG_S))
        waits = sorted(seconds for began, seconds in made.waits if began + seconds > since)
        progress.step()
        progress.doing("a healthy node")
        made.peer.hangs.clear()
        began = back_at = time.monotonic()
        while time.monotonic() < began + BACK_MOST_S and time.monotonic() < back_at + STAYS_S:
            if made.read(_after(STAYS_S / 10))[1]:
                back_at = time.monotonic()
        progress.step()
    yield median_entry("choice/hung_node/demand_p99", "s", [waits[int(0.99 * len(waits))]])
    yield median_entry("choice/hung_node/demand_most", "s", [waits[-1]])
    yield median_entry("choice/hung_node/seconds_until_back", "s", [back_at - began])
    yield median_entry("choice/hung_node/source_reads_before", "", [float(from_source)])
