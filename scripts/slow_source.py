#!/usr/bin/env python3
"""A stand-in for a parallel file system: read-only, slow as ordered, and it counts what it serves.

As a command:

    python scripts/slow_source.py BACKING MOUNTPOINT --open-latency 5ms --read-latency 2ms \\
        --bandwidth 400MB/s --concurrent 64 --control SOCKET -f
    python scripts/slow_source.py BACKING MOUNTPOINT --request-time 40ms --most 600 --bend 4 \\
        --change "60s: bandwidth=0.33" --change "100s:" -f

The first is so slow for each request. The second has a throughput curve: all reads under way share it, so that more of
them bring more throughput up to a knee, and only longer reads beyond (`slow_source_load.Curve`).

From tests and benchmarks, `SlowSource` starts it as a process of its own and talks to its control socket.
The control socket takes one JSON object per line and answers one per line:

    {"do": "counters", "files": true, "series": true}   {"do": "reset"}   {"do": "release"}   {"do": "stop"}
    {"do": "fault", "operation": "open", "pattern": "train/*", "errno": 5, "count": 3}     (errno null: stall)
    {"do": "limits", "open_latency": 0.005, "read_latency": 0.002, "bandwidth": 4e8, "concurrent": 64}
    {"do": "limits", "curve": {"seconds": 0.04, "most": 600, "bend": 4, "noise": 1, "seed": 0}}
    {"do": "schedule", "changes": [{"at": 10, "bandwidth": 0.33, "background": 20}, {"at": 50}]}   {"do": "ping"}

This module owns the command line and the client; it imports no FUSE. `slow_source_fs` is the file system.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from slow_source_load import Change, Curve, Limits, parse_change, parse_duration, parse_rate

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.02


@dataclass(frozen=True)
class FileCounters:
    """Requests for one path, and the bytes answered."""

    opens: int
    reads: int
    bytes: int


@dataclass(frozen=True)
class SourceCounters:
    """What the source was asked since the last reset; `files`, `looks` (at attributes) and `listings` by path relative
    to the source.

    `in_flight` and `peak` count requests being served at once, `stalled` those held by a stall now. `under_way_seconds`
    is the integral of the requests being served. `series`: for each `BIN_S` that has ended, in at most the last hour,
    the mean of the requests being served, and the reads that ended well.
    """

    opens: int
    reads: int
    bytes: int
    in_flight: int
    peak: int
    stalled: int
    files: dict[str, FileCounters]
    looks: dict[str, int] = field(default_factory=dict)
    listings: dict[str, int] = field(default_factory=dict)
    under_way_seconds: float = 0.0
    series: Sequence[tuple[float, int]] = ()


class SlowSource:
    """A running slow source. A context manager: on exit the mount and the process are gone, come what may.

    Raises RuntimeError with the process's own words when it does not start.
    """

    def __init__(
        self,
        backing: os.PathLike[str] | str,
        mountpoint: os.PathLike[str] | str | None = None,
        *,
        open_latency: float = 0.0,
        read_latency: float = 0.0,
        bandwidth: float = 0.0,
        concurrent: int = 64,
        attr_timeout: float = 0.0,
        root_squash: bool = False,
        curve: Curve | None = None,
    ) -> None:
        self.limits = Limits(open_latency, read_latency, bandwidth, concurrent, curve)
        self._backing = Path(backing)
        self._given = Path(mountpoint).resolve() if mountpoint is not None else None
        self._arguments = ["--attr-timeout", f"{attr_timeout}s", *(["--root-squash"] if root_squash else [])]
        self._cleanup = contextlib.ExitStack()
        self.path = Path()
        self.pid = 0

    def __enter__(self) -> SlowSource:
        with contextlib.ExitStack() as stack:
            own = Path(stack.enter_context(temporary_directory()))
            self.path = self._given or own / "source"
            self.path.mkdir(exist_ok=True)
            self._socket = own / "control"
            process = stack.enter_context(self._process(own / "log"))
            self.pid = process.pid
            self._wait_until_it_answers(process, own / "log")
            self._cleanup = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def counters(self, files: bool = True, series: bool = False) -> SourceCounters:
        answer = self._ask(do="counters", files=files, series=series)
        per_file = {path: FileCounters(*numbers) for path, numbers in answer.pop("files", {}).items()}
        return SourceCounters(files=per_file, **answer)

    def reset(self) -> None:
        """Set all counters to zero."""
        self._ask(do="reset")

    def set_limits(self, limits: Limits) -> None:
        """Change latencies, bandwidth, concurrency and curve for the requests that arrive from now on. A curve, also
        the same again, begins anew from its seed on, without a schedule, and so do reads under way."""
        self._ask(do="limits", **asdict(limits))
        self.limits = limits

    def schedule(self, *changes: Change) -> None:
        """Change a source with a curve at these times from now, instead of what was scheduled before."""
        self._ask(do="schedule", changes=[asdict(change) for change in changes])

    def fail(self, operation: str, errno: int, pattern: str = "*", count: int | None = None) -> None:
        """Fail the next `count` requests (None: until `release`) of `operation` on paths that match the glob.

        Operations: open, read, lookup, getattr, readdir, any.
        """
        self._ask(do="fault", operation=operation, pattern=pattern, errno=errno, count=count)

    def stall(self, operation: str, pattern: str = "*", count: int | None = None) -> None:
        """As `fail`, but the requests wait until `release`."""
        self._ask(do="fault", operation=operation, pattern=pattern, errno=None, count=count)

    def release(self) -> None:
        """End all failures and stalls."""
        self._ask(do="release")

    def wait_stalled(self, count: int = 1, timeout: float = ANSWER_TIMEOUT_S) -> None:
        """Return once `count` requests are held by a stall. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while self.counters(files=False).stalled < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"fewer than {count} requests stalled after {timeout} s")
            time.sleep(POLL_S)

    def cpu_seconds(self) -> float:
        """Processor time that the source itself has used."""
        return cpu_seconds(self.pid)

    @contextlib.contextmanager
    def _process(self, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable,
            __file__,
            os.fspath(self._backing),
            os.fspath(self.path),
            "-f",
            *self._arguments,
        ]
        command += [*limit_arguments(self.limits), "--control", os.fspath(self._socket), "--exit-with-stdin"]
        with log.open("wb") as output:
            # stdin is a pipe that nobody writes to: it closes with this process, even if that is killed.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield process
        finally:
            stop_process(process, self.path)

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            try:
                self._ask(do="ping")
                if os.path.ismount(self.path):
                    return
            except (FileNotFoundError, ConnectionRefusedError):
                pass  # not listening yet
            time.sleep(POLL_S)
        raise RuntimeError(f"slow source did not start: {log.read_text(errors='replace').strip()}")

    def _ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(os.fspath(self._socket))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        if not answer.pop("ok"):
            raise ValueError(answer["error"])
        return answer


def limit_arguments(limits: Limits) -> list[str]:
    """The command line's words for these limits."""
    words = ["--open-latency", f"{limits.open_latency}s", "--read-latency", f"{limits.read_latency}s"]
    words += ["--bandwidth", f"{limits.bandwidth:.0f}", "--concurrent", str(limits.concurrent)]
    if limits.curve is None:
        return words
    fields = {f"--{name.replace('_', '-')}": value for name, value in asdict(limits.curve).items()}
    words += ["--request-time", f"{fields.pop('--seconds')}s"]
    return [*words, *(f"{option}={value}" for option, value in fields.items())]


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """A short path (a socket's has at most 107 bytes), removed unless something is still mounted there."""
    path = tempfile.mkdtemp(prefix="slow-source-")
    os.chmod(path, 0o711)  # a mount of what others may not come to is refused
    try:
        yield path
    finally:
        if not os.path.ismount(os.path.join(path, "source")):
            shutil.rmtree(path, ignore_errors=True)


def stop_process(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """End the process and its mount: politely, then by force."""
    assert process.stdin is not None
    process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if is_mounted(mountpoint):
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*unmount, os.fspath(mountpoint)], check=False, capture_output=True)


def cpu_seconds(pid: int) -> float:
    """Processor time, user and system, that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at `path`, also when its daemon is dead."""
    escaped = os.fspath(path).replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return any(line.split()[4] == escaped for line in lines)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A read-only pass-through file system that is slow on purpose.")
    parser.add_argument("backing", type=Path, help="directory to show")
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--open-latency", type=parse_duration, default=0.0, metavar="TIME", help="like 5ms")
    parser.add_argument("--read-latency", type=parse_duration, default=0.0, metavar="TIME", help="like 2ms")
    parser.add_argument("--bandwidth", type=parse_rate, default=0.0, metavar="RATE", help="of all reads, like 400MB/s")
    parser.add_argument("--concurrent", type=int, default=64, metavar="N", help="opens and reads served at once")
    parser.add_argument(
        "--attr-timeout", type=parse_duration, default=0.0, metavar="TIME",
        help="how long the kernel may believe a file's name and attributes (0: a change is seen at once)",
    )  # fmt: skip
    add_curve_arguments(parser)
    parser.add_argument("--root-squash", action="store_true", help="treat root as a stranger")
    parser.add_argument("--control", type=Path, metavar="SOCKET", help="UNIX socket for counters and faults")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin is closed")
    parser.add_argument("-f", "--foreground", action="store_true", help="stay attached")
    arguments = parser.parse_args(argv)
    for directory in (arguments.backing, arguments.mountpoint):
        if not directory.is_dir():
            parser.error(f"not a directory: {directory}")
    try:
        arguments.curve = chosen_curve(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.change and arguments.curve is None:
        parser.error("only a source with a curve changes: --request-time, --most")
    return arguments


def add_curve_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a throughput curve, in place of read latency, bandwidth and concurrent")
    add = group.add_argument
    add("--request-time", type=parse_duration, metavar="TIME", help="of a read at the idle source, like 40ms")
    add("--most", type=float, metavar="N", help="reads a second, with as many under way as it takes")
    add("--bend", type=float, default=4.0, metavar="P", help="1: no knee; 4: a sharp one")
    add("--falls-from", type=float, default=0.0, metavar="N", help="reads under way with which it thrashes")
    add("--halves-after", type=float, default=0.0, metavar="N", help="so many more with which it gives half")
    add("--noise", type=float, default=1.0, metavar="PART", help="of the usual differences between reads; 0: none")
    add("--seed", type=int, default=0, metavar="N", help="of these differences")
    add("--change", type=parse_change, action="append", default=[], metavar="'TIME: WORDS'",
        help="the source's state from then on: bandwidth=0.33 slower=3 background=20 stalled errno=EIO")  # fmt: skip


def chosen_curve(arguments: argparse.Namespace) -> Curve | None:
    """The curve of the command line. Raises ValueError."""
    if arguments.request_time is None and arguments.most is None:
        return None
    if arguments.request_time is None or arguments.most is None:
        raise ValueError("a curve needs both --request-time and --most")
    shape = (arguments.bend, arguments.falls_from, arguments.halves_after, arguments.noise, arguments.seed)
    return Curve(arguments.request_time, arguments.most, *shape)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    if not arguments.foreground:
        return start_in_background(arguments.mountpoint, sys.argv[1:] if argv is None else argv)
    from slow_source_fs import Setup, serve  # the client does not need FUSE

    limits = Limits(
        arguments.open_latency, arguments.read_latency, arguments.bandwidth, arguments.concurrent, arguments.curve
    )  # fmt: skip
    control = arguments.control.absolute() if arguments.control else None
    mountpoint = arguments.mountpoint.resolve()
    squash, timeout = arguments.root_squash, arguments.attr_timeout
    stdin, changes = arguments.exit_with_stdin, arguments.change
    serve(Setup(arguments.backing, mountpoint, control, limits, timeout, squash, stdin, changes))
    return 0


def start_in_background(mountpoint: Path, argv: list[str]) -> int:
    """Run the same command in a session of its own; return when it has mounted or ended."""
    process = subprocess.Popen(
        [sys.executable, __file__, *argv, "-f"], stdin=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None:
        if os.path.ismount(mountpoint):
            return 0
        time.sleep(POLL_S)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
