"""Signs of life of the stager, and its end when the mount is over."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable

from nopfsfs.fuse.mount_watch import MountWatch, is_over
from nopfsfs.system import end_switch
from nopfsfs.system.outages import Outages

log = logging.getLogger(__name__)
LOOK_S = 1.0  # between two looks at the connection, once the mount is gone
MISSED_S = 10.0  # before that, should the kernel report no change
OVER_S = 5.0  # for the supervisor to end this process when the connection has ended


class LifeSign:
    """Owns the stager's end of the pulse socket, and watches the mount. `fds`: those of the stager's handoff, of which
    a test may leave out any. `leave_mount` closes the stager's copy of the mount; `holds` is True while it is open."""

    def __init__(
        self, fds: dict[str, int], minor: int, outages: Outages, leave_mount: Callable[[], None],
        holds: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.pulse = socket.socket(fileno=fds["pulse"]) if "pulse" in fds else None
        self.mount = MountWatch(minor) if minor else None
        self._fuse, self._switch = fds["fuse"], fds.get("end", -1)
        self._outages, self._leave_mount, self._holds = outages, leave_mount, holds
        self._gone = False
        self._due = 0.0
        self._over_since = 0.0  # 0: the connection lives

    def answer(self) -> bool:
        """Answer the supervisor's ping: what is off, and whether the mount's copy is open. False: it is gone."""
        assert self.pulse is not None
        try:
            if not self.pulse.recv(64, socket.MSG_DONTWAIT):
                return False
            text = {"holds": self._holds(), "off": self._outages.all()[:16]}
            self.pulse.send(json.dumps(text).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def look(self, *, changed: bool = False) -> float | None:
        """Follow the end of the mount, when the table of mounts has `changed` or it is time. Seconds until the next
        look; None when no mount is watched."""
        if self.mount is None:
            return None
        now = time.monotonic()
        if changed or now >= self._due:
            if not self._gone and self.mount.unmounted():
                self._gone = True
                self._leave_mount()
            if self._gone:
                self._see_it_over(now)
            self._due = now + (LOOK_S if self._gone else MISSED_S)
        return self._due - now

    def _see_it_over(self, now: float) -> None:
        if not is_over(self._fuse):
            return
        self._over_since = self._over_since or now
        if now - self._over_since > OVER_S:
            log.error("the mount has ended, and the supervisor does nothing; ending all processes")
            end_switch.throw(self._switch)
