"""Requests to the fast path, from a socket in the place of /dev/fuse, with the real handlers behind it.

Most go as the kernel would send them but for some edits. Every request that can be known to be one is answered, once,
with an answer of a form that the kernel takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyfuse3
import trio

from fuzzing.core import Input, Wrong
from fuzzing.mutate import garbage, mutated, number
from fuzzing.trees import make_tree
from nopfsfs.fuse import taken_requests
from nopfsfs.fuse.connection import REQUEST_BYTES, negotiate
from nopfsfs.fuse.taken_requests import OwnBlock
from nopfsfs.protocol.columns import SUPERVISOR, Columns, Metric, MetricBlock, Tier
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.fast_path import FastPath
from nopfsfs.server.file_access import FileAccess
from nopfsfs.server.operations import FuseOperations
from nopfsfs.server.shown_opens import ShownOpens
from nopfsfs.system import shared_memory
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source
from nopfsfs.vfs.tree import Tree

HEADER = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INIT = 1, 2, 3, 14, 15, 18, 26
INTERRUPT, IOCTL, BATCH_FORGET, READDIR, READDIRPLUS = 36, 39, 42, 28, 44
SILENT = {FORGET, BATCH_FORGET, INTERRUPT}
OPCODES = (LOOKUP, LOOKUP, OPEN, OPEN, READ, READ, READ, RELEASE, IOCTL, GETATTR, FORGET, BATCH_FORGET, INTERRUPT,
           READDIR, READDIRPLUS, INIT, 0, 38, 41, 53, 4096)  # fmt: skip
MESSAGES = 40  # of a case
ANSWER_S = 5.0  # for an answer, reads of the source included
READER: Any = SimpleNamespace(pid=4711, uid=0, gid=0, umask=0)
NAMES = (b"train", b".", b"..", b"0000.jpg", b"again.jpg", b"n" * 255, b"n" * 256, b"\xff", b"", b"a" * 60_000)
HANDLERS_MOST = 3  # calls of handlers that pyfuse3 would make, for each message
_OF_KERNEL = range(-511, 1)  # what an answer may say: the kernel refuses others, and who asked would wait for ever


class FuseInput(Input):
    """See the module."""

    name = "fuse"
    limit_s = 20.0

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.root = work / "source"
        self.root.mkdir()
        index = self.index = make_tree(self.root)
        self.n = index.n
        # The ring counts what was put: one is used for a case, its pages again and again.
        self.fds = [Columns.create(self.n), MetricBlock.create(), Ring.create("fuzz"), OpenModes.create(self.n),
                    shared_memory.create("arena", 1 << 20), taken_requests.create()]  # fmt: skip
        self.columns = Columns(self.fds[0], self.n, writable=True)
        self._stage()
        metrics = MetricBlock(self.fds[1], writable=True)
        source = Source(os.fsencode(self.root), index, self.columns)
        overrides = ColumnOverrides(self.columns, index)
        self.supervisor = MetricBlock(self.fds[1], SUPERVISOR, writable=True)
        ring = Ring(self.fds[2], writable=True)
        files = FileAccess(
            index=index, columns=self.columns, arena=memoryview(shared_memory.attach(self.fds[4], writable=False)),
            source=source, metrics=metrics, stager_metrics=metrics, ring=ring, io_timeout=ANSWER_S / 2,
            modes=OpenModes(self.fds[3], self.columns.backing.data), pass_from=4096,
        )  # fmt: skip
        files.use_arena()
        shown = ShownOpens(metrics, metrics, self.supervisor, ring, Tripwires(index.n_dirs, index.n))
        tree = Tree(index, source, overrides, overrides.own_attributes)
        self.operations = FuseOperations(tree, self.columns, files, shown, ANSWER_S / 2)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    def _stage(self) -> None:
        """Some files are in the arena, one has changed, one is about to."""
        arena = memoryview(shared_memory.attach(self.fds[4], writable=True))
        files = np.flatnonzero(self.index.mode >> 12 == 0o10).tolist()
        at = 0
        for row in files[::2]:
            data = Path(self.root / os.fsdecode(self.index.path(row))).read_bytes()
            arena[at : at + len(data)] = data
            self.columns.slot[row], self.columns.tier[row] = at, Tier.RAM
            at += -(-len(data) // 4096) * 4096
        self.columns.stale[files[3]] = 1
        self.columns.version[files[5]] = 3
        self.columns.backing[files[7]] = 9

    def play(self, rng: Random) -> None:
        self.supervisor.block[Metric.SHOWN] = rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, 3))
        if rng.random() < 0.1:
            self._negotiate(rng)
        else:
            trio.run(self._converse, rng)

    # ---- what is sent -------------------------------------------------------------------------------------

    def _inode(self, rng: Random) -> int:
        if rng.random() < 0.8:
            return inode_of(rng.randrange(self.n), rng.choice((0, 0, 0, 3, 255)))
        return number(rng)

    def _handle(self, rng: Random) -> int:
        return number(rng) if rng.random() < 0.3 else rng.randrange(self.n) << 16 | rng.choice((0, 3, 1 << 9, 3 << 9))

    def _request(self, rng: Random, unique: int, uniques: list[int]) -> bytes:
        """One that the kernel could send."""
        opcode, inode = rng.choice(OPCODES), self._inode(rng)
        body = garbage(rng, 128)
        if opcode == LOOKUP:
            body = rng.choice(NAMES) + b"\0"
        elif opcode == OPEN:
            body = struct.pack("<II", number(rng, 32), 0)
        elif opcode in (READ, READDIR, READDIRPLUS):
            handle = self._handle(rng)
            size = rng.choice((0, 1, 4096, 131_072, 1 << 20, number(rng, 32)))
            offset = rng.choice((0, 4096, rng.randrange(80_000), number(rng)))
            body = struct.pack("<QQIIQII", handle, offset, size, 0, 0, 0, 0)
        elif opcode == RELEASE:
            body = struct.pack("<QIIQ", self._handle(rng), 0, 0, 0)
        elif opcode == INTERRUPT:
            body = struct.pack("<Q", rng.choice((rng.choice(uniques), number(rng))))
        pid = rng.choice((0, os.getpid(), 1 << 23, number(rng, 32)))
        return HEADER.pack(HEADER.size + len(body), opcode, unique, inode, 0, 0, pid, 0, 0) + body

    # ---- the fast path ------------------------------------------------------------------------------------

    async def _converse(self, rng: Random) -> None:
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (kernel, device, ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        told: list[int] = []
        own = OwnBlock(self.fds[5], 0, 0) if rng.random() < 0.5 else None  # as before Linux 6.9
        path = FastPath(device.fileno(), ours, self.operations, list, b"", told.append, own)
        reader, behind = trio.socket.from_stdlib_socket(kernel), trio.socket.from_stdlib_socket(theirs)
        ended = trio.Event()

        async def run() -> None:
            await path.run()
            ended.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                nursery.start_soon(_play_pyfuse3, behind)
                await self._talk(rng, reader)
                await self._call_handlers(rng)
                if ended.is_set():
                    raise Wrong("the fast path has ended")
                nursery.cancel_scope.cancel()
        finally:
            for sock in (reader, behind, path._pair, device):
                sock.close()

    async def _talk(self, rng: Random, kernel: Any) -> None:
        awaited: set[int] = set()
        answers: Counter[int] = Counter()
        # Far apart: what an edit makes of one is none of the others.
        uniques = [rng.getrandbits(60) << 1 for _ in range(MESSAGES)]
        for unique in uniques:
            message = self._request(rng, unique, uniques)
            if rng.random() < 0.3:
                message = mutated(rng, message)[:REQUEST_BYTES] or b"\0"
            length, opcode, number_of, *_ = HEADER.unpack(message[: HEADER.size].ljust(HEADER.size, b"\0"))
            if HEADER.size <= len(message) == length and number_of == unique and opcode not in SILENT:
                awaited.add(unique)
            await kernel.send(message)
            self.tell(f"opcode {opcode if opcode in OPCODES else 'other'}")
            while rng.random() < 0.5 and (found := _answer_now(kernel)):
                self._take(found, answers)
        number_of_last = rng.getrandbits(60) << 1
        last = HEADER.pack(HEADER.size + 32, IOCTL, number_of_last, inode_of(self.n - 1, 0), 0, 0, 1, 0, 0)
        await kernel.send(last + bytes(32))
        awaited.add(number_of_last)
        with trio.move_on_after(ANSWER_S):
            while awaited - set(answers):
                self._take(await kernel.recv(REQUEST_BYTES + ANSWER.size), answers)
        if awaited - set(answers):
            raise Wrong(f"{len(awaited - set(answers))} requests were never answered")
        twice = {unique for unique in awaited if answers[unique] > 1}
        if twice:
            raise Wrong(f"{len(twice)} requests were answered twice")

    def _take(self, message: bytes, answers: Counter[int]) -> None:
        length, error, unique = ANSWER.unpack_from(message)
        if length != len(message) or error not in _OF_KERNEL or (error and length != ANSWER.size):
            raise Wrong(f"an answer of {len(message)} bytes that says {length}, error {error}")
        answers[unique] += 1

    # ---- what is behind it --------------------------------------------------------------------------------

    async def _call_handlers(self, rng: Random) -> None:
        """As pyfuse3 calls them for what the fast path hands on."""
        a, inode, handle = self.operations, self._inode(rng), number(rng)
        names = b"train", b"..", b"n" * 300, garbage(rng), b"user.nopfs.tiers", b"system.posix_acl_access"
        name = rng.choice(names).partition(b"\0")[0]  # libfuse gives texts of C
        calls: list[Any] = [
            lambda: a.lookup(inode, name, READER), lambda: a.getattr(inode, READER), lambda: a.readlink(inode, READER),
            lambda: a.getxattr(inode, name, READER), lambda: a.listxattr(inode, READER), lambda: a.statfs(READER),
            lambda: a.open(inode, number(rng, 32), READER), lambda: a.read(handle, number(rng, 63), 4096),
            lambda: a.release(handle), lambda: a.forget([(inode, handle)]),
        ]  # fmt: skip
        for call in rng.choices(calls, k=HANDLERS_MOST):
            try:
                with trio.fail_after(ANSWER_S):
                    await call()
            except pyfuse3.FUSEError as e:
                self.tell(f"handler: {errno.errorcode.get(e.errno, e.errno)}")
            else:
                self.tell("handler: done")

    # ---- the first request --------------------------------------------------------------------------------

    def _negotiate(self, rng: Random) -> None:
        init = HEADER.pack(HEADER.size + 64, INIT, 2, 0, 0, 0, 0, 0, 0) + struct.pack(
            "<IIII", 7, rng.choice((31, 40, number(rng, 32))), number(rng, 32), number(rng, 32)
        ).ljust(64, b"\0")
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with kernel, device:
            kernel.send(mutated(rng, init) or b"\0")
            try:
                negotiate(device.fileno(), acl=rng.random() < 0.5, limit_s=1.0, passthrough=rng.random() < 0.5)
            except OSError as e:
                self.tell_error(e)
                return
            self._take(kernel.recv(4096), Counter())
            self.tell("negotiated")


def _answer_now(kernel: Any) -> bytes | None:
    with contextlib.suppress(BlockingIOError):
        found: bytes = socket.socket.recv(kernel._sock, REQUEST_BYTES, socket.MSG_DONTWAIT)
        return found
    return None


async def _play_pyfuse3(behind: Any) -> None:
    """It answers whatever comes that it does not know it: the kernel's own forms are libfuse's to check."""
    while message := await behind.recv(REQUEST_BYTES):
        _, opcode, unique, *_ = HEADER.unpack(message[: HEADER.size])
        if opcode not in SILENT:
            await behind.send(ANSWER.pack(ANSWER.size, -errno.ENOSYS, unique))
