"""The life of a process that the supervisor starts: started by exec, watched by pidfd and pings, replaced for ever
unless its role ends that.

A process that hangs is killed and replaced like one that died. A killed process that the kernel holds (a dead source)
is asleep. No thread of it runs again, but a read that it began may yet write to memory. Each role says what must hold
before a successor.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from nopfsfs.system.abilities import NO_CALL
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.outages import SHORTAGE, Backoff, Outages, reason
from nopfsfs.system.patience import Patience
from nopfsfs.system.proc import living_threads
from nopfsfs.system.process_setup import Handoff, start

log = logging.getLogger(__name__)
KILLED_S = 1.0  # for a killed process to end, where nothing depends on it
# A killed process that has not ended after so long, and of which no thread runs in so many looks, is asleep.
ASLEEP_S, ASLEEP_LOOK_S, ASLEEP_LOOKS = 2.0, 0.25, 3
LOOK_S = 0.5  # between two looks at whether a process lives
NO_PIDFD_LOOK_S = 0.05  # the same, where nothing else tells of its end: readers may be waiting for what it had taken
SILENT_S, HANGS_S = 2.0, 10.0  # of silence after a ping, after which that is said; after which the process is replaced
START_S = 30.0  # for the first sign of life
# A process that has done so much, or lived so long, did not die of what it was started with.
DONE, LIVED_S = 8, 20.0
# So many deaths in vain, one after the other, cost nothing; then come the pauses of `system/outages.py`.
FREE = 4


class Child:
    """Process of the mount, whose end only the supervisor waits for."""

    def __init__(self, module: str, handoff: Handoff) -> None:
        self.role = handoff.role
        self._process: subprocess.Popen[bytes] = start(module, handoff)
        self.pid = self._process.pid
        self.running = False  # it has begun its work
        self._asleep = trio.Event()

    async def ended(self) -> int:
        """Wait for its end; the exit status (negative: the signal). Any number of tasks may wait."""
        while self._process.poll() is None:
            # One of its own: trio lets one task at a time wait for a descriptor, and a copy (dup) that is closed
            # would stay in its epoll, under a number that is used again.
            try:
                pidfd = os.pidfd_open(self.pid)
            except OSError as e:  # there is no such call, or no descriptor to be had now
                await trio.sleep(NO_PIDFD_LOOK_S if e.errno in NO_CALL else LOOK_S)
                continue
            with closing_fd(pidfd):
                await trio.lowlevel.wait_readable(pidfd)
        self.running = False
        return int(self._process.returncode)

    async def ended_or_asleep(self) -> None:
        """Wait until the process has ended, or is asleep."""
        await first_of(self.ended, self._asleep.wait)

    async def unless_gone(self, step: Callable[[], Awaitable[object]]) -> None:
        """Wait for `step`, at most until the process is gone."""
        await first_of(step, self.ended_or_asleep)

    async def within(self, event: trio.Event, limit_s: float) -> bool:
        """Wait until the event comes, at most until the process is gone or the limit. True: the event has come."""
        with trio.move_on_after(limit_s):
            await self.unless_gone(event.wait)
        return event.is_set()

    async def end(self, limit_s: float) -> None:
        """Wait `limit_s` for its end, then kill it."""
        with trio.move_on_after(limit_s):
            await self.ended()
        if self._process.poll() is None:
            log.warning("%s (pid %d) did not end by itself within %g s; killed", self.role, self.pid, limit_s)
            self._process.kill()
            # Even SIGKILL waits for a thread that the kernel holds (a dead source); do not wait for that.
            with trio.move_on_after(KILLED_S):
                await self.ended()

    async def kill(self) -> bool:
        """Kill the process, and wait until it can do nothing more by itself. True: it has ended. False: it is asleep,
        and may yet write to memory that it was reading into."""
        self._process.kill()
        killed_at = trio.current_time()
        quiet = 0
        while True:
            with trio.move_on_after(ASLEEP_LOOK_S):
                await self.ended()
                return True
            # Until a signal has reached all threads that ran.
            quiet = quiet + 1 if "R" not in living_threads(self.pid).values() else 0
            if quiet >= ASLEEP_LOOKS and trio.current_time() - killed_at >= ASLEEP_S:
                self.running = False
                self._asleep.set()
                return False

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal); None: it has not ended."""
        return self._process.poll()

    @property
    def is_gone(self) -> bool:
        """True where the process has ended, or is asleep."""
        return self._asleep.is_set() or self.status is not None

    @property
    def main_thread_ended(self) -> bool:
        """True where the thread that the process began with has ended, though others may be asleep in the kernel."""
        return self.pid not in living_threads(self.pid)


class Role(Protocol):
    """Steps of a process's life in which one kind differs from the others."""

    @property
    def name(self) -> str:
        """The name of the process in the log and in the status record."""

    @property
    def replaceable(self) -> bool:
        """False where its end is the end of the mount: such a process is not killed because it is silent."""

    @property
    def lives_alone(self) -> bool:
        """True where it does its work without the others, too."""

    @property
    def ping_s(self) -> float:
        """Seconds between two pings: each wakes the process."""

    async def start(self) -> Child:
        """Start a process, while no other is being started. Raises SHORTAGE."""

    async def introduce(self, child: Child) -> None:
        """Let the process and the others know each other, while no other is being started."""

    async def listen(self, answered: Callable[[], None]) -> None:
        """Take what the process says, until it ends; call `answered` for each sign of life."""

    def ping(self) -> bool:
        """Ask for a sign of life. False: the process could not be asked."""

    async def contain(self, child: Child) -> bool:
        """See to what must hold before a successor of this process, which is gone. False: there is to be none."""

    def work_done(self) -> int:
        """Count what the processes of this role have done; one that dies with next to nothing died in vain."""


class SupervisedProcess:
    """A role, and the process that has it. `starting`: held while a process is started, so that it is one at a time.
    `changed` is called when another process has the role, before that process may use the arena, and when a process is
    asleep. A supervisor that takes the mount over must know of these processes."""

    def __init__(self, role: Role, starting: trio.Lock, outages: Outages, changed: Callable[[], None]) -> None:
        self._role, self._starting, self._outages, self._changed = role, starting, outages, changed
        self._backoff = Backoff(free=FREE)
        self._done_before, self._started_at = 0, 0.0
        self._plain = False  # those before it died in vain: the less it has to do with, the likelier it lives
        self._asleep: list[Child] = []
        self._patience, self._unanswered = Patience(), False
        self.child: Child | None = None  # the last that was started
        self.restarts = 0  # processes that took the place of another
        self.stopping = False  # what ends now is not replaced

    @property
    def living(self) -> Child | None:
        """The process, unless it is gone."""
        return None if self.child is None or self.child.is_gone else self.child  # may have ended at the next look

    @property
    def asleep(self) -> list[Child]:
        """Processes that were killed and are asleep in the kernel."""
        self._asleep = [child for child in self._asleep if child.status is None]
        return self._asleep

    async def start(self, *, plain: bool = False) -> None:
        """Start a process; a `plain` one gets to know the others only when it has lived for a while. Raises
        SHORTAGE."""
        async with self._starting:
            if self.stopping:
                raise OSError(errno.ECANCELED, "the mount ends, or another takes it over")
            self._done_before, self._started_at = self._role.work_done(), trio.current_time()
            child = self.child = await self._role.start()
            self._changed()
            self._plain = plain and self._role.lives_alone
            if not self._plain:
                await self._introduce(child)

    async def _introduce(self, child: Child) -> None:
        """Let the process and the others know each other. A process that cannot be introduced is killed: it is started,
        so another beside it would be one too many."""
        try:
            await self._role.introduce(child)
        except OSError as e:
            log.error("%s cannot get to know the others: %s; killed", self._role.name, e)
            await child.kill()

    async def run(self) -> None:
        """Watch the process, and those that take its place, until there is to be none."""
        while self.child is not None:
            child = self.child
            await self._until_gone(child)
            if child.status is None:
                self._asleep.append(child)
                self._changed()
                why = "it is asleep in the kernel, most likely on the source"
            else:
                why = f"it ended with status {child.status}"
            if not await self._role.contain(child) or not await self._replace(why):
                return

    async def _replace(self, why: str) -> bool:
        """Start another process, as often as it takes. False: the mount ends."""
        while not self.stopping:
            self._outages.began(self._role.name, why)
            pause = self._pause()
            log.error("%s: %s; another is started%s", self._role.name, why, f" in {pause:g} s" if pause else "")
            await trio.sleep(pause)
            try:
                await self.start(plain=pause > 0)
                self.restarts += 1
                return True
            except SHORTAGE as e:
                why = f"it cannot be started: {reason(e)}"
        return False

    def _pause(self) -> float:
        """Return the seconds to wait before the next process is started, mostly 0."""
        done = self._role.work_done() - self._done_before
        if done >= DONE or trio.current_time() - self._started_at >= LIVED_S:
            self._backoff.succeeded()
            return 0.0
        return self._backoff.failed()

    async def _until_gone(self, child: Child) -> None:
        self._patience, self._unanswered = Patience(), False

        def answered() -> None:
            child.running = True
            self._unanswered = False
            self._patience.answered()
            self._outages.ended(self._role.name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._role.listen, answered)
            nursery.start_soon(self._end_when_it_hangs, child)
            if self._plain:
                nursery.start_soon(self._introduce_when_it_lives, child)
            await child.ended_or_asleep()
            nursery.cancel_scope.cancel()

    async def _introduce_when_it_lives(self, child: Child) -> None:
        await trio.sleep(LIVED_S)
        async with self._starting:
            log.info("%s lives again, and gets to know the others", self._role.name)
            await self._introduce(child)

    async def _end_when_it_hangs(self, child: Child) -> None:
        pinged_at, every_s = -math.inf, self._role.ping_s
        while True:
            now = trio.current_time()
            silent_s = self._patience.look(now)
            if silent_s >= every_s + SILENT_S and child.running:
                self._outages.began(self._role.name, "it does not answer")
            if silent_s >= (HANGS_S if child.running else START_S) and (self._role.replaceable or not child.running):
                log.error("%s (pid %d) does not answer; killed", self._role.name, child.pid)
                await child.kill()
                return
            # an answer may have been lost: a supervisor that does not run takes none
            if now - pinged_at >= (SILENT_S if self._unanswered else every_s):
                self._unanswered, pinged_at = self._role.ping(), now
            await trio.sleep(LOOK_S)


async def first_of(*steps: Callable[[], Awaitable[object]]) -> None:
    """Return as soon as one of the steps has; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def until(step: Callable[[], Awaitable[object]]) -> None:
            await step()
            nursery.cancel_scope.cancel()

        for step in steps:
            nursery.start_soon(until, step)


def sequenced_pair() -> tuple[socket.socket, socket.socket]:
    """A socket pair that keeps message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
