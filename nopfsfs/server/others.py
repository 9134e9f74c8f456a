"""The other processes of a mount, watched by a server so that they end though the supervisor does nothing.

Usually the supervisor ends all processes. A supervisor that is stopped or dead does not: the servers have to.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from contextlib import closing

import trio

from nopfsfs.fuse.mount_watch import MountWatch
from nopfsfs.system import end_switch
from nopfsfs.system.patience import Patience

log = logging.getLogger(__name__)
LOOK_S = 1.0  # between two checks
SILENT_S = 5.0  # the supervisor pings every two seconds
LET_GO_S = 2.0  # for the stager to close a mount that is gone: it notices by itself
OVER_S = 5.0  # for the other processes to end when the connection has


class Others:
    """Watches supervisor, stager and servers. `fds` and `minor` are those of the server's handoff. `stager()` returns
    the descriptor of the socket to the stager, below 0 when there is none."""

    def __init__(self, fds: dict[str, int], minor: int, stager: Callable[[], int]) -> None:
        self._end, self._end_stager = fds.get("end", -1), fds.get("end-stager", -1)
        self._life = fds.get("life", -1)
        self._lives = [fd for name, fd in fds.items() if name.startswith("life-")]
        self._minor, self._stager = minor, stager
        self.patience = Patience()  # with the supervisor
        self.alone = False  # the supervisor is gone
        self.ending = trio.Event()  # this server is to end: another process ends the others

    async def watch(self) -> None:
        """End a stager that keeps a mount that is gone, while no supervisor can do so."""
        if not self._minor:
            return
        with closing(MountWatch(self._minor)) as mount:
            gone_s = 0.0
            while True:
                await trio.sleep(LOOK_S)
                silent_s = self.patience.look(trio.current_time())
                left_alone = self.alone or silent_s >= SILENT_S
                if not left_alone or self._stager() < 0 or not mount.unmounted():
                    gone_s = 0.0
                    continue
                gone_s += LOOK_S
                if gone_s > LET_GO_S:
                    log.error("the stager keeps a mount that is gone; ending it")
                    end_switch.throw(self._end_stager)
                    gone_s = 0.0

    def _others_have_ended(self) -> bool:
        """Return True when all other processes have ended. Without a supervisor this process sees them all."""
        if not self.alone or self._stager() >= 0:
            return False
        if self._life >= 0:  # this process is about to end, too: servers do not wait for each other
            os.close(self._life)
            self._life = -1
        poll = select.poll()
        for life in self._lives:
            poll.register(life, 0)
        return len(poll.poll(0)) == len(self._lives)

    async def wait_for_their_end(self) -> None:
        """Return when this process may end, after the connection has ended. End the others if nobody else does."""
        with trio.move_on_after(OVER_S):
            while not self.ending.is_set() and not self._others_have_ended():
                with trio.move_on_after(0.05):
                    await self.ending.wait()
            return
        log.error("the mount has ended, and the supervisor does nothing; ending all processes")
        end_switch.throw(self._end)
