"""The supervisor's side of the peers: the socket to the peer process, which process that is, and what it says.

When that socket ends, the peers are lost and the mount goes on without them. Where it ends before all ranks have agreed
that they have mounted, the supervisor unmounts: MPI may have killed this rank before the rank could.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio
from msgspec import structs

from nopfsfs.control.client import peer_credentials
from nopfsfs.control.process_list import WRITER_FILE, Process, read_pids, wait_all, write_pids
from nopfsfs.protocol import supervisor_peer as messages
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.supervisor.processes.supervised import sequenced_pair

log = logging.getLogger(__name__)
SEND_LIMIT_S = 2.0  # a peer process that takes nothing for so long is given up
QUIET_LIMIT_S = 2.0  # for it to stop to write the arena, when the stager is gone
END_LIMIT_S = 10.0  # for it to end when it was killed
EVENTS_MOST = 4096  # that wait to be looked at; further messages are dropped
_NOBODY = (trio.BrokenResourceError, trio.ClosedResourceError)  # takes events any more


class ClusterEvent(NamedTuple):
    """A message of the supervisor of a node (`protocol/between_supervisors.py`), not decoded yet; None: the node has
    left, and sends nothing more."""

    node: int
    body: bytes | None


class PeerHandle:
    """Owns the supervisor's end of the socket `fd`. `tell_stager(socket)` gives the stager one to the peer
    process; `unmount()` ends a mount whose ranks have never agreed. `events`: of the other nodes; closed when the
    peer process is gone. MPI starts the peer process, and nothing replaces it: it has no `SupervisedProcess`."""

    def __init__(
        self, fd: int, arena: int, tell_stager: Callable[[socket.socket], Awaitable[bool]],
        unmount: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._arena, self._tell_stager, self._unmount = arena, tell_stager, unmount
        self._agreed, self._mounting_over = False, trio.Event()
        self._sending = trio.StrictFIFOLock()
        self._quiet = trio.Event()
        self.lost = False
        self._writers: tuple[Process, ...] = ()  # the peer process, as it is written down
        self._status: messages.PeerStatus | None = None
        self._events, self.events = trio.open_memory_channel[ClusterEvent](EVENTS_MOST)

    async def begin(self, state_dir: str) -> None:
        """Send the peer process the arena, before all else. Raises OSError: its pid cannot be written down."""
        write_pids(state_dir, {"peer": peer_credentials(self._socket.getsockopt)[0]}, WRITER_FILE)
        self._writers = read_pids(state_dir, WRITER_FILE)
        await self._send(messages.UseArena(), self._arena)

    async def run(self) -> None:
        """Receive the messages of the peer process until it is gone."""
        while not self.lost:
            try:
                message = self._socket.recv(messages.MESSAGE_MAX)
            except BlockingIOError:
                with contextlib.suppress(trio.ClosedResourceError):  # lost meanwhile
                    await trio.lowlevel.wait_readable(self._socket)
                continue
            except OSError:
                break
            if not message:
                break
            try:
                await self._take(messages.from_peer.decode(message))
            except Exception:
                log.exception("a message of the peer process is of no use")
            await trio.lowlevel.checkpoint()
        self._lose()
        if not self._agreed:
            log.warning("the peer process went before all ranks had mounted: unmounting")
            await self._unmount()

    async def _take(self, message: messages.FromPeer) -> None:
        match message:
            case messages.AllMounted():
                self._agreed = True
                self._mounting_over.set()
            case messages.ArenaQuiet():
                self._quiet.set()
            case messages.PeerStatus():
                self._status = message
            case messages.NewsOf(node=node, body=body):
                with contextlib.suppress(trio.WouldBlock, *_NOBODY):  # a node that sends so much is no use
                    self._events.send_nowait(ClusterEvent(node, body))
            case messages.NodeOver(node=node, why=why):
                log.log(logging.INFO if why == "left" else logging.WARNING, "node %d: %s", node, why)
                with contextlib.suppress(*_NOBODY):
                    await self._events.send(ClusterEvent(node, None))

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._quiet.set()
        self._mounting_over.set()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._events.close()
        log.warning("the peer process is gone; this mount goes on by itself")

    # ---- messages to it ----------------------------------------------------------------------------------

    async def mounted(self) -> None:
        """Return when all ranks have mounted, or the peer process is gone. Before that the peer process takes no
        messages."""
        await self._mounting_over.wait()

    async def send(self, node: int, message: Message) -> None:
        """Send a message to the supervisor of a node, or to those of ALL_OTHERS."""
        await self._send(messages.SendNews(node, encode(message)))

    async def introduce(self) -> None:
        """Let it and the stager, a new one, know each other."""
        ours, theirs = sequenced_pair()
        with contextlib.closing(ours), contextlib.closing(theirs):
            if await self._send(messages.UseStager(), theirs.fileno()):
                await self._tell_stager(ours)

    async def use_arena(self, arena: int) -> None:
        """From now on there is another arena. After `stager_gone`. A peer process that does not take the message is
        given up: it would write to the arena before for the next stager."""
        self._arena = arena
        if not await self._send(messages.UseArena(), arena):
            self._lose()

    async def stager_gone(self) -> None:
        """Return when nothing will write the arena for the stager that was. A peer process that does not answer is
        ended: it could write to what another stager uses."""
        if self.lost:
            return
        self._quiet = trio.Event()
        with trio.move_on_after(QUIET_LIMIT_S) as limit:
            if await self._send(messages.NoStager()):
                await self._quiet.wait()
        if limit.cancelled_caught:
            await self._end_it()

    async def bye(self) -> None:
        """The mount ends."""
        await self._send(messages.MountEnds())

    async def _end_it(self) -> None:
        """Raises OSError: it does not end, and may write the arena for ever."""
        for process in self._writers:
            log.error("the peer process (%d) hangs; ending it", process.pid)
            process.signal(signal.SIGKILL)
        ended = await trio.to_thread.run_sync(wait_all, self._writers, END_LIMIT_S)
        self._lose()
        if not ended:
            raise OSError(errno.EBUSY, "the peer process does not end")

    async def _send(self, message: Message, *fds: int) -> bool:
        """Send a message, with descriptors; return False where the peer process does not take it."""
        data = encode(message)
        with trio.move_on_after(SEND_LIMIT_S):
            async with self._sending:
                while not self.lost:
                    try:
                        socket.send_fds(self._socket, [data], fds)
                        return True
                    except BlockingIOError:
                        with contextlib.suppress(trio.ClosedResourceError):
                            await trio.lowlevel.wait_writable(self._socket)
                    except OSError:
                        return False  # its end is noticed where it is read
        return False

    def status(self) -> dict[str, Any]:
        """For the record."""
        counters = {} if self._status is None else structs.asdict(self._status)
        return {"state": "lost" if self.lost else "running", **counters}
