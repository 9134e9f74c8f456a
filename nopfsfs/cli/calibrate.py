"""`nopfs calibrate`: measures the source, disks and memory, and writes what the mount and the simulator read."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nopfsfs.cli.error_exit import NOPFS, Commands, say
from nopfsfs.cli.option_values import long_option, time_from
from nopfsfs.cli.preflight import check_disks, check_source
from nopfsfs.cli.settings import Layer, parsed, put, usage
from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import find_covering, read_mounts
from nopfsfs.system.state_dirs import calibration_path, default_index_dir, make_private_dir
from nopfsfs.text.units import MAX_SIZE

DEFAULT_S = 40.0
TIMES = ("1s", "1h")  # the least and the most of --seconds
MEMORY_SHARE, MEMORY_MOST_S = 0.1, 3.0  # for memory: the share of the time, and the most seconds
DISK_SHARE, DISKS_SHARE = 0.2, 0.5  # shares of the time: for each disk, and for all disks at most
MOST_RAM = MAX_SIZE // 2  # bytes: a cluster file has no more for memory and disks together
MEMORY_FRACTION = 8  # of the memory that is available, which measuring may take
_NO_DISK = ("tmpfs", "ramfs", "devtmpfs", "rootfs")

Show = Callable[[str], None]


class _Ended(BaseException):
    """An exception for a signal that asks for the end, so that everything is cleared up as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Call:
    """The things to measure, and the time for them. `ram`: bytes; None: half of the available memory."""

    source: str
    disks: tuple[DiskSpec, ...]
    ram: int | None
    output: str
    seconds: float

    @property
    def disk_seconds(self) -> float:
        """The time for each disk."""
        return self.seconds * min(DISK_SHARE, DISKS_SHARE / max(1, len(self.disks)))

    @property
    def memory_seconds(self) -> float:
        return min(self.seconds * MEMORY_SHARE, MEMORY_MOST_S)

    @property
    def source_seconds(self) -> float:
        return self.seconds - self.memory_seconds - len(self.disks) * self.disk_seconds


def add_calibrate(commands: Commands) -> None:
    """Add `nopfs calibrate`."""
    parser = commands.add_parser(
        "calibrate",
        help="measure a source, disks and memory",
        description="Measure how fast the source, the disk tiers and the memory of this machine are, and write that\n"
        "to a file which nopfs-mount and the simulator read. Takes under a minute.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("source", metavar="SOURCE", help="the data set, a directory")
    parser.add_argument(
        "--disk", metavar="PATH[:SIZE]", action="append", help="a disk tier; may be repeated (as for nopfs-mount)"
    )
    parser.add_argument("--ram", metavar="SIZE", help="memory of the mount (default: half of what is available)")
    parser.add_argument("--seconds", metavar="N", help=f"how long to measure (default: {DEFAULT_S:.0f})")
    parser.add_argument("--output", metavar="FILE", help="where to write (default: where the mount finds it)")
    parser.add_argument("--index-dir", metavar="D", help="of the mount: the default output lies there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(handler=calibrate)


def calibrate(options: argparse.Namespace) -> int:
    """Measure, write, print; return the exit code. Raises NopfsError."""
    said = vars(options)
    try:
        with _ended_by_signals():
            _calibrate(_call(said), bool(said.get("json")))
    except _Ended as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)  # everything is cleared up: end by the signal, as any command does
    return Exit.OK


def _call(said: dict[str, Any]) -> Call:
    """The checked options. Raises NopfsError."""
    layer: Layer = {}
    for name in ("ram", "disk", "index_dir"):
        texts = said.get(name, [])
        for text in texts if isinstance(texts, list) else [texts]:
            put(layer, name, text, long_option(name))
    values = {name: given.value for name, given in layer.items()}
    seconds = parsed(time_from(*TIMES), said["seconds"], "--seconds") if "seconds" in said else DEFAULT_S
    if values.get("ram", 0) > MOST_RAM:
        raise usage(f"--ram: {said['ram']!r} is more than any machine has; write the memory of the mount")
    source = _source(said["source"])
    disks = check_disks(MountConfig(source=source, mountpoint="", disks=values.get("disk", ()))).disks
    index_dir = values.get("index_dir", default_index_dir(os.geteuid(), os.environ))
    output = _output(said["output"]) if "output" in said else _default_output(index_dir, source)
    return Call(source, disks, values.get("ram"), output, seconds)


def _source(text: str) -> str:
    """The real path of the source. A nopfs mount is refused before any access: a dead one would hang."""
    if not text:
        raise usage("SOURCE: the path is empty")
    path = os.path.abspath(text)
    _check_no_mount_of_ours(path)
    check_source(MountConfig(source=path, mountpoint=""))
    real = os.path.realpath(path)
    _check_no_mount_of_ours(real)
    return real


def _check_no_mount_of_ours(path: str) -> None:
    mount = find_covering(path)
    if mount is not None and mount.is_nopfs:
        behind = f"measure what it shows, {mount.source}"
        raise NopfsError(Exit.SOURCE, f"the source {path} is a nopfs mount, which answers from its caches; {behind}")


def _output(text: str) -> str:
    path = os.path.realpath(text) if text else ""
    if not path or not _may_be_written(path):
        raise usage(f"--output {text} cannot be written; name a file in a directory of yours")
    return path


def _may_be_written(path: str) -> bool:
    """True when a file could be made at `path`, or the file there replaced."""
    if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        return False
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    ours = os.geteuid() in (0, found.st_uid, folder.st_uid)
    return stat.S_ISREG(found.st_mode) and (ours or not folder.st_mode & stat.S_ISVTX)


def _default_output(index_dir: str, source: str) -> str:
    path = calibration_path(index_dir, source)
    try:
        if not os.path.isdir(index_dir):
            make_private_dir(index_dir, os.geteuid())
        if not _may_be_written(path):
            raise PermissionError(13, "no right to write there")
    except OSError as error:
        raise usage(f"{path} cannot be written: {error.strerror}; name a file with --output") from error
    except NopfsError as error:
        raise usage(f"{index_dir} cannot be made a directory of yours; name a file with --output") from error
    return path


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `_Ended` in the main thread; other threads cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from nopfsfs.system.process_setup import handling  # with msgspec: `--help` and bad options need none of it

    def end(number: int, frame: object) -> None:
        raise _Ended(number)

    with handling((signal.SIGTERM, signal.SIGHUP), end):
        yield


def _calibrate(call: Call, as_json: bool) -> None:
    from nopfsfs.cli.calibration_text import table  # with numpy: bad options need none of it
    from nopfsfs.performance.cluster_file import write_cluster

    with _bar(call.seconds, sys.stderr.isatty()) as show:
        measured = _measure(call, show)
    if measured.source.skipped:
        say(NOPFS, f"{measured.source.skipped} left out that could not be read, for example {measured.source.why}")
    cluster = measured.cluster(socket.gethostname() or "this machine")
    if not as_json:
        print(table(measured, call.source), flush=True)
    write_cluster(cluster, call.output, _note(call.source, measured.source.bandwidth.least))
    if as_json:
        print(json.dumps({**measured.as_dict(), "file": call.output}, indent=2), flush=True)
    else:
        print(f"written to {call.output}", flush=True)


def _note(source: str, least: bool) -> str:
    words = [f"Measured by nopfs calibrate on {datetime.date.today().isoformat()} from {_text(source)}."]
    if least:
        words.append("The rate of the source is a lower bound: something else was the limit.")
    words.append("compute is what memory delivers, a placeholder: set it to what a rank trains on in a second.")
    return " ".join(words)


def _text(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _measure(call: Call, show: Show) -> Any:
    from nopfsfs.calibrate import meter_client, result
    from nopfsfs.system.node_memory import measure as measure_memory

    def part(name: str, what: str, code: Exit, seconds: float, **request: Any) -> dict[str, Any]:
        try:
            return meter_client.measure(name, seconds, lambda doing: show(f"{what}: {doing}"), **request)
        except meter_client.MeterSilent as error:
            limit = f"did not answer for {meter_client.PATIENCE_S:.0f} s ({error})"
            raise NopfsError(code, f"{what} {limit}; check the file system that it is on") from error
        except meter_client.MeterFailed as error:
            raise NopfsError(code, f"{what} cannot be measured: {error}") from error

    skip = [mount.mountpoint for mount in read_mounts() if mount.is_nopfs]
    what = f"the source {call.source}"
    raw = part("source", what, Exit.SOURCE, call.source_seconds, path=call.source, skip=skip)
    source = result.source_of(raw)
    size = round(source.median)
    disks = []
    for disk in call.disks:
        raw = part("disk", f"the disk tier {disk.path}", Exit.DISK, call.disk_seconds,
                   path=disk.path, size=size, limit=disk.size)  # fmt: skip
        on = find_covering(raw["real"])
        in_memory = on is not None and on.fstype in _NO_DISK
        disks.append(result.disk_of(raw, _text(disk.path), in_memory))
    available = measure_memory().available
    ram = call.ram if call.ram is not None else available // 2
    room = min(ram, available // MEMORY_FRACTION)
    raw = part("memory", "the memory", Exit.INTERNAL, call.memory_seconds, size=size, room=room)
    return result.Measured(source, result.memory_of(raw, ram), tuple(disks))


@contextmanager
def _bar(seconds: float, enabled: bool) -> Iterator[Show]:
    """Yield a function that takes the name of the present step and, if `enabled`, shows it beside the time passed."""
    if not enabled:
        yield lambda doing: None
        return
    from tqdm import tqdm

    began = time.monotonic()
    shape = "{desc} {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s"
    with tqdm(total=seconds, bar_format=shape, leave=False, file=sys.stderr) as bar:

        def show(doing: str) -> None:
            bar.set_description_str(doing, refresh=False)
            bar.n = min(time.monotonic() - began, seconds)
            bar.refresh()

        yield show
