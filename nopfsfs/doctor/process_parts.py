"""Facts of the processes of a mount: states, places in the kernel, memory. No process gets a
signal, none is stopped, and only those that are proven to be the mount's are looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nopfsfs.control.process_list import Process
from nopfsfs.doctor.node_parts import text
from nopfsfs.system.proc import living_threads, usage

THREADS_MOST = 64  # of each process
ASLEEP_S = 0.5  # a thread that sleeps so long in one place of the kernel, where no signal reaches it, is said to
_STATUS = ("Name", "State", "Uid", "VmRSS", "VmSwap", "Threads", "SigCgt", "SigPnd", "ShdPnd")


def describe_processes(listed: Sequence[Process]) -> list[dict[str, Any]]:
    """Describe each process that was listed: `alive`, and if so its threads."""
    before = {process.pid: _sleepers(process) for process in listed}
    time.sleep(ASLEEP_S)
    return [_described(process, before[process.pid]) for process in listed]


def _described(process: Process, slept: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": process.role, "pid": process.pid, "alive": process.alive()}
    if not found["alive"]:
        return found
    base, used = f"/proc/{process.pid}", usage(process.pid)
    threads = living_threads(process.pid)
    status = dict(line.split(":\t", 1) for line in (text(f"{base}/status") or "").splitlines() if ":\t" in line)
    details: dict[str, Any] = {
        "stopped": threads.get(process.pid, "").upper() == "T",
        "asleep": sorted(tid for tid, place in _sleepers(process).items() if slept.get(tid) == place),
        "status": {name: status[name] for name in _STATUS if name in status},
        "cpu_seconds": used.cpu_seconds if used is not None else None,
        "descriptors": _count(f"{base}/fd"),
        "limits": text(f"{base}/limits"), "oom_score_adj": text(f"{base}/oom_score_adj"),
        "threads": [_thread(base, tid, state) for tid, state in list(threads.items())[:THREADS_MOST]],
    }  # fmt: skip
    # All of this is the process's only if the process lives still.
    return found | details if process.alive() else found | {"alive": False}


def _thread(base: str, tid: int, state: str) -> dict[str, Any]:
    here = f"{base}/task/{tid}"
    names = {"name": "comm", "wchan": "wchan", "syscall": "syscall", "kernel_stack": "stack"}
    return {"tid": tid, "state": state} | {key: text(f"{here}/{name}") for key, name in names.items()}


def _sleepers(process: Process) -> dict[int, str]:
    """The place in the kernel of each thread that sleeps where no signal reaches it."""
    if not process.alive():
        return {}
    threads = living_threads(process.pid)
    return {
        tid: text(f"/proc/{process.pid}/task/{tid}/wchan") or ""
        for tid, state in threads.items()
        if state in ("D", "K")
    }


def _count(directory: str) -> int | None:
    with suppress(OSError):
        return len(os.listdir(directory))
    return None
