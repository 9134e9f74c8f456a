"""Start and setup of a mount's processes: exec, with descriptors and one JSON description passed; never a bare fork.

The description lies in an anonymous file whose descriptor number is the only argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import logging
import logging.handlers
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

import msgspec

from nopfsfs.config import MountConfig
from nopfsfs.system import end_switch, life_lock
from nopfsfs.system.bounded_run import module_command
from nopfsfs.system.child_statuses import keep_child_statuses
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.node_memory import share_heap
from nopfsfs.system.trusted_path import open_for_append

_PR_SET_KEEPCAPS, _PR_SET_NAME = 8, 15
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_CAP_SYS_ADMIN = 1 << 21
SYSTEM_LOG = "/dev/log"
_IDENTIFIER = "nopfs"  # journalctl -t nopfs
_USER_FACILITY = 1 << 3  # syslog(3)
_SEVERITIES = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # by which people end a process
# numpy's OpenBLAS starts a thread for each processor of the node at import. Such a thread spins for a while, and counts
# against the limit of processes. A mount has no use for it.
_NO_ALGEBRA = {"OPENBLAS_NUM_THREADS": "1"}
_NICE = {"super": 0, "server": -10, "stager": 5}


@contextlib.contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle these signals by `handler` inside the `with` block. In the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def ending_at_signals(numbers: Iterable[signal.Signals]) -> contextlib.AbstractContextManager[None]:
    """Let these signals raise SystemExit inside the `with` block, so that what was begun is cleared away."""

    def raise_exit(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    return handling(numbers, raise_exit)


@contextlib.contextmanager
def end_signals_later() -> Iterator[None]:
    """Deliver the signals that end a process after the `with` block, so that what is begun there is known to whoever
    clears it away. Those that are ignored stay so."""
    came: list[int] = []
    with handling(signals_to_end(), lambda number, frame: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


class HeldSignals:
    """Signals that end a process, for a process that must not leave others in the middle of what they do together. The
    first such signal raises SystemExit inside a `may_end` block: at once, or at the start of the next block. Signals
    that are ignored stay so."""

    def __init__(self) -> None:
        self._came: int | None = None
        self._may_end = False

    def holding(self) -> contextlib.AbstractContextManager[None]:
        """Hold the signals back inside the `with` block. In the main thread only."""
        return handling(signals_to_end(), self._take)

    @contextlib.contextmanager
    def may_end(self) -> Iterator[None]:
        """Let a signal end the process inside the `with` block."""
        self._may_end = True
        try:
            if self._came is not None:
                self._end(self._came)
            yield
        finally:
            self._may_end = False

    def _take(self, number: int, frame: object) -> None:
        self._came = number
        if self._may_end:
            self._end(number)

    def _end(self, number: int) -> None:
        self._may_end = False  # a second signal does not disturb the one who clears away
        raise SystemExit(128 + number)


def signals_to_end() -> list[signal.Signals]:
    """END_SIGNALS without those that are ignored, as under nohup(1)."""
    return [number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


@dataclass(frozen=True, slots=True)
class Handoff:
    """Configuration of the mount, descriptors by name, and numbers, which a process gets at exec."""

    role: str
    config: MountConfig
    fds: dict[str, int]
    numbers: dict[str, int]

    def write(self) -> int:
        """Write the handoff to an anonymous file; return the descriptor, at the file's start."""
        fd = os.memfd_create(f"nopfs-{self.role}", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(self.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def encode(self) -> bytes:
        """Encode as JSON, which holds paths that are no UTF-8."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Handoff:
        """Decode. Raises ValueError for what is no handoff of this version."""
        return msgspec.convert(json.loads(data), Handoff)


def start(module: str, handoff: Handoff, **popen: Any) -> subprocess.Popen[bytes]:
    """Run `python -m module` with the handoff's descriptors. The process reads nothing (stdin is /dev/null) and is in
    the session of this process, with its outputs; `popen`, which goes to `subprocess.Popen`, may name others."""
    with closing_fd(handoff.write()) as fd:
        command, fds = module_command(module, str(fd)), (fd, *handoff.fds.values())
        env = {**os.environ, **_NO_ALGEBRA}
        return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, cwd="/", env=env, **popen)


def begin(argv: list[str]) -> Handoff:
    """Take the handoff, hold the lock of the mount's life, name the process, set up its heap, logging, priority and the
    end switch. First call in a process's main."""
    share_heap()
    keep_child_statuses()
    with os.fdopen(int(argv[1]), "rb") as file:
        handoff = Handoff.decode(file.read())
    life_lock.hold(handoff.config.state_dir)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"nopfs-{handoff.role}".encode()[:15], 0, 0, 0)
    set_up_logging(handoff.config, handoff.role)
    set_priority(handoff.role)
    if "end" in handoff.fds:
        end_switch.arm(handoff.fds["end"])
    return handoff


def set_priority(role: str) -> None:
    """Set this process's priority, so that servers run before processes that work ahead of the readers. Otherwise a
    request that wakes a server where the supervisor or a pusher is at work waits up to a millisecond. The stager has
    the lowest priority, so that fetches in vain do not hold up the supervisor's search for what to fetch. All threads
    of the supervisor have the readers' priority. A thread with a lower priority would hold the interpreter's lock while
    it does not get the processor."""
    with contextlib.suppress(PermissionError):
        if role == "super":
            os.setpriority(os.PRIO_PROCESS, 0, _NICE["server"])
        os.setpriority(os.PRIO_PROCESS, 0, _NICE[role.partition("-")[0]])


def unbind() -> None:
    """Run on all processors that this process may use. MPI's launchers bind the processes that they start, often to one
    core. A mount that one of them starts serves all readers of the node. What a cgroup forbids stays forbidden."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def set_up_logging(config: MountConfig, role: str, *, quiet: bool = False) -> None:
    """Log to the log file, else to standard error unless `quiet`, else (a daemon) to the system's log or the state
    directory. No process waits for the system's log. NOPFS_DEBUG=1 logs everything."""
    handler: logging.Handler = logging.StreamHandler()
    if config.log_file:
        handler = _LogFile(config.log_file)
    elif quiet or _stderr_leads_nowhere():
        handler = _SystemLog() if os.path.exists(SYSTEM_LOG) else _LogFile(os.path.join(config.state_dir, "log"))
    handler.setFormatter(logging.Formatter(f"%(asctime)s {role}[%(process)d] %(levelname)s: %(message)s"))
    level = logging.DEBUG if os.environ.get("NOPFS_DEBUG") else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _LogFile(logging.handlers.WatchedFileHandler):
    """Log file that is opened at once: later the process may have given up the right to open it (--user). A log that
    cannot be written, because it was rotated away or its disk is full, must not end the thread that logs. No link of
    another user is followed, and no file of another user written."""

    def _open(self) -> TextIOWrapper:
        return open(open_for_append(self.baseFilename), "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)


class _SystemLog(logging.Handler):
    """The system's log. A message that the log does not take at once is lost. (logging's SysLogHandler waits while a
    stopped log has a full queue, and all readers would wait with it.)"""

    def __init__(self) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def emit(self, record: logging.LogRecord) -> None:
        severity = _SEVERITIES.get(record.levelno, _SEVERITIES[logging.ERROR])
        text = f"<{_USER_FACILITY | severity}>{_IDENTIFIER}: {self.format(record)}"
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode(errors="backslashreplace"), socket.MSG_DONTWAIT, SYSTEM_LOG)

    def close(self) -> None:
        self._socket.close()
        super().close()


def _stderr_leads_nowhere() -> bool:
    try:
        return os.path.samestat(os.fstat(2), os.stat(os.devnull))
    except OSError:
        return True


def become_reader(config: MountConfig) -> None:
    """Give up root for the user who may read the source (--user). Raises OSError."""
    if config.uid is None:
        return
    gid = config.gid if config.gid is not None else config.uid
    os.setgroups(list(config.groups) or [gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(config.uid, config.uid, config.uid)


@contextlib.contextmanager
def become_reader_with_admin(config: MountConfig) -> Iterator[None]:
    """Give up root as `become_reader` does, but for CAP_SYS_ADMIN. Threads that are started inside the `with` block
    have and keep that capability, if this process had it. This thread gives the capability up at the end of the block.
    Raises OSError."""
    if config.uid is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    become_reader(config)
    libc.prctl(_PR_SET_KEEPCAPS, 0, 0, 0, 0)
    _set_capabilities(libc, _CAP_SYS_ADMIN)  # refused where there was none
    try:
        yield
    finally:
        if not _set_capabilities(libc, 0):
            raise OSError(ctypes.get_errno(), "capset")  # never: to give up is always allowed


def _set_capabilities(libc: ctypes.CDLL, mask: int) -> bool:
    """Set this thread's effective and permitted capabilities; return True when that was allowed."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", mask, mask, 0, 0, 0, 0)  # the low words, then the high ones
    return bool(libc.capset(header, data) == 0)
