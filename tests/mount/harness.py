"""A real mount for a test: started and ended by the real commands, watched, and nothing of it may be left.

Nothing here may hang: each command has a time limit, and each mount a watchdog that aborts its one connection.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nopfsfs.control.client import call
from nopfsfs.control.process_list import Process, living, read_pids, start_time
from nopfsfs.fuse.mount_table import HeldConnection, abort_connection, find_mount, read_mounts
from nopfsfs.fuse.mounting import unmount
from nopfsfs.system.state_dirs import default_run_dir, state_dir_for
from tests.conftest import remove_state, state_dirs_at
from tests.mount.modes import DEFAULT, Mode
from tests.tiers.kept import copies
from tests.waiting import wait_until

COMMAND_S = 30.0  # no command takes this long
HANGS_S = 60.0  # after which a mount is taken for hung and its connection aborted
END_S = 15.0  # for processes to be gone after an unmount
READER = str(Path(__file__).parent / "readers.py")
TEST_ID = "NOPFS_TEST_ID"


def module(name: str) -> list[str]:
    """The command line that starts a command of the product."""
    return [sys.executable, "-m", f"nopfsfs.cli.{name}"]


def run(argv: Sequence[str], limit_s: float = COMMAND_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said. A child that sleeps in the kernel is not waited for."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def content(key: int, size: int) -> bytes:
    """Bytes of which any eight tell file and place, so that no mixture goes unseen."""
    words = np.arange(-(-size // 8), dtype=np.uint64) + np.uint64((key * 0x9E3779B97F4A7C15) % 2**63)
    return words.tobytes()[:size]


def fill(root: Path, count: int, size: int, classes: int = 4, suffix: str = ".jpg") -> dict[str, bytes]:
    """Make `count` files of `size` bytes, more or less, in class directories; their bytes by relative path."""
    made: dict[str, bytes] = {}
    for number in range(count):
        name = f"class{number % classes}/{number:05}{suffix}"
        made[name] = content(number + 1, size // 2 + (number * 7919) % size)
    write(root, made)
    return made


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@dataclass
class Mounted:
    """A mount of the test's. Paths are real."""

    source: Path
    path: Path
    log: Path
    test_id: str
    disks: tuple[Path, ...] = ()
    errors_expected: bool = False  # in the log
    report: dict[str, Any] = field(default_factory=dict)  # of the unmount that ends the context
    minor: int = -1  # of what is mounted now, or was last
    shm: frozenset[str] = frozenset()

    @property
    def state_dir(self) -> str:
        """Of what is mounted now, or was last."""
        found = find_mount(str(self.path))
        if found is not None and found.is_nopfs:
            self.minor = found.minor
        return state_dir_for(str(self.path), self.minor, default_run_dir(os.geteuid(), os.environ))

    def status(self) -> dict[str, Any]:
        """The record that `nopfs status --json` prints, without a process for it."""
        return dict(call(self.state_dir, "status", COMMAND_S))

    def wait_status(self, condition: Any, limit_s: float = 20.0) -> dict[str, Any]:
        """The first status for which the condition holds."""
        found: dict[str, Any] = {}

        def holds() -> bool:
            found.clear()
            found.update(self.status())
            return bool(condition(found))

        assert wait_until(holds, limit_s), found
        return found

    def pid(self, role: str) -> int:
        found: list[int] = []

        def there() -> list[int]:  # between a process that died and the next there is none
            found[:] = [p.pid for p in read_pids(self.state_dir) if p.role == role]
            return found

        assert wait_until(there), role
        return found[0]

    def children(self) -> list[Process]:
        """The servers and the stager, as far as they live."""
        return [p for p in living(read_pids(self.state_dir)) if p.role != "supervisor"]

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid(role)
        os.kill(pid, number)
        return pid

    def umount(self, *flags: str, limit_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run nopfs-umount; the record it wrote is in `report`."""
        report = self.log.with_suffix(".json")
        done = run([*module("umount"), str(self.path), "--report", str(report), *flags], limit_s)
        if report.exists():
            self.report = json.loads(report.read_text())
        return done

    def is_mounted(self) -> bool:
        return find_mount(str(self.path)) is not None

    def living(self) -> list[str]:
        """Command lines of the processes that this mount started and that still run."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and start_time(int(entry)) is not None:
                with suppress(OSError):
                    if self.test_id.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                        command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                        found.append(f"{entry}: {os.fsdecode(command)}")
        return found

    def wait_gone(self) -> None:
        """Assert that nothing is left of the mount."""
        assert wait_until(lambda: not self.is_mounted(), END_S), "still mounted"
        assert wait_until(lambda: not self.living(), END_S), self.living()
        assert not [m for m in read_mounts() if str(self.path) in m.mountpoint]
        assert state_dirs_at(self.path) == []
        assert [left for disk in self.disks for left in left_on(disk)] == []
        assert shared_memory() <= self.shm
        assert not os.path.ismount(self.path)
        assert os.listdir(self.path) == []

    def check_log(self) -> None:
        """Assert that the mount had nothing to complain of."""
        text = self.log.read_text() if self.log.exists() else ""
        assert "Traceback" not in text, text
        if not self.errors_expected:
            assert " ERROR: " not in text, text


def left_on(disk: Path) -> list[str]:
    """What a mount that ended has left in the directory of a disk, but for whole copies that outlive it."""
    tiers = [path for path in disk.glob("*nopfs*") if not path.name.startswith("nopfs-cache-")]
    unfinished = [path for path in copies(disk) if path.suffix]
    return [str(path.relative_to(disk)) for path in (*tiers, *unfinished)]


def shared_memory() -> frozenset[str]:
    """Named shared memory of ours: the mount has none."""
    return frozenset(entry.name for entry in os.scandir("/dev/shm") if "nopfs" in entry.name and entry.is_file())


@contextmanager
def mounted(
    source: Path,
    *flags: str,
    work: Path,
    disks: Iterable[Path] = (),
    hangs_s: float = HANGS_S,
    mode: Mode = DEFAULT,
    **options: Any,
) -> Iterator[Mounted]:
    """Mount `source` in the background, yield, unmount. Fails if anything is left, or the log has errors.

    `work`: a directory of the test's own, for mountpoint, index and log. A test may end the mount by itself.
    `hangs_s`: after this long the mount is taken for hung and its connection aborted. `options`: of Popen.
    """
    path = work / "mnt"
    path.mkdir(exist_ok=True)
    if mode.disk:
        disk = work / "disk-of-the-mode"
        disk.mkdir(exist_ok=True)
        disks, flags = [*disks, disk], ("--disk", f"{disk}:100M", *flags)
    m = Mounted(source, path, work / "log", uuid.uuid4().hex, tuple(disks), shm=shared_memory())
    environment = {**os.environ, **mode.environment, TEST_ID: m.test_id}
    started = run(mount_command(m, *flags, *mode.flags), env=environment, **options)
    try:
        assert started.returncode == 0, started.stderr
        found = find_mount(str(path))
        assert found is not None
        m.minor = found.minor
        with aborted_after(hangs_s, path):
            yield m
            if m.is_mounted():
                done = m.umount()
                assert done.returncode == 0, done.stderr
            m.wait_gone()
            m.check_log()
    finally:
        _clear(m)


@contextmanager
def aborted_after(seconds: float, path: Path) -> Iterator[None]:
    """If the `with` block takes longer, abort the connections of the mount that is there now and of the one that is
    there then. Never that of another mount: the number of one that has ended may be another's."""
    now = find_mount(str(path))
    assert now is not None
    held = HeldConnection(now)

    def abort() -> None:
        held.abort(in_use=False)
        then = find_mount(str(path))
        if then is not None and then.is_fuse:
            abort_connection(then.minor)

    watchdog = threading.Timer(seconds, abort)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        watchdog.join()
        held.close()


def mount_command(m: Mounted, *flags: str) -> list[str]:
    """The nopfs-mount command line for a mount that has not started yet."""
    own = ["--index-dir", str(m.path.parent / "index"), "--log-file", str(m.log)]
    return [*module("mount"), str(m.source), str(m.path), *own, *flags]


def _clear(m: Mounted) -> None:
    """Leave nothing, whatever the test did."""
    found = find_mount(str(m.path))
    if found is not None:
        abort_connection(found.minor)
        with suppress(Exception):
            unmount(found, lazy=True)
    for line in m.living():
        with suppress(OSError):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
    if not m.living():
        remove_state(m.path)


class Reader:
    """A reader process of `readers.py`; a context manager. What it says is one JSON value a line."""

    def __init__(self, *words: str | os.PathLike[str], **options: Any) -> None:
        argv = [sys.executable, "-I", READER, *map(os.fspath, words)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=5)

    def result(self, limit_s: float = COMMAND_S) -> Any:
        """What it said last. Raises TimeoutExpired, AssertionError when it failed."""
        out, _ = self.process.communicate(timeout=limit_s)
        assert self.process.returncode == 0, (self.process.returncode, out)
        return json.loads(out.splitlines()[-1])

    def line(self) -> Any:
        """What it says next; the mount's watchdog bounds this."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go(self, word: str = "") -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


def read_all(m: Mounted, readers: int = 4, rounds: int = 1, limit_s: float = 50.0) -> None:
    """Assert that the whole tree is byte-identical under `readers` concurrent processes, each in its own order."""
    together = [Reader("compare", m.path, m.source, str(seed), str(rounds)) for seed in range(readers)]
    try:
        for reader in together:
            assert reader.result(limit_s) == {"wrong": [], "errors": []}
    finally:
        for reader in together:
            reader.__exit__()
