"""A switch that ends processes, whatever state they are in and whoever throws it.

The switch is a pipe. Each process that it is to end arms it: from then on the kernel sends that process SIGKILL when
a byte is written. So a process without privileges (`--user`) can end one of root's, but only one that has agreed to it,
and no pid is needed that could be another process's by then.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress

_F_SETSIG = 10  # asm-generic/fcntl.h; Python has no name for it


def create() -> int:
    """The descriptor of a switch that nobody has armed yet. Raises OSError."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.open(f"/proc/self/fd/{writer}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(reader)
        os.close(writer)


def arm(switch: int) -> None:
    """Let the switch end this process. Before root is given up: the kernel asks whether the one who armed it may send
    the signal. Raises OSError."""
    own = os.open(f"/proc/self/fd/{switch}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)  # its own owner and signal
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    # Never closed: the kernel forgets the process with the descriptor.


def throw(switch: int) -> None:
    """End all processes that have armed the switch, this one too if it has."""
    with suppress(OSError):
        os.write(switch, b"x")
