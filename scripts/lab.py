"""What the demo and the benchmarks share: places, mounts, training runs, medians.

Everything made here lies under build/ or in a tmpfs, belongs to a context manager, and is gone when that
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slow_source import is_mounted
from tqdm import tqdm

SCRIPTS = Path(__file__).resolve().parent
BUILD = SCRIPTS.parent / "build"
COMMANDS = Path(sys.executable).parent
MOUNT_TIMEOUT_S = 300.0
UNMOUNT_TIMEOUT_S = 60.0
SPARE = 1.1  # room in tmpfs beyond the files' own bytes: pages and inodes


class LabError(Exception):
    """A step of a measurement failed; the message says which and why."""


def run(
    command: Sequence[object], timeout: float = UNMOUNT_TIMEOUT_S, env: Mapping[str, str] | None = None
) -> str:
    """The command's standard output; `env` is added to the environment. Raises LabError with its last words when it
    fails."""
    words = [os.fspath(w) if isinstance(w, os.PathLike) else str(w) for w in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **(env or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{words[0]}: {error}") from None
    if done.returncode != 0:
        raise LabError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def unmount(mountpoint: Path) -> None:
    """Unmount what is at the mountpoint, lazily if it is busy; nothing when nothing is."""
    if not is_mounted(mountpoint):
        return
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    lazy = "-l" if os.geteuid() == 0 else "-z"
    with contextlib.suppress(LabError):
        run([*command, mountpoint])
    if is_mounted(mountpoint):
        run([*command, lazy, mountpoint])


def tree_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def filesystem_type(path: Path) -> str:
    return run(["stat", "-f", "-c", "%T", path]).strip()


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A new directory under build/, for mountpoints and what belongs to mounts."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=BUILD) as directory:
        os.chmod(directory, 0o755)  # what lies below a closed one is not mounted for all
        yield Path(directory)


@contextlib.contextmanager
def tmpfs_directory(needed: int) -> Iterator[Path]:
    """A new directory in a tmpfs with room for so many bytes. Raises LabError when there is none."""
    for candidate in filter(None, ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir())):
        place = Path(candidate)
        writable = place.is_dir() and os.access(place, os.W_OK)
        if writable and filesystem_type(place) == "tmpfs" and shutil.disk_usage(place).free > SPARE * needed:
            with tempfile.TemporaryDirectory(prefix="nopfsfs-", dir=place) as directory:
                os.chmod(directory, 0o755)
                yield Path(directory)
            return
    if os.geteuid() != 0:
        raise LabError(f"no tmpfs has {SPARE * needed / 1e9:.1f} GB free for the local copy (tried /dev/shm)")
    with tempfile.TemporaryDirectory(prefix="tmpfs-", dir=BUILD) as directory:
        run(["mount", "-t", "tmpfs", "-o", f"size={int(SPARE * needed)}", "tmpfs", directory])
        try:
            yield Path(directory)
        finally:
            unmount(Path(directory))


@contextlib.contextmanager
def local_copy(tree: Path) -> Iterator[Path]:
    """A copy of the tree in tmpfs: what no file system can beat."""
    with tmpfs_directory(tree_bytes(tree)) as directory:
        shutil.copytree(tree, directory / tree.name)
        yield directory / tree.name


@dataclass
class Mount:
    """A mounted file system; of nopfsfs also its status and, once it is unmounted, its report."""

    path: Path
    mount_seconds: float = 0.0
    answered: float = 0.0  # time.time() when the command returned
    report: dict[str, Any] = field(default_factory=dict)
    has_status: bool = False
    killed: bool = False

    def kill(self) -> None:
        """End all its processes by SIGKILL, and unmount what is left."""
        self.killed = True
        for process in self.status()["processes"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)
        run([COMMANDS / "nopfs-umount", self.path])

    def status(self) -> dict[str, Any]:
        """The record of `nopfs status --json`; empty for other file systems."""
        if not self.has_status:
            return {}
        record: dict[str, Any] = json.loads(run([COMMANDS / "nopfs", "status", self.path, "--json"]))
        return record


@contextlib.contextmanager
def nopfs_mount(
    source: Path, mountpoint: Path, *options: object, env: Mapping[str, str] | None = None
) -> Iterator[Mount]:
    """The source through nopfsfs, as a user would mount and unmount it; `env` is added to the environment."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    mount = Mount(mountpoint, has_status=True)
    started = time.monotonic()
    log = BUILD / "mount.log"  # kept when something fails
    run([COMMANDS / "nopfs-mount", source, mountpoint, "--log-file", log, *options], MOUNT_TIMEOUT_S, env)
    mount.mount_seconds, mount.answered = time.monotonic() - started, time.time()
    report = mountpoint.with_name(mountpoint.name + "-report.json")
    try:
        yield mount
        if not mount.killed:
            run([COMMANDS / "nopfs-umount", mountpoint, "--report", report])
            mount.report = json.loads(report.read_text())
        log.unlink(missing_ok=True)
    finally:
        if is_mounted(mountpoint):
            with contextlib.suppress(LabError):
                run([COMMANDS / "nopfs-umount", mountpoint])
            unmount(mountpoint)
        report.unlink(missing_ok=True)


@contextlib.contextmanager
def foreground_mount(command: Sequence[object], mountpoint: Path) -> Iterator[Mount]:
    """A file system whose command stays in the foreground, for comparison."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    words = [os.fspath(w) if isinstance(w, os.PathLike) else str(w) for w in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + UNMOUNT_TIMEOUT_S
        while not is_mounted(mountpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"{words[0]} did not mount {mountpoint}")
            time.sleep(0.02)
        yield Mount(mountpoint, answered=time.time())
    finally:
        unmount(mountpoint)
        try:
            process.communicate(timeout=UNMOUNT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def bindfs_mount(source: Path, mountpoint: Path) -> contextlib.AbstractContextManager[Mount]:
    """bindfs (C, libfuse) with the kernel's page cache kept over opens."""
    return foreground_mount(["bindfs", "-f", "-r", "-o", "kernel_cache", source, mountpoint], mountpoint)


def plain_mount(source: Path, mountpoint: Path) -> contextlib.AbstractContextManager[Mount]:
    """The plain pyfuse3 pass-through of plain_passthrough.py."""
    command = [sys.executable, SCRIPTS / "plain_passthrough.py", source, mountpoint]
    return foreground_mount(command, mountpoint)


@dataclass(frozen=True)
class Epoch:
    """One line of train_loop.py."""

    epoch: int
    started: float
    seconds: float
    files: int
    bytes: int
    checksum: int


def train(
    data: Path, mode: str, epochs: int, between: Callable[[Epoch], None] | None = None, step: bool = False
) -> list[Epoch]:
    """Run the training loop in a process of its own; `between` is called after each epoch.

    The loop does not wait for `between` unless `step` is set.
    """
    command: list[str | Path] = [sys.executable, SCRIPTS / "train_loop.py", data, "--json"]
    command += ["--mode", mode, "--epochs", str(epochs)]
    if step:
        command.append("--step")
    done: list[Epoch] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                done.append(Epoch(**json.loads(line)))
                if between is not None:
                    between(done[-1])
                if step:
                    process.stdin.write("\n")
                    process.stdin.flush()
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0 or len(done) != epochs:
        raise LabError(f"the training loop on {data} failed with exit {process.returncode}")
    return done


def medians(runs: Sequence[Sequence[Epoch]]) -> list[float]:
    """Seconds of each epoch, the median over the runs."""
    return [statistics.median(epoch.seconds for epoch in same) for same in zip(*runs, strict=True)]


def machine() -> dict[str, Any]:
    """What a measurement depends on."""
    packages: dict[str, str] = {}
    for name in ("nopfsfs", "pyfuse3", "trio", "numpy", "torch", "torchvision", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages,
    }


def exit_on_sigterm() -> None:
    """Let SIGTERM unwind the context managers, so that nothing stays mounted."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


class Progress:
    """A bar over the steps of a measurement; on no terminal, only the lines."""

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, unit="step", disable=None, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def doing(self, what: str) -> None:
        self._bar.set_description(what)

    def step(self) -> None:
        self._bar.update()

    def say(self, line: str) -> None:
        with tqdm.external_write_mode():
            print(line, flush=True)


class TimedProgress(Progress):
    """A bar over the seconds that a measurement is expected to take; on no terminal, only the lines.

    Within a step the clock moves the bar, at most to the end of the step. The begin of the next step sets the bar
    right, and the time that is left, as shown, follows the pace so far.
    """

    TICK_S = 0.5
    TRUST_S = 10.0  # the pace is taken to have been as expected for so long before the begin
    FORMAT = "{desc} {bar} {percentage:3.0f} %{postfix}"

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._bar = tqdm(total=total_s, bar_format=self.FORMAT, disable=None, leave=False, delay=self.TICK_S)
        self._before_s = self._step_s = 0.0  # expected of the steps that are done, and of the one under way
        self._started = self._began = time.monotonic()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> TimedProgress:
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._clock.join()
        super().__exit__()

    def begin(self, what: str, expected_s: float) -> None:
        """End the step under way, and begin the next."""
        self._before_s += self._step_s
        self._step_s, self._began = expected_s, time.monotonic()
        self._bar.set_description_str(f"{what:35}", refresh=False)
        self._show()

    @property
    def expected_s(self) -> float:
        """Where the bar stands, of the seconds that all is expected to take."""
        return self._before_s + min(self._step_s, time.monotonic() - self._began)

    def _show(self) -> None:
        done_s = self._bar.n = self.expected_s
        pace = (time.monotonic() - self._started + self.TRUST_S) / (done_s + self.TRUST_S)
        left = tqdm.format_interval(round((self._total_s - done_s) * pace))
        self._bar.set_postfix_str(f"about {left} left")

    def _tick(self) -> None:
        while not self._ended.wait(self.TICK_S):
            self._show()
