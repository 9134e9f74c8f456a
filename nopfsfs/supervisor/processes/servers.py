"""The servers of a mount: started, watched, replaced. A mount goes on as long as one can be started.

What a dead server had taken, the kernel delivers again. A server that dies again and again is started without the
stager, each time after a longer pause. When none lives and many have died in vain, the mount is over: requests that
nobody answers would wait for ever.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from nopfsfs.config import MountConfig
from nopfsfs.fuse.connection import KernelSession, resend
from nopfsfs.protocol import supervisor_server as messages
from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.columns import ServerGauges
from nopfsfs.supervisor.processes.children import Child, sequenced_pair
from nopfsfs.supervisor.processes.death_pipes import DeathPipes
from nopfsfs.supervisor.processes.deaths import Deaths
from nopfsfs.system.outages import Outages
from nopfsfs.system.patience import Patience
from nopfsfs.system.process_setup import Handoff

log = logging.getLogger(__name__)
START_LIMIT_S = 30.0
KNOWN_LIMIT_S = 5.0
DRAIN_LIMIT_S = 30.0
PING_S, LOOK_S = 2.0, 0.5
HANGS_S = 10.0  # of silence, after which a server is killed and replaced
SHARED = ("fuse", "index", "columns", "arena", "gauges", "modes", "init", "adopt", "end", "end-stager")


class ServerHandle:
    """One server process, and what it has said."""

    def __init__(self, number: int, child: Child, control: socket.socket) -> None:
        self.number, self.child = number, child
        self.control = trio.socket.from_stdlib_socket(control)
        self.ready, self.drained, self.known = trio.Event(), trio.Event(), trio.Event()
        self.patience = Patience()
        self.asleep = trio.Event()  # it hung and was killed, and the kernel holds some of its threads
        self._link: socket.socket | None = None  # a copy of its end to the stager
        self._end = control

    def say(self, message: Message, *fds: int) -> bool:
        """Send a message, with descriptors; return False where the server does not take it."""
        try:
            socket.send_fds(self._end, [encode(message)], fds)
        except OSError:
            return False
        return True

    def know_stager(self, link: socket.socket, number: int, *arena: int) -> bool:
        """Give it its end of a socket to a stager; with another arena, if that is the stager's. As `say`."""
        self._forget_link()
        self._link = socket.socket(fileno=os.dup(link.fileno()))
        return self.say(messages.MeetStager(number), link.fileno(), *arena)

    def let_stager_go(self) -> None:
        """It runs no more, though it has not ended: let the stager see its end."""
        if self._link is not None and self.child.main_thread_ended:  # no answer is half given
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def _forget_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self._forget_link()
        self.control.close()


class ServerPool:
    """Owns the server processes, one for each of `rings`, with numbers from `first` on.

    `given`: what a supervisor that takes over is to know. `introduce` makes the stager know of a further server, by
    its end of the socket; False: there is none. `changed` is told when a process is another. `over`: all have ended, or
    cannot go on.
    """

    def __init__(
        self, config: MountConfig, fds: dict[str, int], rings: list[int], first: int, session: KernelSession | None,
        given: dict[str, int], introduce: Callable[[socket.socket], Awaitable[bool]], changed: Callable[[], None],
        outages: Outages,
    ) -> None:  # fmt: skip
        gauges, numbers = ServerGauges(fds["gauges"]), range(first, first + len(rings))
        self._config, self._fds, self._session, self._first = config, fds, session, first
        self._given = given
        self._rings = dict(zip(numbers, rings, strict=True))
        self._lives = DeathPipes(numbers)
        self._introduce, self._changed = introduce, changed
        self._servers: dict[int, ServerHandle] = {}
        self._deaths = {number: Deaths(partial(gauges.done, number), trio.current_time) for number in numbers}
        self.changing = trio.Lock()  # a server, or the stager, is being replaced: not both at a time
        self.arena_number = given.get("arena", 0)
        self.outages = outages
        self.asleep: list[Child] = []  # killed, and held by the kernel
        self.over = trio.Event()
        self.failed = False
        self.stopping = False

    @property
    def lasting(self) -> bool:
        """Whether what a dead server had taken can be had again."""
        return self._session is not None and self._session.resend

    @property
    def children(self) -> list[Child]:
        return [self._servers[number].child for number in sorted(self._servers)]

    async def start(self, nursery: trio.Nursery) -> None:
        """Returns when all answer requests. Raises RuntimeError, trio.TooSlowError."""
        with trio.fail_after(START_LIMIT_S):
            for number in self._rings:
                server = await self._spawn(number)
                nursery.start_soon(self._keep, server)
            for server in list(self._servers.values()):
                await server.ready.wait()
                if self.over.is_set():
                    raise RuntimeError("a server ended while it started")

    async def connect(self, arena: int | None = None, number: int = 0) -> list[socket.socket]:
        """Give every server a new stager's socket, and that stager's arena `number` if it is another one. Wait until
        none reads anything that the stager before had named. The stager's ends. Raises OSError."""
        ends = []
        if self.stopping:
            raise OSError(errno.ECANCELED, "the mount ends, or another takes it over")
        for server in list(self._servers.values()):
            ours, theirs = sequenced_pair()
            server.drained, server.known = trio.Event(), trio.Event()
            told = server.know_stager(theirs, number, *([] if arena is None else [arena]))
            theirs.close()
            if told and await _first(server.drained, server.child, DRAIN_LIMIT_S):
                ends.append(ours)
                continue
            ours.close()
            # Dead: then it reads nothing. Or it hangs: then it must not read the arena ever again.
            if not await server.child.kill():
                server.let_stager_go()
                server.asleep.set()
                if arena is None and not server.child.main_thread_ended:
                    for end in ends:
                        end.close()
                    raise OSError(errno.EBUSY, f"server {server.number} cannot be ended")
        return ends

    async def welcomed(self) -> None:
        """Wait, for a while, until the stager has said to all that it knows them: before, they read the source."""
        for server in list(self._servers.values()):
            await _first(server.known, server.child, KNOWN_LIMIT_S)

    async def end(self, limit_s: float) -> None:
        """Let all answer what they have taken, and end."""
        self.stopping = True
        async with trio.open_nursery() as nursery:
            for server in self._servers.values():
                server.say(messages.End())
                nursery.start_soon(server.child.end, limit_s)

    def abandon(self) -> None:
        """Let them serve on by themselves, until another supervisor takes over."""
        self.stopping = True
        for server in self._servers.values():
            server.control.close()

    def close(self) -> None:
        """Let go of what was kept for servers to come."""
        self._lives.close()

    # ---- one server ---------------------------------------------------------------------------------------

    async def _spawn(self, number: int) -> ServerHandle:
        ours, theirs = sequenced_pair()
        fds = {name: self._fds[name] for name in SHARED if name in self._fds}
        fds |= {"ring": self._rings[number], "control": theirs.fileno(), **self._lives.of(number)}
        at = number - self._first
        role = f"server-{at}" if at else "server"
        numbers = {
            **self._given, "number": number, "first": self._first, "servers": len(self._rings),
            "resend": int(self.lasting), "arena": self.arena_number,
        }  # fmt: skip
        try:
            child = await trio.to_thread.run_sync(
                lambda: Child("nopfsfs.server.process", Handoff(role, self._config, fds, numbers))
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        server = self._servers[number] = ServerHandle(number, child, ours)
        self._deaths[number].started()
        return server

    async def _keep(self, server: ServerHandle) -> None:
        """Watch a server and those that take its place."""
        first = server
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, server)
                nursery.start_soon(self._ping, server)
                await _first(server.asleep, server.child)
                nursery.cancel_scope.cancel()
            status = server.child.status
            if status is None:
                self.asleep.append(server.child)
            server.let_stager_go()
            server.close()
            if self.stopping or status == 0:
                self._done(server)
                return
            why = "asleep in the kernel" if status is None else f"status {status}"
            log.error("server %d ended: %s", server.number, why)
            self.outages.began(f"server {server.number}", f"it ended: {why}")
            cannot_start = server is first and not server.ready.is_set()
            if not self.lasting or cannot_start:
                self._fail(server)
                return
            self._resend()
            successor = await self._replace(server)
            if successor is None:
                self._give_up(server)
                return
            server = successor

    def _done(self, server: ServerHandle) -> None:
        """The connection has ended, and so have all of them or will."""
        log.info("server %d has ended", server.number)
        server.ready.set()
        self.over.set()

    def _give_up(self, server: ServerHandle) -> None:
        if self.stopping:
            self._done(server)
        else:
            self._fail(server)

    def _fail(self, server: ServerHandle) -> None:
        """Nobody answers what was taken: the connection must end, so that nobody waits."""
        self.failed = True
        self._done(server)

    async def _replace(self, dead: ServerHandle) -> ServerHandle | None:
        """Another server in place of a dead one; None when that has been tried too often."""
        number = dead.number
        deaths = self._deaths[number]
        while True:
            pause = deaths.pause()
            if deaths.hopeless and not self._others_live(number):
                log.error("server %d cannot be kept alive", number)
                return None
            if pause:
                log.error("server %d dies as soon as it is started; in %g s another passes reads through to the source",
                          number, pause)  # fmt: skip
                await trio.sleep(pause)
            async with self.changing:
                if self.stopping:
                    return None
                try:
                    server = await self._spawn(number)
                except OSError as e:  # no process, descriptor or memory to be had at this moment
                    log.error("server %d cannot be started: %s", number, e)
                    self.outages.began(f"server {number}", f"cannot be started: {e}")
                    deaths.started()
                    continue
                self._changed()  # before it may read the arena: whoever takes over must know of it
                if not pause:
                    await self._make_known(server)
            return server

    def _others_live(self, number: int) -> bool:
        return any(server.child.running for server in self._servers.values() if server.number != number)

    async def _make_known(self, server: ServerHandle) -> None:
        """Let the server and the stager, if there is one, know each other."""
        try:
            ours, theirs = sequenced_pair()
        except OSError as e:
            log.warning("server %d goes without the stager: %s", server.number, e)
            return
        try:
            if await self._introduce(ours):
                server.know_stager(theirs, self.arena_number)
        finally:
            ours.close()
            theirs.close()

    def _resend(self) -> None:
        try:
            resend(self._fds["fuse"])
        except OSError as e:
            log.info("nothing to be delivered again: %s", e)  # the connection has ended

    async def _listen(self, server: ServerHandle) -> None:
        while True:
            try:
                data = await server.control.recv(messages.MESSAGE_MAX)
            except (OSError, trio.ClosedResourceError):
                return
            if not data:
                return
            try:
                message = messages.from_server.decode(data)
            except ProtocolError as error:
                log.error("a message of server %d is of no use: %s", server.number, error)
                continue
            match message:
                case messages.Ready():
                    server.ready.set()
                    server.child.running = True
                    self.outages.ended(f"server {server.number}")
                case messages.ConnectionEnded():
                    self.over.set()
                case messages.Drained():
                    server.drained.set()
                case messages.StagerKnown():
                    server.known.set()
                case messages.Pong():
                    server.patience.answered()
                case messages.Interrupt():
                    for other in list(self._servers.values()):
                        if other is not server:
                            other.say(message)

    async def _ping(self, server: ServerHandle) -> None:
        """End a server that hangs; then what it had taken comes again. Not where that would end the mount."""
        with trio.move_on_after(START_LIMIT_S) as limit:
            await server.ready.wait()
        if limit.cancelled_caught:
            log.error("server %d does not begin to answer; killed", server.number)
            await self._end_hanging(server)
            return
        ping_at = 0.0
        while True:
            now = trio.current_time()
            if now >= ping_at:  # also where it is not replaced: so it knows that there is a supervisor
                server.say(messages.Ping())
                ping_at = now + PING_S
            if server.patience.look(now) >= HANGS_S and self.lasting:
                log.error("server %d does not answer; killed", server.number)
                await self._end_hanging(server)
                return
            await trio.sleep(LOOK_S)

    async def _end_hanging(self, server: ServerHandle) -> None:
        if not await server.child.kill():
            log.error("server %d is asleep in the kernel, most likely on the source; replaced", server.number)
            server.asleep.set()


async def _first(event: trio.Event, child: Child, limit_s: float = math.inf) -> bool:
    """Whether the event comes before the process ends, and within the limit."""
    with trio.move_on_after(limit_s):
        async with trio.open_nursery() as nursery:

            async def until(wait: Callable[[], Awaitable[object]]) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, event.wait)
            nursery.start_soon(until, child.ended)
    return event.is_set()


def number_of_servers(config: MountConfig) -> int:
    """As many as were asked for; else one for each four cores, one at least and four at most. One suffices for some
    20,000 files a second; more let a hit overtake another that is being copied. Without the fast path there is one:
    the kernel says INIT once."""
    if not config.fast_path:
        return 1
    if config.servers is not None:
        return config.servers
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))
