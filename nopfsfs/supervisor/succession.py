"""Succession of supervisors: taking a mount over from the one before, and leaving it to the next."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from nopfsfs.control.process_list import end_writer, read_pids, wait_all, write_pids
from nopfsfs.protocol.columns import BLOCKS, FIRST_SERVER, LAYOUT
from nopfsfs.supervisor.processes.supervised import SupervisedProcess
from nopfsfs.system.proc import living_threads

log = logging.getLogger(__name__)
END_LIMIT_S = 5.0  # for processes of another supervisor to end by themselves


class Succession:
    """State that the supervisor before has left, and that the next one finds. `given`: numbers that the supervisor
    before has left; None for the first supervisor."""

    def __init__(self, state_dir: str, given: Mapping[str, int] | None) -> None:
        self._state_dir, self._given = state_dir, given
        self._before = read_pids(state_dir) if given is not None else ()

    def first_server(self, count: int) -> int:
        """The number of the first of `count` servers. Servers of another supervisor may still be counting: ours have
        other numbers."""
        if self._given is None:
            return 0
        first = self._given["first"] + self._given["servers"]
        return first if first + count < BLOCKS - FIRST_SERVER else 0

    async def end_predecessors(self, redeliver: Callable[[], None], closes_were_lost: Callable[[], None]) -> bool:
        """End the processes that the supervisor before had left: ours answer now. What was taken by one that does not
        end by itself comes to ours by `redeliver`. False: some are asleep in the kernel, and may yet read or write the
        arena. Raises OSError."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._before:
                process.signal(number)
            await trio.to_thread.run_sync(wait_all, self._before, END_LIMIT_S)
        left = [process.pid for process in self._before if process.alive()]
        left += await trio.to_thread.run_sync(end_writer, self._state_dir, END_LIMIT_S)
        closes_were_lost()
        if left:
            if any("R" in living_threads(pid).values() for pid in left):
                raise OSError(errno.EBUSY, f"processes of the supervisor before do not end: {left}")
            log.error("processes of the supervisor before are asleep in the kernel: %s", left)
        redeliver()
        return not left

    def write_down(self, processes: Iterable[SupervisedProcess]) -> None:
        """Write the list of processes, for whoever takes over."""
        roles = {"supervisor": os.getpid()}
        # of the supervisor before, as long as they may live: whoever takes over from this one must know of all
        roles |= {f"server-before-{p.pid}": p.pid for p in self._before if p.alive()}
        for process in processes:
            if (child := process.living) is not None:
                roles[child.role] = child.pid
            roles |= {f"{other.role}-asleep-{other.pid}": other.pid for other in process.asleep}
        try:
            write_pids(self._state_dir, roles)
        except FileNotFoundError:
            log.info("a command that ends this mount has removed its state directory")
        except OSError as e:
            log.error("the list of processes cannot be written: %s", e)


def check_hand_over(
    request: Mapping[str, Any], *, state: str, lasting: bool, serving: bool, foreground: bool, peers: bool
) -> None:
    """Raises ValueError where a mount cannot be left to another supervisor by this request (`nopfs upgrade`)."""
    if not lasting:
        raise ValueError("this mount cannot be taken over: that needs the fast path")
    if foreground:
        raise ValueError("this mount runs in the foreground: what had started it waits for this supervisor")
    if peers:
        raise ValueError("this mount has peers, which another supervisor could not go on with: mount them all anew")
    if not serving:
        raise ValueError("no server of this mount lives now: try again when one has been started")
    if state != "running":
        raise ValueError("this mount is still starting, or being taken over by another command: try again")
    if request.get("layout") != LAYOUT:
        raise ValueError("that version of nopfsfs does not understand the memory of this mount: mount it anew")
