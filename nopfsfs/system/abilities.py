"""Calls that the kernel may lack, or a container may forbid: each is tried, and what is slower or weaker without it.

Each is called with arguments that every kernel which has it refuses (EINVAL, EBADF), so nothing happens. The version of
the kernel says nothing: distributions add calls to older kernels, and containers take some away.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass

NO_CALL = (errno.ENOSYS, errno.EPERM)  # the answer of a kernel without the call, and of a container that forbids it
_NONE = -1  # no descriptor, no process
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class TriedCall:
    """A system call: its number, the same on all architectures, refused arguments, and what is worse without it."""

    name: str
    number: int
    refused: tuple[int, ...]
    effect: str

    def is_missing(self) -> bool:
        """Return whether this process cannot make the call."""
        done = _libc.syscall(ctypes.c_long(self.number), *(ctypes.c_long(argument) for argument in self.refused))
        return done < 0 and ctypes.get_errno() in NO_CALL


CALLS = (
    TriedCall("pidfd_send_signal", 424, (_NONE, 0, 0, 0),
              "a signal may reach a process that has got the pid of one that ended"),
    TriedCall("open_tree", 428, (_NONE, 0, -1),
              "umount may find the mount busy while a file is pushed into the page cache; nopfs-umount does not"),
    TriedCall("pidfd_open", 434, (_NONE, 0),
              "ends of processes are noticed up to 0.05 s late, and a signal may reach one that has got the pid"),
    TriedCall("close_range", 436, (1, 0, 0), "processes start more slowly where many descriptors are allowed"),
    TriedCall("openat2", 437, (_NONE, 0, 0, 0),
              "a file of the source is opened in a step for each directory on its path"),
    TriedCall("cachestat", 451, (_NONE, 0, 0, 0),
              "what the page cache still has is not known: a file that was taken from it is missed when it is read"),
)  # fmt: skip


def missing() -> dict[str, str]:
    """Return the calls that this process cannot make, and what is slower or weaker without each, in words."""
    return {call.name: call.effect for call in CALLS if call.is_missing()}
