"""The supervisor process: holds the FUSE descriptor, serves nothing; owns plan, policy, and the life of the others.

Its life: make the shared memory, start server and stager, see that the mount answers, tell `nopfs-mount`, then
follow the reader until the mount is gone. One nursery; the exit stack closes what was made, in reverse order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import trio

from nopfsfs.control import orphans
from nopfsfs.control.process_list import end_writer, read_pids, wait_all, write_pids
from nopfsfs.dataset import index_file
from nopfsfs.dataset.index import Index
from nopfsfs.errors import NopfsError
from nopfsfs.fuse import mount_table, passthrough
from nopfsfs.fuse.connection import BACKGROUND, CONGESTION, KernelSession, negotiate, passes_from, resend
from nopfsfs.fuse.mount_watch import MountWatch, is_over, is_used
from nopfsfs.fuse.mounting import Busy, may_mount, unmount
from nopfsfs.fuse.pyfuse3_pair import is_possible
from nopfsfs.policy import budget
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import (
    BLOCKS,
    FIRST_SERVER,
    LAYOUT,
    SUPERVISOR,
    Columns,
    Metric,
    MetricBlock,
    ServerGauges,
    Tier,
)
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.server_stager import Order
from nopfsfs.protocol.supervisor_peer import ALL_OTHERS
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.supervisor import control_socket, plan_worker
from nopfsfs.supervisor.arenas import Arenas
from nopfsfs.supervisor.cluster.placement_agreement import PlacementAgreement
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.leftovers import tidy
from nopfsfs.supervisor.measured_rates import MeasuredRates
from nopfsfs.supervisor.processes.children import Child
from nopfsfs.supervisor.processes.peer import PeerHandle
from nopfsfs.supervisor.processes.servers import ServerPool, number_of_servers
from nopfsfs.supervisor.processes.stager import StagerHandle
from nopfsfs.supervisor.progress_signal import NO_FAST_PATH, PASSED_THROUGH, ProgressSignal
from nopfsfs.supervisor.quiet import Quiet
from nopfsfs.supervisor.recheck_requests import Rechecks
from nopfsfs.supervisor.status_record import modes, record
from nopfsfs.system import end_switch, node_memory, shared_memory
from nopfsfs.system.outages import Outages, reason
from nopfsfs.system.process_setup import Handoff, begin, unbind
from nopfsfs.system.state_dirs import remove_state_dir
from nopfsfs.system.threads import living_threads
from nopfsfs.tiers import arena, page_cache
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.tier_directory import clear_leftovers

log = logging.getLogger(__name__)
END_LIMIT_S = 3.0  # for each process to end by itself
ANSWER_LIMIT_S = 30.0
RELIEF_LIMIT_S = 5.0  # for processes of another supervisor to end by themselves
MEMORY_PAUSE_S = 1.0
OVER_PAUSE_S = 0.5  # between two looks at whether the connection of a mount that is gone has ended
READ_AHEAD_KIB = 1024  # one READ, which is 1 MiB at most; less costs a tenth of the speed, more gains nothing
FURTHEST_LOOKED_AT = 1 << 20


class Supervisor:
    """See the module."""

    def __init__(self, handoff: Handoff, resources: contextlib.ExitStack) -> None:
        self._adopted = bool(handoff.numbers.get("adopted"))
        config = handoff.config
        if config.fast_path and not self._adopted and not is_possible():
            log.warning("this system allows no messages as long as a listing; going on without the fast path")
            config = dataclasses.replace(config, fast_path=False)
        self._config = config
        self._fds = handoff.fds
        self._resources = resources
        self._began = time.monotonic()
        self._state = "starting"
        self._ended = trio.Event()
        self._finished = trio.Event()
        self._stopping = False
        self._handed_over = False
        peer = self._fds.pop("peer", None)
        self._final: dict[str, Any] = {}
        self.index = index_file.load_fd(self._fds["index"])
        columns = Columns(self._fds["columns"], self.index.n, writable=True) if self._adopted else None
        self._charges = charges(self.index, columns)
        self._data = int(self._charges.sum())
        found = node_memory.measure()
        automatic = budget.automatic(found.available, self._data)
        self._configured = handoff.numbers.get("budget", config.ram if config.ram is not None else automatic)
        self._allowed = self._configured  # less, once it is known what is filled
        self._numbers = handoff.numbers
        self._pass_from = 0  # bytes: files of this size or more may be passed through; 0: none
        self._before = read_pids(config.state_dir) if self._adopted else ()
        self._outages = Outages()
        self._rings = self._make_shared()
        columns = Columns(self._fds["columns"], self.index.n, writable=True)
        gauge = MetricBlock(self._fds["gauges"], SUPERVISOR, writable=True).block
        how = "open" if config.signal == "tripwire" and not config.fast_path else config.signal
        tripwires = Tripwires(self.index.n_dirs, self.index.n, self.index.total_bytes)
        self._signal = ProgressSignal(how, tripwires, self.index.size, gauge, self._forget_attributes(columns))
        if not config.fast_path:
            self._signal.keep_open(NO_FAST_PATH)
        held = int(MetricBlock(self._fds["gauges"], writable=False).block[Metric.ARENA_USED])
        processes = 1 + number_of_servers(config)
        self._allowed = min(self._configured, budget.affordable(held, found.available, found.total, processes))
        if self._allowed < self._configured:
            log.warning("the memory budget is %d MiB for now, not %d: there is no more", self._allowed >> 20,
                        self._configured >> 20)  # fmt: skip
        rooms = [d.size if d.size is not None else 1 << 62 for d in config.disks]
        self.loop = EventLoop(
            server_rings=[Ring(fd, writable=False) for fd in self._rings[1:]],
            stager_ring=Ring(self._rings[0], writable=False),
            conductor=NodePolicy(self._charges, columns.paged, self._split(self._allowed), rooms),
            tier=columns.tier,
            gauge=gauge,
            signal=self._signal,
            outages=self._outages,
        )
        self._arenas = Arenas(self._fds, gauge, lambda: arena.create(self._configured))
        if self._adopted and self._arenas.number != handoff.numbers.get("arena", 0):
            # The supervisor before was about to change the arena: `slot` speaks of the other one.
            columns.tier[:] = Tier.NONE
            gauge[Metric.ARENA_NUMBER] = handoff.numbers.get("arena", 0)
        if self._adopted:
            self.loop.conductor.adopt(columns.tier == Tier.RAM)
        self._mount = mount_table.find_mount(config.mountpoint)
        self._plans = plan_worker.PlanWorker(self.loop, self.index, config)
        self._server_gauges = ServerGauges(self._fds["gauges"])
        self._stager_gauges = MetricBlock(self._fds["gauges"], writable=False)
        files = max(1, int(np.count_nonzero(self._charges)))
        self._rates = MeasuredRates(
            config.calibration, self._stager_gauges.block, self._data / files, disks=bool(config.disks)
        )
        self._rechecks = Rechecks(self.index, config.recheck, self._stager_gauges.block, self.loop.order)
        self._peering: PeerHandle | None = None
        self._placing: PlacementAgreement | None = None
        if peer is not None:
            self._peering = peering = PeerHandle(
                peer, self._fds["arena"], lambda sock: self.loop.introduce(sock, Order.PEER), self.stop
            )
            self._placing = peering.hearing = PlacementAgreement(
                config, self.loop, self.index, charges=charges(self.index), holder=columns.holder,
                say=lambda message: peering.say(ALL_OTHERS, message), say_to=peering.say,
            )  # fmt: skip
        if peer is None and columns.holder.any():  # of a supervisor that was killed, and its peers with it
            columns.holder[:] = 0
        self._quiet = Quiet(gauge)
        self._held: mount_table.HeldConnection | None = None
        self._session: KernelSession | None = None
        self._servers: ServerPool | None = None
        self._stagers: StagerHandle | None = None

        if config.page_cache is not None and config.page_cache > self._configured:
            log.warning("--page-cache is more than the memory there is; it may take %d MiB", self._configured >> 20)

    def _forget_attributes(self, columns: Columns) -> Callable[[], None]:
        return lambda: page_cache.forget_all_attributes(self._fds["fuse"], self.index.n_dirs, columns.version)

    def _split(self, total: int) -> budget.MemorySplit:
        return budget.split(total, self._data, self._config.page_cache)

    def _make_shared(self) -> list[int]:
        """Make the memory that is not there yet; the rings: the stager's, and one for each server."""
        fds = self._fds
        if not self._adopted:
            fds["columns"] = Columns.create(self.index.n)
            fds["arena"] = arena.create(self._configured)
            fds["gauges"] = MetricBlock.create()
            fds["modes"] = OpenModes.create(self.index.n)
        with contextlib.suppress(OSError):  # without, a supervisor that is stopped stays when the mount ends
            fds |= {"end": end_switch.create(), "end-stager": end_switch.create()}
            end_switch.arm(fds["end"])
        rings = [Ring.create(f"{number}") for number in range(1 + number_of_servers(self._config))]
        for fd in (*(fds[name] for name in fds if name != "ready"), *rings):
            self._resources.callback(_close, fd)
        return rings

    # ---- life ---------------------------------------------------------------------------------------------

    @property
    def _minor(self) -> int:
        """The mount's device number, 0 when there is none."""
        return self._mount.minor if self._mount is not None else 0

    async def run(self) -> None:
        """The whole life of the mount."""
        if self._mount is not None and may_mount():
            self._held = held = mount_table.HeldConnection(self._mount)
            self._resources.callback(held.close)
        async with trio.open_nursery() as nursery:
            await nursery.start(control_socket.serve, self._config.state_dir, self._answer)
            nursery.start_soon(self._signals)
            servers = self._servers = await self._start_servers(nursery)
            if self._adopted:
                self._write_pids()
                await self._end_predecessors()
            self._stagers = StagerHandle(
                self._config, self._fds, self._rings[0], servers, self.loop, self._write_pids, self._pass_from,
                self._outages, self._arenas, self._minor, self._peering,
            )  # fmt: skip
            if self._peering is not None:
                await self._peering.begin(self._config.state_dir)
                nursery.start_soon(self._peering.run)
            await self._stagers.start()
            nursery.start_soon(self._stagers.keep)
            for disk in self._config.disks:
                nursery.start_soon(tidy, disk.path, self._config.uid, lambda: self._stagers and self._stagers.child)
            await self._see_it_answer()
            self._write_pids()
            self._say_ready({})
            self._state = "running"
            for task in (self.loop.run, self._watch_mount, self._watch_memory):
                nursery.start_soon(task)
            nursery.start_soon(self._plans.run)
            nursery.start_soon(self._signal.run)
            if self._placing is not None:
                nursery.start_soon(self._placing.run)
            await self._ended.wait()
            await self._finish()
            with trio.move_on_after(1):  # whoever waits for the final record gets it
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def _start_servers(self, nursery: trio.Nursery) -> ServerPool:
        """Agree with the kernel upon what the mount can do, and start who answers."""
        session = None
        if self._adopted:
            self._pass_from = self._numbers["pass_from"]  # as before: opens were counted by it
            session = KernelSession(b"", bool(self._numbers["resend"]), self._pass_from > 0, bool(self._numbers["acl"]))
        elif self._config.fast_path:
            session = await trio.to_thread.run_sync(self._negotiate, abandon_on_cancel=True)
            self._pass_from = passes_from(self._config) if session.passthrough else 0
        if self._pass_from:
            log.info("files of %d bytes or more are passed through to disk", self._pass_from)
            self.loop.conductor.may_pass[:] = self.index.size >= self._pass_from
            if self.loop.conductor.may_pass.any():
                self._signal.keep_open(PASSED_THROUGH)
        self._session = session
        with contextlib.closing(orphans.listen(self._config.state_dir)) as listening:
            self._fds["adopt"] = os.dup(listening.fileno())
        self._resources.callback(_close, self._fds["adopt"])
        acl = self.index.any_acl if session is None else session.acl
        servers = ServerPool(
            self._config, self._fds, self._rings[1:], self._first_server(), session,
            {"budget": self._configured, "layout": LAYOUT, "pass_from": self._pass_from,
             "tripwires": int(self._signal.tripwires), "minor": self._minor, "arena": self._arenas.number,
             "acl": int(acl)},
            self.loop.introduce, self._write_pids, self._outages,
        )  # fmt: skip
        self._resources.callback(servers.close)
        await servers.start(nursery)
        nursery.start_soon(self._watch_servers, servers)
        return servers

    def _first_server(self) -> int:
        """Servers of another supervisor may still be counting: ours have other numbers."""
        if not self._adopted:
            return 0
        first = self._numbers["first"] + self._numbers["servers"]
        return first if first + len(self._rings) <= BLOCKS - FIRST_SERVER else 0

    async def _end_predecessors(self) -> None:
        """End the processes that the supervisor before had left: ours answer now. What was taken by one that does not
        end by itself comes again."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._before:
                process.signal(number)
            await trio.to_thread.run_sync(wait_all, self._before, RELIEF_LIMIT_S)
        left = [process.pid for process in self._before if process.alive()]
        left += await trio.to_thread.run_sync(end_writer, self._config.state_dir, RELIEF_LIMIT_S)
        self.loop.closes_were_lost()
        if left:
            if any("R" in living_threads(pid).values() for pid in left):
                raise OSError(errno.EBUSY, f"processes of the supervisor before do not end: {left}")
            log.error("processes of the supervisor before are asleep in the kernel: %s", left)
            self._arenas.spoil()  # they may yet read or write it
        if self._numbers["resend"]:
            with contextlib.suppress(OSError):  # the connection has ended
                resend(self._fds["fuse"])

    def _negotiate(self) -> KernelSession:
        wanted = passes_from(self._config) > 0
        session = negotiate(self._fds["fuse"], acl=self.index.any_acl, limit_s=ANSWER_LIMIT_S, passthrough=wanted)
        if wanted and not (session.passthrough and passthrough.is_permitted(self._fds["fuse"])):
            missing = "the right to (CAP_SYS_ADMIN)" if session.passthrough else "a kernel that does (Linux 6.9)"
            log.log(logging.WARNING if self._config.passthrough == "on" else logging.INFO,
                    "files are not passed through: that needs %s", missing)  # fmt: skip
            session = dataclasses.replace(session, passthrough=False)
        self._fds["init"] = shared_memory.create("init", len(session.request))
        os.pwrite(self._fds["init"], session.request, 0)
        self._resources.callback(_close, self._fds["init"])
        return session

    async def _see_it_answer(self) -> None:
        """Look at the root through the mount, as a user would."""
        with trio.fail_after(ANSWER_LIMIT_S):
            await trio.to_thread.run_sync(os.stat, self._config.mountpoint, abandon_on_cancel=True)
        found = mount_table.find_mount(self._config.mountpoint)
        if found is not None and not mount_table.set_read_ahead(found, READ_AHEAD_KIB):
            log.info("the kernel reads ahead as far as it does for any mount: more takes root")
        if found is not None and not self._config.fast_path:
            mount_table.set_background(found, BACKGROUND, CONGESTION)

    def _say_ready(self, message: dict[str, str]) -> None:
        fd = self._fds.pop("ready", None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, json.dumps(message).encode())
            os.close(fd)

    def fail_start(self, reason: str) -> None:
        """Tell `nopfs-mount` why the mount will never answer."""
        self._say_ready({"error": reason})

    def _children(self) -> list[Child]:
        servers = self._servers.children if self._servers is not None else []
        stager = self._stagers.child if self._stagers is not None else None
        return [*servers, *([stager] if stager is not None else [])]

    def _write_pids(self) -> None:
        roles = {"supervisor": os.getpid()} | {c.role: c.pid for c in self._children()}
        # of the supervisor before, as long as they may live: whoever takes over from this one must know of all
        roles |= {f"server-before-{p.pid}": p.pid for p in self._before if p.alive()}
        for part in (self._servers, self._stagers):
            if part is not None:
                roles |= {f"{c.role}-asleep-{c.pid}": c.pid for c in part.asleep if c.status is None}
        try:
            write_pids(self._config.state_dir, roles)
        except OSError as e:
            log.error("the list of processes cannot be written: %s", e)

    @property
    def keeps_state(self) -> bool:
        """Whether the state directory is still of use: for the log of a failure, or for who takes over."""
        return self._state in ("failed", "running") or self._handed_over or (self._adopted and self._state != "ended")

    @property
    def failed(self) -> bool:
        return self._state == "failed"

    # ---- watching -----------------------------------------------------------------------------------------

    async def _watch_servers(self, servers: ServerPool) -> None:
        await servers.over.wait()
        if servers.failed and not self._stopping:
            # Open requests must fail now, and later ones too: closing the descriptor sees to both.
            log.error("there is no server; the mount is over")
            self._state = "failed"
        self._ended.set()

    async def _watch_mount(self) -> None:
        """When the mount is gone, let go of the tree: then the kernel ends the connection as soon as nobody has the
        mount open, and the mount is over."""
        with contextlib.closing(MountWatch(self._minor)) as watch:
            while not await trio.to_thread.run_sync(watch.gone):
                # A time limit beside the event: a missed one must not leave the mount half gone.
                with trio.move_on_after(5):
                    await trio.lowlevel.wait_readable(watch.fileno())
        log.info("the mountpoint is gone from this namespace")
        if self._stagers is not None:
            await self._stagers.let_go()
        while not is_over(self._fds["fuse"]):
            await trio.sleep(OVER_PAUSE_S)
            await self._end_what_nobody_uses()
        self._ended.set()  # servers see it, too, unless they are stopped

    async def _end_what_nobody_uses(self) -> None:
        """A stager that the kernel holds keeps the mount alive, though it is out of sight and nobody has it open."""
        holding = self._stagers.holding if self._stagers is not None else []
        asleep = self._stagers.asleep if self._stagers is not None else []
        if self._held is None or self._mount is None or not any(child in asleep for child in holding):
            return
        ours = [child.pid for child in (*holding, *self._children())]
        if not await trio.to_thread.run_sync(is_used, self._mount, ours):
            log.error("a stager that is asleep in the kernel keeps the mount; its connection is aborted")
            await trio.to_thread.run_sync(lambda held: held.abort(in_use=True), self._held)

    async def _watch_memory(self) -> None:
        """Shrink under memory pressure, grow back when it is over."""
        while True:
            await trio.sleep(MEMORY_PAUSE_S)
            self.loop.conductor.use_disk(self._rates.look())
            found = node_memory.measure()
            used = self._used()
            total = used["ram"] + used["page_cache"]
            allowed = budget.under_pressure(
                self._configured, self._allowed, total, found.available, found.total, used["ram"]
            )
            if allowed != self._allowed or self.loop.conductor.total != self._data:
                await self.resize(allowed)

    async def resize(self, allowed: int) -> None:
        """Take another memory budget, bytes, and make it hold."""
        if allowed != self._allowed:
            log.info("memory budget %d MiB, was %d MiB", allowed >> 20, self._allowed >> 20)
        self._allowed, self._data = allowed, self.loop.conductor.total
        split = self._split(allowed)
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
        for part in (self._servers, self._stagers):
            if part is not None:
                part.stopping = True  # what ends now is not replaced: others may have been told, too
        await self.loop.order(Order.QUIESCE)
        with contextlib.suppress(NopfsError):
            await trio.to_thread.run_sync(_unmount_or_detach, self._config.mountpoint)
        with trio.move_on_after(END_LIMIT_S):
            await self._ended.wait()
        self._ended.set()

    async def _finish(self) -> None:
        """End the processes, in this order: the server's last answers, then the stager, then the record."""
        if self._handed_over:
            return
        self._stopping = True
        if self._peering is not None:
            await self._peering.bye()
        for part in (self._servers, self._stagers):
            if part is not None:
                await part.end(END_LIMIT_S)
        for disk in self._config.disks:  # what a stager that was killed, or may not write there any more, has left
            with contextlib.suppress(OSError), trio.move_on_after(END_LIMIT_S):
                await trio.to_thread.run_sync(clear_leftovers, disk.path, self._config.uid, abandon_on_cancel=True)
        self.loop.drain()
        await self._plans.remember()
        if self._state != "failed":
            self._state = "ended"
        self._final = self.record()
        self._finished.set()

    async def _hand_over(self, request: dict[str, Any]) -> dict[str, Any]:
        """Leave the mount to its servers, until another supervisor takes over (`nopfs upgrade`)."""
        if self._servers is None or not self._servers.lasting:
            raise ValueError("this mount cannot be taken over: that needs the fast path, and Linux 6.9")
        if self._config.foreground:
            raise ValueError("this mount runs in the foreground: what had started it waits for this supervisor")
        if self._peering is not None and not self._peering.lost:
            raise ValueError("this mount has peers, which another supervisor could not go on with: mount them all anew")
        if self._state != "running":
            raise ValueError("this mount is still starting, or being taken over by another command: try again")
        if request.get("layout") != LAYOUT:
            raise ValueError("that version of nopfsfs does not understand the memory of this mount: mount it anew")
        log.info("handing over")
        self._handed_over = self._stopping = True
        if self._stagers is not None:
            await self._stagers.end(END_LIMIT_S)
        self._servers.abandon()
        self.loop.drain()
        await self._plans.remember()
        self._ended.set()
        return {}

    # ---- what it says -------------------------------------------------------------------------------------

    async def _answer(self, request: dict[str, Any], caller: control_socket.Caller) -> dict[str, Any]:
        match request.get("command"):
            case "status":
                return self.record()
            case "prepare-unmount":
                self._quiet.keep(caller)
                return {}
            case "stop":
                await self.stop()
                return {}
            case "plan":
                return await self._plans.describe(request)
            case "register":
                return await self._plans.register(request)
            case "recheck":
                return await self._rechecks.answer(request, self._stagers.child if self._stagers else None)
            case "forget":
                return await self._plans.forget()
            case "hand-over":
                return await self._hand_over(request)
            case "wait-final":
                await caller.unless_gone(self._finished.wait)
                return self._final
            case other:
                raise ValueError(f"no such command: {other!r}")

    def _used(self) -> dict[str, int]:
        stager = self._stager_gauges.block
        page_cache = max(0, self.loop.conductor.pages_used)
        return {"page_cache": page_cache, "ram": stager[Metric.ARENA_USED], "disk": stager[Metric.DISK_USED]}

    def record(self) -> dict[str, Any]:
        """The status record now."""
        split = self.loop.conductor.split
        disks = [d.size for d in self._config.disks if d.size is not None]
        processes: list[dict[str, Any]] = [{"role": "supervisor", "pid": os.getpid(), "running": True}]
        processes += [{"role": c.role, "pid": c.pid, "running": c.running} for c in self._children()]
        plan, k = self.loop.plan_status(self._config)
        counted = self._server_gauges.total()
        opens = int(counted[Metric.OPENS] + counted[Metric.TRIPWIRES])
        unobserved = max(0, opens - self.loop.pending - self.loop.observed)
        return record(
            state=self._state, source=self._config.source, mountpoint=self._config.mountpoint, plan=plan, k=k,
            predicted=self._signal.predicted, estimated=self._signal.estimated,
            server=self._signal.estimate(counted), stager=self._stager_gauges.block,
            budget={"total": self._allowed, "page_cache": split.pages, "ram": split.arena, "disk": sum(disks)},
            used=self._used(), processes=processes if self._state != "ended" else [], lost=unobserved,
            page_cache=self.loop.residence.status(), modes=self._modes(), rates=self._rates.status(),
            peers=self._peers(), recheck=self._rechecks.status(), off=self._off(),
            seconds=time.monotonic() - self._began,
        )  # fmt: skip

    def _off(self) -> list[dict[str, Any]]:
        """What is switched off now, here and in the stager."""
        said = self._stagers.pulse.said.get("off", []) if self._stagers is not None else []
        return [dict(one) for one in (*self._outages.all(), *said)]

    def _peers(self) -> dict[str, Any] | None:
        if self._peering is None or self._placing is None:
            return None
        return self._peering.status() | self._placing.status()

    def _modes(self) -> dict[str, Any]:
        config, session = self._config, self._session
        return modes(
            fast_path=config.fast_path, resend=session is not None and session.resend, passthrough=self._pass_from > 0,
            signal=self._signal.name, why=self._signal.why, privileged=may_mount(),
            servers=number_of_servers(config),
        )  # fmt: skip


def charges(index: Index, columns: Columns | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What each row costs the memory budget when it is held once (`budget.charges`), i64[n]. `columns`: of a mount that
    has run for a while, whose files may have changed."""
    size = index.size if columns is None else np.where(columns.version > 0, columns.new_size, index.size)
    regular = (index.mode & 0o170000) == 0o100000
    return np.where(regular, budget.charges(size), 0)


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
    if handoff.config.peers:
        unbind()
    failed = False
    with contextlib.ExitStack() as resources:
        supervisor = Supervisor(handoff, resources)
        try:
            trio.run(supervisor.run)
        except BaseException as e:
            log.exception("the supervisor failed")
            supervisor.fail_start(reason(e))
            failed = True
        finally:
            # After a failure the log stays there, until the next mount or nopfs-umount clears it away.
            if not supervisor.keeps_state:
                remove_state_dir(handoff.config.state_dir)
    # At once: a thread that still searches would be unwound where C++ does not allow it, and abort the process.
    logging.shutdown()
    os._exit(1 if failed or supervisor.failed else 0)


if __name__ == "__main__":
    main()
