"""Server and stager as the supervisor sees them: started by exec, watched by pidfd, ended by socket, then signal."""

from __future__ import annotations

import logging
import os
import socket
import subprocess

import trio

from nopfsfs.process import Handoff, start

log = logging.getLogger(__name__)


class Child:
    """One process of the mount, which is not waited for by anyone else."""

    def __init__(self, module: str, handoff: Handoff) -> None:
        self.role = handoff.role
        self._process: subprocess.Popen[bytes] = start(module, handoff)
        self.pid = self._process.pid

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
        return int(self._process.returncode)

    async def end(self, limit_s: float) -> None:
        """Wait `limit_s` for its end, then kill it."""
        with trio.move_on_after(limit_s):
            await self.ended()
        if self._process.poll() is None:
            log.warning("%s (pid %d) did not end by itself within %g s; killed", self.role, self.pid, limit_s)
            self._process.kill()
            # Even SIGKILL waits for a thread that the kernel holds (a dead source); do not wait for that.
            with trio.move_on_after(limit_s):
                await self.ended()


def sequenced_pair() -> tuple[socket.socket, socket.socket]:
    """A socket pair that keeps message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
