"""A server's answers, called directly, with a real stager in threads behind its socket."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from nopfsfs.protocol.columns import SUPERVISOR, Metric, MetricBlock
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.file_access import FileAccess
from nopfsfs.server.operations import FuseOperations
from nopfsfs.server.shown_opens import ShownOpens
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source
from nopfsfs.vfs.tree import Tree
from tests.stager.rig import PAGE
from tests.stager.running import Running, Shared

ENTRY = struct.Struct("<QQQQIIQQQqqqIIIIIIIIII")  # struct fuse_entry_out
ATTRIBUTES = struct.Struct("<QIIQQQqqqIIIIIIIIII")  # struct fuse_attr_out
READER = SimpleNamespace(pid=4711, uid=0, gid=0, umask=0)
SIZE = 3 * PAGE + 100
COUNT = 12


@dataclass
class Mounted:
    """The operations of a server, and its stager."""

    base: Shared
    stager: Running
    operations: FuseOperations
    files: FileAccess
    metrics: memoryview
    ring: Ring
    supervisor: memoryview

    def row(self, number: int) -> int:
        return self.base.row(f"f{number:02}")

    def inode(self, number: int) -> int:
        row = self.row(number)
        return inode_of(row, int(self.base.columns.version[row]))

    async def open(self, number: int) -> int:
        return int((await self.operations.open(self.inode(number), os.O_RDONLY, READER)).fh)

    async def read(self, number: int, piece: int = PAGE) -> bytes:
        """The whole file as a reader gets it: open, READs of some size, release."""
        fh, data = await self.open(number), b""
        while part := bytes(await self.operations.read(fh, len(data), piece)):
            data += part
        await self.operations.release(fh)
        return data

    def events(self) -> list[tuple[Event, int, int]]:
        return [(Event(k), r, v) for k, r, v in zip(*(x.tolist() for x in self.ring.take()), strict=True)]


@asynccontextmanager
async def mounted(
    root: Path, budget: int, io_timeout: float = 20.0, *, known: bool = True, tripwires: bool = False
) -> AsyncIterator[Mounted]:
    """`known`: the stager knows of this server. `tripwires`: there are some, and OPEN is refused."""
    base = Shared(root, budget)
    stager = Running(base)
    fds = [MetricBlock.create(), Ring.create("server")]
    at_source = Source(os.fsencode(root), base.index, base.columns)
    metrics = MetricBlock(fds[0], writable=True)
    overrides = ColumnOverrides(base.columns, base.index)
    ring, stager_metrics = Ring(fds[1], writable=True), MetricBlock(base.fds["gauges"], writable=False)
    files = FileAccess(
        index=base.index, columns=base.columns, arena=base.arena, source=at_source, metrics=metrics,
        stager_metrics=stager_metrics, ring=ring, io_timeout=io_timeout,
        modes=OpenModes(base.fds["modes"], base.columns.backing.data), pass_from=SIZE,
    )  # fmt: skip
    shown = ShownOpens(
        metrics, stager_metrics, MetricBlock(fds[0], SUPERVISOR, writable=False), ring,
        Tripwires(base.index.n_dirs, base.index.n) if tripwires else None,
    )  # fmt: skip
    tree = Tree(base.index, at_source, overrides, overrides.own_attributes)
    operations = FuseOperations(tree, base.columns, files, shown, io_timeout)
    supervisor = MetricBlock(fds[0], SUPERVISOR, writable=True).block
    supervisor[Metric.SHOWN] = tripwires
    try:
        async with trio.open_nursery() as nursery:
            if known:
                client = StagerClient(stager.server, files.use_arena)
                files.use_stager(client)
                nursery.start_soon(client.run)
                await trio.testing.wait_all_tasks_blocked()  # the stager has said so
            yield Mounted(base, stager, operations, files, metrics.block, Ring(fds[1], writable=False), supervisor)
            nursery.cancel_scope.cancel()
    finally:
        stager.end()
        base.close()
        for fd in fds:
            os.close(fd)


def errno_of(caught: pytest.ExceptionInfo[pyfuse3.FUSEError]) -> int:
    return int(caught.value.errno)


def at_once(coroutine: Any) -> Any:
    """What a coroutine returns; fails if it waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise AssertionError("it waits")
