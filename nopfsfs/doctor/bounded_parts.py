"""Parts of a diagnosis, each collected in a child process, all at once, each within its time limit.

A process that reads a dead mount, source or log may sleep where no signal reaches it. So such a read is made by a
child, which has none of the parent's streams. A child that does not end in time is killed, and left if that does not
help.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nopfsfs.errors import NopfsError
from nopfsfs.system.as_user import become_user, is_needed

BYTES_MOST = 32 << 20  # of a part
REAP_S = 1.0  # for killed children to end; one that the kernel holds is left to init
ERROR = "error"  # the only key of a part that could not be collected


@dataclass(frozen=True, slots=True)
class PartToCollect:
    """A part: `collect` returns what can be written as JSON. `user`: as whom, where this process is root's; None: as
    this process."""

    name: str
    collect: Callable[[], Any]
    limit_s: float
    user: int | None = None


@dataclass(slots=True)
class _Child:
    part: PartToCollect
    pid: int
    fd: int
    deadline: float
    received: bytearray


def collect_all(parts: Sequence[PartToCollect]) -> dict[str, Any]:
    """Return what each part collects, by name; `{"error": text}` for a part that fails, or takes longer than its
    limit. To be called in a process of one thread."""
    found: dict[str, Any] = {}
    running: dict[int, _Child] = {}
    for part in parts:
        try:
            child = _start(part)
        except OSError as error:
            found[part.name] = {ERROR: f"no process is to be had: {error.strerror or error}"}
        else:
            running[child.fd] = child
    pids = [child.pid for child in running.values()]
    while running:
        left_s = min(child.deadline for child in running.values()) - time.monotonic()
        poll = select.poll()
        for fd in running:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, left_s) * 1000):
            _receive(running, fd, found)
        for child in [child for child in running.values() if time.monotonic() >= child.deadline]:
            found[child.part.name] = {ERROR: f"nothing within {child.part.limit_s:g} s"}
            _close(running, child.fd)
    _end(pids)
    return {part.name: found[part.name] for part in parts}


def _start(part: PartToCollect) -> _Child:
    ours, theirs = os.pipe()
    try:
        pid = os.fork()
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    if pid == 0:
        _run(part, theirs)
    os.close(theirs)
    return _Child(part, pid, ours, time.monotonic() + part.limit_s, bytearray())


def _run(part: PartToCollect, answer: int) -> None:
    """Run the child, from its start to its end."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # a child that the kernel holds must not hold what others read to its end
            os.dup2(null, stream)
        os.chdir("/")
        if part.user is not None and is_needed(part.user):
            become_user(part.user)
        data = json.dumps(_tried(part.collect)).encode()
        while data:
            data = data[os.write(answer, data) :]
    finally:
        os._exit(0)  # nothing of the parent's is flushed or cleaned up twice


def _tried(collect: Callable[[], Any]) -> Any:
    try:
        return collect()
    except NopfsError as error:
        return {ERROR: error.message}
    except Exception as error:
        return {ERROR: f"{type(error).__name__}: {error}"}


def _receive(running: dict[int, _Child], fd: int, found: dict[str, Any]) -> None:
    child = running[fd]
    data = os.read(fd, 1 << 16)
    child.received += data
    if data and len(child.received) <= BYTES_MOST:
        return
    _close(running, fd)
    if data:
        found[child.part.name] = {ERROR: f"more than {BYTES_MOST} bytes"}
        return
    try:
        found[child.part.name] = json.loads(child.received)
    except ValueError:
        found[child.part.name] = {ERROR: "the process that collects it died"}


def _close(running: dict[int, _Child], fd: int) -> None:
    del running[fd]
    os.close(fd)


def _end(pids: Sequence[int]) -> None:
    """Kill the children that still run, and wait up to REAP_S for their ends."""
    left = list(pids)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)  # not reaped yet: the pid is still the child's
    deadline = time.monotonic() + REAP_S
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _runs(pid)]
        if left:
            time.sleep(0.005)


def _runs(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False


def failed(part: Any) -> str | None:
    """Return why a part could not be collected; None where it was."""
    return str(part[ERROR]) if isinstance(part, Mapping) and list(part) == [ERROR] else None
