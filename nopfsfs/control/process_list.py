"""List of the processes of one mount, kept in its state directory so that others can identify and end them.

A pid alone is no identity, because the kernel uses it again. The start time, from /proc, makes it one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nopfsfs.system.abilities import NO_CALL
from nopfsfs.system.as_user import bytes_as_user, is_needed
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.proc import start_time as start_time

PIDS_FILE = "pids"
_BYTES_MOST = 1 << 16  # of such a file; a mount has some ten processes
_PID_MOST = 1 << 31
_LOOK_S = 0.02
_READ_S = 3.0  # to read a file of another user
_ROLE = re.compile(r"[a-z0-9-]{1,60}")  # shown to root even if another user wrote it: no control characters
WRITER_FILE = "writer"  # names the peer process while it may write the arena; it is no process of the mount


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a mount: `start_time` in clock ticks since boot, field 22 of /proc/PID/stat."""

    role: str
    pid: int
    start_time: int

    def alive(self) -> bool:
        """Return whether this very process still runs; a zombie does not."""
        return start_time(self.pid) == self.start_time

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process, never to a later one with its pid. Return whether it was sent."""
        try:
            with closing_fd(os.pidfd_open(self.pid)) as fd:
                if not self.alive():
                    return False
                signal.pidfd_send_signal(fd, number)
                return True
        except OSError as error:
            return error.errno in NO_CALL and _signal_by_pid(self, number)

    def wait(self, limit_s: float) -> bool:
        """Wait until the process has ended, at most `limit_s` seconds; return whether it has."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno in NO_CALL:
                deadline = time.monotonic() + limit_s
                while self.alive() and time.monotonic() < deadline:
                    time.sleep(_LOOK_S)
            return not self.alive()
        with closing_fd(fd):
            if self.alive():
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(max(0.0, limit_s) * 1000)
            return not self.alive()


def _signal_by_pid(process: Process, number: signal.Signals) -> bool:
    """Do as `Process.signal`, where one of its calls is missing. Between two calls the process could end, and its pid
    go to another."""
    with suppress(OSError):
        if process.alive():
            os.kill(process.pid, number)
            return True
    return False


def write_pids(state_dir: str, roles: Mapping[str, int], name: str = PIDS_FILE) -> None:
    """Write down the processes of a mount, role by role; the file is replaced in one step."""
    table = {role: {"pid": pid, "start_time": start_time(pid)} for role, pid in roles.items()}
    path = os.path.join(state_dir, name)
    with open(f"{path}.new", "w") as file:
        json.dump(table, file)
    os.replace(f"{path}.new", path)


def read_pids(state_dir: str, name: str = PIDS_FILE, owner: int | None = None) -> tuple[Process, ...]:
    """Return the processes written down in `state_dir`; none where the file is missing or damaged.

    With `owner`, return none either where the file is not that user's. Where `owner` is another user, leave out
    processes that are not that user's: root trusts a user's file only about that user's own processes. The time is
    bounded, whatever the user has put there."""
    path = os.path.join(state_dir, name)
    foreign = owner is not None and is_needed(owner)
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        table = json.loads(bytes_as_user(owner or 0, lambda: _read_small(path, owner), _READ_S))
        found = (_process(role, entry) for role, entry in table.items())
        return tuple(p for p in found if p is not None and (not foreign or _user_of(p.pid) == owner))
    return ()


def _process(role: str, entry: Any) -> Process | None:
    """Read an entry of such a file; None where it is invalid, or was written by a release that writes others."""
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        process = Process(role, int(entry["pid"]), int(entry["start_time"]))
        if _ROLE.fullmatch(role) and 0 < process.pid < _PID_MOST:
            return process
    return None


def _user_of(pid: int) -> int | None:
    """Return the real user id of a process; None where there is none."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Uid:")), None)
    return None


def _read_small(path: str, owner: int | None) -> bytes:
    """Return what a small regular file holds. Raises OSError."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (owner is not None and found.st_uid != owner):
            raise OSError(errno.EPERM, "no file of the mount", path)
        text = os.read(fd, _BYTES_MOST + 1)
    if len(text) > _BYTES_MOST:
        raise OSError(errno.EFBIG, "too long", path)
    return text


def writes_no_more(state_dir: str) -> None:
    """Remove the record of this process as the peer process that writes the arena: it writes no more."""
    if os.getpid() in {process.pid for process in read_pids(state_dir, WRITER_FILE)}:
        with suppress(OSError):
            os.unlink(os.path.join(state_dir, WRITER_FILE))


def living(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Return those of `processes` that still run."""
    return tuple(process for process in processes if process.alive())


def wait_all(processes: Sequence[Process], limit_s: float) -> bool:
    """Wait for the end of all, at most `limit_s` seconds together; return whether all have ended."""
    deadline = time.monotonic() + limit_s
    return all(process.wait(deadline - time.monotonic()) for process in processes)


def end_writer(state_dir: str, limit_s: float) -> list[int]:
    """Wait until the peer process of a supervisor that is gone writes the arena no more; kill that process after
    `limit_s` seconds. Return its pid if it still lives after as many seconds again."""
    deadline = time.monotonic() + limit_s
    while (writers := living(read_pids(state_dir, WRITER_FILE))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for writer in writers:
        writer.signal(signal.SIGKILL)
    wait_all(writers, limit_s)
    return [writer.pid for writer in living(writers)]
