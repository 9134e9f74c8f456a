"""The event loop of the supervisor: plan and policy take the events of the rings, and the policy's commands go to the
stager."""

from __future__ import annotations

import dataclasses
import errno
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.config import MountConfig
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.follower_output import PlanStatus
from nopfsfs.policy.budget import charge
from nopfsfs.policy.next_use import NONE, nothing_known
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.page_cache_audit import PageCacheAudit
from nopfsfs.policy.stream_scan import Rows
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.ring import CAPACITY, Event, Ring, TimedEvents
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.supervisor.server_rings import SeenOpens, ServerRings
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system.outages import Backoff, Outages, reason
from nopfsfs.system.thread_processes import ThreadProcesses

log = logging.getLogger(__name__)
STAGING_PAUSE_S = 0.005  # between looks at the rings while anything is ordered or done by the stager
READING_PAUSE_S = 0.08  # while all that is read is there: each look costs some 300 µs that the readers could have
IDLE_PAUSE_S = 0.04  # and while nothing happens; staging is far enough ahead of the reader for that
QUIET_S, QUIET_PAUSE_S = 2.0, 0.2  # after so long without reads and commands
WORK_PAUSE_S = 0.03  # between two looks for work of the plan, at least
EVENTS_AT_ONCE = 4096
AUDIT_PAUSE_S = 2.0  # between looks at what the kernel has kept; it was seen to begin to evict after four seconds
UNANSWERED = 4  # times as long, while the look before was not answered: that is still to be done
FAILED_PAUSE_S = 1.0  # after the first fault of plan or policy; twice as long after the next
SOUND_S = 5.0  # without a fault, after which they are said to work
WHAT = "plan and policy"
# Bound once: looking a member of an enumeration up costs as much as dealing with an event.
_OPEN, _READ, _RELEASE, _TRIPWIRE = Event.OPEN, Event.READ, Event.RELEASE, Event.TRIPWIRE
_STAGED, _EVICTED, _FAILED, _PUSHED, _PUSH_FAILED = (
    Event.STAGED, Event.EVICTED, Event.FAILED, Event.PUSHED, Event.PUSH_FAILED,
)  # fmt: skip
_DROPPED, _ON_DISK, _OFF_DISK, _CHANGED = Event.DROPPED, Event.ON_DISK, Event.OFF_DISK, Event.CHANGED
_BACKED = Event.BACKED


class EventLoop:
    """Owns the follower and the policy. One task. `tier`: the column of that name, by which what is staged is known
    when events were lost. `metrics`: the supervisor's block. `strays` is called with rows that were staged and live on
    another node. `holds_back`: nothing is fetched ahead before `fetch_ahead` is called."""

    def __init__(
        self, server_rings: ServerRings, stager_ring: Ring, policy: NodePolicy, tier: npt.NDArray[np.uint8],
        metrics: memoryview, stager: StagerSocket, outages: Outages, signal: ProgressSignal, *,
        strays: Callable[[list[int]], None] = lambda rows: None, holds_back: bool = False,
    ) -> None:  # fmt: skip
        self._server_rings, self._stager_ring, self._stager = server_rings, stager_ring, stager
        self._tier, self._metrics, self._signal, self.outages = tier, metrics, signal, outages
        self._strays, self.holds_back = strays, holds_back
        self.policy = policy
        policy.foresee(self._next_uses)
        if signal.refusing:
            policy.without_closes()
        self.audit = PageCacheAudit(policy.residency.charges, policy.pushes.paged)
        self._audit_at = time.monotonic() + AUDIT_PAUSE_S
        self._audited = -1
        self._evictions_read, self._lost = 0, (0, 0)
        self.follower: Follower | None = None
        self._generation = -1
        self._readers = ThreadProcesses()
        self.failed = False
        self.follower_lost = trio.Event()  # another follower is to be made
        self.awaiting_plan = False  # while a plan is being made
        self.looked = trio.lowlevel.ParkingLot()  # who waits for the next look at the rings
        self._copy_opens: Callable[[SeenOpens], None] | None = None
        self._wake_at, self._quiet_at = -math.inf, math.inf  # inf: something new has begun
        self._unclosed = 0  # events to take before `events_lost`: the closes of the opens among them may be lost
        self._said: tuple[str, str | None, str | None] | None = None

    def attach_stager(self, stager: socket.socket) -> None:
        """Send commands to this stager from now on."""
        self._stager.attach(stager)
        self.policy.stager_restarted()  # also what was ordered while there was none
        if self.follower is not None:
            self.policy.restart(self.follower.position)

    def detach_stager(self) -> None:
        """The stager is gone: what it had begun is lost."""
        self._stager.detach()
        while self._take_stager():
            pass
        self.policy.stager_restarted()

    def fetch_ahead(self) -> None:
        """From now on fetch ahead: it is known where files live, or will not be."""
        self.holds_back = False
        self._quiet_at = math.inf

    def await_plan(self) -> None:
        """Leave events in the rings, while there is room, until `follow` is called."""
        self.awaiting_plan = True

    def copy_opens_to(self, taker: Callable[[SeenOpens], None] | None) -> None:
        """Give all opens to one who wants to see them, from now on."""
        self._copy_opens = taker

    def forget_arena(self) -> None:
        """Forget all staged copies: the next stager has another arena. Called while no stager lives and no server
        reads the column."""
        self._tier[:] = Tier.NONE
        self.policy.resync(self._tier == Tier.RAM)

    def follow(self, follower: Follower | None) -> None:
        """Take the plan from this follower from now on; None: there will be no plan."""
        self.follower = follower
        self._quiet_at = math.inf
        self._generation = -1  # generations of two followers say nothing of each other
        self.awaiting_plan = False
        if follower is not None:
            self._signal.inform(follower)

    @property
    def observed(self) -> int:
        """Opens that were seen here, or by a supervisor before."""
        return int(self._metrics[Metric.OBSERVED])

    @property
    def pending(self) -> int:
        """Events of the servers that are yet to be looked at."""
        return self._server_rings.pending

    @property
    def lost(self) -> int:
        """Events of the servers that found no room in their rings, ever."""
        return self._server_rings.lost

    async def run(self) -> None:
        """Until cancelled. A fault in here costs the mount its foresight for a while, never its life: reads go on."""
        backoff = Backoff(FAILED_PAUSE_S)
        while True:
            began = trio.current_time()
            try:
                if self.failed:
                    self._begin_anew()
                await self._turn_until(began + SOUND_S)
                self.outages.ended(WHAT)
                backoff.succeeded()
                await self._turn_until(math.inf)
            except Exception as e:
                log.exception("plan and policy failed; going on without prefetching for a while")
                self.outages.began(WHAT, f"failed: {reason(e)}")
                self.failed = True
                self.follower, lost, self.follower_lost = None, self.follower_lost, trio.Event()
                lost.set()
                await trio.sleep(backoff.failed())

    async def _turn_until(self, end: float) -> None:
        while trio.current_time() < end:
            staged, read = self.step()
            ordered = await self._send()
            await self._audit_pages()
            hurries = self.follower is not None and self.follower.hurries
            if (now := trio.current_time()) >= self._wake_at or hurries:
                self._wake_at = now + WORK_PAUSE_S
                self.looked.unpark_all()
            # Where not all pages may stay, what is read has to be dropped soon.
            busy = staged or ordered or hurries or (read and self.policy.pushes.bounded)
            if ordered or read or self.policy.fetches.under_way or self._quiet_at == math.inf:
                self._quiet_at = now + QUIET_S
            idle_s = IDLE_PAUSE_S if now < self._quiet_at else QUIET_PAUSE_S
            await trio.sleep(STAGING_PAUSE_S if busy else READING_PAUSE_S if read else idle_s)

    def _begin_anew(self) -> None:
        """Recover after a fault: take staged files from the column, and count open files as closed."""
        self.policy.resync(self._tier == Tier.RAM)
        self.policy.events_lost()
        self._generation = -1
        self.failed = False

    def step(self) -> tuple[bool, bool]:
        """Take the events there are, and decide. Return whether there were any of the stager, and any of servers."""
        staged = self._take_stager()
        read = self._take_server()
        self._see_losses()
        follower = self.follower
        may_fetch = self._stager.attached and not self.holds_back
        if follower is not None:
            if follower.generation != self._generation:
                self._generation = follower.generation
                self.policy.restart(follower.position)
            self.policy.use_belady(follower.knows_future)
            if may_fetch:
                self.policy.advance(follower.position, follower.horizon, follower.upcoming)
        if may_fetch:
            self.policy.serve_requests(stream=follower is not None)
        return staged, read

    def _see_losses(self) -> None:
        """Recover after a ring has overflowed: take staged files from the column, and count open files as closed."""
        lost = (self._server_rings.lost, self._stager_ring.lost)
        if lost == self._lost:
            return
        log.warning("events were lost: %d of the server, %d of the stager", lost[0], lost[1])
        if lost[0] != self._lost[0]:
            self.policy.events_lost()
        if lost[1] != self._lost[1]:
            self.policy.resync(self._tier == Tier.RAM)
        self._lost = lost

    def closes_were_lost(self) -> None:
        """Servers that nobody listened to have ended: they may have taken the closes of what others opened."""
        self._unclosed = self.pending

    def drain(self) -> None:
        """Take all events that are left, for the final record."""
        self.awaiting_plan = False
        while not self.failed and self._take_server():
            pass

    def _take_stager(self) -> bool:
        if not self._stager_ring.pending():
            return False
        kinds, rows, values = self._stager_ring.take(EVENTS_AT_ONCE)
        c, strays = self.policy, list[int]()
        for kind, row, value in zip(kinds.tolist(), rows.tolist(), values.tolist(), strict=True):
            if kind == _STAGED:
                c.staged(row)
            elif kind == _PUSHED:
                c.pushed(row)
            elif kind == _EVICTED:
                c.evicted(row)
            elif kind == _DROPPED:
                c.dropped(row)
            elif kind == _FAILED:
                c.fetch_failed(row, cancelled=value == errno.ECANCELED, error=value)
            elif kind == _PUSH_FAILED:
                c.push_failed(row)
            elif kind in (_ON_DISK, Event.COPYING):
                (c.on_disk if kind == _ON_DISK else c.copying)(row, value)
            elif kind == _BACKED:
                c.kernel_reads(row, bool(value))
            elif kind == _OFF_DISK:
                c.off_disk(row, again=bool(value))
            elif kind == _CHANGED:
                c.changed(row, charge(value))
            elif kind == Event.STUCK:
                c.fetch_stuck(row)
            elif kind == Event.STRAY:
                strays.append(row)
            elif kind == Event.PRESENT:
                self.audit.present(row)
            elif kind == Event.LACKING:
                if c.pages_lost(row, value):
                    self.audit.lacking(row, value)
            elif kind in (Event.CHECKED, Event.UNCHECKED):
                c.checks.ended(row, value, value if kind == Event.UNCHECKED else 0)
            elif kind == Event.UNMEASURED:
                log.info("what the kernel's page cache holds cannot be measured here: %s", os.strerror(value))
                self.audit.refused()
        if strays:
            self._strays(strays)
        return len(kinds) > 0

    def _take_server(self) -> bool:
        pending = self._server_rings.fullest
        if not pending or (self.awaiting_plan and pending < CAPACITY // 2):
            return False  # the rings keep what is read before there is a plan to hold it against
        events = kinds, rows, values, _ = self._server_rings.take(EVENTS_AT_ONCE)
        opens = np.flatnonzero((kinds == _OPEN) | (kinds == _TRIPWIRE))
        self._metrics[Metric.OBSERVED] += len(opens)
        before, after = np.split(opens, [self._signal.changes_at(kinds[opens] == _TRIPWIRE)])
        self._observe(events, before)
        if len(after):
            self._signal.change_over(self.follower)
            self._observe(events, after)
        c, closes = self.policy, not self._signal.refusing
        for kind, row, value in zip(kinds.tolist(), rows.tolist(), values.tolist(), strict=True):
            if kind == _OPEN:
                if closes:
                    c.opened(row)
            elif kind == _RELEASE:
                c.released(row)
            elif kind == _READ:
                c.read(row, value)
        if self._unclosed > 0:
            self._unclosed -= len(kinds)
            if self._unclosed <= 0:
                c.events_lost()
        self._signal.taken(self.follower, c)
        return True

    def _observe(self, events: TimedEvents, places: npt.NDArray[np.int64]) -> None:
        """Show the follower the opens at these places of the events, and count them."""
        if not len(places):
            return
        kinds, rows, threads, times = (column[places] for column in events)
        follower, predicted, shown = self.follower, None, self._signal.shown(rows)
        if shown is not None:
            rows, threads, times = rows[shown], threads[shown], times[shown]
        stand_for = 1.0 if shown is None else self._signal.apart
        of, foreseen = stand_for * len(rows), 0.0
        if follower is not None:
            before, foreseen_before = follower.stood_for, follower.predicted_for
            predicted = follower.observe(rows, self._readers.processes(threads))
            of, foreseen = follower.stood_for - before, follower.predicted_for - foreseen_before
            self._say_state(follower.status())
        self._signal.count(kinds == _TRIPWIRE, of, foreseen)
        if self._copy_opens is not None and len(rows):
            as_said = None if predicted is None else predicted != 0
            self._copy_opens(SeenOpens(times, self._readers.processes(threads), rows, as_said, stand_for))

    def _say_state(self, status: PlanStatus) -> None:
        """Log each change of the plan's state once."""
        said = (status.state, status.sampler if status.state == "locked" else None, status.dataset)
        if said == self._said:
            return
        self._said = said
        if status.state == "locked":
            log.info(
                "plan locked: %s, seed %s, epoch %d of %s", status.sampler, status.seed, status.epoch, status.dataset
            )
        elif status.state == "mismatch":
            log.warning("what is read of %s does not match the plan; staging what is left of the epoch", status.dataset)
        elif status.state == "unknown":
            log.info("what is read of %s follows no order that is known; staging what is left of it", status.dataset)

    async def _send(self) -> bool:
        """Send the commands of the policy. True: there was anything."""
        commands = self.policy.take_commands()
        if not self._stager.attached:
            for command, rows, _ in commands:
                self._refuse(command, rows)
            return False
        for command, rows, value in commands:
            await self._stager.send(command, np.asarray(rows, np.int64), value)
        return bool(commands)

    async def _audit_pages(self) -> None:
        """Every few seconds, let the stager look at what the kernel has kept of what was pushed, if there is any."""
        now = time.monotonic()
        if now < self._audit_at or not self._stager.attached:
            return
        unanswered = self.audit.looked_at == self._audited  # it is busy, hangs, or was replaced
        self._audit_at = now + AUDIT_PAUSE_S * (UNANSWERED if unanswered else 1)
        pushes = self.policy.pushes
        self.policy.rotate_recent()
        self.audit.lost(pushes.evictions_read - self._evictions_read)
        self._evictions_read = pushes.evictions_read
        follower = self.follower
        position, upcoming = (0, lambda *_: NONE) if follower is None else (follower.position, follower.upcoming)
        rows = self.audit.choose(position, upcoming)
        self._audited = self.audit.looked_at if rows else -1
        if rows:
            await self._stager.command(StagerCommand.LOOK, np.array(rows, np.int64))

    def _next_uses(self, rows: Rows) -> Rows:
        return self.follower.next_uses(rows) if self.follower is not None else nothing_known(rows)

    def _refuse(self, command: StagerCommand, rows: list[int]) -> None:
        """Without a stager nothing is fetched or pushed; the server reads the source itself."""
        for row in rows:
            if command == StagerCommand.FETCH:
                self.policy.fetch_failed(row)
            elif command == StagerCommand.PUSH:
                self.policy.push_failed(row)
            elif command in (StagerCommand.TO_DISK, StagerCommand.COPY_LARGE):
                self.policy.off_disk(row, again=True)

    def plan_status(self, config: MountConfig) -> tuple[dict[str, Any], int]:
        """(the `plan` part of the record, K)."""
        if self.follower is None:
            state = "watching" if self.awaiting_plan else "none"
            return {"state": state, "sampler": config.sampler, "seed": config.seed, "epoch": None, "position": 0,
                    "length": 0}, 0  # fmt: skip
        status = dataclasses.asdict(self.follower.status())
        return status, int(status.pop("k", 0))

    def furthest_use_first(self, count: int) -> Rows:
        """Rows in the order in which they can be spared: those whose next use is furthest away first."""
        held = self.policy.held()
        follower = self.follower
        if follower is None:
            return held
        ahead = follower.upcoming(follower.position, min(count, follower.horizon))
        ahead = ahead[ahead >= 0]
        _, first = np.unique(ahead, return_index=True)
        soonest_first = ahead[np.sort(first)]
        unplanned = held[~np.isin(held, soonest_first)]
        return np.concatenate([unplanned, soonest_first[::-1]])
