"""Shared by all tests: places and daemons that are cleaned up whatever happens."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from nopfsfs.fuse.mount_table import abort_connection, find_mount
from nopfsfs.fuse.mounting import NotMounted, may_mount, unmount
from nopfsfs.system.state_dirs import claim_dir_for, default_run_dir, state_dir_for
from tests import guard
from tests.examples import SAME, examples
from tests.waiting import wait_until

# A shell that starts the tests in the background has them, and what they start, ignore SIGINT, and nohup SIGHUP; some
# tests send these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("nopfsfs", deadline=None, max_examples=examples(100), derandomize=SAME)
settings.load_profile("nopfsfs")
pytest.register_assert_rewrite("tests.mount.harness")  # before any test, of whatever room, imports it
# They need what `make test-frameworks` installs.
collect_ignore = [] if os.environ.get("NOPFSFS_FRAMEWORKS") else ["frameworks"]
collect_ignore += [] if os.environ.get("NOPFSFS_SITE") else ["site"]  # they need the namespaces of scripts/apart.sh
FAKE_DAEMON = Path(__file__).parent / "fake_daemon.py"
READY_S = 20.0
LEFT_S = 10.0  # for processes to be gone after the last test
TESTS = Path(__file__).parent
# Marks that follow from where a test lies and from what it takes; the others are set by hand, and checked (guard.py).
MARKS_OF_FOLDERS = {TESTS / "mount": "mount", TESTS / "frameworks": "framework"}
MARKS_OF_FIXTURES = {"fake_mount": "mount", "mounting": "mount", "training": "mount", "torch": "framework"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is collected out of all looks for garbage: thousands of tests stay, and each look takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# Files that take longest, or wait most: they come first, so that no processor has one of them left at the end.
FIRST = (TESTS / "test_identify_mounts.py", TESTS / "mount", TESTS / "peer", TESTS / "plan")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the marks that follow from folders and fixtures, and the order of the files."""
    items.sort(key=lambda item: next((at for at, one in enumerate(FIRST) if item.path.is_relative_to(one)), len(FIRST)))
    for item in items:
        marks = [mark for folder, mark in MARKS_OF_FOLDERS.items() if folder in item.path.parents]
        marks += [MARKS_OF_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in MARKS_OF_FIXTURES]
        if hasattr(getattr(item, "module", None), "torch"):
            marks.append("framework")
        for mark in dict.fromkeys(marks):
            item.add_marker(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Tell the guard which test runs."""
    guard.running.name, guard.running.marks = item.nodeid, frozenset(mark.name for mark in item.iter_markers())


@pytest.fixture(scope="session", autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Watch what the tests start; fail if a mount or a process is left when all have ended, whatever their marks."""
    place = tmp_path_factory.getbasetemp()
    with guard.watched_commands():
        yield
        wait_until(lambda: not guard.processes(), LEFT_S)
        left = guard.fuse_mounts(place), guard.processes()
        assert left == ([], []), "left behind: (mounts, processes)"


def unmount_at(path: str | Path, *, lazy: bool = False) -> None:
    """Unmount what is mounted at a real path. Raises NotMounted."""
    mount = find_mount(str(path))
    if mount is None:
        raise NotMounted(str(path))
    unmount(mount, lazy=lazy)


def state_dir_at(path: str | Path) -> str:
    """The state directory of what is mounted at a real path."""
    mount = find_mount(str(path))
    assert mount is not None
    return state_dir_for(str(path), mount.minor, default_run_dir(os.geteuid(), os.environ))


def state_dirs_at(path: str | Path) -> list[str]:
    """All that mounts at a real path have in the run directory: state directories and claims."""
    return glob(f"{claim_dir_for(str(path), default_run_dir(os.geteuid(), os.environ))}*")


def remove_state(path: str | Path) -> None:
    """Remove all that mounts at a real path have left in the run directory."""
    for directory in state_dirs_at(path):
        shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(default_run_dir(os.geteuid(), os.environ))


class FakeMount:
    """A real FUSE mount served by `fake_daemon.py`; `end` leaves nothing."""

    def __init__(self, source: Path, mountpoint: Path, *flags: str) -> None:
        self.mountpoint = str(mountpoint)
        run_dir = default_run_dir(os.geteuid(), os.environ)
        argv = [sys.executable, str(FAKE_DAEMON), str(source), self.mountpoint, run_dir, *flags]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"  # the suite's timeout bounds this
        self.state_dir = state_dir_at(self.mountpoint)

    def kill(self) -> None:
        """Kill the daemon, as the kernel's OOM killer does: the mount stays."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(READY_S)

    def end(self) -> None:
        mount = find_mount(self.mountpoint)
        if mount is not None:
            abort_connection(mount.minor)
        self.process.kill()
        self.process.wait(READY_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if find_mount(self.mountpoint) is not None:
            unmount_at(self.mountpoint, lazy=True)
        remove_state(self.mountpoint)


FakeMounts = Callable[..., FakeMount]


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Path]:
    """A file system of that size (as of mount(8)) in memory, at a directory that is made where it is missing."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    except BaseException:
        subprocess.run(["umount", "--lazy", path], check=True)  # the test that failed may still have files open there
        raise
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def fake_mount(source: Path, mountpoint: Path) -> Iterator[FakeMounts]:
    """Return a function that mounts a fake file system, with flags of `fake_daemon.py`, at `mountpoint`."""
    if not may_mount():
        pytest.skip("needs the right to call mount(2)")
    made: list[FakeMount] = []

    def make(*flags: str) -> FakeMount:
        made.append(FakeMount(source, mountpoint, *flags))
        return made[-1]

    yield make
    for mount in made:
        mount.end()


def place_for_all(factory: pytest.TempPathFactory, name: str) -> Path:
    """A new directory that all may enter: a source in one that they may not is not mounted for all."""
    path = factory.mktemp(name)
    path.chmod(0o755)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a small data set."""
    path = tmp_path / "source"
    path.mkdir()
    (path / "a").write_bytes(b"a")
    return path


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    """Return an empty directory."""
    path = tmp_path / "mnt"
    path.mkdir()
    return path


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """The test's own directory, reachable by other users, with nothing writable in it for them. Directories above it
    stay so: other tests are in them at the same time."""
    for path in (tmp_path, *tmp_path.parents):
        mode = path.stat().st_mode & 0o7777
        if path != Path("/") and path != Path("/tmp") and not mode & 0o1:
            path.chmod(mode | 0o11)
    return tmp_path


def slow(*values: object) -> Any:
    """Parameters of a case that repeats what the others of its test show: only in `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def long(*values: object) -> Any:
    """Parameters of a case that takes seconds, and shows much of what the others of its test do: not in `make test`."""
    return pytest.param(*values, marks=pytest.mark.long)


@contextmanager
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """The system refuses each new thread, as by pids.max and RLIMIT_NPROC; those that were refused."""
    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield refused
