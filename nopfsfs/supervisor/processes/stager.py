"""The stager of a mount: started, watched, replaced, for as long as the mount lives. Meanwhile servers read the source.

A stager that hangs is killed. It is seen dead before its successor uses its memory; one that the kernel holds, and that
may yet write to the arena, keeps its arena, and the successor gets another.
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
from nopfsfs.protocol.server_stager import Order
from nopfsfs.supervisor.arenas import Arenas
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.processes.children import Child, sequenced_pair
from nopfsfs.supervisor.processes.deaths import Deaths
from nopfsfs.supervisor.processes.peer import PeerHandle
from nopfsfs.supervisor.processes.servers import ServerPool
from nopfsfs.supervisor.pulse import Pulse
from nopfsfs.system.outages import Outages
from nopfsfs.system.patience import Patience
from nopfsfs.system.process_setup import Handoff

log = logging.getLogger(__name__)
LOOK_S = 0.5  # between two looks at whether it lives
SILENT_S, HANGS_S = 2.0, 10.0  # of silence, after which that is said, and after which it is replaced
START_S = 30.0  # for its first sign of life
BEGIN_S, LET_GO_S = 6.0, 2.0  # for it to begin, and for it to let go of its copy of the mount
ASLEEP_MOST = 3  # stagers that the kernel holds; as long as there are so many, no other is started
WHAT = "stager"
SHARED = ("index", "columns", "arena", "gauges", "modes", "end", "end-stager")


class StagerHandle:
    """Owns the stager process; `changed` is told when it is another."""

    def __init__(
        self, config: MountConfig, fds: dict[str, int], ring: int, servers: ServerPool, loop: EventLoop,
        changed: Callable[[], None], pass_from: int, outages: Outages, arenas: Arenas, minor: int,
        peering: PeerHandle | None = None,
    ) -> None:  # fmt: skip
        self._config, self._fds, self._ring = config, fds, ring
        self._servers, self._loop, self._changed = servers, loop, changed
        self._pass_from, self._peering = pass_from, peering
        self._outages, self._arenas, self._minor = outages, arenas, minor
        self._gauge = MetricBlock(fds["gauges"], writable=False).block
        self._deaths = Deaths(self._done, trio.current_time)
        self._mounted = True  # the mountpoint is there
        self.child: Child | None = None
        self.pulse = Pulse()
        self.asleep: list[Child] = []  # killed, and held by the kernel
        self.stopping = False

    async def start(self) -> None:
        """Raises OSError."""
        async with self._servers.changing:
            if self.stopping:
                raise OSError(errno.ECANCELED, "the mount ends, or another takes it over")
            if self._arenas.spoiled:
                demands = await self._change_arena()
            else:
                demands = await self._servers.connect(number=self._arenas.number)
            try:
                self.child = await self._spawn(demands)
            finally:
                for sock in demands:
                    sock.close()
            self._changed()  # it may write to the arena: whoever takes over must know of it
            await self._servers.welcomed()
        if self._peering is not None:
            await self._peering.introduce()
        self._deaths.started()

    async def _change_arena(self) -> list[socket.socket]:
        """As `ServerPool.connect`, and let all that use the arena take another. What was staged is lost. Raises
        OSError."""
        arena, number = self._arenas.next()
        log.warning("the arena is left to a process that does not end; nothing is staged in the next one yet")
        demands = await self._servers.connect(arena, number)
        self._servers.arena_number = number
        self._loop.forget_arena()
        self._arenas.took()
        if self._peering is not None:
            await self._peering.use_arena(self._fds["arena"])
        return demands

    def _done(self) -> int:
        return int(self._gauge[Metric.STAGED_FILES] + self._gauge[Metric.PUSHES_DONE])

    async def _spawn(self, demands: list[socket.socket]) -> Child:
        ours, theirs = sequenced_pair()
        self.pulse.close()
        self.pulse = pulse = Pulse()
        split = self._loop.conductor.split
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
            numbers = {"arena_budget": split.arena, "whole_limit": split.whole_limit, "range_budget": split.ranges}
            numbers |= {"pass_from": self._pass_from, "layout": LAYOUT, "minor": self._minor}
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

    # ---- watching -----------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Replace a stager that dies or hangs."""
        while True:
            why = await self._until_gone() if self.child is not None else "it could not be started"
            self._loop.detach_stager()
            if self.stopping:
                return
            self._outages.began(WHAT, why)
            self.child = None
            try:
                if self._peering is not None:
                    await self._peering.stager_gone()
            except OSError as e:  # the peer process may write to the arena for ever
                log.error("%s; another arena is used", e)
                self._arenas.spoil()
            if not await self._replace(why):
                return
            self._changed()

    async def _replace(self, why: str) -> bool:
        """False: the mount ends."""
        while not self.stopping:
            pause = self._deaths.pause()
            log.error("the stager is gone: %s; another is started%s", why, f" in {pause:g} s" if pause else "")
            await trio.sleep(pause)
            if len(self.asleep) >= ASLEEP_MOST:
                why = f"{len(self.asleep)} before it are asleep in the kernel, most likely on the source"
                self._deaths.started()
            elif not self.stopping:
                try:
                    await self.start()
                    return True
                except OSError as e:
                    why = f"it cannot be started: {e}"
                    self._deaths.started()
            self.child = None
            self._outages.began(WHAT, why)
            await trio.sleep(LOOK_S)
        return False

    async def _until_gone(self) -> str:
        """Wait until the stager runs no more, and see to it that it does not when it hangs; why it is gone."""
        child = self.child
        assert child is not None
        asleep = False
        async with trio.open_nursery() as nursery:

            async def see_it_hang() -> None:
                nonlocal asleep
                await self._silence(child)
                if await child.kill():
                    return
                asleep = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(see_it_hang)
            await child.ended()
            nursery.cancel_scope.cancel()
        if not asleep:
            return f"it ended with status {child.status}"
        self._left_asleep(child)
        return "it is asleep in the kernel, most likely on the source"

    def _left_asleep(self, child: Child) -> None:
        if child not in self.asleep:
            self.asleep.append(child)
        self._arenas.spoil()
        self._changed()

    async def _silence(self, child: Child) -> None:
        """Return when the stager has given no sign of life for too long."""
        pulse, patience = self.pulse, Patience()
        while True:
            self.asleep = [other for other in self.asleep if other.status is None]
            if pulse.take():
                patience.answered()
                child.running = True
                self._outages.ended(WHAT)
            pulse.ping()
            silent_s = patience.look(trio.current_time())
            if silent_s >= SILENT_S and pulse.heard:
                self._outages.began(WHAT, "it does not answer; the source is read meanwhile")
            if silent_s >= (HANGS_S if pulse.heard else START_S):
                log.error("the stager (pid %d) does not answer; killed", child.pid)
                return
            await trio.sleep(LOOK_S)

    # ---- the end ------------------------------------------------------------------------------------------

    async def let_go(self) -> None:
        """The mountpoint is gone: see that the stager's copy of the mount goes, too, which keeps the mount alive."""
        self._mounted = False
        await self._loop.order(Order.QUIESCE)
        if self.child is None:
            return
        with trio.move_on_after(BEGIN_S):  # one that has just been started
            await self._pulse_says(lambda: self.pulse.heard)
        with trio.move_on_after(LET_GO_S):
            await self._pulse_says(lambda: not self.pulse.said.get("holds", True))
        if self.pulse.said.get("holds", True) and self.child is not None and self.child.status is None:
            log.error("the stager does not let go of the mount; killed")
            child = self.child
            if not await child.kill():
                self._left_asleep(child)

    async def _pulse_says(self, what: Callable[[], bool]) -> None:
        while True:
            self.pulse.take()
            if what():
                return
            self.pulse.ping()
            await trio.sleep(LOOK_S / 4)

    @property
    def holding(self) -> list[Child]:
        """Stagers that have not ended, and may hold a copy of the mount."""
        return [child for child in (*self.asleep, *([self.child] if self.child else [])) if child.status is None]

    async def end(self, limit_s: float) -> None:
        self.stopping = True
        if self.child is not None and self.child not in self.asleep:
            await self._loop.order(Order.STOP)
            await self.child.end(limit_s)
