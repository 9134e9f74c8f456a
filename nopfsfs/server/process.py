"""The server process: pyfuse3 on the FUSE descriptor it was given. It holds no state that another could not rebuild.

It ends when the mount is gone (pyfuse3's loop returns), or when it is told to. A supervisor that dies does not end it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import logging
import os
import signal
import socket
import sys

import pyfuse3
import trio

from nopfsfs.control import orphans
from nopfsfs.dataset import index_file
from nopfsfs.fuse.connection import REQUEST_BYTES, resend
from nopfsfs.fuse.pyfuse3_pair import make_pair
from nopfsfs.protocol import supervisor_server as messages
from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.columns import FIRST_SERVER, SUPERVISOR, Columns, MetricBlock, check_layout
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.fast_path import FastPath
from nopfsfs.server.operations import FuseOperations
from nopfsfs.server.others import Others
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.system import shared_memory
from nopfsfs.system.process_setup import Handoff, become_reader, begin
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source, known_file_system
from nopfsfs.vfs.tree import Tree

log = logging.getLogger(__name__)
GIVEN_UP = 75  # the exit status of a server that ended though the connection has not
SAY_LIMIT_S = 2.0
# Requests under way with pyfuse3: more than the kernel lets wait (`session.py`), so that reads which are stuck keep no
# lookup, nor without the fast path a hit, from being taken.
MAX_TASKS = 6144


class ServerProcess:
    """Owns the pyfuse3 session and the link to the stager."""

    def __init__(self, handoff: Handoff) -> None:
        self._handoff = handoff
        fds = handoff.fds
        self._fuse_fd = fds["fuse"]
        self._control = trio.socket.from_stdlib_socket(socket.socket(fileno=fds["control"]))
        self._term = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_on = [fds["control"], self._term]
        index = index_file.load_fd(fds["index"])
        columns = Columns(fds["columns"], index.n, writable=False)
        root = os.fsencode(handoff.config.source)
        source = Source(root, index, columns, known_file_system(handoff.config))
        overrides = ColumnOverrides(columns, index, acls=bool(handoff.numbers["acl"]))
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._init = b""
        if "init" in fds:
            self._init = os.pread(fds["init"], REQUEST_BYTES, 0)
            self._pair = make_pair()  # before root is given up
        self._adapter = FuseOperations(
            tree=Tree(index, source, overrides, overrides.own_attributes),
            columns=columns,
            arena=memoryview(shared_memory.attach(fds["arena"], writable=False)),
            gauges=MetricBlock(fds["gauges"], FIRST_SERVER + handoff.numbers["number"], writable=True),
            stager_gauges=MetricBlock(fds["gauges"], writable=False),
            ring=Ring(fds["ring"], writable=True),
            source=source,
            stager=None,
            io_timeout=handoff.config.io_timeout,
            tripwires=Tripwires(index.n_dirs, index.n, index.total_bytes) if handoff.numbers.get("tripwires") else None,
            supervisor_gauges=MetricBlock(fds["gauges"], SUPERVISOR, writable=False),
            modes=OpenModes(fds["modes"], columns.backing.data) if handoff.numbers["pass_from"] else None,
            pass_from=handoff.numbers["pass_from"],
        )
        self._path: FastPath | None = None
        self._others = Others(fds, handoff.numbers.get("minor", 0), self._stager_fileno)
        self.status = 0

    def _stager_fileno(self) -> int:
        return self._adapter.stager.fileno() if self._adapter.stager is not None else -1

    def _link(self, fd: int) -> StagerClient:
        return StagerClient(socket.socket(fileno=fd), self._welcomed, self._handoff.config.io_timeout)

    def _welcomed(self) -> None:
        self._adapter.use_arena()
        with contextlib.suppress(OSError):  # the supervisor is gone
            _send_now(self._control.fileno(), messages.StagerKnown())

    async def run(self) -> None:
        """Answer requests until the mount is gone."""
        # libfuse takes "/dev/fd/N" for a descriptor that is mounted already, and mounts nothing.
        requests = self._pair[1].detach() if self._pair is not None else self._fuse_fd
        pyfuse3.init(self._adapter, f"/dev/fd/{requests}", {"default_permissions"})
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._obey)
            nursery.start_soon(self._signals)
            nursery.start_soon(self._others.watch)
            if self._pair is not None:
                nursery.start_soon(self._stand_before, self._pair[0])
            await self._say(messages.Ready())
            try:
                await pyfuse3.main(max_tasks=MAX_TASKS)
                log.info("the connection has ended")
                if not self._others.told.is_set():
                    await self._say(messages.ConnectionEnded())
                    await self._others.see_them_end()
            finally:
                nursery.cancel_scope.cancel()
        pyfuse3.close(unmount=False)

    async def _stand_before(self, pair: socket.socket) -> None:
        """Run the fast path; when the connection has ended, so has pyfuse3's part."""
        self._path = FastPath(self._fuse_fd, pair, self._adapter, self._watched, self._init, self._tell_interrupted)
        await self._path.run()
        pyfuse3.terminate()

    def _watched(self) -> list[int]:
        """Where messages of the supervisor, the stager and signals arrive."""
        stager = self._adapter.stager
        return self._wake_on if stager is None or stager.fileno() < 0 else [*self._wake_on, stager.fileno()]

    def _tell_interrupted(self, unique: int) -> None:
        """At once, without the event loop, which may have nothing else to do."""
        with contextlib.suppress(OSError):  # the supervisor is gone, or behind: the reader waits for its bytes then
            _send_now(self._control.fileno(), messages.Interrupt(unique))

    async def _say(self, message: Message) -> None:
        """Given up after a while: a supervisor that is stopped takes nothing, and must not hold up an end."""
        # The supervisor is gone: _obey notices.
        with contextlib.suppress(OSError, trio.ClosedResourceError), trio.move_on_after(SAY_LIMIT_S):
            await self._control.send(encode(message))

    async def _obey(self) -> None:
        """Follow the messages of the supervisor. When it is gone without End, serve on: from what is staged, and from
        the source."""
        while True:
            data, fds = await self._receive()
            if not data:
                break
            try:
                message = messages.to_server.decode(data)
            except ProtocolError as error:
                log.error("a message of the supervisor is of no use: %s", error)
                continue
            match message:
                case messages.MeetStager(arena=number) if fds:
                    self._meet_stager(number, *fds)
                case messages.Ping():
                    self._others.heard()
                    await self._say(messages.Pong())
                case messages.Interrupt(unique=unique):
                    if self._path is not None:
                        self._path.interrupt(unique)
                case messages.End():
                    self._others.told.set()
                    self._end()
        log.warning("the supervisor is gone; serving on")
        self._others.alone = True
        self._control.close()
        given = self._handoff.fds
        lives = [fd for name, fd in given.items() if name.startswith("life-")]
        self._wake_on = [self._term, *lives]
        for fd in lives:
            self._nursery.start_soon(self._outlive, fd)
        if "adopt" in given:
            self._wake_on.append(given["adopt"])
            await orphans.answer(self._handoff)

    def _meet_stager(self, number: int, sock: int, arena: int = -1) -> None:
        """Take a socket to another stager, and arena `number` if that is another one."""
        before = self._adapter.stager
        if arena >= 0:
            self._adapter.leave_arena()
        if before is not None:
            before.leave()  # it runs no more, though it may not have ended
        self._adapter.stager = self._link(sock)
        self._nursery.start_soon(self._adapter.stager.run)
        self._nursery.start_soon(self._confirm, before, arena, number)

    async def _outlive(self, life: int) -> None:
        """When another server has ended, with the supervisor or since: nobody else is left to see that those who wait
        for it have their answer."""
        await trio.lowlevel.wait_readable(life)
        self._wake_on = [fd for fd in self._wake_on if fd != life]
        log.warning("a server has ended that nobody replaces")
        if not self._handoff.numbers["resend"]:
            self._others.told.set()
            self.status = GIVEN_UP
            self._end()  # when none is left, the connection ends
            return
        with contextlib.suppress(OSError):  # the connection has ended
            resend(self._fuse_fd)

    async def _signals(self) -> None:
        """SIGTERM: another takes the place of this one."""
        signal.signal(signal.SIGTERM, lambda number, frame: os.eventfd_write(self._term, 1))
        await trio.lowlevel.wait_readable(self._term)
        self._others.told.set()
        self.status = GIVEN_UP
        self._end()

    def _end(self) -> None:
        """Take no more requests; end when those that were taken are answered."""
        if self._path is not None:
            self._path.stop()
        else:
            pyfuse3.terminate()

    async def _confirm(self, before: StagerClient | None, arena: int, number: int) -> None:
        """Say that nothing here reads arena bytes that the stager before had named: another may reuse them now."""
        if before is not None:
            await before.drained.wait()
        if arena >= 0:
            self._adapter.take_arena(memoryview(shared_memory.attach(arena, writable=False)))
            os.dup2(arena, self._handoff.fds["arena"])
            os.close(arena)
            self._handoff.numbers["arena"] = number  # for who takes over
        await self._say(messages.Drained())

    async def _receive(self) -> tuple[bytes, list[int]]:
        size = socket.CMSG_SPACE(2 * array.array("i").itemsize)
        try:
            message, ancillary, _, _ = await self._control.recvmsg(messages.MESSAGE_MAX, size)
        except OSError:
            return b"", []  # it was killed with messages unread
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return message, list(fds)


def _send_now(fd: int, message: Message) -> None:
    """Send at once. Raises OSError."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.send(encode(message), socket.MSG_DONTWAIT)


def _worth_telling(record: logging.LogRecord) -> bool:
    """That a reader was killed before its answer came, or the mount ended, is no error."""
    return not ("fuse_reply_" in str(record.msg) and "No such file" in record.getMessage())


def main() -> None:
    handoff = begin(sys.argv)
    check_layout(handoff.numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor gets it, too, and sees to the end
    logging.getLogger("pyfuse3").addFilter(_worth_telling)
    server = ServerProcess(handoff)
    become_reader(handoff.config)
    # What was imported and made until now stays: looking it over again and again costs the hits their caches.
    gc.collect()
    gc.freeze()
    trio.run(server.run)
    sys.exit(server.status)


if __name__ == "__main__":
    main()
