"""The fast path on a bench: a socket plays /dev/fuse, handlers are fake, and so is pyfuse3 behind the pair."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pyfuse3
import trio
import trio.testing

from nopfsfs.fuse.taken_requests import OwnBlock
from nopfsfs.server.fast_path import FastPath

HEADER = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INIT, INTERRUPT, IOCTL = 1, 2, 3, 14, 15, 18, 26, 36, 39
READDIR, READDIRPLUS = 28, 44
GETXATTR = 22
GONE = 1 << 23  # no process has such a number
ACL = b"an ACL" * 10
DATA = bytes(range(256)) * 16
PASSTHROUGH = 1 << 7
LIMIT_S = 20.0
MANY_TURNS, MANY_HITS = 50, 1000  # turns of the event loop; more than one of them each
SLEEP_HERE = FastPath._sleep_here


def request(opcode: int, unique: int, inode: int = 7, body: bytes = b"", pid: int = 99) -> bytes:
    return HEADER.pack(HEADER.size + len(body), opcode, unique, inode, 0, 0, pid, 0, 0) + body


def read_body(fh: int, offset: int, size: int) -> bytes:
    return struct.pack("<QQIIQII", fh, offset, size, 0, 0, 0, 0)


class Handlers:
    """Inode 7 is staged, 8 is not (its reads wait for `arrived`), 9 is stale; others are no files. Opens with O_NOATIME
    are passed through, to file 5."""

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.refusing = False
        self.over_with: list[int] = []
        self.log: list[tuple[str, int]] = []
        self.files = self.shown_opens = self

    def is_file(self, inode: int) -> bool:
        return 7 <= inode <= 9

    def handle(self, inode: int) -> int:
        return inode

    def acl(self, inode: int) -> bytes:
        if inode > 9:
            raise KeyError(inode)
        return ACL if inode == 8 else b""

    def looked_up(self, parent: int, name: bytes, pid: int) -> bytes | None:
        self.log.append(("look up", pid))
        return b"entry" if (parent, name) == (1, b"seven") else None

    def looked_at(self, inode: int, pid: int, *, is_open: bool) -> bytes | None:
        self.log.append(("look at open" if is_open else "look at", pid))
        if inode == 9:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return b"attributes" if inode == 7 else None

    def refused(self, inode: int, pid: int) -> None:
        self.log.append(("refuse", pid))

    def open(self, inode: int, pid: int, flags: int) -> tuple[int, int]:
        self.log.append(("open", pid))
        if inode == 9:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return inode, 5 if flags & os.O_NOATIME else 0

    def hit(self, fh: int, off: int, size: int) -> memoryview | None:
        return memoryview(DATA)[off : off + size] if fh == 7 else None

    async def miss(self, fh: int, off: int, size: int) -> bytes:
        await self.arrived.wait()
        if off >= len(DATA):
            raise pyfuse3.FUSEError(errno.EIO)
        return DATA[off : off + size]

    def close(self, fh: int) -> bool:
        self.log.append(("close", fh))
        return fh == 8

    def uncount_open(self, fh: int) -> None:
        self.over_with.append(fh)

    async def close_direct(self, fh: int) -> None:
        self.log.append(("let go", fh))


class Bench:
    def __init__(self, init: bytes = b"", own: OwnBlock | None = None) -> None:
        self.kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.device = device
        self.pyfuse3 = trio.socket.from_stdlib_socket(theirs)
        self.handlers: Any = Handlers()
        self.told: list[int] = []
        self.path = FastPath(device.fileno(), ours, self.handlers, list, init, self.told.append, own)
        self.ended = trio.Event()
        self.reader = trio.socket.from_stdlib_socket(self.kernel)

    async def run(self) -> None:
        await self.path.run()
        self.ended.set()

    def send(self, message: bytes) -> None:
        self.kernel.send(message)

    async def reply(self) -> tuple[int, int, bytes]:
        """(unique, errno, body) of the next answer."""
        message = await self.reader.recv(1 << 20)
        length, error, unique = struct.unpack_from("<IiQ", message)
        assert length == len(message)
        return unique, -error, message[16:]

    async def answer(self, message: bytes) -> tuple[int, int, bytes]:
        """Send a request; the next answer."""
        self.send(message)
        return await self.reply()


def run(body: Callable[[Bench], Awaitable[None]], init: bytes = b"", own: OwnBlock | None = None) -> None:
    async def main() -> None:
        bench = Bench(init, own)
        try:
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bench.run)
                    await body(bench)
                    nursery.cancel_scope.cancel()
        finally:
            for end in (bench.reader, bench.pyfuse3, bench.path._pair, bench.device):
                end.close()

    # Not to sleep outside the event loop: the test itself is one of its tasks.
    trio.run(main)
