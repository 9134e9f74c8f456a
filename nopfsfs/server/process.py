"""The server process: answers the requests of one FUSE descriptor, and holds no state that another could not rebuild.

It ends when the mount is gone, or at a message or signal. It goes on when the supervisor dies.
"""

from __future__ import annotations

import array
import contextlib
import errno
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
from nopfsfs.fuse.connection import REQUEST_BYTES, Redelivery, resend
from nopfsfs.fuse.pyfuse3_pair import make_pair
from nopfsfs.fuse.taken_requests import LeftBlock, OwnBlock
from nopfsfs.protocol import supervisor_server as messages
from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.columns import FIRST_SERVER, SUPERVISOR, Columns, MetricBlock, check_layout
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.fast_path import FastPath
from nopfsfs.server.file_access import FileAccess
from nopfsfs.server.operations import FuseOperations
from nopfsfs.server.orphan_heirs import OrphanHeir
from nopfsfs.server.others import Others
from nopfsfs.server.shown_opens import ShownOpens
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.system import shared_memory
from nopfsfs.system.process_setup import Handoff, become_reader, begin
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source, known_file_system
from nopfsfs.vfs.tree import Tree

log = logging.getLogger(__name__)
GIVEN_UP = 75  # the exit status of a server that ended though the connection has not
SEND_LIMIT_S = 2.0
# Requests under way with pyfuse3: more than the kernel lets wait (`fuse/connection.py`). So reads which are stuck keep
# no LOOKUP from being taken, nor a hit where there is no fast path.
MAX_TASKS = 6144


class ServerProcess:
    """Owns the pyfuse3 session, the fast path, and the sockets to supervisor and stager."""

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
        metrics = MetricBlock(fds["gauges"], FIRST_SERVER + handoff.numbers["number"], writable=True)
        stager_metrics = MetricBlock(fds["gauges"], writable=False)
        ring = Ring(fds["ring"], writable=True)
        self._files = FileAccess(
            index=index,
            columns=columns,
            arena=memoryview(shared_memory.attach(fds["arena"], writable=False)),
            source=source,
            metrics=metrics,
            stager_metrics=stager_metrics,
            ring=ring,
            io_timeout=handoff.config.io_timeout,
            modes=OpenModes(fds["modes"], columns.backing.data) if handoff.numbers["pass_from"] else None,
            pass_from=handoff.numbers["pass_from"],
        )
        supervisor_metrics = MetricBlock(fds["gauges"], SUPERVISOR, writable=False)
        tripwires = Tripwires(index.n_dirs, index.n, index.total_bytes) if handoff.numbers.get("tripwires") else None
        self._operations = FuseOperations(
            Tree(index, source, overrides, overrides.own_attributes),
            columns,
            self._files,
            ShownOpens(metrics, stager_metrics, supervisor_metrics, ring, tripwires),
            handoff.config.io_timeout,
        )
        self._path: FastPath | None = None
        self._heir = OrphanHeir(fds.get("taken", -1), handoff.numbers["block"])
        self._others = Others(fds, handoff.numbers.get("minor", 0), self._stager_fileno)
        self.status = 0

    def _stager_fileno(self) -> int:
        return self._files.stager.fileno() if self._files.stager is not None else -1

    def _welcomed(self) -> None:
        self._files.use_arena()
        with contextlib.suppress(OSError):  # the supervisor is gone
            _send_now(self._control.fileno(), messages.StagerKnown())

    async def run(self) -> None:
        """Answer requests until the mount is gone."""
        # libfuse takes "/dev/fd/N" for a descriptor that is mounted already, and mounts nothing.
        requests = self._pair[1].detach() if self._pair is not None else self._fuse_fd
        pyfuse3.init(self._operations, f"/dev/fd/{requests}", {"default_permissions"})
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._receive_messages)
            nursery.start_soon(self._signals)
            nursery.start_soon(self._others.watch)
            nursery.start_soon(self._files.young.run, lambda: self._files.stager)
            if self._pair is not None:
                self._path = self._make_path(self._pair[0])
                nursery.start_soon(self._stand_before, self._path)
            await self._send(messages.Ready())
            try:
                await pyfuse3.main(max_tasks=MAX_TASKS)
                log.info("the connection has ended")
                if not self._others.ending.is_set():
                    await self._send(messages.ConnectionEnded())
                    await self._others.wait_for_their_end()
            finally:
                nursery.cancel_scope.cancel()
        pyfuse3.close(unmount=False)

    def _make_path(self, pair: socket.socket) -> FastPath:
        heir, number = self._heir, self._handoff.numbers["number"]
        own = OwnBlock(heir.taken, heir.block, number) if heir.block >= 0 else None
        told = self._tell_interrupted
        return FastPath(self._fuse_fd, pair, self._operations, self._watched, self._init, told, own)

    async def _stand_before(self, path: FastPath) -> None:
        """Run the fast path, and end pyfuse3 when the connection has ended."""
        await path.run()
        pyfuse3.terminate()

    def _watched(self) -> list[int]:
        """Descriptors at which messages of the supervisor and the stager, and signals, arrive."""
        stager = self._files.stager
        return self._wake_on if stager is None or stager.fileno() < 0 else [*self._wake_on, stager.fileno()]

    def _tell_interrupted(self, unique: int) -> None:
        """Send the supervisor an interrupt at once, without the event loop, which may not be running."""
        with contextlib.suppress(OSError):  # the supervisor is gone, or behind: the reader then waits for its bytes
            _send_now(self._control.fileno(), messages.Interrupt(unique))

    async def _send(self, message: Message) -> None:
        """Send the supervisor a message, or give up: a stopped supervisor takes nothing, and must not delay an end."""
        # `_receive_messages` notices a supervisor that is gone.
        with contextlib.suppress(OSError, trio.ClosedResourceError), trio.move_on_after(SEND_LIMIT_S):
            await self._control.send(encode(message))

    async def _receive_messages(self) -> None:
        """Act on the messages of the supervisor. When it is gone without End, serve on: from what is staged, and from
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
                case messages.MeetStager() if fds:
                    self._meet_stager(message, *fds)
                case messages.Ping():
                    self._others.patience.answered()
                    await self._send(messages.Pong())
                case messages.Interrupt(unique=unique):
                    if self._path is not None:
                        self._path.interrupt(unique)
                case messages.TakeOver(block=block):
                    self._nursery.start_soon(self._take_over, block)
                case messages.End():
                    self._others.ending.set()
                    self._end()
        log.warning("the supervisor is gone; serving on")
        self._others.alone = True
        self._control.close()
        given = self._handoff.fds
        lives = {fd: int(name.removeprefix("life-")) for name, fd in given.items() if name.startswith("life-")}
        self._wake_on = [self._term, *lives]
        for fd, number in lives.items():
            self._nursery.start_soon(self._outlive, fd, number)
        self._take_over_what_is_left()
        if "adopt" in given:
            self._wake_on.append(given["adopt"])
            await orphans.answer(self._handoff)

    def _meet_stager(self, message: messages.MeetStager, sock: int, arena: int = -1) -> None:
        """Use the socket `sock` to a new stager, and the message's arena where its descriptor is given. Raises OSError
        where that descriptor did not arrive, for lack of descriptors. Another server takes the place of this one, which
        must not read its arena for what lies in another."""
        if arena < 0 and message.arena != self._handoff.numbers["arena"]:
            raise OSError(errno.EMFILE, "no descriptor was left for the next arena")
        before = self._files.stager
        if arena >= 0:
            self._files.leave_arena()
        if before is not None:
            before.leave()  # that stager has stopped, though it may not have ended
        stager = StagerClient(socket.socket(fileno=sock), self._welcomed, self._handoff.config.io_timeout)
        self._files.use_stager(stager)
        self._nursery.start_soon(stager.run)
        self._nursery.start_soon(self._confirm, message, before, arena)

    async def _outlive(self, life: int, number: int) -> None:
        """See to what another server had taken, when that server has ended and there is no supervisor to do so. Where
        that is lost, end: its readers have an answer when all servers have ended."""
        await trio.lowlevel.wait_readable(life)
        self._wake_on = [fd for fd in self._wake_on if fd != life]
        log.warning("a server has ended that nobody replaces")
        redelivery = self._handoff.numbers["redelivery"]
        if redelivery == Redelivery.NONE:
            self._others.ending.set()
            self.status = GIVEN_UP
            self._end()
        elif redelivery == Redelivery.KERNEL:
            with contextlib.suppress(OSError):  # the connection has ended
                resend(self._fuse_fd)
        else:
            self._heir.saw_end(number)
            self._take_over_what_is_left()

    def _take_over_what_is_left(self) -> None:
        """Without a supervisor: take over what dead servers left, where this one is to do so."""
        for block in self._heir.next_left():
            self._nursery.start_soon(self._take_over, block)

    async def _take_over(self, block: int) -> None:
        """Answer what a dead server left in a block, and tell the supervisor, if there is one."""
        if self._path is not None and self._heir.block >= 0:
            await self._path.take_over(LeftBlock(self._heir.taken, block))
            if not self._others.alone:
                await self._send(messages.TookOver(block))

    async def _signals(self) -> None:
        """End at SIGTERM: another server takes the place of this one."""
        signal.signal(signal.SIGTERM, lambda number, frame: os.eventfd_write(self._term, 1))
        await trio.lowlevel.wait_readable(self._term)
        self._others.ending.set()
        self.status = GIVEN_UP
        self._end()

    def _end(self) -> None:
        """Take no more requests, and end when those that were taken are answered."""
        if self._path is not None:
            self._path.stop()
        else:
            pyfuse3.terminate()

    async def _confirm(self, message: messages.MeetStager, before: StagerClient | None, arena: int) -> None:
        """Send `Drained` when nothing here reads arena bytes that the last stager had named: a new one may reuse them.
        """
        if before is not None:
            await before.drained.wait()
        if arena >= 0:
            self._files.take_arena(memoryview(shared_memory.attach(arena, writable=False)))
            os.dup2(arena, self._handoff.fds["arena"])
            os.close(arena)
            self._handoff.numbers["arena"] = message.arena  # for a supervisor that takes over
        await self._send(messages.Drained(message.serial))

    async def _receive(self) -> tuple[bytes, list[int]]:
        size = socket.CMSG_SPACE(2 * array.array("i").itemsize)
        try:
            message, ancillary, _, _ = await self._control.recvmsg(messages.MESSAGE_MAX, size)
        except OSError:
            return b"", []  # the supervisor was killed with messages unread
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return message, list(fds)


def _send_now(fd: int, message: Message) -> None:
    """Send without waiting. Raises OSError."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.send(encode(message), socket.MSG_DONTWAIT)


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for pyfuse3's message that an answer came too late: its reader was killed, or the mount ended."""
    return not ("fuse_reply_" in str(record.msg) and "No such file" in record.getMessage())


def main() -> None:
    handoff = begin(sys.argv)
    check_layout(handoff.numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor gets it, too, and ends all processes
    logging.getLogger("pyfuse3").addFilter(_is_error)
    server = ServerProcess(handoff)
    become_reader(handoff.config)
    # All objects made until now stay: collecting over them again and again would cost the hits their caches.
    gc.collect()
    gc.freeze()
    trio.run(server.run)
    sys.exit(server.status)


if __name__ == "__main__":
    main()
