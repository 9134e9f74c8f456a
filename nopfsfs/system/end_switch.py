"""Switch that ends processes, whatever state they are in and whichever process throws it.

The switch is a pipe. Each process that it is to end arms it: from then on the kernel sends that process SIGKILL when a
byte is written. So a process without privileges (`--user`) can end one of root's, but only one that has agreed to that.
No pid is needed, which could be another process's by then.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress

from nopfsfs.system.descriptors import closing_fd

_F_SETSIG = 10  # asm-generic/fcntl.h; Python has no name for it


def create() -> int:
    """Make a switch that no process has armed yet; return its descriptor. Raises OSError."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with closing_fd(reader), closing_fd(writer):
        return os.open(f"/proc/self/fd/{writer}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def arm(switch: int) -> None:
    """Let the switch end this process. Call this before giving up root: the kernel checks whether the user who armed
    the switch may send the signal. Raises OSError."""
    own = os.open(f"/proc/self/fd/{switch}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)  # its own owner and signal
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    # Never closed: the kernel forgets the process with the descriptor.


def throw(switch: int) -> None:
    """End all processes that have armed the switch, this process too if it has."""
    with suppress(OSError):
        os.write(switch, b"x")
