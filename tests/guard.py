"""What no test may do unseen: mount or start MPI without its mark, or leave a mount or a process behind."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nopfsfs.fuse.mount_table import read_mounts

SESSION = "NOPFS_TESTS_SESSION"  # in the environment of each process that the tests start
# Programs, by a part of their command line, that only tests with the mark may start.
NEEDS_MARK = {
    "slow_source.py": "mount", "fake_daemon.py": "mount", "plain_passthrough.py": "mount", "/bin/mpirun": "mpi",
}  # fmt: skip
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # of this interpreter: they end with it


@dataclass
class Running:
    """The test that runs now, and its marks."""

    name: str = ""
    marks: frozenset[str] = frozenset()


running = Running()


class MissingMark(AssertionError):
    """A test starts what its marks do not tell of."""


def need_mark(mark: str, what: str) -> None:
    """Raise MissingMark unless the test that runs now, if any, has this mark."""
    if running.name and mark not in running.marks:
        raise MissingMark(f"{running.name} starts {what}: mark it with @pytest.mark.{mark}")


def check_command(argv: Any) -> None:
    """Raise MissingMark for a command that the marks of the test do not allow."""
    words = [os.fsdecode(word) for word in argv] if isinstance(argv, list | tuple) else [os.fsdecode(argv)]
    for program, mark in NEEDS_MARK.items():
        if any(word.endswith(program) for word in words):
            need_mark(mark, program)


@contextmanager
def watched_commands() -> Iterator[None]:
    """Check each command that is started meanwhile, and give all of them the session's name."""
    start = subprocess.Popen.__init__

    def checked(self: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
        check_command(args)
        start(self, args, *rest, **options)

    os.environ[SESSION] = uuid.uuid4().hex
    subprocess.Popen.__init__ = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def fuse_mounts(below: Path) -> list[str]:
    """The FUSE mounts below a directory."""
    inside = f"{below}{os.sep}"
    return [mount.mountpoint for mount in read_mounts() if mount.is_fuse and mount.mountpoint.startswith(inside)]


def processes() -> list[str]:
    """The command lines of the living processes that the tests of this session started, by themselves or not."""
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    parents: dict[int, int] = {}
    marked: dict[int, bool] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[pid] = int(parent)
                marked[pid] = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            parents.pop(pid, None)
    found = [pid for pid in parents if pid != os.getpid() and (marked[pid] or _descends(pid, parents))]
    commands = [(pid, _command(pid)) for pid in found]
    return [f"{pid}: {command}" for pid, command in commands if not any(helper in command for helper in HELPERS)]


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _command(pid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
    except OSError:
        return ""
