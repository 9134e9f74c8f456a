"""Processes as /proc shows them. A pid alone is no identity, for the kernel uses it again; pid and start time are."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NamedTuple

_SIGKILL = 1 << (signal.SIGKILL - 1)
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def start_time(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None if there is none, or a zombie."""
    fields = _stat(pid)
    return None if fields is None or _ended(fields) else int(fields[19])


class Usage(NamedTuple):
    """Resources that a process has taken: seconds of a processor so far, bytes of memory that are resident now."""

    cpu_seconds: float
    resident_bytes: int


def usage(pid: int) -> Usage | None:
    """Return the resources that `pid` has taken; None where it is gone, or /proc does not show it."""
    fields = _stat(pid)
    if fields is None:
        return None
    cpu = int(fields[11]) + int(fields[12])  # in user mode and in the kernel, of all threads
    return Usage(cpu / _TICKS, int(fields[21]) * _PAGE)


def has_ended(pid: int, started: int) -> bool:
    """Return True only where process `pid`, started at `started` (clock ticks since boot), is known to have ended.

    /proc may hide the processes of others (`hidepid`), so a missing entry there is no proof.
    """
    if _is_gone(pid):
        return True
    fields = _stat(pid)
    return fields is not None and (_ended(fields) or int(fields[19]) != started)


def is_dying(pid: int) -> bool:
    """Return True where a thread is gone or has been told to end: a signal that ends a process leaves SIGKILL pending.

    A thread that cannot be seen is not dying: 0 stands for one of another pid namespace, and /proc may hide others.
    """
    if pid == 0:
        return False
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file if line.startswith((b"SigPnd", b"ShdPnd")))
    except OSError:
        return _is_gone(pid)
    return any(int(mask, 16) & _SIGKILL for mask in fields.values())


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # hidden, or no number of a process
        pass
    return False


def living_threads(pid: int) -> dict[int, str]:
    """The state letter of each thread of `pid` that has not ended; a main thread that ended before the others is not
    among them."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            fields = _stat(f"{pid}/task/{name}")
            if fields is not None and fields[0] not in (b"Z", b"X", b"x"):
                found[int(name)] = fields[0].decode()
    return found


def is_stopped(pid: int) -> bool:
    """True when a process was stopped by a signal (SIGSTOP) or a debugger, and answers nothing."""
    return living_threads(pid).get(pid, "").upper() == "T"


def command_name(pid: int) -> str:
    """Return the name of a process's program; nothing where it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return os.fsdecode(file.read(64).rstrip(b"\n"))
    return ""


def pid_namespace() -> int:
    """Return the number of the namespace in which this process's pids count; 0 where /proc does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Return the id that tells this boot of this kernel from all others: 32 hexadecimal digits. Raises OSError."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(64).strip().replace("-", "")


def _stat(pid: int | str) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third on, the state; None where they cannot be read. `pid`: also
    `PID/task/THREAD`."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()  # the name before may hold blanks and brackets
    except OSError:
        return None


def _ended(fields: list[bytes]) -> bool:
    # A killed process whose first thread is gone may have other threads that sleep in the kernel: it has not ended.
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
