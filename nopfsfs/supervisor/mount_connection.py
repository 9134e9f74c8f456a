"""The mount's connection to the kernel: INIT, the first answer, unmounting, and the end of the mount."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import trio

from nopfsfs.config import MountConfig
from nopfsfs.errors import NopfsError
from nopfsfs.fuse import mount_table, passthrough
from nopfsfs.fuse.connection import KernelSession, Redelivery, negotiate, passes_from
from nopfsfs.fuse.mount_watch import MountWatch, is_over, is_used
from nopfsfs.fuse.mounting import Busy, may_mount, unmount
from nopfsfs.fuse.pyfuse3_pair import is_possible
from nopfsfs.supervisor.processes.servers import number_of_servers
from nopfsfs.supervisor.processes.stager import StagerHandle
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.system import shared_memory
from nopfsfs.system.outages import SHORTAGE

log = logging.getLogger(__name__)
ANSWER_LIMIT_S = 30.0
LOOK_S = 5.0  # between two looks at the table of mounts, without an event
OVER_PAUSE_S = 0.5  # between two looks at whether the connection of a mount that is gone has ended
SHORTAGE_PAUSE_S = 1.0  # after a look that was not possible
Result = TypeVar("Result")


class MountConnection:
    """The mount of the FUSE descriptor in `fds`. `numbers`: of the handoff, its device number and what a supervisor
    before has agreed upon. `any_acl`: a file of the source has an ACL. What is made is closed with `resources`."""

    def __init__(
        self, config: MountConfig, fds: dict[str, int], resources: contextlib.ExitStack,
        numbers: Mapping[str, int], *, any_acl: bool,
    ) -> None:  # fmt: skip
        self._config, self._fds, self._resources = config, fds, resources
        self._any_acl, self._given = any_acl, numbers if numbers.get("adopted") else None
        self.minor = numbers.get("minor", 0)
        self._mount = mount_table.find_mount_of(config.mountpoint, self.minor)  # None: it is unmounted already
        self._held: mount_table.HeldConnection | None = None
        self.session: KernelSession | None = None  # agreed upon; None: pyfuse3 alone agrees
        self._short = False  # of what a look takes; that was logged
        self.pass_from = 0  # bytes: files of this size or more may be passed through; 0: none

    @property
    def acl(self) -> bool:
        """True where the kernel checks ACLs."""
        return self._any_acl if self.session is None else self.session.acl

    @property
    def redelivery(self) -> Redelivery:
        """The way in which requests of a dead server come to another one."""
        return Redelivery.NONE if self.session is None else self.session.redelivery

    def modes(self, signal: ProgressSignal) -> dict[str, Any]:
        """The part `modes` of the status record; `signal_because`: why the signal is `open` yet, where that is not what
        was asked for."""
        return {
            "fast_path": self._config.fast_path, "resend": self.redelivery is Redelivery.KERNEL,
            "redelivery": self.redelivery.name.lower(), "passthrough": self.pass_from > 0, "signal": signal.name,
            "signal_because": signal.why, "privileged": may_mount(), "servers": number_of_servers(self._config),
        }  # fmt: skip

    async def agree(self) -> None:
        """Agree with the kernel upon what the mount can do, before anybody answers."""
        if self._mount is not None and may_mount():
            self._held = mount_table.HeldConnection(self._mount)
            self._resources.callback(self._held.close)
        if self._given is not None:
            self.pass_from = self._given["pass_from"]  # as before: opens were counted by it
            self.session = KernelSession(
                b"", Redelivery(self._given["redelivery"]), self.pass_from > 0, bool(self._given["acl"])
            )  # fmt: skip
        elif self._config.fast_path:
            self.session = await trio.to_thread.run_sync(self._negotiate, abandon_on_cancel=True)
            self.pass_from = passes_from(self._config) if self.session.passthrough else 0
        if self.pass_from:
            log.info("files of %d bytes or more are passed through to disk", self.pass_from)

    def _negotiate(self) -> KernelSession:
        wanted = passes_from(self._config) > 0
        session = negotiate(self._fds["fuse"], acl=self._any_acl, limit_s=ANSWER_LIMIT_S, passthrough=wanted)
        if session.redelivery is Redelivery.RECORDS:
            log.info("this kernel does not deliver requests again: servers keep a record of what they take")
        if wanted and not (session.passthrough and passthrough.is_permitted(self._fds["fuse"])):
            missing = "the right to (CAP_SYS_ADMIN)" if session.passthrough else "a kernel that does (Linux 6.9)"
            log.log(logging.WARNING if self._config.passthrough == "on" else logging.INFO,
                    "files are not passed through: that needs %s", missing)  # fmt: skip
            session = dataclasses.replace(session, passthrough=False)
        init = self._fds["init"] = shared_memory.create("init", len(session.request))
        self._resources.callback(os.close, init)
        os.pwrite(init, session.request, 0)
        return session

    async def answers(self) -> None:
        """Look at the root through the mount, as a user would. Raises OSError, trio.TooSlowError."""
        with trio.fail_after(ANSWER_LIMIT_S):
            await trio.to_thread.run_sync(os.stat, self._config.mountpoint, abandon_on_cancel=True)
        found = self._mount
        if found is not None and not mount_table.set_read_ahead(found):
            log.info("the kernel reads ahead as far as it does for any mount: more takes root")
        if found is not None and not self._config.fast_path:
            mount_table.set_background(found)

    # ---- the end ------------------------------------------------------------------------------------------

    async def wait_until_over(self, stager: StagerHandle, ours: Callable[[], list[int]]) -> None:
        """Wait until the mount is over. When the mountpoint is gone, let go of the tree: then the kernel ends the
        connection as soon as nobody has the mount open. `ours()`: the processes of the mount."""
        with contextlib.closing(MountWatch(self.minor)) as watch:
            while not await self._look(watch.unmounted):
                # A time limit beside the event: a missed one must not leave the mount half gone.
                with trio.move_on_after(LOOK_S):
                    await trio.lowlevel.wait_readable(watch.fileno())
        log.info("the mountpoint is gone from this namespace")
        await stager.leave_mount()
        while not is_over(self._fds["fuse"]):
            await trio.sleep(OVER_PAUSE_S)
            if stager.process.asleep:
                await self._end_what_nobody_uses(ours())

    async def _end_what_nobody_uses(self, ours: list[int]) -> None:
        """A stager that the kernel holds keeps the mount alive, though it is out of sight and nobody has it open."""
        if self._held is None or self._mount is None:
            return
        held, mount = self._held, self._mount
        if await self._look(lambda: is_used(mount, ours)) is False:
            log.error("a stager that is asleep in the kernel keeps the mount; its connection is aborted")
            await self._look(lambda: held.abort(in_use=True))

    async def _look(self, look: Callable[[], Result]) -> Result | None:
        """Call `look` in a thread; None where that is not possible at this moment, after a pause."""
        try:
            found = await trio.to_thread.run_sync(look)
        except SHORTAGE as e:
            if not self._short:
                log.warning("the mount cannot be looked at now: %s", e)
            self._short = True
            await trio.sleep(SHORTAGE_PAUSE_S)
            return None
        self._short = False
        return found

    async def unmount(self) -> None:
        """Unmount, lazily where the mount is busy. What was mounted there since stays."""
        # Once the connection has ended, another mount may have the numbers by which ours is known.
        if self._mount is None or is_over(self._fds["fuse"]):
            return
        try:
            await trio.to_thread.run_sync(_unmount_or_detach, self._mount)
        except NopfsError:
            pass
        except SHORTAGE as e:  # then the end of the connection ends the mount
            log.error("%s is not unmounted: %s", self._config.mountpoint, e)


def possible(config: MountConfig) -> MountConfig:
    """The configuration of a new mount, as far as this system allows it."""
    if config.fast_path and not is_possible():
        log.warning("this system allows no messages as long as a listing; going on without the fast path")
        return dataclasses.replace(config, fast_path=False)
    return config


def _unmount_or_detach(mount: mount_table.Mount) -> None:
    try:
        unmount(mount)
    except Busy:
        unmount(mount, lazy=True)
