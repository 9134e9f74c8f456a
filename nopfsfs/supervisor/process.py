"""The supervisor process: holds the FUSE descriptor, serves nothing; owns plan, policy, and the life of the others.

Its life: make the shared memory, start servers and stager, see that the mount answers, tell `nopfs-mount`. Then follow
the reader until the mount is gone. One nursery; the exit stack closes what was made, in reverse order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import sys
from functools import partial
from typing import Any

import trio

from nopfsfs.control import orphans
from nopfsfs.dataset import index_file
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import LAYOUT, Tier
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.supervisor import control_socket
from nopfsfs.supervisor.arenas import Arenas
from nopfsfs.supervisor.cluster.copy_handover import CopyHandover
from nopfsfs.supervisor.cluster.kept_news import KeptNews
from nopfsfs.supervisor.cluster.placement_agreement import PlacementAgreement
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.file_requests import FileRequests
from nopfsfs.supervisor.final_report import leave_final_report
from nopfsfs.supervisor.leftovers import clear_disks, tidy
from nopfsfs.supervisor.measured_rates import MeasuredRates
from nopfsfs.supervisor.memory_budget import MemoryBudget, configured_bytes
from nopfsfs.supervisor.mount_connection import MountConnection, possible
from nopfsfs.supervisor.mount_memory import MountMemory, charges, close
from nopfsfs.supervisor.node_promises import NodePromises
from nopfsfs.supervisor.observing.access_log import AccessLog
from nopfsfs.supervisor.observing.figures import Figures
from nopfsfs.supervisor.observing.observer import Observer
from nopfsfs.supervisor.observing.parts import MountParts
from nopfsfs.supervisor.observing.stacks import python_stacks
from nopfsfs.supervisor.observing.status_report import StatusReport
from nopfsfs.supervisor.plan_worker import PlanWorker
from nopfsfs.supervisor.processes.peer import PeerHandle
from nopfsfs.supervisor.processes.servers import ServerPool, number_of_servers
from nopfsfs.supervisor.processes.stager import StagerHandle
from nopfsfs.supervisor.processes.supervised import SupervisedProcess
from nopfsfs.supervisor.progress_signal import NO_FAST_PATH, PASSED_THROUGH, ProgressSignal
from nopfsfs.supervisor.quiet import Quiet
from nopfsfs.supervisor.recheck_requests import Rechecks
from nopfsfs.supervisor.site_policy import SitePolicy
from nopfsfs.supervisor.source_tuning import SourceTuning
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.supervisor.succession import Succession, check_hand_over
from nopfsfs.system.outages import Outages, reason
from nopfsfs.system.process_setup import Handoff, begin, unbind
from nopfsfs.system.state_dirs import StateDir
from nopfsfs.tiers import arena, page_cache

log = logging.getLogger(__name__)
END_LIMIT_S = 3.0  # for each process to end by itself


class Supervisor:
    """Wires the parts, and answers requests. What is made is closed with `resources`."""

    def __init__(self, handoff: Handoff, resources: contextlib.ExitStack) -> None:
        self._given = handoff.numbers if handoff.numbers.get("adopted") else None  # by a supervisor before
        self._config = config = handoff.config if self._given is not None else possible(handoff.config)
        self._fds, self._resources = handoff.fds, resources
        self._state = "starting"
        self._ended, self._finished = trio.Event(), trio.Event()
        self._stopping = self._handed_over = self.failed = False
        self._final: dict[str, Any] = {}
        self.index = index_file.load_fd(self._fds["index"])
        self.state_dir = StateDir(config.state_dir)
        self._succession = Succession(self.state_dir.here, self._given)
        self._outages = Outages()
        self._processes: list[SupervisedProcess] = []
        self._servers: ServerPool | None = None
        self._stager: StagerHandle | None = None
        self._stager_socket = StagerSocket()
        peer, servers = self._fds.pop("peer", None), number_of_servers(config)
        self._memory = MountMemory(self._fds, self.index, servers, resources, first=self._given is None)
        stager_metrics, costs = self._memory.stager_metrics, self._memory.charges
        node = NodePromises(self.state_dir.here, os.path.dirname(config.state_dir))
        with node.claimed():
            configured = configured_bytes(config, handoff.numbers.get("budget"), int(costs.sum()), node)
            self._budget = MemoryBudget(configured, costs, config.page_cache, stager_metrics, 1 + servers, node)
        self._arenas = Arenas(self._fds, self._memory.metrics, partial(arena.create, configured))
        resources.callback(close, self._fds["arena"])
        self._signal = self._make_signal()
        self.loop = self._make_loop(peer)
        self._plans = PlanWorker(self.loop, self.index, config)
        self._rates = MeasuredRates(config.calibration, stager_metrics, costs, disks=bool(config.disks))
        self._rechecks = Rechecks(self.index, config.recheck, stager_metrics, self._stager_socket.command)
        self._quiet = Quiet(self._memory.metrics)
        self._tuning = SourceTuning.of(config, self._memory, self._stager_socket, self._outages, self.loop, self._job)
        self._policy = SitePolicy(config, self._tuning.follow_site)
        self._mount = MountConnection(config, self._fds, resources, handoff.numbers, any_acl=self.index.any_acl)
        self._parts = MountParts(
            config, self.index, self._memory, self.loop, self._signal, self._budget, self._rates, self._rechecks,
            self._tuning, self._policy, self._mount, self._processes, self._peers, self._off,
        )  # fmt: skip
        self._observer = Observer(self._parts)
        self._figures = Figures(self._parts, self._observer)
        self._status = StatusReport(self._parts, self._observer)
        self._access_log = AccessLog(self.index, self.loop)
        self._file_requests = FileRequests(self.index, self.loop, stager_metrics)

    def _make_signal(self) -> ProgressSignal:
        config, memory = self._config, self._memory
        how = "open" if config.signal == "tripwire" and not config.fast_path else config.signal
        tripwires = Tripwires(self.index.n_dirs, self.index.n, self.index.total_bytes)

        def forget() -> None:
            page_cache.forget_all_attributes(self._fds["fuse"], self.index.n_dirs, memory.columns.version)

        signal = ProgressSignal(how, tripwires, self.index.size, memory.metrics, forget)
        if not config.fast_path:
            signal.keep_open(NO_FAST_PATH)
        return signal

    def _make_loop(self, peer: int | None) -> EventLoop:
        """Make the event loop, and what agrees with other nodes. `peer`: a socket to the peer process."""
        memory, columns = self._memory, self._memory.columns
        room = [disk.size if disk.size is not None else 1 << 62 for disk in self._config.disks]
        policy = NodePolicy(memory.charges, columns.paged, self._budget.split, room, keeps_large=peer is None)
        if self._given is not None:
            self._arenas.adopt(self._given.get("arena", 0), columns.tier)
            policy.adopt(columns.tier == Tier.RAM)
        self._peer: PeerHandle | None = None
        self._job: PlacementAgreement | None = None
        make = partial(
            EventLoop, memory.server_rings, memory.stager_ring, policy, columns.tier, memory.metrics,
            self._stager_socket, self._outages, self._signal,
        )  # fmt: skip
        if peer is None:
            if columns.holder.any():  # of a supervisor that was killed, and its peers with it
                columns.holder[:] = 0
            return make()
        introduce = partial(self._stager_socket.introduce, command=StagerCommand.PEER)
        peers = self._peer = PeerHandle(peer, self._fds["arena"], introduce, self.stop)
        handover = CopyHandover(policy, columns.holder, peers.send)
        loop = make(strays=handover.offer, holds_back=True)
        self._job = PlacementAgreement(
            self._config, loop, self.index, handover, peers.events, charges=charges(self.index), holder=columns.holder,
            kept=KeptNews(self._config.node, columns.disk, memory.stager_metrics, peers.mounted), send=peers.send,
        )  # fmt: skip
        return loop

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole life of the mount."""
        async with trio.open_nursery() as nursery:
            await nursery.start(control_socket.serve, self.state_dir.here, self._answer)
            nursery.start_soon(self._signals)
            servers = self._servers = await self._start_servers(nursery)
            if self._given is not None and not await self._succession.end_predecessors(
                servers.redeliver_inherited, self.loop.closes_were_lost
            ):
                self._arenas.spoil()
            stager = self._stager = await self._start_stager(servers, nursery)
            for disk in self._config.disks:
                nursery.start_soon(tidy, disk.path, self._config.uid, lambda: stager.process.living)
            await self._mount.answers()
            if self._stopping:  # the mountpoint answers as it did before
                raise OSError(errno.ECANCELED, "it was told to end while it started")
            self.say_ready()
            self._state = "running"
            nursery.start_soon(self._until_over, stager)
            nursery.start_soon(self._budget.watch, self.loop, self._stager_socket, self._rates)
            for part in (self.loop, self._plans, self._signal, self._tuning, self._policy, self._observer):
                nursery.start_soon(part.run)
            if self._job is not None:
                nursery.start_soon(self._job.run)
            await self._ended.wait()
            await self._finish()
            with trio.move_on_after(1):  # whoever waits for the final record gets it
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def _start_servers(self, nursery: trio.Nursery) -> ServerPool:
        """Agree with the kernel upon what the mount can do, and start who answers."""
        await self._mount.agree()
        pass_from = self._mount.pass_from
        if pass_from:
            large = self.index.size >= pass_from
            self.loop.policy.let_pass(large)
            if large.any():
                self._signal.keep_open(PASSED_THROUGH)
        with contextlib.closing(orphans.listen(self.state_dir.here)) as listening:
            self._fds["adopt"] = os.dup(listening.fileno())
        self._resources.callback(close, self._fds["adopt"])
        rings = self._memory.rings[1:]
        servers = ServerPool(
            self._config, self._fds, rings, self._succession.first_server(len(rings)), self._mount.session,
            {"budget": self._budget.configured, "layout": LAYOUT, "pass_from": pass_from,
             "tripwires": int(self._signal.tripwires), "minor": self._mount.minor, "arena": self._arenas.number,
             "acl": int(self._mount.acl)},
            self._stager_socket.introduce, self._write_down, self._outages,
        )  # fmt: skip
        self._resources.callback(servers.close)
        self._processes += servers.processes
        await servers.start(nursery)
        nursery.start_soon(self._watch_servers, servers)
        return servers

    async def _start_stager(self, servers: ServerPool, nursery: trio.Nursery) -> StagerHandle:
        stager = StagerHandle(
            self._config, self._fds, self._memory.rings[0], servers, self.loop, self._stager_socket, self._write_down,
            self._mount.pass_from, self._outages, self._arenas, self._mount.minor, self._rates.lanes, self._peer,
        )  # fmt: skip
        self._processes.append(stager.process)
        if self._peer is not None:
            await self._peer.begin(self.state_dir.here)
            nursery.start_soon(self._peer.run)
        await stager.process.start()
        nursery.start_soon(stager.process.run)
        return stager

    def say_ready(self, **message: str) -> None:
        """Tell `nopfs-mount` that the mount answers, or by an `error` why it never will."""
        fd = self._fds.pop("ready", None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, json.dumps(message).encode())
            os.close(fd)

    def _write_down(self) -> None:
        self._succession.write_down(self._processes)

    @property
    def keeps_state(self) -> bool:
        """True while the state directory is of use: for the log of a failure, or for who takes over."""
        taken_over = self._given is not None and self._state != "ended"
        return self._state in ("failed", "running") or self._handed_over or taken_over

    # ---- watching -----------------------------------------------------------------------------------------

    async def _watch_servers(self, servers: ServerPool) -> None:
        await servers.over.wait()
        if servers.failed and not self._stopping:
            # Open requests must fail now, and later ones too: closing the descriptor sees to both.
            log.error("there is no server; the mount is over")
            self._state, self.failed = "failed", True
        self._ended.set()

    async def _until_over(self, stager: StagerHandle) -> None:
        def ours() -> list[int]:
            return [child.pid for child in (*self._parts.children(), *stager.process.asleep)]

        await self._mount.wait_until_over(stager, ours)
        self._ended.set()  # servers see it, too, unless they are stopped

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
        for process in self._processes:
            process.stopping = True  # what ends now is not replaced: others may have been told, too
        await self._stager_socket.command(StagerCommand.QUIESCE)
        await self._mount.unmount()
        with trio.move_on_after(END_LIMIT_S):
            await self._ended.wait()
        self._ended.set()

    async def _finish(self) -> None:
        """End the processes, in this order: the servers' last answers, then the stager, then the record."""
        if self._handed_over:
            return
        self._stopping = True
        if self._peer is not None:
            await self._peer.bye()
        for part in (self._servers, self._stager):
            if part is not None:
                await part.end(END_LIMIT_S)
        await clear_disks(self._config, END_LIMIT_S)
        self.loop.drain()
        await self._remember()
        self._state = "failed" if self._state == "failed" else "ended"
        self._observer.look(last=True)
        self._final = self._status.record(self._state) | {
            "history": await self._observer.whole_history(), "explanation": self._plans.explained(),
            "drains": self._tuning.drains, "policy": self._policy.status(),
        }  # fmt: skip
        self._finished.set()
        await leave_final_report(self._config, self._final)

    async def _hand_over(self, request: dict[str, Any]) -> dict[str, Any]:
        """Leave the mount to its servers, until another supervisor takes over (`nopfs upgrade`)."""
        servers = self._servers
        check_hand_over(
            request, state=self._state, lasting=servers is not None and servers.lasting,
            serving=servers is not None and servers.serving, foreground=self._config.foreground,
            peers=self._peer is not None and not self._peer.lost,
        )  # fmt: skip
        log.info("handing over")
        self._handed_over = self._stopping = True
        if self._stager is not None:
            await self._stager.end(END_LIMIT_S)
        if servers is not None:
            servers.abandon()
        self.loop.drain()
        await self._remember()
        self._ended.set()
        return {}

    async def _remember(self) -> None:
        """Keep for the next mount what was learned."""
        await self._plans.remember()
        await self._tuning.remember()

    # ---- what it says -------------------------------------------------------------------------------------

    async def _answer(self, request: dict[str, Any], caller: control_socket.Caller) -> dict[str, Any]:
        match request.get("command"):
            case "status":
                return self._status.record(self._state)
            case "metrics":
                return self._figures.now(self._state)
            case "history":
                return await self._observer.describe_history(request)
            case "prepare-unmount":
                return self._quiet.keep(caller)
            case "stop":
                await self.stop()
                return {}
            case "plan":
                return await self._plans.describe(request)
            case "register":
                return await self._plans.register(request)
            case "recheck":
                return await self._rechecks.answer(request, self._stager.process.living if self._stager else None)
            case "warm" | "drop" | "check":
                return await self._file_requests.answer(request, caller)
            case "tune":
                return await self._tuning.answer(request) | {"policy": self._policy.status()}
            case "stacks":
                return python_stacks()
            case "accesslog":
                return self._access_log.listen(caller)
            case "forget":
                return await self._plans.forget()
            case "hand-over":
                return await self._hand_over(request)
            case "wait-final":
                await caller.unless_gone(self._finished.wait)
                return self._final
            case other:
                raise ValueError(f"no such command: {other!r}")

    def _off(self) -> list[dict[str, Any]]:
        """Parts that are switched off now, here and in the stager."""
        said = self._stager.pulse.said.get("off", []) if self._stager is not None else []
        return [dict(one) for one in (*self._outages.all(), *said)]

    def _peers(self) -> dict[str, Any] | None:
        return self._peer.status() | self._job.status() if self._peer and self._job else None


def main() -> None:
    handoff = begin(sys.argv)
    if handoff.config.peers:
        unbind()
    with contextlib.ExitStack() as resources:
        supervisor = Supervisor(handoff, resources)
        try:
            trio.run(supervisor.run)
        except BaseException as e:
            supervisor.say_ready(error=reason(e))
            supervisor.failed = True
            there = supervisor.state_dir.is_in_place()  # else the next nopfs-mount cleared the mount away as it started
            log.log(logging.ERROR if there else logging.INFO, "the supervisor failed: %s", reason(e), exc_info=there)
        finally:
            # After a failure the log stays there, until the next mount or nopfs-umount clears it away.
            if not supervisor.keeps_state:
                supervisor.state_dir.remove()
    # At once: a thread that still searches would be unwound where C++ does not allow it, and abort the process.
    logging.shutdown()
    os._exit(1 if supervisor.failed else 0)


if __name__ == "__main__":
    main()
