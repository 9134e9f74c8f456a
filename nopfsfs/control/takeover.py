"""Takeover of a mount whose supervisor is gone, from the servers that serve on."""

from __future__ import annotations

import dataclasses
import os
import time

from nopfsfs.control import orphans
from nopfsfs.control.client import Refused, call
from nopfsfs.control.launch import await_answer, start
from nopfsfs.control.process_list import read_pids
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.protocol.columns import LAYOUT
from nopfsfs.system.process_setup import Handoff
from nopfsfs.system.state_dirs import claimed_dir

HAND_OVER_S = 15.0  # for a supervisor to end its stager and itself
_OTHER = (
    "this mount was made by a version of nopfsfs whose memory this one does not understand; end it: nopfs-umount, and "
    "mount it anew"
)


def adopt(state_dir: str) -> None:
    """Start a supervisor for a mount that has none; return when that supervisor is in charge. Raises NopfsError.

    A server gives what it holds (`control/orphans.py`). The supervisor adopts arena and policy, starts servers, and
    ends those before it, whose requests come to its own (`supervisor/succession.py`). It then starts a
    stager, which adopts the staged copies."""
    with claimed_dir(state_dir, os.geteuid()):
        try:
            given = orphans.ask(state_dir)
        except ValueError as error:
            raise NopfsError(Exit.STUCK, _OTHER) from error
        if given is None:
            raise NopfsError(Exit.STUCK, "no server of this mount gives it away; end it: nopfs-umount")
        ready, ready_writer = os.pipe2(os.O_CLOEXEC)
        fds = {**given.fds, "ready": ready_writer}
        try:
            if given.numbers.get("layout") != LAYOUT:
                raise NopfsError(Exit.STUCK, _OTHER)
            if "init" not in given.fds or not given.numbers.get("redelivery"):
                why = "this mount cannot be taken over: that needs the fast path; end it: nopfs-umount"
                raise NopfsError(Exit.STUCK, why)
            config = dataclasses.replace(given.config, foreground=False)
            start(config, Handoff("super", config, fds, {**given.numbers, "adopted": 1}))
        except BaseException:
            os.close(ready)
            raise
        finally:
            for fd in fds.values():
                os.close(fd)
        # A supervisor that fails ends by itself and leaves the mount to its servers; a signal would make it unmount.
        await_answer(ready)


def upgrade(state_dir: str) -> None:
    """Make the supervisor of a mount leave it to the servers, and take the mount over with this version. Raises
    NopfsError."""
    supervisor = next((process for process in read_pids(state_dir) if process.role == "supervisor"), None)
    try:
        call(state_dir, "hand-over", HAND_OVER_S, layout=LAYOUT)
    except Refused as error:
        raise NopfsError(Exit.STUCK, f"this mount goes on as it is: {error.reason}") from error
    deadline = time.monotonic() + HAND_OVER_S
    if supervisor is not None and not supervisor.wait(deadline - time.monotonic()):
        raise NopfsError(Exit.STUCK, f"the supervisor (pid {supervisor.pid}) gave the mount away and did not end")
    adopt(state_dir)
