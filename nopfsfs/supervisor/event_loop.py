"""From what was opened to what is to be staged: events of the rings through plan and policy to the stager's orders."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.config import MountConfig
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.follower_output import PlanStatus
from nopfsfs.policy.budget import charge
from nopfsfs.policy.next_use import nothing_known
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.page_cache_audit import PageCacheAudit
from nopfsfs.policy.stream_scan import Rows
from nopfsfs.protocol import server_stager
from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.ring import CAPACITY, Event, Ring, take_all
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.system.outages import Backoff, Outages, reason
from nopfsfs.system.thread_processes import ThreadProcesses

log = logging.getLogger(__name__)
STAGING_PAUSE_S = 0.005  # between looks at the rings while anything is ordered or done by the stager
READING_PAUSE_S = 0.08  # while all that is read is there: each look costs some 300 µs that the readers could have
IDLE_PAUSE_S = 0.04  # and while nothing happens; staging is far enough ahead of the reader for that
WORK_PAUSE_S = 0.03  # between two looks for work of the plan, at least
EVENTS_AT_ONCE = 4096
LOOK_PAUSE_S = 2.0  # between looks at what the kernel has kept; it was seen to begin to evict after four seconds
UNANSWERED = 4  # times as long, while the look before was not answered: that is still to be done
ORDER_LIMIT_S = 2.0  # an end of the mount must not wait for a stager that hangs
FAILED_PAUSE_S = 1.0  # after the first fault of plan or policy; twice as long after the next
SOUND_S = 5.0  # without a fault, after which they are said to work
WHAT = "plan and policy"
# Bound once: looking a member of an enumeration up costs as much as dealing with an event.
_OPEN, _READ, _RELEASE = Event.OPEN, Event.READ, Event.RELEASE
_STAGED, _EVICTED, _FAILED, _PUSHED, _PUSH_FAILED = (
    Event.STAGED, Event.EVICTED, Event.FAILED, Event.PUSHED, Event.PUSH_FAILED,
)  # fmt: skip
_DROPPED, _ON_DISK, _OFF_DISK, _CHANGED = Event.DROPPED, Event.ON_DISK, Event.OFF_DISK, Event.CHANGED
_BACKED = Event.BACKED


class EventLoop:
    """Owns follower and conductor, and the supervisor's end of the stager's order socket. One task."""

    def __init__(
        self, *, server_rings: Sequence[Ring], stager_ring: Ring, conductor: NodePolicy, tier: npt.NDArray[np.uint8],
        gauge: memoryview, signal: ProgressSignal | None = None, outages: Outages | None = None,
    ) -> None:  # fmt: skip
        """`tier`: the column of that name, by which what is staged is known when events were lost. `gauge`: the
        supervisor's block."""
        self._gauge = gauge
        self._signal = signal
        if signal is not None:
            signal.all_taken = self._all_taken
            if signal.refusing:
                conductor.without_closes()
        self._server_rings, self._stager_ring = server_rings, stager_ring
        self.conductor = conductor
        conductor.foresee(self._next_uses)
        self.residence = PageCacheAudit(conductor.residency.charges, conductor.pushes.paged)
        self._look_at = time.monotonic() + LOOK_PAUSE_S
        self._looked_at = -1
        self._evictions_read = 0
        self._tier = tier
        self._lost = (0, 0)
        self._sending = trio.StrictFIFOLock()  # only one task may wait for room in a socket
        self.follower: Follower | None = None
        self._generation = -1
        self._orders: socket.socket | None = None
        self._readers = ThreadProcesses()
        self.failed = False
        self.outages = outages if outages is not None else Outages()
        self.follower_lost = trio.Event()  # another follower is to be made
        self.awaiting_plan = False  # set while a plan is being made
        self.looked = trio.lowlevel.ParkingLot()  # who waits for the next look at the rings
        self._wake_at = -math.inf
        self._unclosed = 0  # events to come: the closes of what they opened may never be heard of
        self.stray: Callable[[list[int]], None] = lambda rows: None  # told of rows that were staged and live elsewhere
        self.holds_back = False  # set while it is not known yet where files live: nothing is fetched ahead
        self._said: tuple[str, str | None, str | None] | None = None

    def attach_stager(self, orders: socket.socket) -> None:
        """Send orders there from now on."""
        orders.setblocking(False)
        self._orders = orders
        self.conductor.stager_restarted()  # also what was ordered while there was none
        if self.follower is not None:
            self.conductor.restart(self.follower.position)

    def detach_stager(self) -> None:
        """The stager is gone: what it had begun is lost."""
        gone, self._orders = self._orders, None
        if gone is not None:
            trio.lowlevel.notify_closing(gone)
            gone.close()
        while self._take_stager():
            pass
        self.conductor.stager_restarted()

    def forget_arena(self) -> None:
        """What is staged is lost: the next stager has another arena. To be called while no stager lives, and no server
        reads the column."""
        self._tier[:] = Tier.NONE
        self.conductor.resync(self._tier == Tier.RAM)

    def follow(self, follower: Follower | None) -> None:
        """Believe this plan from now on; None: there will be none."""
        self.follower = follower
        self.awaiting_plan = False
        if follower is not None and self._signal is not None:
            self._signal.tell(follower)

    @property
    def predicted(self) -> int:
        """Opens that were foreseen, of those that showed while all did."""
        return int(self._gauge[Metric.PREDICTED])

    @property
    def observed(self) -> int:
        """Opens that were seen here, or by a supervisor before."""
        return int(self._gauge[Metric.OBSERVED])

    @property
    def pending(self) -> int:
        """Events of the servers that are yet to be looked at."""
        return sum(ring.pending() for ring in self._server_rings)

    def _all_taken(self, moment: int) -> bool:
        """Whether no event that a server put before that moment is yet to be looked at."""
        firsts = [ring.first() for ring in self._server_rings]
        return all(first is None or first >= moment for first in firsts)

    @property
    def _server_lost(self) -> int:
        return sum(ring.lost for ring in self._server_rings)

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
            await self._look()
            if (now := trio.current_time()) >= self._wake_at:
                self._wake_at = now + WORK_PAUSE_S
                self.looked.unpark_all()
            # Where not all pages may stay, what is read has to be dropped soon.
            busy = staged or ordered or (read and self.conductor.pushes.bounded)
            await trio.sleep(STAGING_PAUSE_S if busy else READING_PAUSE_S if read else IDLE_PAUSE_S)

    def _begin_anew(self) -> None:
        """After a fault: take what is staged from where it is said, and all that is open for closed."""
        self.conductor.resync(self._tier == Tier.RAM)
        self.conductor.events_lost()
        self._generation = -1
        self.failed = False

    def step(self) -> tuple[bool, bool]:
        """Take the events there are, decide; whether there were any of the stager, and of the server."""
        staged = self._take_stager()
        read = self._take_server()
        self._see_losses()
        follower = self.follower
        if follower is not None:
            if follower.generation != self._generation:
                self._generation = follower.generation
                self.conductor.restart(follower.position)
            self.conductor.use_belady(follower.knows_future)
            if self._orders is not None and not self.holds_back:
                self.conductor.advance(follower.position, follower.horizon, follower.upcoming)
        return staged, read

    def _see_losses(self) -> None:
        """A ring that overflowed: what was missed is taken from the columns, or for over."""
        lost = (self._server_lost, self._stager_ring.lost)
        if lost == self._lost:
            return
        log.warning("events were lost: %d of the server, %d of the stager", lost[0], lost[1])
        if lost[0] != self._lost[0]:
            self.conductor.events_lost()
        if lost[1] != self._lost[1]:
            self.conductor.resync(self._tier == Tier.RAM)
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
        c = self.conductor
        strays: list[int] = []
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
                c.fetch_failed(row, cancelled=value == errno.ECANCELED)
            elif kind == _PUSH_FAILED:
                c.push_failed(row)
            elif kind == _ON_DISK:
                c.on_disk(row, value)
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
                self.residence.present(row)
            elif kind == Event.LACKING:
                if c.pages_lost(row, value):
                    self.residence.lacking(row, value)
            elif kind == Event.UNMEASURED:
                log.info("what the kernel's page cache holds cannot be measured here: %s", os.strerror(value))
                self.residence.refused()
        if strays:
            self.stray(strays)
        return len(kinds) > 0

    def _take_server(self) -> bool:
        if self._signal is not None:
            self._signal.settle(self.follower)
        pending = max(ring.pending() for ring in self._server_rings)
        if not pending or (self.awaiting_plan and pending < CAPACITY // 2):
            return False  # the rings keep what is read before there is a plan to hold it against
        until = self._signal.until if self._signal is not None else None
        kinds, rows, values = take_all(self._server_rings, EVENTS_AT_ONCE, until)
        opened = kinds == _OPEN
        self._gauge[Metric.OBSERVED] += int(np.count_nonzero(opened))
        shown = self._signal.shown(rows) if self._signal is not None else None
        if shown is not None:
            opened &= shown
        if opened.any():
            self._observe(rows[opened], values[opened], all_show=shown is None)
        c = self.conductor
        closes = self._signal is None or not self._signal.refusing
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
        if self._signal is not None:
            self._signal.taken(self.follower, c)
        return True

    def _observe(self, rows: Rows, threads: Rows, *, all_show: bool) -> None:
        """Opens, by these threads; or those of tripwires, which each tell of some."""
        follower = self.follower
        if follower is not None:
            told, foreseen = follower.stood_for, follower.predicted_for
            predicted = follower.observe(rows, self._readers.processes(threads))
            if all_show:
                self._gauge[Metric.PREDICTED] += int(np.count_nonzero(predicted))
            elif self._signal is not None:
                self._signal.told(len(rows), follower.stood_for - told, follower.predicted_for - foreseen)
            self._say_state(follower.status())
        elif self._signal is not None and not all_show:
            self._signal.told(len(rows))

    def _say_state(self, status: PlanStatus) -> None:
        """Log a change of belief, once for each."""
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
        """Send what is ordered; whether there was anything."""
        orders = self.conductor.take_commands()
        if self._orders is None:
            for do, rows, _ in orders:
                self._refuse(do, rows)
            return False
        for do, rows, value in orders:
            for message in server_stager.pack_orders(server_stager.Order(do), np.asarray(rows, np.int64), value):
                await self._send_one(message)
        return bool(orders)

    async def _send_one(self, message: bytes, fds: Sequence[int] = ()) -> bool:
        """Whether there is a stager that will take it."""
        async with self._sending:
            while self._orders is not None:
                try:
                    if fds:
                        socket.send_fds(self._orders, [message], fds)
                    else:
                        self._orders.send(message)
                    return True
                except BlockingIOError:
                    with contextlib.suppress(trio.ClosedResourceError):
                        await trio.lowlevel.wait_writable(self._orders)
                except OSError:
                    break  # the stager is gone; its end is noticed where it is watched
        return False

    async def introduce(self, server: socket.socket, order: server_stager.Order = server_stager.Order.SERVER) -> bool:
        """Make the stager know of a further server, or of the peer process, by an end of a socket; whether there is a
        stager."""
        (message,) = server_stager.pack_orders(order, np.zeros(0, np.int64))
        with trio.move_on_after(ORDER_LIMIT_S):
            return await self._send_one(message, [server.fileno()])
        return False

    async def _look(self) -> None:
        """Every few seconds, let the stager look at what the kernel has kept of what was pushed, if there is any."""
        now = time.monotonic()
        if now < self._look_at or self._orders is None:
            return
        unanswered = self.residence.looked_at == self._looked_at  # it is busy, hangs, or was replaced
        self._look_at = now + LOOK_PAUSE_S * (UNANSWERED if unanswered else 1)
        pushes = self.conductor.pushes
        self.conductor.rotate_recent()
        self.residence.lost(pushes.evictions_read - self._evictions_read)
        self._evictions_read = pushes.evictions_read
        follower = self.follower
        position, upcoming = (follower.position, follower.upcoming) if follower is not None else (0, _nothing)
        rows = self.residence.choose(position, upcoming)
        self._looked_at = self.residence.looked_at if rows else -1
        if rows:
            await self.order(server_stager.Order.LOOK, np.array(rows, np.int64))

    def _next_uses(self, rows: Rows) -> Rows:
        return self.follower.next_uses(rows) if self.follower is not None else nothing_known(rows)

    def _refuse(self, do: int, rows: list[int]) -> None:
        """Without a stager nothing is fetched or pushed; the server reads the source itself."""
        for row in rows:
            if do == server_stager.Order.FETCH:
                self.conductor.fetch_failed(row)
            elif do == server_stager.Order.PUSH:
                self.conductor.push_failed(row)
            elif do == server_stager.Order.TO_DISK:
                self.conductor.off_disk(row, again=True)

    async def order(
        self, order: server_stager.Order, rows: npt.NDArray[np.int64] | None = None, value: int = 0
    ) -> None:
        """Send one order of the supervisor's own; given up when the stager takes none for too long."""
        with trio.move_on_after(ORDER_LIMIT_S) as limit:
            for message in server_stager.pack_orders(order, np.zeros(0, np.int64) if rows is None else rows, value):
                await self._send_one(message)
        if limit.cancelled_caught:
            log.error("the stager takes no orders; %s was given up", order.name)

    def plan_status(self, config: MountConfig) -> tuple[dict[str, Any], int]:
        """(the `plan` part of the record, K)."""
        if self.follower is None:
            state = "watching" if self.awaiting_plan else "none"
            return {"state": state, "sampler": config.sampler, "seed": config.seed, "epoch": None, "position": 0,
                    "length": 0}, 0  # fmt: skip
        status = dataclasses.asdict(self.follower.status())
        return status, int(status.pop("k", 0))

    def furthest(self, count: int) -> Rows:
        """Rows in the order in which they can be spared: those whose next use is furthest away first."""
        held = self.conductor.held()
        follower = self.follower
        if follower is None:
            return held
        ahead = follower.upcoming(follower.position, min(count, follower.horizon))
        ahead = ahead[ahead >= 0]
        _, first = np.unique(ahead, return_index=True)
        soonest_first = ahead[np.sort(first)]
        unplanned = held[~np.isin(held, soonest_first)]
        return np.concatenate([unplanned, soonest_first[::-1]])


def _nothing(start: int, count: int) -> Rows:
    return np.zeros(0, np.int64)
