"""A computation of the plan that takes up to minutes, in a process of its own at a low priority.

The parent pickles what is to be called to its standard input and reads the pickled result from its standard output.
Both ends are this module of the same installation: nothing else is ever unpickled.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import trio

from nopfsfs.system.bounded_run import module_command

log = logging.getLogger(__name__)
LIMIT_S = 900.0
PARENT_LOOK_S = 1.0
_PR_SET_NAME = 15
# Gives a tenth of a core beside a job that keeps all cores busy. 19 gives a hundredth, in which nothing is found.
LOW_PRIORITY = 5


async def compute(call: Callable[[], Any]) -> Any:
    """Run a picklable call in a process of its own; return its result, or None when it fails or takes too long. That
    process ends when `compute` is cancelled, and when this process ends."""
    command = module_command(__name__)
    with trio.move_on_after(LIMIT_S):
        try:
            done = await trio.run_process(
                command, stdin=pickle.dumps(call), capture_stdout=True, capture_stderr=True, check=False, cwd="/"
            )
        except OSError as e:
            log.warning("a search could not be started: %s", e)
            return None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            log.warning("a search ended with status %d: %s", done.returncode, said[-1] if said else "nothing was said")
            return None
        return pickle.loads(done.stdout)
    return None


def main() -> None:
    os.nice(LOW_PRIORITY)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    call = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(call()))
    sys.stdout.buffer.flush()
    os._exit(0)  # the interpreter would take a while to end, and the result is waited for


def _end_with_parent(parent: int) -> None:
    """End this process when its parent ends. PR_SET_PDEATHSIG does not do that: its signal comes when the parent's
    starting thread ends, some seconds after the start."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"nopfs-search", 0, 0, 0)
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
