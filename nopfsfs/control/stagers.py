"""The stager of a mount: started, watched, replaced. Meanwhile, and after too many deaths, servers read the source."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.children import Child, sequenced_pair
from nopfsfs.control.deaths import Deaths
from nopfsfs.control.loop import EventLoop
from nopfsfs.control.peering import Peering
from nopfsfs.control.servers import Servers
from nopfsfs.fetch.wire import Order
from nopfsfs.fuse import handles
from nopfsfs.process import Handoff
from nopfsfs.tiers.columns import LAYOUT, Gauge, Gauges

log = logging.getLogger(__name__)


class Stagers:
    """Owns the stager process; `changed` is told when it is another."""

    def __init__(
        self, config: MountConfig, fds: dict[str, int], ring: int, servers: Servers, loop: EventLoop,
        changed: Callable[[], None], pass_from: int, peering: Peering | None = None,
    ) -> None:  # fmt: skip
        self._config, self._fds, self._ring = config, fds, ring
        self._servers, self._loop, self._changed = servers, loop, changed
        self._pass_from, self._peering = pass_from, peering
        self._gauge = Gauges(fds["gauges"], writable=False).block
        self._deaths = Deaths(self._done, trio.current_time)
        self.child: Child | None = None
        self.stopping = False

    async def start(self) -> None:
        """Raises OSError."""
        async with self._servers.changing:
            self.child = await self._spawn()
            self._changed()  # it may write to the arena: whoever takes over must know of it
            await self._servers.welcomed()
        if self._peering is not None:
            await self._peering.introduce()
        self._deaths.started()

    def _done(self) -> int:
        return int(self._gauge[Gauge.STAGED_FILES] + self._gauge[Gauge.PUSHES_DONE])

    async def _spawn(self) -> Child:
        demands = await self._servers.connect()
        ours, theirs = sequenced_pair()
        split = self._loop.conductor.split
        fds = {name: self._fds[name] for name in ("index", "columns", "arena", "gauges", "modes")}
        fds |= {"ring": self._ring, "orders": theirs.fileno()}
        fds |= {f"demands{number}": sock.fileno() for number, sock in enumerate(demands)}
        fds["fuse"] = handles.clone_connection(self._fds["fuse"])
        tree = await trio.to_thread.run_sync(handles.detached_tree, self._config.mountpoint)
        if tree is not None:
            fds["tree"] = tree
        numbers = {"arena_budget": split.arena, "whole_limit": split.whole_limit, "range_budget": split.ranges}
        numbers |= {"pass_from": self._pass_from, "layout": LAYOUT}
        try:
            stager = Child("nopfsfs.fetch.stager", Handoff("stager", self._config, fds, numbers))
        finally:
            os.close(fds["fuse"])
            if tree is not None:
                os.close(tree)
            for sock in (theirs, *demands):
                sock.close()
        self._loop.attach_stager(ours)
        stager.running = True
        return stager

    async def keep(self) -> None:
        """Replace a stager that dies."""
        while self.child is not None:
            status = await self.child.ended()
            self._loop.detach_stager()
            if self.stopping:
                return
            if self._peering is not None:
                await self._peering.stager_gone()
            pause = self._deaths.pause()
            if pause is None:
                log.error("the stager dies as soon as it is started; going on without one")
                self.child = None
            else:
                log.error("the stager ended with status %d; starting another", status)
                await trio.sleep(pause)
                await self._replace()
            self._changed()

    async def _replace(self) -> None:
        try:
            await self.start()
        except OSError as e:
            log.error("no other stager can be started: %s", e)
            self.child = None

    async def end(self, limit_s: float) -> None:
        self.stopping = True
        if self.child is not None:
            await self._loop.order(Order.STOP)
            await self.child.end(limit_s)
