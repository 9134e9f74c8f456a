"""Peer process, once the mounts of all ranks answer: one loop between the other nodes, the stager and the supervisor.

The process ends when its mount has ended and all other nodes have left or were lost.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from nopfsfs.config import MountConfig
from nopfsfs.control.process_list import writes_no_more
from nopfsfs.peer.router import PeerRouter
from nopfsfs.peer.transport import Transport
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol import supervisor_peer as messages
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.system.process_setup import set_up_logging

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)
# The loop waits for PART of the time since something last came, so a message is late by that part of it at most.
# The shortest wait lets several messages come together; it is half as long where MANY_BYTES are under way.
MANY_BYTES = 4 << 20
SHORTEST_S, PART, LONGEST_S = 150e-6, 1 / 8, 20e-3
MOVING_S, STALLED_S = 1e-3, 10.0  # longest wait while bytes move, which MPI moves only when called; for so long
AT_ONCE = 8  # messages of the stager, taken in one turn of the loop
BEHIND_MOST = 64 << 20  # bytes of messages that a process of the mount has not taken: above that it counts as gone
END_LIMIT_S = 5.0  # for bytes to arrive when all other nodes have left
QUIET_LIMIT_S = 0.5  # for receives to end when the stager has gone
STATUS_PAUSE_S = 0.5
_PR_SET_TIMERSLACK = 29  # linux/prctl.h; else a wait is 50 µs longer than asked


class ProcessLink:
    """End of a socket pair to a process of this mount. Messages that cannot be sent now wait, first in, first out."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.gone = False
        self._waiting: deque[bytes] = deque()
        self._bytes = 0

    @property
    def behind(self) -> bool:
        """True when messages wait."""
        return bool(self._waiting)

    def send(self, message: bytes) -> None:
        self._waiting.append(message)
        self._bytes += len(message)
        self.flush()
        if self._bytes > BEHIND_MOST:
            log.error("a process of this mount takes no messages; it is given up")
            self.gone = True

    def flush(self) -> None:
        while self._waiting:
            try:
                self.socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # `receive` notices the end: earlier messages may still be there
                self._waiting.clear()
                self._bytes = 0
                return
            self._bytes -= len(self._waiting.popleft())

    def receive(self, size: int, fds: list[int] | None = None) -> bytes:
        """Return a message, and put its descriptors into `fds`; an empty message if there is none now."""
        try:
            if fds is None:
                message = self.socket.recv(size)
            else:
                message, fds[:], _, _ = socket.recv_fds(self.socket, size, 1)
        except (BlockingIOError, ConnectionResetError):  # the latter comes before the last messages
            return b""
        except OSError:
            message = b""
        self.gone |= not message
        return message


class PeerProcess:
    """Peer process of a mount: owns the sockets, the router, and the clock of the loop."""

    def __init__(
        self, transport: Transport, supervisor: socket.socket, job: int, turn: Callable[[], None] = lambda: None,
        checker: Executor | None = None, quiet: Callable[[], None] = lambda: None,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Take the parts of the loop. `turn` is called in each turn, every 20 ms at least. `checker` computes checksums
        of long files. `quiet` is called when the mount was killed and nothing will write its arena any more. `alone`
        returns True once nodes that have not left are not to be waited for."""
        self._transport, self._job, self._turn, self._checker = transport, job, turn, checker
        self._say_quiet, self._alone = quiet, alone
        self._supervisor = ProcessLink(supervisor)
        self._stager: ProcessLink | None = None
        self._closing: list[socket.socket] = []  # of former stagers, until nothing writes their extents
        self._router: PeerRouter | None = None
        self._has_arena = False  # the one that the supervisor named last
        self._over = False  # the mount has ended
        self._ends_by = 0.0  # when to end at the latest, once all others have left as well; 0: not yet
        self._said_bye = False
        self._quiet_by = 0.0  # when ArenaQuiet must have been sent; 0: it is not due
        self._said: messages.PeerStatus | None = None
        self._say_at = 0.0

    def run(self) -> int:
        """Run the loop until this process is not needed any more; return the exit code."""
        last = time.monotonic()  # when something came last
        while not self._is_over():
            self._turn()
            active = self._wait_and_take(self._limit(time.monotonic() - last))
            if self._router is not None:
                active |= self._router.step()
                self._say_status()
                self._see_to_quiet(self._router)
            for link in (self._supervisor, self._stager):
                if link is not None:
                    link.flush()
            if active:
                last = time.monotonic()
        self._close()
        return 0

    def _is_over(self) -> bool:
        """True when the mount has ended, all other nodes have left, and no bytes move or END_LIMIT_S is over. That is
        also the limit for nodes that are not to be waited for."""
        if not self._over or self._router is None or not (self._router.nodes.alone or self._alone()):
            return False
        now = time.monotonic()
        self._ends_by = self._ends_by or now + END_LIMIT_S
        return (self._router.nodes.alone and not self._transport.busy) or now > self._ends_by

    def _limit(self, idle_s: float) -> float:
        """Seconds to wait for the sockets, when nothing has come for `idle_s` seconds."""
        if self._router is None:
            return LONGEST_S
        if self._transport.has_more:
            return 0.0
        under_way = max(self._router.requester.under_way, self._router.responder.under_way)
        least = SHORTEST_S / 2 if under_way >= MANY_BYTES else SHORTEST_S
        most = MOVING_S if self._transport.busy and idle_s < STALLED_S else LONGEST_S
        return min(max(least, PART * idle_s), most)

    def _wait_and_take(self, limit_s: float) -> bool:
        """Take messages of the mount's processes; return True when there was any."""
        links = [link for link in (self._supervisor, self._stager) if link is not None and not link.gone]
        ready, _, _ = select.select([link.socket for link in links], [], [], limit_s)
        for sock in ready:
            if sock is self._supervisor.socket:
                self._take_supervisor()
            elif self._stager is not None and sock is self._stager.socket:  # unless replaced just now
                self._take_stager(self._stager)
        if self._supervisor.gone and not self._over:
            self._mount_ended()
        if self._stager is not None and self._stager.gone:
            self._lose_stager()
        return bool(ready)

    # ---- supervisor ---------------------------------------------------------------------------------------

    def _take_supervisor(self) -> None:
        fds: list[int] = []
        message = self._supervisor.receive(messages.MESSAGE_MAX, fds)
        if not message:
            return
        try:
            self._obey(messages.from_supervisor.decode(message), fds)
        except (ValueError, OSError) as e:
            log.error("a message of the supervisor is refused: %s", e)
        for fd in fds:
            os.close(fd)

    def _obey(self, message: messages.FromSupervisor, fds: list[int]) -> None:
        """Do what a message of the supervisor says. Takes the descriptor that this process keeps out of `fds`. Raises
        ValueError for an invalid message, OSError. Without the arena that was named last, this process takes no further
        stager. Else it would write to the earlier arena what that stager looks for in its own."""
        if isinstance(message, messages.UseArena):
            self._has_arena = False
        if isinstance(message, messages.UseArena | messages.UseStager) != bool(fds):
            raise ValueError(f"{type(message).__name__} with {len(fds)} descriptors")
        if isinstance(message, messages.UseArena):
            router = self._router
            if router is not None and (self._stager is not None or router.requester.writes()):
                raise ValueError("another arena, while the one before is in use")
            size = os.fstat(fds[0]).st_size
            arena = memoryview(mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
            if router is None:
                self._begin(arena)
            else:
                router.use_arena(arena)
            self._has_arena = True
        elif self._router is None:
            raise ValueError(f"{type(message).__name__} before the arena")
        elif isinstance(message, messages.UseStager):
            if not self._has_arena:
                raise ValueError("a stager whose arena this process does not have")
            sock = socket.socket(fileno=fds[0])
            fds.clear()
            self._lose_stager()
            self._stager = ProcessLink(sock)
            self._router.stager_came()
        elif isinstance(message, messages.NoStager):
            self._lose_stager()
            self._quiet_by = time.monotonic() + QUIET_LIMIT_S
        elif isinstance(message, messages.SendNews):
            self._router.send_news(message.node, message.body)
        elif isinstance(message, messages.MountEnds):
            self._said_bye = True

    def _begin(self, arena: memoryview) -> None:
        self._router = PeerRouter(
            self._transport, arena, self._job, to_stager=self._to_stager,
            news=lambda node, body: self._tell(messages.NewsOf(node, body)),
            over=lambda node, why: self._tell(messages.NodeOver(node, why.value)),
            clock=time.monotonic, checker=self._checker,
        )  # fmt: skip

    def _mount_ended(self) -> None:
        self._over = True
        self._lose_stager()
        if self._router is None:
            self._begin(memoryview(b""))  # the other nodes wait for this one to leave all the same
        assert self._router is not None
        self._router.leave()
        if not self._said_bye:  # killed: another supervisor may take over the mount, and use its arena again
            self._quiet_by = time.monotonic() + QUIET_LIMIT_S

    def _see_to_quiet(self, router: PeerRouter) -> None:
        """Send ArenaQuiet, if it is due, once nothing will write the arena any more. End this process where writes do
        not end in time."""
        if not self._quiet_by and not self._closing:
            return
        if not router.requester.writes():
            self._close()
            if self._quiet_by:
                self._quiet_by = 0.0
                self._tell(messages.ArenaQuiet())
                if self._over:
                    self._say_quiet()
        elif self._quiet_by and time.monotonic() > self._quiet_by:
            log.error("bytes of another node do not arrive, and may not be waited for: the peers are given up")
            os._exit(1)

    def _say_status(self) -> None:
        now = time.monotonic()
        if now < self._say_at or self._router is None or self._supervisor.behind:
            return
        self._say_at = now + STATUS_PAUSE_S
        router = self._router
        requester, responder, nodes = router.requester, router.responder, router.nodes
        said = messages.PeerStatus(
            fetched_files=requester.files, fetched_bytes=requester.bytes, refused=requester.refused,
            late=requester.late, corrupt=requester.corrupt, lent_files=responder.files, lent_bytes=responder.bytes,
            garbage=router.garbage,
            over={str(node): why.value for node, why in nodes.over.items()}, resting=nodes.resting(now),
        )  # fmt: skip
        if said != self._said:
            self._said = said
            self._tell(said)

    def _tell(self, message: Message) -> None:
        """Send to the supervisor, unless the mount has ended."""
        if not self._over:
            self._supervisor.send(encode(message))

    # ---- stager -------------------------------------------------------------------------------------------

    def _take_stager(self, link: ProcessLink) -> None:
        assert self._router is not None
        for _ in range(AT_ONCE):
            message = link.receive(stager_peer.MESSAGE_MAX)
            if not message:
                return
            try:
                kind, records = stager_peer.unpack(message)
                self._router.from_stager(kind, records)
            except ValueError as e:
                log.error("a message of the stager is refused: %s", e)

    def _to_stager(self, kind: stager_peer.RecordKind, records: list[stager_peer.Record]) -> None:
        if self._stager is not None:
            for message in stager_peer.pack(kind, records):
                self._stager.send(message)

    def _lose_stager(self) -> None:
        """Go on without the stager. Its socket stays open until nothing writes extents that the stager may use. A
        stager that lives takes the closed socket for the end of this process."""
        if self._stager is not None:
            self._closing.append(self._stager.socket)
            self._stager = None
            if self._router is not None:
                self._router.stager_gone()

    def _close(self) -> None:
        for sock in self._closing:
            sock.close()
        self._closing.clear()


def serve(
    comm: MPI.Intracomm, supervisor: socket.socket, config: MountConfig, fingerprint: int, turn: Callable[[], None],
    alone: Callable[[], bool] = lambda: False,
) -> int:  # fmt: skip
    """Be the peer process of a mount until the mount has ended and all other nodes have left. Returns the exit code.
    `fingerprint`: a number that all ranks have in common. No other code uses `comm` from now on. `turn` is called again
    and again, every 20 ms at least; `alone`: as for `PeerProcess`."""
    from nopfsfs.peer.mpi_transport import MpiTransport

    set_up_logging(config, "peer", quiet=not config.foreground)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.freeze()  # objects that exist now stay
    with ThreadPoolExecutor(1, "check") as checker:
        try:
            job = fingerprint & (1 << 64) - 1
            quiet = partial(writes_no_more, config.state_dir)
            return PeerProcess(MpiTransport(comm), supervisor, job, turn, checker, quiet, alone).run()
        except Exception:
            log.exception("the peer process fails")
            os._exit(1)  # at once: closed sockets mean to the mount that this process writes nothing any more
