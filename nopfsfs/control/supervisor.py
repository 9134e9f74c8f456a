"""The supervisor process: holds the FUSE descriptor, serves nothing; owns plan, policy, and the life of the others.

Its life: make the shared memory, start server and stager, see that the mount answers, tell `nopfs-mount`, then
follow the reader until the mount is gone. One nursery; the exit stack closes what was made, in reverse order.
"""

from __future__ import annotations

import array
import contextlib
import json
import logging
import os
import select
import signal
import socket as sockets
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import trio

from nopfsfs.control import memory, plans, socket
from nopfsfs.control.children import Child, sequenced_pair
from nopfsfs.control.loop import EventLoop
from nopfsfs.control.pids import write_pids
from nopfsfs.control.record import record
from nopfsfs.dataset.index import Index
from nopfsfs.errors import NopfsError
from nopfsfs.fetch.wire import Order
from nopfsfs.fuse import handles, mountinfo
from nopfsfs.fuse.mounting import Busy, unmount
from nopfsfs.policy import budget
from nopfsfs.policy.conductor import Conductor
from nopfsfs.process import Handoff, begin
from nopfsfs.rundir import remove_state_dir
from nopfsfs.tiers import arena, shared
from nopfsfs.tiers.columns import Columns, Gauge, Gauges
from nopfsfs.tiers.disk import clear_leftovers
from nopfsfs.tiers.ring import Ring

log = logging.getLogger(__name__)
KERNEL_INODE_BYTES = 1024  # what a known inode and its name take in the kernel
END_LIMIT_S = 3.0  # for each process to end by itself
ANSWER_LIMIT_S = 30.0
RESTARTS, RESTART_WINDOW_S = 5, 60.0  # of the stager; then the mount goes on without one
MEMORY_PAUSE_S = 1.0
FURTHEST_LOOKED_AT = 1 << 20


class Supervisor:
    """See the module."""

    def __init__(self, handoff: Handoff, resources: contextlib.ExitStack) -> None:
        self._config = config = handoff.config
        self._fds = handoff.fds
        self._resources = resources
        self._began = time.monotonic()
        self._state = "starting"
        self._ended = trio.Event()
        self._finished = trio.Event()
        self._stopping = False
        self._final: dict[str, Any] = {}
        self.index = Index.load_fd(self._fds["index"])
        self._charges = charges(self.index)
        self._data = int(self._charges.sum())
        found = memory.measure()
        self._configured = config.ram if config.ram is not None else budget.automatic(found.available, self._data)
        self._allowed = self._configured
        self._make_shared()
        columns = Columns(self._fds["columns"], self.index.n, writable=True)
        rooms = [d.size if d.size is not None else 1 << 62 for d in config.disks]
        self.loop = EventLoop(
            server_ring=Ring(self._fds["server_ring"], writable=False),
            stager_ring=Ring(self._fds["stager_ring"], writable=False),
            conductor=Conductor(self._charges, columns.paged, budget.split(self._configured, self._data), rooms),
            tier=columns.tier,
        )
        self._plans = plans.Plans(self.loop, self.index, config)
        self._server_gauges = Gauges(self._fds["server_gauges"], writable=False)
        self._stager_gauges = Gauges(self._fds["stager_gauges"], writable=False)
        self._server: Child | None = None
        self._stager: Child | None = None

    def _make_shared(self) -> None:
        n = self.index.n
        made = {
            "columns": Columns.create(n),
            "arena": arena.create(self._configured),
            "server_ring": Ring.create("server"),
            "stager_ring": Ring.create("stager"),
            "server_gauges": Gauges.create("server"),
            "stager_gauges": Gauges.create("stager"),
        }
        self._fds.update(made)
        for fd in (*made.values(), self._fds["fuse"], self._fds["index"]):
            self._resources.callback(_close, fd)

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole life of the mount."""
        async with trio.open_nursery() as nursery:
            await nursery.start(socket.serve, self._config.state_dir, self._answer)
            nursery.start_soon(self._signals)
            await self._start_server(nursery)
            self._stager = await self._spawn_stager()
            nursery.start_soon(self._watch_stager)
            await self._see_it_answer()
            self._write_pids()
            self._say_ready({})
            self._state = "running"
            for task in (self.loop.run, self._watch_mount, self._watch_memory):
                nursery.start_soon(task)
            nursery.start_soon(self._plans.run)
            await self._ended.wait()
            await self._finish()
            with trio.move_on_after(1):  # whoever waits for the final record gets it
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def _start_server(self, nursery: trio.Nursery) -> None:
        ours, theirs = sequenced_pair()
        self._server_control = trio.socket.from_stdlib_socket(ours)
        self._demands, demands = sequenced_pair()
        fds = self._fds
        self._server = Child(
            "nopfsfs.fuse.server",
            Handoff("server", self._config, {
                "fuse": fds["fuse"], "control": theirs.fileno(), "demands": demands.fileno(), "index": fds["index"],
                "columns": fds["columns"], "arena": fds["arena"], "gauges": fds["server_gauges"],
                "stager_gauges": fds["stager_gauges"], "ring": fds["server_ring"],
            }, {}),
        )  # fmt: skip
        theirs.close()
        demands.close()
        with trio.fail_after(ANSWER_LIMIT_S):
            if await self._server_control.recv(64) != b"ready":
                raise RuntimeError(f"the server ended while it started (status {await self._server.ended()})")
        nursery.start_soon(self._watch_server, self._server)

    async def _spawn_stager(self) -> Child:
        ours, theirs = sequenced_pair()
        split = self.loop.conductor.split
        fds = {name: self._fds[name] for name in ("index", "columns", "arena")}
        fds |= {"gauges": self._fds["stager_gauges"], "ring": self._fds["stager_ring"]}
        fds |= {"orders": theirs.fileno(), "demands": self._demands.fileno()}
        fds["fuse"] = handles.clone_connection(self._fds["fuse"])
        tree = await trio.to_thread.run_sync(handles.detached_tree, self._config.mountpoint)
        if tree is not None:
            fds["tree"] = tree
        numbers = {"arena_budget": split.arena, "whole_limit": split.whole_limit, "range_budget": split.ranges}
        stager = Child("nopfsfs.fetch.stager", Handoff("stager", self._config, fds, numbers))
        for name in ("fuse", "tree"):
            if name in fds:
                os.close(fds[name])
        theirs.close()
        self._demands.close()
        self.loop.attach_stager(ours)
        return stager

    async def _see_it_answer(self) -> None:
        """Look at the root through the mount, as a user would."""
        with trio.fail_after(ANSWER_LIMIT_S):
            await trio.to_thread.run_sync(os.stat, self._config.mountpoint, abandon_on_cancel=True)

    def _say_ready(self, message: dict[str, str]) -> None:
        fd = self._fds.pop("ready", None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, json.dumps(message).encode())
            os.close(fd)

    def fail_start(self, reason: str) -> None:
        """Tell `nopfs-mount` why the mount will never answer."""
        self._say_ready({"error": reason})

    def _write_pids(self) -> None:
        roles = {"supervisor": os.getpid()}
        roles |= {c.role: c.pid for c in (self._server, self._stager) if c is not None}
        write_pids(self._config.state_dir, roles)

    @property
    def failed(self) -> bool:
        return self._state == "failed"

    # ---- watching -----------------------------------------------------------------------------------------

    async def _watch_server(self, server: Child) -> None:
        status = await server.ended()
        if status and not self._stopping:
            # Its open requests must fail now, and later ones too: closing the descriptor sees to both.
            log.error("the server ended with status %d; the mount is over", status)
            self._state = "failed"
        else:
            log.info("the server has ended")
        self._ended.set()

    async def _watch_stager(self) -> None:
        """Replace a stager that dies. Meanwhile, and after too many deaths, the server reads the source itself."""
        deaths: deque[float] = deque(maxlen=RESTARTS)
        while self._stager is not None:
            status = await self._stager.ended()
            self.loop.detach_stager()
            if self._stopping or self._ended.is_set():
                return
            deaths.append(trio.current_time())
            if len(deaths) == RESTARTS and deaths[-1] - deaths[0] < RESTART_WINDOW_S:
                log.error("the stager died %d times within %.0f s; going on without one", RESTARTS, RESTART_WINDOW_S)
                self._stager = None
            else:
                log.error("the stager ended with status %d; starting another", status)
                self._stager = await self._replace_stager()
            self._write_pids()

    async def _replace_stager(self) -> Child | None:
        """Another stager in place of a dead one; None when the server or the mount is gone too."""
        self._demands, theirs = sequenced_pair()
        try:
            if await self._give_to_server(theirs):
                return await self._spawn_stager()
        except (OSError, trio.ClosedResourceError) as e:
            log.error("no other stager can be started: %s", e)
        finally:
            self._demands.close()
        return None

    async def _give_to_server(self, demands: sockets.socket) -> bool:
        """Whether the server has taken the socket, and reads nothing any more that the stager before had named."""
        rights = (sockets.SOL_SOCKET, sockets.SCM_RIGHTS, array.array("i", [demands.fileno()]))
        try:
            await self._server_control.sendmsg([b"stager"], [rights])
        finally:
            demands.close()
        with trio.move_on_after(ANSWER_LIMIT_S):
            return bool(await self._server_control.recv(64) == b"drained")
        return False

    async def _watch_mount(self) -> None:
        """When the mount is gone, let go of the tree: then the kernel ends the connection, and the server ends."""
        with contextlib.ExitStack() as stack:
            changes = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, changes)
            epoll = stack.enter_context(select.epoll())
            epoll.register(changes, select.EPOLLPRI | select.EPOLLET)
            while await trio.to_thread.run_sync(mountinfo.find_mount, self._config.mountpoint) is not None:
                # A time limit beside the event: a missed one must not leave the mount half gone.
                with trio.move_on_after(5):
                    await trio.lowlevel.wait_readable(epoll.fileno())
                epoll.poll(0)
        log.info("the mountpoint is gone from this namespace")
        await self.loop.order(Order.QUIESCE)

    async def _watch_memory(self) -> None:
        """Shrink under memory pressure, grow back when it is over."""
        while True:
            await trio.sleep(MEMORY_PAUSE_S)
            found = memory.measure()
            used = self._used()
            total = used["ram"] + used["page_cache"]
            allowed = budget.under_pressure(self._configured, self._allowed, total, found.available, found.total)
            if allowed != self._allowed:
                await self.resize(allowed)

    async def resize(self, allowed: int) -> None:
        """Take another memory budget, bytes, and make it hold."""
        log.info("memory budget %d MiB, was %d MiB", allowed >> 20, self._allowed >> 20)
        self._allowed = allowed
        split = budget.split(allowed, self._data)
        self.loop.conductor.resize(split, self.loop.furthest(FURTHEST_LOOKED_AT))
        await self.loop.order(Order.BUDGET, np.array([split.whole_limit, split.ranges], np.int64), split.arena)

    async def _signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            async for number in received:
                log.info("signal %d: unmounting", number)
                await self.stop()

    # ---- the end ------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Unmount, lazily when it is busy, and end. Returns soon; the end follows."""
        if self._stopping:
            return
        self._stopping = True
        await self.loop.order(Order.QUIESCE)
        with contextlib.suppress(NopfsError):
            await trio.to_thread.run_sync(_unmount_or_detach, self._config.mountpoint)
        with trio.move_on_after(END_LIMIT_S):
            await self._ended.wait()
        self._ended.set()

    async def _finish(self) -> None:
        """End the processes, in this order: the server's last answers, then the stager, then the record."""
        self._stopping = True
        self._server_control.close()
        if self._server is not None:
            await self._server.end(END_LIMIT_S)
        if self._stager is not None:
            await self.loop.order(Order.STOP)
            await self._stager.end(END_LIMIT_S)
        for disk in self._config.disks:  # what a stager that was killed, or may not write there any more, has left
            with contextlib.suppress(OSError), trio.move_on_after(END_LIMIT_S):
                await trio.to_thread.run_sync(clear_leftovers, disk.path, abandon_on_cancel=True)
        self.loop.drain()
        if self._state != "failed":
            self._state = "ended"
        self._final = self.record()
        self._finished.set()

    # ---- what it says -------------------------------------------------------------------------------------

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.get("command"):
            case "status":
                return self.record()
            case "prepare-unmount":
                await self.loop.order(Order.QUIESCE)
                return {}
            case "stop":
                await self.stop()
                return {}
            case "plan":
                return await self._plans.describe(request)
            case "register":
                return await self._plans.register(request)
            case "forget":
                return await self._plans.forget()
            case "wait-final":
                await self._finished.wait()
                return self._final
            case other:
                raise ValueError(f"no such command: {other!r}")

    def _used(self) -> dict[str, int]:
        stager = self._stager_gauges.block
        pages = max(0, self.loop.conductor.pages_used)
        return {"page_cache": pages, "ram": stager[Gauge.ARENA_USED], "disk": stager[Gauge.DISK_USED]}

    def record(self) -> dict[str, Any]:
        """The status record now."""
        split = self.loop.conductor.split
        disks = [d.size for d in self._config.disks if d.size is not None]
        processes = [{"role": "supervisor", "pid": os.getpid()}]
        processes += [{"role": c.role, "pid": c.pid} for c in (self._server, self._stager) if c is not None]
        plan, k = self.loop.plan_status(self._config)
        return record(
            state=self._state, source=self._config.source, mountpoint=self._config.mountpoint, plan=plan, k=k,
            predicted=self.loop.predicted, server=self._server_gauges.block, stager=self._stager_gauges.block,
            budget={"total": self._allowed, "page_cache": split.pages, "ram": split.arena, "disk": sum(disks)},
            used=self._used(), processes=processes if self._state != "ended" else [], lost=self.loop.lost,
            seconds=time.monotonic() - self._began,
        )  # fmt: skip


def charges(index: Index) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What each row costs the memory budget when it is held once: whole pages, and the kernel's inode. i64[n]."""
    regular = (index.mode & 0o170000) == 0o100000
    rounded = -(-index.size // shared.PAGE) * shared.PAGE + KERNEL_INODE_BYTES
    return np.where(regular & (index.size > 0), rounded, 0).astype(np.int64)


def _unmount_or_detach(mountpoint: str) -> None:
    try:
        unmount(mountpoint)
    except Busy:
        unmount(mountpoint, lazy=True)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def main() -> None:
    handoff = begin(sys.argv)
    with contextlib.ExitStack() as resources:
        supervisor = Supervisor(handoff, resources)
        try:
            trio.run(supervisor.run)
        except BaseException as e:
            log.exception("the supervisor failed")
            supervisor.fail_start(_reason(e))
            raise SystemExit(1) from None
        finally:
            # After a failure the log stays there, until the next mount or nopfs-umount clears it away.
            if not supervisor.failed:
                remove_state_dir(handoff.config.state_dir)
    raise SystemExit(1 if supervisor.failed else 0)


def _reason(error: BaseException) -> str:
    while nested := getattr(error, "exceptions", None):  # of an exception group
        error = nested[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    main()
