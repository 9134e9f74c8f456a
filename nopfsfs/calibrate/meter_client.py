"""Client of the process that measures one part: starts it, reads its messages, and waits for it only for a limited
time. That process (`meter_process`) may sleep in the kernel for ever. It clears up by itself when this process ends,
however that happens."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nopfsfs.system.bounded_run import module_command

PATIENCE_S = 30.0  # a parallel file system that fails over answers again within this; a dead one never does
START_S = 30.0  # for the process to send its first message, on a machine that is busy
LEAVE_S = 10.0  # for a process that is asked to end to remove what it wrote
KILL_S = 1.0  # for a killed process to end; one that sleeps in the kernel never does

Show = Callable[[str], None]  # receives several times a second what is being done


class MeterFailed(Exception):
    """A part could not be measured; the text says why."""


class MeterSilent(MeterFailed):
    """No answer came from what was measured; the text is what was being done then."""


def measure(part: str, seconds: float, show: Show, **request: Any) -> dict[str, Any]:
    """Measure one part; return the figures, as `result` takes them. Raises MeterFailed, MeterSilent."""
    request |= {"part": part, "seconds": seconds, "patience": PATIENCE_S}
    with _running(json.dumps(request).encode() + b"\n") as worker:
        for message in _messages(worker, time.monotonic() + START_S + 2 * (seconds + PATIENCE_S)):
            if "doing" in message:
                show(message["doing"])
            elif "result" in message:
                result: dict[str, Any] = message["result"]
                return result
            elif "hangs" in message:
                raise MeterSilent(message["hangs"])
            elif "bug" in message:
                raise RuntimeError(message["bug"])
            else:
                raise MeterFailed(message["error"])
    raise RuntimeError(f"the process that measures ended with status {worker.returncode}")


def _messages(worker: subprocess.Popen[bytes], limit: float) -> Iterator[dict[str, Any]]:
    """Yield the messages of the measuring process until it ends. Raises MeterSilent."""
    assert worker.stdout is not None
    said, doing, patience = b"", "measuring", START_S
    while True:
        wait = min(patience, limit - time.monotonic())
        if wait <= 0 or not select.select([worker.stdout], [], [], wait)[0]:
            raise MeterSilent(doing)
        more = os.read(worker.stdout.fileno(), 1 << 16)
        if not more:
            return
        patience = PATIENCE_S
        *lines, said = (said + more).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            doing = message.get("doing", doing)
            yield message


@contextmanager
def _running(request: bytes) -> Iterator[subprocess.Popen[bytes]]:
    command = module_command("nopfsfs.calibrate.meter_process")
    # A session of its own: Ctrl-C reaches this process only, which then ends the measuring one.
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    leave = LEAVE_S
    try:
        worker.stdin.write(request)
        worker.stdin.flush()
        yield worker
    except MeterSilent:
        leave = KILL_S  # what the kernel does not answer now it does not answer then
        raise
    finally:
        worker.stdin.close()
        try:
            _wait(worker, leave)
        finally:
            worker.stdout.close()


def _wait(worker: subprocess.Popen[bytes], leave: float) -> None:
    """Wait for the measuring process to end; kill it after `leave` seconds, and leave it if that does not end it."""
    for limit in (leave, KILL_S):
        try:
            worker.wait(limit)
            return
        except subprocess.TimeoutExpired:
            worker.kill()
    worker.returncode = -9  # SIGKILL was sent, the process ends when it wakes; nothing waits for it any more
