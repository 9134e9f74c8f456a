#!/usr/bin/env python3
"""What stands for a mount at the two sockets of a peer process, for peer_rank.py: that of rank 0 fetches, that of rank
1 lends. Either a driver that does as little as can be, or the product's stager without FUSE: its state, its exchange,
and a loop as the stager's.

The lending side says "ready" to the other, and ends when that is over. The fetching side prints what it measured.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.columns import HOME_HERE, Columns, Metric, MetricBlock
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.stager_peer import LeaseStatus, RecordKind
from nopfsfs.protocol.supervisor_peer import (
    MESSAGE_MAX,
    FromPeer,
    MountEnds,
    NewsOf,
    NodeOver,
    SendNews,
    UseArena,
    UseStager,
    from_peer,
)
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.peer_exchange import PeerExchange
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import WorkerThreads
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.disk import Disks
from nopfsfs.tiers.source import Source

PAGE = 4096
UNDER_WAY_BYTES, UNDER_WAY = stager_peer.UNDER_WAY_BYTES, stager_peer.PREFETCHES_A_PAIR
SILENT_S = 20.0
GO_ON = (LeaseStatus.COMING, LeaseStatus.SENDING)  # a request that has not ended
ARENA_LEAST = 1 << 30  # bytes; a sixteenth of an arena is given back and keeps its memory
PASSING_BYTES = 32 << 20  # of files on their way: they are given up when so many have come after them


@dataclass(frozen=True)
class Asked:
    """What to measure: files of so many bytes, so many in a round; `source`: a directory of them, for stagers, or ""
    for drivers without."""

    size: int
    fetches: int
    rounds: int
    source: str = ""


def cpu_s(pid: int) -> float:
    """Processor seconds that a process took until now: its clock, as clock_getcpuclockid(3) names it."""
    return time.clock_gettime(~pid << 3 | 2)


class Supervisor:
    """The supervisor's end of its socket to the peer process."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.settimeout(SILENT_S)

    def begin(self, arena: int) -> socket.socket:
        """Give the peer process an arena and a stager's socket, of which the other end is returned."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self.socket, [encode(UseArena())], [arena])
        socket.send_fds(self.socket, [encode(UseStager())], [theirs.fileno()])
        theirs.close()
        return ours

    def say_ready(self, node: int) -> None:
        self.socket.send(encode(SendNews(node, b"ready")))

    def await_ready(self) -> None:
        while not isinstance(self._take(), NewsOf):
            pass

    def is_over(self) -> bool:
        """Take what was said; whether the other node has left."""
        return isinstance(self._take(), NodeOver)

    def _take(self) -> FromPeer:
        message = self.socket.recv(MESSAGE_MAX)
        if not message:
            raise SystemExit("the peer process ended")
        return from_peer.decode(message)

    def end(self) -> None:
        self.socket.send(encode(MountEnds()))
        self.socket.close()


def measured(count: int, work: Callable[[], None], pids: list[dict[str, int]]) -> dict[str, Any]:
    """Seconds of each of so many fetches, and processor seconds of the four processes."""
    names = {f"{kind}{rank}_cpu_s": of[kind] for rank, of in enumerate(pids) for kind in ("peer", "mount")}
    before = {name: cpu_s(pid) for name, pid in names.items()}
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    after = {name: cpu_s(pid) for name, pid in names.items()}
    return {"seconds": took / count, **{name: (after[name] - before[name]) / count for name in names}}


def under_way(size: int) -> int:
    """How many files of that size a node asks another for at once."""
    return max(1, min(UNDER_WAY, UNDER_WAY_BYTES // size))


# ---- a driver that does as little as can be -----------------------------------------------------------------


class Slots:
    """An arena with room for what is under way at once. That of rank 1 has other bytes in each place."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.step = -(-size // PAGE) * PAGE
        self.count = under_way(size)
        self.fd = os.memfd_create("arena")
        os.ftruncate(self.fd, self.step * self.count)
        self.view = memoryview(mmap.mmap(self.fd, self.step * self.count))

    def at(self, slot: int) -> memoryview:
        return self.view[slot * self.step : slot * self.step + self.size]

    def content(self, row: int) -> bytes:
        """What is lent under this row."""
        return np.random.default_rng(row % self.count).bytes(self.size)


def lend_plainly(asked: Asked, supervisor: Supervisor) -> None:
    slots = Slots(asked.size)
    for slot in range(slots.count):
        slots.at(slot)[:] = slots.content(slot)
    checks = [xxhash.xxh3_64_intdigest(slots.at(slot)) for slot in range(slots.count)]
    stager = supervisor.begin(slots.fd)
    supervisor.say_ready(0)
    with selectors.DefaultSelector() as selector:
        selector.register(supervisor.socket, selectors.EVENT_READ)
        selector.register(stager, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is supervisor.socket:
                    if supervisor.is_over():
                        return
                    continue
                kind, records = stager_peer.unpack(stager.recv(stager_peer.MESSAGE_MAX))
                if kind == RecordKind.LEND:
                    lent = [
                        (id, row % slots.count * slots.step, length, checks[row % slots.count], LeaseStatus.OK)
                        for id, row, length, _, _ in records
                    ]
                    for message in stager_peer.pack(RecordKind.LENT, lent):
                        stager.send(message)


def fetch_plainly(asked: Asked, supervisor: Supervisor, pids: list[dict[str, int]]) -> dict[str, Any]:
    slots = Slots(asked.size)
    stager = supervisor.begin(slots.fd)
    stager.settimeout(SILENT_S)
    supervisor.await_ready()
    number = 0  # of the next request; it goes to the extent of the one that has ended
    holds: dict[int, int] = {}  # the row by extent

    def fetch(count: int) -> None:
        nonlocal number
        got, last = 0, number + count

        def ask(extents: list[int]) -> None:
            nonlocal number
            some = extents[: last - number]
            if some:
                records = [(number + i, number + i, at, slots.size, 0, 1, 0) for i, at in enumerate(some)]
                holds.update({extent: row for _, row, extent, *_ in records})
                at_ask.update({id: extent for id, _, extent, *_ in records})
                number += len(some)
                for message in stager_peer.pack(RecordKind.ASK, records):
                    stager.send(message)

        at_ask: dict[int, int] = {}
        ask([slot * slots.step for slot in range(slots.count)])
        while got < count:
            _, records = stager_peer.unpack(stager.recv(stager_peer.MESSAGE_MAX))
            ended = [(id, status) for id, _, status, _ in records if status not in GO_ON]
            if any(status != LeaseStatus.OK for _, status in ended):
                raise SystemExit(f"a fetch failed: {ended}")
            got += len(ended)
            ask([at_ask.pop(id) for id, _ in ended])

    fetch(max(slots.count, asked.fetches // 4))
    result = measured(asked.fetches, lambda: fetch(asked.fetches), pids)
    for extent, row in holds.items():
        if slots.view[extent : extent + slots.size] != slots.content(row):
            raise SystemExit(f"wrong bytes of {row}")
    return result


# ---- the product's stager -----------------------------------------------------------------------------------


class Stager:
    """The state of a stager with its exchange, in one thread, without FUSE: no servers, no pusher."""

    def __init__(self, source: str, supervisor: Supervisor, holder: int) -> None:
        self._supervisor = supervisor
        index = scan(source).index
        self.rows = list(range(index.n_dirs, index.n))
        columns, metrics = Columns.create(index.n), MetricBlock.create()
        ring = Ring.create("bench")
        budget = max(ARENA_LEAST, 2 * sum(int(index.size[row]) for row in self.rows))
        arena = arenas.create(budget)
        self.columns = Columns(columns, index.n, writable=True)
        self.columns.holder[self.rows] = holder
        self._metrics = MetricBlock(metrics, writable=True).block
        self._arena, files = Arena(arena, budget), Source(os.fsencode(source), index, self.columns)
        self.state = StagerState(
            index=index, columns=self.columns, metrics=self._metrics, ring=Ring(ring, writable=True),
            arena=self._arena, source=files, concurrency=4, answer=lambda answer: None, ask_grace=lambda number: True,
        )  # fmt: skip
        self.state.set_budget(budget, budget, 0)
        reader = BlockReader(
            self.columns, self._metrics, self._arena, files, Disks([]), withdraw_copy=lambda row, disk: False
        )
        self.workers = WorkerThreads(self.state, reader, changed=lambda row: None)
        self.exchange = PeerExchange(self.state)
        self.view, self.events = Arena(arena, budget).view, Ring(ring, writable=False)
        self.index = index
        self.exchange.attach(supervisor.begin(arena))

    def metric(self, metric: Metric) -> int:
        return int(self._metrics[metric])

    def run(self, until: Callable[[], bool]) -> None:
        """Do what the stager's loop does with the peer process's socket."""
        exchange = self.exchange
        link, watched, _ = exchange.wants()
        assert link is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._supervisor.socket, selectors.EVENT_READ)
            selector.register(link.socket, watched)
            while not until():
                _, events, pause = exchange.wants()
                if events != watched:
                    selector.modify(link.socket, watched := events)
                for key, _ in selector.select(pause):
                    if key.fileobj is link.socket:
                        exchange.attend(link)
                    elif self._supervisor.is_over():
                        return
                self.state.check_limits()
                while self.workers.run_one():
                    pass


def lend_staged(asked: Asked, supervisor: Supervisor) -> None:
    stager = Stager(asked.source, supervisor, HOME_HERE)
    stager.state.fetch(stager.rows)
    while stager.workers.run_one():
        pass
    if stager.metric(Metric.STAGED_FILES) != len(stager.rows):
        raise SystemExit("not all could be staged")
    supervisor.say_ready(0)
    stager.run(lambda: False)


def fetch_staged(asked: Asked, supervisor: Supervisor, pids: list[dict[str, int]]) -> dict[str, Any]:
    stager = Stager(asked.source, supervisor, 1 + 1)
    supervisor.await_ready()
    passing: deque[int] = deque()  # rows that are staged
    most = max(1, PASSING_BYTES // asked.size)
    events = stager.events

    def fetch() -> None:
        ended = 0

        def all_ended() -> bool:
            nonlocal ended
            kinds, rows, _ = events.take()
            if (kinds == Event.FAILED).any():
                raise SystemExit("a fetch failed")
            staged = rows[kinds == Event.STAGED].tolist()
            ended += len(staged)
            passing.extend(staged)
            stager.state.evict([passing.popleft() for _ in range(len(passing) - most)])
            return ended == len(stager.rows)

        stager.state.fetch(stager.rows)
        stager.run(all_ended)

    fetch()
    stager.state.evict(list(passing))
    passing.clear()
    result = measured(len(stager.rows), fetch, pids)
    if stager.metric(Metric.PEER_FETCHES) != 2 * len(stager.rows):
        raise SystemExit("not all came from the other node")
    for row in passing:
        slot, size = int(stager.columns.slot[row]), int(stager.index.size[row])
        with open(os.path.join(asked.source, os.fsdecode(stager.index.path(row))), "rb") as file:
            if stager.view[slot : slot + size] != file.read():
                raise SystemExit(f"wrong bytes of row {row}")
    return result


def main() -> None:
    supervisor, rank = Supervisor(int(sys.argv[1])), int(sys.argv[2])
    asked = Asked(**json.loads(sys.argv[3]))
    pids = json.loads(sys.stdin.readline())
    if rank:
        (lend_staged if asked.source else lend_plainly)(asked, supervisor)
    else:
        found = (fetch_staged if asked.source else fetch_plainly)(asked, supervisor, pids)
        print(json.dumps(found), flush=True)
    supervisor.end()


if __name__ == "__main__":
    main()
