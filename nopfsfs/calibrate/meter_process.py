"""Process that measures one part. It may come to sleep in the kernel, on a source or a disk that does not answer, where
no signal reaches it. So the command itself touches neither, and can leave this process (`meter_client`).

One JSON object a line. Standard input: the request, then nothing; when that closes, the command is gone, and this
process clears up and ends. Standard output: `{"doing": ...}` several times a second, at last `{"result": ...}` or
`{"error": ...}`, `{"hangs": ...}`, `{"bug": ...}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nopfsfs.calibrate.meter_threads import MeterHangs, MeterStopped, MeterThreads

BEAT_S = 0.2
_PR_SET_NAME = 15

Request = dict[str, Any]


@dataclass(slots=True)
class MeterChannel:
    """Channel to the command."""

    doing: str = ""
    stopped: bool = False  # a signal came
    _said_at: float = 0.0

    def poll(self) -> None:
        """Send what is being done, as a sign of life, at most every BEAT_S seconds. Raises MeterStopped."""
        readable, _, _ = select.select([0], [], [], 0.0)
        if self.stopped or readable:  # the command never writes more: standard input was closed
            raise MeterStopped
        if time.monotonic() - self._said_at >= BEAT_S:
            self._said_at = time.monotonic()
            self.send({"doing": self.doing})

    def report(self, doing: str) -> None:
        """Set what is being done from here on."""
        self.doing = doing

    def stop(self, *_: object) -> None:
        """Note a signal; nothing is interrupted by it."""
        self.stopped = True

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises MeterStopped where the command reads no more."""
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            raise MeterStopped from None


def measure(request: Request, line: MeterChannel) -> dict[str, Any]:
    """Measure the part that the request names. Raises MeterStopped, MeterHangs, and NothingRead or NoDisk."""
    meter_threads = MeterThreads(line.poll, request["patience"])
    return _PARTS[request["part"]](request, meter_threads, line.report)


def _source(request: Request, meter_threads: MeterThreads, report: Callable[[str], None]) -> dict[str, Any]:
    from nopfsfs.calibrate.source_meter import SourceMeter

    skip = frozenset(map(os.fsencode, request["skip"]))
    meter = SourceMeter(os.fsencode(request["path"]), meter_threads, report, skip, random.Random())
    return meter.measure(request["seconds"])


def _disk(request: Request, meter_threads: MeterThreads, report: Callable[[str], None]) -> dict[str, Any]:
    from nopfsfs.calibrate.disk_meter import DiskMeter

    meter = DiskMeter(request["path"], request["size"], request["limit"], meter_threads, report)
    return meter.measure(request["seconds"])


def _memory(request: Request, meter_threads: MeterThreads, report: Callable[[str], None]) -> dict[str, Any]:
    from nopfsfs.calibrate.memory_meter import MemoryMeter

    return MemoryMeter(request["size"], request["room"], meter_threads, report).measure(request["seconds"])


_PARTS = {"source": _source, "disk": _disk, "memory": _memory}


def main() -> None:
    line = MeterChannel()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, line.stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"nopfs-measure", 0, 0, 0)
    try:
        with open(0, "rb", buffering=0, closefd=False) as stdin:  # else select would not see what a buffer holds
            request: Request = json.loads(stdin.readline())
        line.send(_answer(request, line))
    except (MeterStopped, json.JSONDecodeError):
        pass  # the command is gone, perhaps before it sent a request
    os._exit(0)  # a thread that sleeps in the kernel must not keep the interpreter


def _answer(request: Request, line: MeterChannel) -> dict[str, Any]:
    from nopfsfs.calibrate.disk_meter import NoDisk
    from nopfsfs.calibrate.source_meter import NothingRead

    try:
        return {"result": measure(request, line)}
    except (NothingRead, NoDisk) as error:
        return {"error": str(error)}
    except MeterHangs as error:
        return {"hangs": str(error)}
    except MeterStopped:
        raise
    except Exception as error:
        return {"bug": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
