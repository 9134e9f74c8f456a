"""The other processes of the mount, as a server sees them when the mount ends and the supervisor does nothing.

Usually the supervisor ends them all. One that is stopped or dead does not; then the servers are left to notice.
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
LOOK_S = 1.0
SILENT_S = 5.0  # the supervisor pings every two seconds
LET_GO_S = 2.0  # for the stager to let go of a mount that is gone: it notices by itself
OVER_S = 5.0  # for the others to end when the connection has


class Others:
    """`fds` and `minor` as of the server's handoff. `stager()` returns the descriptor of the socket to the stager,
    below 0 when there is none."""

    def __init__(self, fds: dict[str, int], minor: int, stager: Callable[[], int]) -> None:
        self._end, self._end_stager = fds.get("end", -1), fds.get("end-stager", -1)
        self._life = fds.get("life", -1)
        self._lives = [fd for name, fd in fds.items() if name.startswith("life-")]
        self._minor, self._stager = minor, stager
        self._patience = Patience()
        self.alone = False  # the supervisor is gone
        self.told = trio.Event()  # to end, by whoever sees to the others

    def heard(self) -> None:
        """The supervisor has given a sign of life."""
        self._patience.answered()

    async def watch(self) -> None:
        """While there is no supervisor that does, see that the stager lets go of a mount that is gone."""
        if not self._minor:
            return
        with closing(MountWatch(self._minor)) as mount:
            gone_s = 0.0
            while True:
                await trio.sleep(LOOK_S)
                silent_s = self._patience.look(trio.current_time())
                left_alone = self.alone or silent_s >= SILENT_S
                if not left_alone or self._stager() < 0 or not mount.gone():
                    gone_s = 0.0
                    continue
                gone_s += LOOK_S
                if gone_s > LET_GO_S:
                    log.error("the stager keeps a mount that is gone; ending it")
                    end_switch.throw(self._end_stager)
                    gone_s = 0.0

    def _others_have_ended(self) -> bool:
        """Those that this process can see, which is all when there is no supervisor that holds their pipes as well."""
        if not self.alone or self._stager() >= 0:
            return False
        if self._life >= 0:  # this process, too, is about to end: servers do not wait for each other
            os.close(self._life)
            self._life = -1
        poll = select.poll()
        for life in self._lives:
            poll.register(life, 0)
        return len(poll.poll(0)) == len(self._lives)

    async def see_them_end(self) -> None:
        """The connection has ended: return when this process may, and end the others if nobody else does."""
        with trio.move_on_after(OVER_S):
            while not self.told.is_set() and not self._others_have_ended():
                with trio.move_on_after(0.05):
                    await self.told.wait()
            return
        log.error("the mount has ended, and the supervisor does nothing; ending all processes")
        end_switch.throw(self._end)
