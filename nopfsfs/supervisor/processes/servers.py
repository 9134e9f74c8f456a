"""The servers of a mount. A mount goes on as long as it is mounted, also while no server can be started.

`supervised` sees that a server has died. What it had taken, the kernel delivers again; where it cannot, another server
takes it over from the dead one's records (`left_requests`). A server that dies again and again is started without the
stager, each time after a longer pause, of a minute at most. A server that has lived for a while gets to know the
stager. Requests wait while there is no server: whoever made them can be killed, and the mount can be unmounted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from nopfsfs.config import MountConfig
from nopfsfs.fuse.connection import KernelSession, Redelivery, resend
from nopfsfs.fuse.taken_requests import LeftBlock, given_blocks
from nopfsfs.protocol import supervisor_server as messages
from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.columns import OTHER_VERSION, ServerMetrics
from nopfsfs.supervisor.processes.death_pipes import DeathPipes
from nopfsfs.supervisor.processes.left_requests import LeftRequests
from nopfsfs.supervisor.processes.supervised import Child, SupervisedProcess, sequenced_pair
from nopfsfs.system.outages import Outages
from nopfsfs.system.proc import has_ended, living_threads
from nopfsfs.system.process_setup import Handoff

log = logging.getLogger(__name__)
START_LIMIT_S = 30.0
KNOWN_LIMIT_S = 5.0
DRAIN_LIMIT_S = 30.0
NO_BLOCK = -1  # of a server that keeps no requests, as the kernel delivers them again, or nobody does
SHARED = ("fuse", "index", "columns", "arena", "gauges", "modes", "taken", "init", "adopt", "end", "end-stager")


class ServerHandle:
    """The role of one server, and what the process that has it has said."""

    lives_alone, ping_s = True, 2.0

    def __init__(self, pool: ServerPool, number: int, work_done: Callable[[], int], outages: Outages) -> None:
        self._pool, self.number, self.name = pool, number, f"server {number}"
        self.work_done = work_done
        self.process = SupervisedProcess(self, pool.starting, outages, pool.changed)
        self.ready, self.drained, self.known = trio.Event(), trio.Event(), trio.Event()
        self._control: trio.socket.SocketType | None = None
        self._end: socket.socket | None = None  # the socket beneath, which takes descriptors, too
        self._link: socket.socket | None = None  # a copy of its end to the stager
        self._meetings = 0  # MeetStager messages
        self.block = NO_BLOCK  # of the process that was started last

    # ---- the role (`processes/supervised.py`) -------------------------------------------------------------

    @property
    def replaceable(self) -> bool:
        return self._pool.lasting

    async def start(self) -> Child:
        self._forget_link()  # that a stager gave to a process that was gone already
        block = self._pool.assign_block()
        ours, theirs = sequenced_pair()
        try:
            child = await trio.to_thread.run_sync(self._pool.spawn, self.number, theirs.fileno(), block)
        except BaseException:
            ours.close()
            self._pool.block_left(block)
            raise
        finally:
            theirs.close()
        self._end, self._control, self.block = ours, trio.socket.from_stdlib_socket(ours), block
        return child

    async def introduce(self, child: Child) -> None:
        """Let the server and the stager, if there is one, know each other, unless they do."""
        if self._link is not None:
            return
        try:
            ours, theirs = sequenced_pair()
        except OSError as e:
            log.warning("%s goes without the stager: %s", self.name, e)
            return
        with contextlib.closing(ours), contextlib.closing(theirs):
            if await self._pool.tell_stager(ours):
                self.know_stager(theirs, self._pool.arena_number)

    async def listen(self, answered: Callable[[], None]) -> None:
        assert self._control is not None
        while True:
            try:
                data = await self._control.recv(messages.MESSAGE_MAX)
            except (OSError, trio.ClosedResourceError):
                return
            if not data:
                return
            try:
                message = messages.from_server.decode(data)
            except ProtocolError as error:
                log.error("a message of %s is of no use: %s", self.name, error)
                continue
            match message:
                case messages.Ready() | messages.Pong():
                    self.ready.set()
                    answered()
                    self._pool.hand_out()
                case messages.TookOver(block=block):
                    self._pool.taken_over(block)
                case messages.ConnectionEnded():
                    self._pool.over.set()
                case messages.Drained(serial=serial) if serial == self._meetings:
                    self.drained.set()
                case messages.StagerKnown():
                    self.known.set()
                case messages.Interrupt():
                    self._pool.pass_on(message, self)

    def ping(self) -> bool:
        return self.send(messages.Ping())  # it also learns by it that there is a supervisor

    async def contain(self, child: Child) -> bool:
        """Have what the server had taken delivered again, unless that is not to be had, or the mount ends."""
        self._let_stager_go(child)
        self._forget_link()
        if self._control is not None:
            self._control.close()
        return self._pool.goes_on_without(self, child)

    # ---- messages of the server ---------------------------------------------------------------------------

    def send(self, message: Message, *fds: int) -> bool:
        """Send a message, with descriptors; return False where the server does not take it."""
        if self._end is None:
            return False
        try:
            socket.send_fds(self._end, [encode(message)], fds)
        except OSError:
            return False
        return True

    def know_stager(self, link: socket.socket, number: int, *arena: int) -> bool:
        """Give it its end of a socket to a stager; with another arena, if that is the stager's. As `send`."""
        self._forget_link()
        self._link = socket.socket(fileno=os.dup(link.fileno()))
        self._meetings += 1
        return self.send(messages.MeetStager(self._meetings, number), link.fileno(), *arena)

    async def drain(self, stager: socket.socket, number: int, arena: int | None) -> bool:
        """Give it a new stager's socket, and wait until it reads nothing that the stager before had named. False: it is
        gone. Raises OSError: it is not, and may read the arena for ever."""
        child = self.process.child
        assert child is not None
        self.drained, self.known = trio.Event(), trio.Event()
        told = self.know_stager(stager, number, *([] if arena is None else [arena]))
        if told and await child.within(self.drained, DRAIN_LIMIT_S):
            return True
        # Dead: then it reads nothing. Or it hangs: then it must not read the arena ever again.
        if not await child.kill():
            self._let_stager_go(child)
            if arena is None and not child.main_thread_ended:
                raise OSError(errno.EBUSY, f"{self.name} cannot be ended")
        return False

    def abandon(self) -> None:
        """Let it serve on by itself."""
        if self._control is not None:
            self._control.close()

    def _let_stager_go(self, child: Child) -> None:
        """Let the stager see the end of a server that runs no more, though it may not have ended."""
        if self._link is not None and child.main_thread_ended:  # no answer is half given
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def _forget_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class ServerPool:
    """Owns the server processes, one for each of `rings`, with numbers from `first` on.

    `given`: what a supervisor that takes over is to know. `tell_stager` makes the stager know of a further server, by
    its end of the socket; False: there is none. `changed` is called when a process is another. `over`: all have ended,
    or cannot go on.
    """

    def __init__(
        self, config: MountConfig, fds: dict[str, int], rings: list[int], first: int, session: KernelSession | None,
        given: dict[str, int], tell_stager: Callable[[socket.socket], Awaitable[bool]], changed: Callable[[], None],
        outages: Outages,
    ) -> None:  # fmt: skip
        metrics, numbers = ServerMetrics(fds["gauges"]), range(first, first + len(rings))
        self._config, self._fds, self._session, self._first = config, fds, session, first
        self._given = given
        self._rings = dict(zip(numbers, rings, strict=True))
        self._lives = DeathPipes(numbers)
        self.tell_stager, self.changed = tell_stager, changed
        self.starting = trio.Lock()  # a server, or the stager, is being started: not both at a time
        self.arena_number = given.get("arena", 0)
        self.over = trio.Event()
        self.failed = False
        self._left = self._left_requests() if self.redelivery is Redelivery.RECORDS else None
        self._servers = [ServerHandle(self, number, partial(metrics.done, number), outages) for number in numbers]

    def _left_requests(self) -> LeftRequests:
        taken = self._fds["taken"]
        return LeftRequests(lambda block: not LeftBlock(taken, block).unanswered(), given_blocks(taken, writable=True))

    @property
    def redelivery(self) -> Redelivery:
        """The way in which requests that a dead server had taken come to another one."""
        return Redelivery.NONE if self._session is None else self._session.redelivery

    @property
    def lasting(self) -> bool:
        """True where what a dead server had taken can be had again."""
        return self.redelivery is not Redelivery.NONE

    @property
    def serving(self) -> bool:
        """True while a server lives that has begun to answer."""
        return any(process.living is not None and process.living.running for process in self.processes)

    @property
    def processes(self) -> list[SupervisedProcess]:
        """The processes, in the order of their numbers."""
        return [server.process for server in self._servers]

    async def start(self, nursery: trio.Nursery) -> None:
        """Return when all answer requests. Raises OSError, RuntimeError, trio.TooSlowError."""
        self._nursery = nursery
        with trio.fail_after(START_LIMIT_S):
            for server in self._servers:
                await server.process.start()
                nursery.start_soon(server.process.run)
            for server in self._servers:
                await server.ready.wait()
                if self.over.is_set():
                    raise RuntimeError("a server ended while it started")

    async def connect(self, arena: int | None = None, number: int = 0) -> list[socket.socket]:
        """Give every server a new stager's socket, and that stager's arena `number` if it is another one. Wait until
        none reads anything that the stager before had named. The stager's ends. Raises OSError."""
        with contextlib.ExitStack() as made:
            ends = []
            for server in self._servers:
                ours, theirs = sequenced_pair()
                made.callback(ours.close)
                with contextlib.closing(theirs):
                    if await server.drain(theirs, number, arena):
                        ends.append(ours)
                    else:
                        ours.close()
            made.pop_all()
        if arena is not None:
            self.arena_number = number
        return ends

    async def welcomed(self) -> None:
        """Wait, for a while, until the stager has said to all that it knows them: before, they read the source."""
        for server in self._servers:
            if server.process.child is not None:
                await server.process.child.within(server.known, KNOWN_LIMIT_S)

    async def end(self, limit_s: float) -> None:
        """Let all answer what they have taken, and end."""
        async with trio.open_nursery() as nursery:
            for server in self._servers:
                server.process.stopping = True
                if (child := server.process.living) is not None:
                    server.send(messages.End())
                    nursery.start_soon(child.end, limit_s)

    def abandon(self) -> None:
        """Let them serve on by themselves, until another supervisor takes over."""
        for server in self._servers:
            server.process.stopping = True
            server.abandon()

    def close(self) -> None:
        """Let go of what was kept for servers to come."""
        self._lives.close()

    # ---- for one server -----------------------------------------------------------------------------------

    def spawn(self, number: int, control: int, block: int) -> Child:
        """Start the process of a server. Raises OSError."""
        fds = {name: self._fds[name] for name in SHARED if name in self._fds}
        fds |= {"ring": self._rings[number], "control": control, **self._lives.of(number)}
        at = number - self._first
        role = f"server-{at}" if at else "server"
        numbers = {
            **self._given, "number": number, "first": self._first, "servers": len(self._rings),
            "redelivery": int(self.redelivery), "arena": self.arena_number, "block": block,
        }  # fmt: skip
        return Child("nopfsfs.server.process", Handoff(role, self._config, fds, numbers))

    def pass_on(self, interrupt: messages.Interrupt, sender: ServerHandle) -> None:
        """A request was interrupted that the sender has not taken: another server has."""
        for server in self._servers:
            if server is not sender:
                server.send(interrupt)

    def goes_on_without(self, server: ServerHandle, child: Child) -> bool:
        """A server is gone. True: another is to take its place, and what it had taken comes to another."""
        status = child.status
        if server.process.stopping or status == 0:  # the connection has ended, and so have all of them or will
            log.info("%s has ended", server.name)
        elif not self.lasting or not server.ready.is_set() or (status == OTHER_VERSION and not self.serving):
            # Nobody answers what was taken: the connection must end, so that nobody waits.
            log.error("%s ended: status %s", server.name, status)
            self.failed = True
        else:
            if self.redelivery is Redelivery.KERNEL:
                self._resend()
            elif child.status is not None or child.main_thread_ended:
                self.block_left(server.block)
            else:
                self.block_left(server.block, final=False)
                self._nursery.start_soon(self._left_at_last, child, server.block)
            return True
        server.ready.set()
        self.over.set()
        return False

    # ---- what dead servers had taken ----------------------------------------------------------------------

    def redeliver_inherited(self) -> None:
        """Have answered what servers of the supervisor before had taken, which have ended, or are asleep."""
        if self.redelivery is Redelivery.KERNEL:
            self._resend()
        for block in self._left.inherited if self._left is not None else ():
            pid, started, _ = LeftBlock(self._fds["taken"], block).owner
            self.block_left(block, final=has_ended(pid, started) or pid not in living_threads(pid))

    def _resend(self) -> None:
        try:
            resend(self._fds["fuse"])
        except OSError as e:
            log.info("nothing to be delivered again: %s", e)  # the connection has ended

    def assign_block(self) -> int:
        """Return a free block for a process that is to be started; NO_BLOCK where there are none. Raises OSError."""
        return NO_BLOCK if self._left is None else self._left.assign()

    def block_left(self, block: int, *, final: bool = True) -> None:
        """The process of a block is gone, or was not started. Not `final`: it may yet take a request."""
        if self._left is not None and block != NO_BLOCK:
            self._left.left(block, final=final)
            self.hand_out()

    async def _left_at_last(self, child: Child, block: int) -> None:
        """A process is asleep with its main thread, which may be about to take a request: look again at its end."""
        await child.ended()
        self.block_left(block)

    def hand_out(self) -> None:
        """Tell a server of each left block that has no heir."""
        if self._left is None:
            return
        living = {s.block: s for s in self._servers if s.process.living is not None and s.process.living.running}
        for block, heir in self._left.hand_out(list(living)):
            living[heir].send(messages.TakeOver(block))  # one that does not take it is dying: then there is another

    def taken_over(self, block: int) -> None:
        """A server has taken over what was in a block."""
        if self._left is not None:
            self._left.taken_over(block)
            self.hand_out()


def number_of_servers(config: MountConfig) -> int:
    """The number of servers that was asked for; else one for each four cores, one at least and four at most. One
    suffices for some 20,000 files a second; more let a hit overtake another that is being copied. Without the fast path
    there is one: the kernel says INIT once."""
    if not config.fast_path:
        return 1
    if config.servers is not None:
        return config.servers
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))
