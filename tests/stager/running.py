"""A whole stager in threads of this process, with the test as its supervisor and its server.

Its FUSE descriptor is a file of the test's, so what it pushes can be read; its mountpoint is the source itself, so what
it drops can be opened.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.dataset import index_file
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol import supervisor_stager
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.columns import Columns, MetricBlock, Tier, new_place
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import (
    TO_SERVER_MAX,
    Answer,
    AskGrace,
    Demand,
    GracePassed,
    ToServer,
    Welcome,
    to_server,
)
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager.process import StagerProcess
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.system import shared_memory
from nopfsfs.system.outages import Backoff
from nopfsfs.system.process_setup import Handoff
from nopfsfs.tiers import arena as arenas
from nopfsfs.tiers.open_modes import OpenModes
from tests.waiting import wait_until

LIMIT_S = 20.0


class Shared:
    """What outlives a stager: the index, the columns, the arena, the ring."""

    def __init__(self, root: Path, budget: int) -> None:
        self.root, self.budget = root, budget
        self.index = scan(root).index
        n = self.index.n
        self.fds = {
            "index": index_file.to_memfd(self.index), "columns": Columns.create(n), "gauges": MetricBlock.create(),
            "ring": Ring.create("test"), "arena": arenas.create(budget),
            "fuse": os.memfd_create("fuse", os.MFD_CLOEXEC), "modes": OpenModes.create(n),
        }  # fmt: skip
        self.columns = Columns(self.fds["columns"], n, writable=True)
        self.metrics = MetricBlock(self.fds["gauges"], writable=False).block
        self.events = Ring(self.fds["ring"], writable=False)
        self.arena = memoryview(shared_memory.attach(self.fds["arena"], writable=False))

    def row(self, name: str) -> int:
        row = 0
        for part in name.split("/"):
            row = self.index.lookup(row, part.encode())
        assert row > 0
        return row

    def staged(self, row: int) -> bytes | None:
        if self.columns.tier[row] != Tier.RAM:
            return None
        slot = int(self.columns.slot[row])
        return bytes(self.arena[slot : slot + self.size(row)])

    def size(self, row: int) -> int:
        version = int(self.columns.version[row])
        return int(self.columns.new_size[new_place(row, version)]) if version else int(self.index.size[row])

    def new_version(self, row: int, size: int) -> None:
        """The next version of a row comes, of so many bytes."""
        version = int(self.columns.version[row]) + 1
        self.columns.new_size[new_place(row, version)] = size
        self.columns.version[row] = version

    def pushed(self) -> list[tuple[int, int, bytes]]:
        """Notifications written to the FUSE descriptor: (code, inode, rest)."""
        data, found = os.pread(self.fds["fuse"], 1 << 24, 0), []
        while data:
            length, code, _ = struct.unpack_from("<IiQ", data)
            found.append((code, struct.unpack_from("<Q", data, 16)[0], data[24:length]))
            data = data[length:]
        return found

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


class Running:
    """One stager over what is shared; `told` collects its events."""

    def __init__(
        self, base: Shared, disks: tuple[DiskSpec, ...] = (), pass_from: int = 0, peer: int = -1, keep: bool = False
    ) -> None:
        self.base = base
        self.orders, orders = sequenced_pair()
        self.server, demands = sequenced_pair()
        self.server.settimeout(LIMIT_S)
        config = MountConfig(
            source=str(base.root), mountpoint=str(base.root), disks=disks, source_concurrency=2, state_dir="",
            disk_keep=keep,
        )  # fmt: skip
        fds = {**base.fds, "orders": orders.detach(), "demands": demands.detach(), "fuse": os.dup(base.fds["fuse"])}
        self._fuse_fd = fds["fuse"]
        if peer >= 0:
            fds["peer"] = peer
        numbers = {"arena_budget": base.budget, "whole_limit": base.budget // 2, "range_budget": base.budget // 4}
        numbers["pass_from"] = pass_from
        self._threads_before = set(threading.enumerate())
        self.stager = StagerProcess(Handoff("stager", config, fds, numbers))
        self.events: list[tuple[Event, int]] = []
        self.values: dict[tuple[Event, int], int] = {}  # the last of each
        self._thread = threading.Thread(target=self.stager.run)
        self._thread.start()

    def command(self, command: StagerCommand, rows: list[int] | None = None, value: int = 0) -> None:
        for message in supervisor_stager.pack_commands(command, np.array(rows or [], np.int64), value):
            self.orders.send(message)

    def read(self, row: int, offset: int = 0, length: int = 1 << 20) -> tuple[int, bytes]:
        """Demand as the server does: (errno, bytes). It need not be said to be known; graces pass."""
        self.server.send(encode(Demand(row + 1, row, offset, length)))
        while True:
            message = to_server.decode(self.server.recv(TO_SERVER_MAX))
            if isinstance(message, Answer) and message.id == row + 1:
                return message.errno, bytes(self.base.arena[message.arena : message.arena + message.length])
            self._pass_grace(message)

    def end_rests(self) -> None:
        """From now on no disk tier is left alone after a failure."""
        for number in range(1, 1 + len(self.stager._disks)):
            disk = self.stager._disks[number]
            disk._rests_until, disk._backoff = -math.inf, Backoff(0.0)

    def pass_grace(self) -> None:
        """Take the next message, which is no answer; a grace passes."""
        self._pass_grace(to_server.decode(self.server.recv(TO_SERVER_MAX)))

    def _pass_grace(self, message: ToServer) -> None:
        assert isinstance(message, AskGrace | Welcome)
        if isinstance(message, AskGrace):
            self.server.send(encode(GracePassed(message.number)))

    @contextmanager
    def another_server(self) -> Iterator[socket.socket]:
        """One more server; its end of the socket."""
        server, demands = sequenced_pair()
        server.settimeout(LIMIT_S)
        with server, demands:
            (message,) = supervisor_stager.pack_commands(StagerCommand.SERVER, np.zeros(0, np.int64))
            socket.send_fds(self.orders, [message], [demands.fileno()])
            yield server

    def wait_for(self, event: Event, row: int) -> None:
        """Until the event was reported; each is waited for once."""
        assert wait_until(lambda: self._look(event, row), LIMIT_S), f"{event!r} of row {row}: {self.events}"
        self.events.remove((event, row))

    def _look(self, event: Event, row: int) -> bool:
        kinds, rows, values = self.base.events.take()
        told = [(Event(k), r) for k, r in zip(kinds.tolist(), rows.tolist(), strict=True)]
        self.events += told
        self.values.update(zip(told, values.tolist(), strict=True))
        return (event, row) in self.events

    def _threads(self) -> set[threading.Thread]:
        """Without trio's own, which the event loop of a test keeps for ten seconds."""
        return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio thread")}

    def end(self) -> None:
        """Stop it; nothing of it is left."""
        self.command(StagerCommand.STOP)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert wait_until(lambda: self._threads() <= self._threads_before), threading.enumerate()
        os.close(self._fuse_fd)
        os.close(self.stager._poked)
        for sock in (self.orders, self.server, self.stager._commands, *self.stager._links._sockets.values()):
            sock.close()
        if self.stager._peer_key is not None:
            self.stager._peer_key.data.socket.close()


@contextmanager
def running(
    base: Shared, disks: tuple[DiskSpec, ...] = (), pass_from: int = 0, peer: int = -1, keep: bool = False
) -> Iterator[Running]:
    """`peer`: the stager's end of a socket to a peer process. `keep`: copies on disk outlive the stager."""
    stager = Running(base, disks, pass_from, peer, keep)
    try:
        yield stager
    finally:
        stager.end()
