"""The threads of another process, as /proc shows them."""

from __future__ import annotations

import os
from contextlib import suppress

_ENDED = ("Z", "X", "x")


def living_threads(pid: int) -> dict[int, str]:
    """The state letter of each thread of `pid` that has not ended; a main thread that ended before the others is not
    among them."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0].decode()
                if state not in _ENDED:
                    found[int(name)] = state
    return found


def is_stopped(pid: int) -> bool:
    """True when a process was stopped by a signal (SIGSTOP) or a debugger, and answers nothing."""
    return living_threads(pid).get(pid, "").upper() == "T"
