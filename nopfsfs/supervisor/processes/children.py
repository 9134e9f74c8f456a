"""Server and stager as the supervisor sees them: started by exec, watched by pidfd, ended by socket, then signal."""

from __future__ import annotations

import logging
import os
import socket
import subprocess

import trio

from nopfsfs.system.process_setup import Handoff, start
from nopfsfs.system.threads import living_threads

log = logging.getLogger(__name__)
KILLED_S = 1.0  # for a killed process to end, where nothing depends on it
# A killed process that has not ended after so long, and of which no thread runs in so many looks, is asleep.
ASLEEP_S, ASLEEP_LOOK_S, ASLEEP_LOOKS = 2.0, 0.25, 3


class Child:
    """One process of the mount, which is not waited for by anyone else."""

    def __init__(self, module: str, handoff: Handoff) -> None:
        self.role = handoff.role
        self._process: subprocess.Popen[bytes] = start(module, handoff)
        self.pid = self._process.pid
        self.running = False  # it has begun its work

    async def ended(self) -> int:
        """Wait for its end; the exit status (negative: the signal). Any number of tasks may wait."""
        while self._process.poll() is None:
            # One of its own: trio lets one task at a time wait for a descriptor, and a copy (dup) that is closed
            # would stay in its epoll, under a number that is used again.
            pidfd = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        self.running = False
        return int(self._process.returncode)

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
        """Kill it, and wait until it can do nothing more by itself. True: it has ended. False: the kernel holds some of
        its threads (a dead source), which may yet write to memory that they were reading into, but run no more."""
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
                return False

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal); None: it has not ended."""
        return self._process.poll()

    @property
    def main_thread_ended(self) -> bool:
        """Whether the thread that the process began with has ended, though others may be asleep in the kernel."""
        return self.pid not in living_threads(self.pid)


def sequenced_pair() -> tuple[socket.socket, socket.socket]:
    """A socket pair that keeps message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
