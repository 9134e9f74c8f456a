"""The stager of a mount, for as long as the mount lives. While there is none, servers read the source.

A stager is seen dead before its successor uses its memory. A stager that is asleep in the kernel, and may yet write to
the arena, keeps its arena, and the successor gets another.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

import trio

from nopfsfs.config import MountConfig
from nopfsfs.fuse import handles, mount_table
from nopfsfs.protocol.columns import LAYOUT, Metric, MetricBlock
from nopfsfs.protocol.supervisor_stager import BUDGETS, StagerCommand
from nopfsfs.supervisor.arenas import Arenas
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.processes.peer import PeerHandle
from nopfsfs.supervisor.processes.servers import ServerPool
from nopfsfs.supervisor.processes.supervised import Child, SupervisedProcess, sequenced_pair
from nopfsfs.supervisor.pulse import Pulse
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system.outages import SHORTAGE, Outages
from nopfsfs.system.process_setup import Handoff

log = logging.getLogger(__name__)
BEGIN_S, LET_GO_S = 6.0, 2.0  # for it to begin, and for it to let go of its copy of the mount
LOOK_S = 0.125  # between looks at whether it has
ASLEEP_MOST = 3  # stagers that the kernel holds; as long as there are so many, no other is started
SHARED = ("index", "columns", "arena", "gauges", "modes", "end", "end-stager")


class StagerHandle:
    """The role of the stager, and what the process that has it has said. `changed` is called when it is another."""

    name, replaceable, lives_alone, ping_s = "stager", True, False, 0.5

    def __init__(
        self, config: MountConfig, fds: dict[str, int], ring: int, servers: ServerPool, loop: EventLoop,
        commands: StagerSocket, changed: Callable[[], None], pass_from: int, outages: Outages, arenas: Arenas,
        minor: int, lanes: dict[str, int], peer: PeerHandle | None = None,
    ) -> None:  # fmt: skip
        """`lanes`: `ExpectedLanes.numbers`."""
        self._config, self._fds, self._ring = config, fds, ring
        self._servers, self._loop, self._commands = servers, loop, commands
        self._pass_from, self._peer = pass_from, peer
        self._arenas, self._minor, self._lanes = arenas, minor, lanes
        self._metrics = MetricBlock(fds["gauges"], writable=False).block
        self._mounted = True  # the mountpoint is there
        self.pulse = Pulse()
        self.process = SupervisedProcess(self, servers.starting, outages, changed)

    # ---- the role (`processes/supervised.py`) -------------------------------------------------------------

    async def start(self) -> Child:
        if (asleep := len(self.process.asleep)) >= ASLEEP_MOST:
            raise OSError(errno.EBUSY, f"{asleep} before it are asleep in the kernel, most likely on the source")
        if self._arenas.spoiled:
            demands = await self._change_arena()
        else:
            demands = await self._servers.connect(number=self._arenas.number)
        try:
            return await self._spawn(demands)
        finally:
            for sock in demands:
                sock.close()

    async def introduce(self, child: Child) -> None:
        await child.unless_gone(self._servers.welcomed)
        if self._peer is not None:
            await self._peer.introduce()

    async def listen(self, answered: Callable[[], None]) -> None:
        await self.pulse.listen(answered)

    def ping(self) -> bool:
        return self.pulse.ping()

    async def contain(self, child: Child) -> bool:
        """See that nobody writes to the arena any more, or that the next stager gets another one."""
        self._loop.detach_stager()
        if self.process.stopping:
            return False
        if child.status is None:
            self._arenas.spoil()
        try:
            if self._peer is not None:
                await self._peer.stager_gone()
        except SHORTAGE as e:  # the peer process may write to the arena for ever
            log.error("%s; another arena is used", e)
            self._arenas.spoil()
        return True

    def work_done(self) -> int:
        return int(self._metrics[Metric.STAGED_FILES] + self._metrics[Metric.PUSHES_DONE])

    # ---- its start ----------------------------------------------------------------------------------------

    async def _change_arena(self) -> list[socket.socket]:
        """Let all that use the arena take another one; return sockets as `ServerPool.connect`. All staged copies are
        lost. Raises OSError."""
        arena, number = self._arenas.next()
        log.warning("the arena is left to a process that does not end; nothing is staged in the next one yet")
        demands = await self._servers.connect(arena, number)
        self._loop.forget_arena()
        self._arenas.took()
        if self._peer is not None:
            await self._peer.use_arena(self._fds["arena"])
        return demands

    async def _spawn(self, demands: list[socket.socket]) -> Child:
        ours, theirs = sequenced_pair()
        self.pulse.close()
        self.pulse = pulse = Pulse()
        split = self._loop.policy.split
        fds = {name: self._fds[name] for name in SHARED if name in self._fds}
        fds |= {"ring": self._ring, "orders": theirs.fileno(), "pulse": pulse.give()}
        fds |= {f"demands{number}": sock.fileno() for number, sock in enumerate(demands)}
        with contextlib.ExitStack() as passed:
            passed.callback(theirs.close)
            passed.callback(pulse.given)
            fds["fuse"] = handles.clone_connection(self._fds["fuse"])
            passed.callback(os.close, fds["fuse"])
            tree = await trio.to_thread.run_sync(self._copy_of_mount)
            if tree is not None:
                fds["tree"] = tree
                passed.callback(os.close, tree)
            numbers = dict(zip(BUDGETS, split.for_stager, strict=True))
            numbers |= {"pass_from": self._pass_from, "layout": LAYOUT, "minor": self._minor, **self._lanes}
            stager = Child("nopfsfs.stager.process", Handoff("stager", self._config, fds, numbers))
        self._loop.attach_stager(ours)
        return stager

    def _copy_of_mount(self) -> int | None:
        """A descriptor of a detached copy of the mount; None where that is not permitted, or the mount is gone."""
        tree = handles.detached_tree(self._config.mountpoint) if self._mounted else None
        found = mount_table.find_mount(self._config.mountpoint)
        if tree is not None and (found is None or found.minor != self._minor):
            os.close(tree)  # of what the mountpoint is now
            return None
        return tree

    # ---- the end ------------------------------------------------------------------------------------------

    async def leave_mount(self) -> None:
        """The mountpoint is gone: see that the stager's copy of the mount goes, too, which keeps the mount alive."""
        self._mounted = False
        await self._commands.command(StagerCommand.QUIESCE)
        if self.process.living is None:
            return
        with trio.move_on_after(BEGIN_S):  # one that has just been started
            await self._pulse_says(lambda: self.pulse.heard)
        with trio.move_on_after(LET_GO_S):
            await self._pulse_says(lambda: not self.pulse.said.get("holds", True))
        stager = self.process.living
        if self.pulse.said.get("holds", True) and stager is not None:
            log.error("the stager does not let go of the mount; killed")
            await stager.kill()

    async def _pulse_says(self, what: Callable[[], bool]) -> None:
        while not what():
            self.pulse.ping()
            await trio.sleep(LOOK_S)

    async def end(self, limit_s: float) -> None:
        """Let the stager end by itself, within the limit."""
        self.process.stopping = True
        if (stager := self.process.living) is not None:
            await self._commands.command(StagerCommand.STOP)
            await stager.end(limit_s)
