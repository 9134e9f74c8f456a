"""The servers of a mount: started, watched, replaced. A mount goes on as long as one can be started.

What a dead server had taken, the kernel delivers again. One that dies again and again is started with less and less:
first plain, as pass-through to the source, then after a pause that grows; in the end the mount is over.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.children import Child, sequenced_pair
from nopfsfs.control.deaths import Deaths
from nopfsfs.control.lives import Lives
from nopfsfs.fuse.session import Session, resend
from nopfsfs.process import Handoff
from nopfsfs.tiers.columns import ServerGauges

log = logging.getLogger(__name__)
START_LIMIT_S = 30.0
KNOWN_LIMIT_S = 5.0
DRAIN_LIMIT_S = 30.0
PING_S, PINGS = 2.0, 5  # a server that leaves so many unanswered hangs
SHARED = ("fuse", "index", "columns", "arena", "gauges", "modes", "init", "adopt")


class Server:
    """One server process, and what it has said."""

    def __init__(self, number: int, child: Child, control: socket.socket) -> None:
        self.number, self.child = number, child
        self.control = trio.socket.from_stdlib_socket(control)
        self.ready, self.drained, self.known = trio.Event(), trio.Event(), trio.Event()
        self.unanswered = 0
        self._end = control

    def say(self, message: bytes, fd: int | None = None) -> bool:
        """Whether it will hear that: it is there, and takes what it is told."""
        try:
            if fd is None:
                self._end.send(message)
            else:
                socket.send_fds(self._end, [message], [fd])
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.control.close()


class Servers:
    """Owns the server processes, one for each of `rings`, with numbers from `first` on.

    `given`: what a supervisor that takes over is to know. `introduce` makes the stager know of a further server, by
    its end of the socket; False: there is none. `changed` is told when a process is another. `over`: all have ended, or
    cannot go on.
    """

    def __init__(
        self, config: MountConfig, fds: dict[str, int], rings: list[int], first: int, session: Session | None,
        given: dict[str, int], introduce: Callable[[socket.socket], Awaitable[bool]], changed: Callable[[], None],
    ) -> None:  # fmt: skip
        gauges, numbers = ServerGauges(fds["gauges"]), range(first, first + len(rings))
        self._config, self._fds, self._session, self._first = config, fds, session, first
        self._given = given
        self._rings = dict(zip(numbers, rings, strict=True))
        self._lives = Lives(numbers)
        self._introduce, self._changed = introduce, changed
        self._servers: dict[int, Server] = {}
        self._deaths = {number: Deaths(partial(gauges.done, number), trio.current_time) for number in numbers}
        self.changing = trio.Lock()  # a server, or the stager, is being replaced: not both at a time
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

    async def connect(self) -> list[socket.socket]:
        """Give every server a new stager's socket, and wait until none reads anything that the stager before had
        named. The stager's ends."""
        ends = []
        if self.stopping:
            raise OSError(errno.ECANCELED, "the mount ends, or another takes it over")
        for server in list(self._servers.values()):
            ours, theirs = sequenced_pair()
            server.drained, server.known = trio.Event(), trio.Event()
            told = server.say(b"stager", theirs.fileno())
            theirs.close()
            if told and await _first(server.drained, server.child, DRAIN_LIMIT_S):
                ends.append(ours)
                continue
            ours.close()
            # Dead: then it reads nothing. Or it hangs: then it must not read the arena ever again.
            await server.child.end(0)
            with trio.move_on_after(DRAIN_LIMIT_S) as limit:
                await server.child.ended()
            if limit.cancelled_caught:
                raise OSError(errno.EBUSY, f"server {server.number} cannot be ended")
        return ends

    async def welcomed(self) -> None:
        """Wait, for a while, until the stager has said to all that it knows them: before, they read the source."""
        for server in list(self._servers.values()):
            await _first(server.known, server.child, KNOWN_LIMIT_S)

    async def end(self, limit_s: float) -> None:
        """Let all answer what they have taken, and end."""
        self.stopping = True
        servers = list(self._servers.values())
        for server in servers:
            server.say(b"end")
        for server in servers:
            await server.child.end(limit_s)

    def abandon(self) -> None:
        """Let them serve on by themselves, until another supervisor takes over."""
        self.stopping = True
        for server in self._servers.values():
            server.control.close()

    def close(self) -> None:
        """Let go of what was kept for servers to come."""
        self._lives.close()

    # ---- one server ---------------------------------------------------------------------------------------

    async def _spawn(self, number: int) -> Server:
        ours, theirs = sequenced_pair()
        fds = {name: self._fds[name] for name in SHARED if name in self._fds}
        fds |= {"ring": self._rings[number], "control": theirs.fileno(), **self._lives.of(number)}
        at = number - self._first
        role = f"server-{at}" if at else "server"
        numbers = {
            **self._given, "number": number, "first": self._first, "servers": len(self._rings),
            "resend": int(self.lasting),
        }  # fmt: skip
        try:
            child = await trio.to_thread.run_sync(
                lambda: Child("nopfsfs.fuse.server", Handoff(role, self._config, fds, numbers))
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        server = self._servers[number] = Server(number, child, ours)
        self._deaths[number].started()
        return server

    async def _keep(self, server: Server) -> None:
        """Watch a server and those that take its place."""
        first = server
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, server)
                nursery.start_soon(self._ping, server)
                status = await server.child.ended()
                nursery.cancel_scope.cancel()
            server.close()
            if self.stopping or status == 0:
                self._done(server)
                return
            log.error("server %d ended with status %d", server.number, status)
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

    def _done(self, server: Server) -> None:
        """The connection has ended, and so have all of them or will."""
        log.info("server %d has ended", server.number)
        server.ready.set()
        self.over.set()

    def _give_up(self, server: Server) -> None:
        if self.stopping:
            self._done(server)
        else:
            self._fail(server)

    def _fail(self, server: Server) -> None:
        """Nobody answers what was taken: the connection must end, so that nobody waits."""
        self.failed = True
        self._done(server)

    async def _replace(self, dead: Server) -> Server | None:
        """Another server in place of a dead one; None when that has been tried too often."""
        number = dead.number
        while (pause := self._deaths[number].pause()) is not None:
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
                    self._deaths[number].started()
                    continue
                self._changed()  # before it may read the arena: whoever takes over must know of it
                if not pause:
                    await self._make_known(server)
            return server
        log.error("server %d cannot be kept alive", number)
        return None

    async def _make_known(self, server: Server) -> None:
        """Let the server and the stager, if there is one, know each other."""
        try:
            ours, theirs = sequenced_pair()
        except OSError as e:
            log.warning("server %d goes without the stager: %s", server.number, e)
            return
        try:
            if await self._introduce(ours):
                server.say(b"stager", theirs.fileno())
        finally:
            ours.close()
            theirs.close()

    def _resend(self) -> None:
        try:
            resend(self._fds["fuse"])
        except OSError as e:
            log.info("nothing to be delivered again: %s", e)  # the connection has ended

    async def _listen(self, server: Server) -> None:
        while True:
            try:
                message = await server.control.recv(64)
            except (OSError, trio.ClosedResourceError):
                return
            if message == b"ready":
                server.ready.set()
                server.child.running = True
            elif message == b"drained":
                server.drained.set()
            elif message == b"known":
                server.known.set()
            elif message == b"pong":
                server.unanswered = 0
            elif message.startswith(b"interrupt"):
                # a request was interrupted that this server has not taken: another has
                for other in list(self._servers.values()):
                    if other is not server:
                        other.say(message)
            elif not message:
                return

    async def _ping(self, server: Server) -> None:
        """End a server that hangs; then what it had taken comes again. Not where that would end the mount."""
        with trio.move_on_after(START_LIMIT_S) as limit:
            await server.ready.wait()
        if limit.cancelled_caught:
            log.error("server %d does not begin to answer; killed", server.number)
            await server.child.end(0)
        while self.lasting:
            await trio.sleep(PING_S)
            server.unanswered += 1
            if server.unanswered > PINGS:
                log.error("server %d does not answer; killed", server.number)
                await server.child.end(0)
                return
            server.say(b"ping")


async def _first(event: trio.Event, child: Child, limit_s: float) -> bool:
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
