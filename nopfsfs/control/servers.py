"""The servers of a mount: started, watched, replaced. A mount goes on as long as one can be started.

What a dead server had taken, the kernel delivers again. One that dies again and again is started with less and less:
first plain, as pass-through to the source, then after a pause that grows; in the end the mount is over.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.children import Child, sequenced_pair
from nopfsfs.control.deaths import Deaths
from nopfsfs.fuse.session import Session, resend
from nopfsfs.process import Handoff
from nopfsfs.tiers.columns import ServerGauges

log = logging.getLogger(__name__)
START_LIMIT_S = 30.0
DRAIN_LIMIT_S = 30.0
PING_S, PINGS = 2.0, 5  # a server that leaves so many unanswered hangs
SHARED = ("fuse", "index", "columns", "arena", "gauges", "init", "adopt")


class Server:
    """One server process, and what it has said."""

    def __init__(self, number: int, child: Child, control: socket.socket) -> None:
        self.number, self.child = number, child
        self.control = trio.socket.from_stdlib_socket(control)
        self.ready, self.drained = trio.Event(), trio.Event()
        self.unanswered = 0

    async def say(self, message: bytes, fd: int | None = None) -> None:
        """Raises OSError, trio.ClosedResourceError: it is gone."""
        if fd is None:
            await self.control.send(message)
        else:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little"))
            await self.control.sendmsg([message], [rights])

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
        self._introduce, self._changed = introduce, changed
        self._servers: dict[int, Server] = {}
        self._deaths = {number: Deaths(partial(gauges.done, number), trio.current_time) for number in numbers}
        self.changing = trio.Lock()  # a server, or the stager, is being replaced: not both at a time
        self.over = trio.Event()
        self.failed = False
        self.stopping = False

    @property
    def children(self) -> list[Child]:
        return [self._servers[number].child for number in sorted(self._servers)]

    async def start(self, nursery: trio.Nursery) -> None:
        """Returns when all answer requests. Raises RuntimeError, trio.TooSlowError."""
        with trio.fail_after(START_LIMIT_S):
            for number in self._rings:
                server = await self._spawn(number, None)
                nursery.start_soon(self._keep, server)
            for server in list(self._servers.values()):
                await server.ready.wait()
                if self.over.is_set():
                    raise RuntimeError("a server ended while it started")

    async def connect(self) -> list[socket.socket]:
        """Give every server a new stager's socket, and wait until none reads anything that the stager before had
        named. The stager's ends."""
        ends = []
        for server in list(self._servers.values()):
            ours, theirs = sequenced_pair()
            server.drained = trio.Event()
            try:
                await server.say(b"stager", theirs.fileno())
                drained = await self._drained(server)
            except (OSError, trio.ClosedResourceError):
                drained = False
            finally:
                theirs.close()
            if drained:
                ends.append(ours)
            else:
                # Dead: then it reads nothing. Or it hangs: then it must not read the arena ever again.
                ours.close()
                await server.child.end(0)
        return ends

    async def _drained(self, server: Server) -> bool:
        with trio.move_on_after(DRAIN_LIMIT_S):
            async with trio.open_nursery() as nursery:

                async def until(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until, server.drained.wait)
                nursery.start_soon(until, server.child.ended)
        return server.drained.is_set()

    async def end(self, limit_s: float) -> None:
        """Let all answer what they have taken, and end."""
        self.stopping = True
        servers = list(self._servers.values())
        for server in servers:
            try:
                await server.say(b"end")
            except (OSError, trio.ClosedResourceError):
                pass
        for server in servers:
            await server.child.end(limit_s)

    def abandon(self) -> None:
        """Let them serve on by themselves, until another supervisor takes over."""
        self.stopping = True
        for server in self._servers.values():
            server.control.close()

    # ---- one server ---------------------------------------------------------------------------------------

    async def _spawn(self, number: int, demands: socket.socket | None) -> Server:
        ours, theirs = sequenced_pair()
        fds = {name: self._fds[name] for name in SHARED if name in self._fds}
        fds |= {"ring": self._rings[number], "control": theirs.fileno()}
        if demands is not None:
            fds["demands"] = demands.fileno()
        at = number - self._first
        role = f"server-{at}" if at else "server"
        resent = int(self._session is not None and self._session.resend)
        numbers = {
            **self._given, "number": number, "first": self._first, "servers": len(self._rings), "resend": resent,
        }  # fmt: skip
        child = await trio.to_thread.run_sync(
            lambda: Child("nopfsfs.fuse.server", Handoff(role, self._config, fds, numbers))
        )
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
            if self._session is None or not self._session.resend or cannot_start:
                self._fail(server)
                return
            self._resend()
            successor = await self._replace(server)
            if successor is None:
                self._fail(server)
                return
            server = successor

    def _done(self, server: Server) -> None:
        """The connection has ended, and so have all of them or will."""
        log.info("server %d has ended", server.number)
        server.ready.set()
        self.over.set()

    def _fail(self, server: Server) -> None:
        """Nobody answers what was taken: the connection must end, so that nobody waits."""
        self.failed = True
        self._done(server)

    async def _replace(self, dead: Server) -> Server | None:
        """Another server in place of a dead one; None when that has been tried too often."""
        number = dead.number
        pause = self._deaths[number].pause()
        if pause is None:
            log.error("server %d cannot be kept alive", number)
            return None
        if pause:
            log.error("server %d dies as soon as it is started; in %g s another passes reads through to the source",
                      number, pause)  # fmt: skip
            await trio.sleep(pause)
        async with self.changing:
            ours, theirs = sequenced_pair()
            try:
                known = not pause and await self._introduce(ours)
                server = await self._spawn(number, theirs if known else None)
            finally:
                ours.close()
                theirs.close()
        self._changed()
        return server

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
            elif message == b"pong":
                server.unanswered = 0
            elif message.startswith(b"interrupt"):
                await self._pass_on(server, message)
            elif not message:
                return

    async def _pass_on(self, server: Server, message: bytes) -> None:
        """A request was interrupted that this server has not taken: another has."""
        for other in list(self._servers.values()):
            if other is not server:
                try:
                    await other.say(message)
                except (OSError, trio.ClosedResourceError):
                    continue

    async def _ping(self, server: Server) -> None:
        """End a server that hangs; then what it had taken comes again. Not where that would end the mount."""
        await server.ready.wait()
        while self._session is not None and self._session.resend:
            await trio.sleep(PING_S)
            server.unanswered += 1
            if server.unanswered > PINGS:
                log.error("server %d does not answer; killed", server.number)
                await server.child.end(0)
                return
            try:
                await server.say(b"ping")
            except (OSError, trio.ClosedResourceError):
                return


def number_of_servers(config: MountConfig) -> int:
    """As many as were asked for; else one for each four cores, one at least and four at most. One suffices for some
    20,000 files a second; more let a hit overtake another that is being copied. Without the fast path there is one:
    the kernel says INIT once."""
    if not config.fast_path:
        return 1
    if config.servers is not None:
        return config.servers
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))
