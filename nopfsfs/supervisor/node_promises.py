"""Memory that the mounts of one user on a node were promised, so that no two are promised the same.

Each mount writes its budget, and what it holds of it, into its state directory. The mounts of a user read each other's,
in the directories beside their own. What another was promised and does not hold yet is not available. The other's pages
in the page cache count as not held, as the kernel calls them available. There is no ledger between users, which others
could write: between them the available memory decides.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

import msgspec

from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.node_memory import Promised
from nopfsfs.system.proc import pid_namespace, start_time

log = logging.getLogger(__name__)
FILE = "node.json"
MOUNTS_MOST = 64  # that are looked at
BYTES_MOST = 1 << 14  # of one's file
LOCK_S, LOCK_LOOK_S = 1.0, 0.01  # for other mounts that begin; between two looks
CHANGE = 64  # what is held is written anew when it has changed by such a part of the budget
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MemoryPromise(msgspec.Struct):
    """A mount's budget and what it holds of it, in bytes; its supervisor, and that one's cgroup and pid namespace."""

    pid: int
    start_time: int
    cgroup: str
    budget: int
    held: int
    pid_namespace: int = 0  # an inode number; 0: not known


def own_cgroup() -> str:
    """Return a text that is the same in all processes of this one's cgroup; "" where it is not known. Containers that
    have a cgroup namespace each all call their own "/"."""
    with suppress(OSError):
        return f"{os.stat('/proc/self/ns/cgroup').st_ino} {Path('/proc/self/cgroup').read_text()[:BYTES_MOST // 2]}"
    return ""


class NodePromises:
    """The promises of a mount with a state directory, and of those beside it."""

    def __init__(self, state_dir: str, run_dir: str) -> None:
        """`run_dir`: the directory of this user's in which all state directories are."""
        self._state_dir, self._run_dir = state_dir, run_dir
        self._told: MemoryPromise | None = None
        self._own = (os.getpid(), start_time(os.getpid()) or 0, own_cgroup())
        self._pid_namespace = pid_namespace()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Let no other mount of this user's choose its budget inside the `with` block. It goes on alone where another
        takes longer than `LOCK_S`: a mount that starts waits for nobody who hangs."""
        with ExitStack() as stack:
            with suppress(OSError):
                fd = stack.enter_context(closing_fd(os.open(self._run_dir, _DIRECTORY)))
                until = time.monotonic() + LOCK_S
                while time.monotonic() < until:
                    with suppress(BlockingIOError):
                        flock(fd, LOCK_EX | LOCK_NB)
                        break
                    time.sleep(LOCK_LOOK_S)
            yield

    def others(self) -> Promised:
        """Return what other mounts were promised and do not hold, and what they hold."""
        node = cgroup = held = 0
        with suppress(OSError), closing_fd(os.open(self._run_dir, _DIRECTORY)) as run:
            for name in os.listdir(run)[:MOUNTS_MOST]:
                found = _read(run, name)
                if found is None or not self._is_anothers(run, name, found):
                    continue
                holds, beside = max(0, found.held), found.cgroup == self._own[2]
                missing = max(0, found.budget - holds)
                node += missing
                cgroup += missing * beside
                held += holds * beside
        return Promised(node, cgroup, held)

    def _is_anothers(self, run: int, name: str, promise: MemoryPromise) -> bool:
        """Return whether the supervisor of another mount lives; where that is in another pid namespace, whether any
        process of the mount does."""
        if promise.pid_namespace in (0, self._pid_namespace):
            return promise.pid != self._own[0] and start_time(promise.pid) == promise.start_time
        return life_lock.is_held(f"/proc/self/fd/{run}/{name}")

    def promise(self, budget: int, held: int) -> None:
        """Write this mount's down, where it has changed by enough. A fault costs others some knowledge, no more."""
        told = self._told
        if told is not None and told.budget == budget and abs(told.held - held) * CHANGE < budget:
            return
        promise = MemoryPromise(*self._own, budget, held, self._pid_namespace)
        path = os.path.join(self._state_dir, FILE)
        try:
            with open(f"{path}.new", "wb") as file:
                file.write(msgspec.json.encode(promise))
            os.replace(f"{path}.new", path)
            self._told = promise
        except OSError as error:
            log.debug("the budget cannot be written down: %s", error)


def _read(run: int, name: str) -> MemoryPromise | None:
    """The promise in one state directory; None where there is no valid one."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError):
        with closing_fd(os.open(name, _DIRECTORY, dir_fd=run)) as directory:
            fd = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with open(fd, "rb") as file:
            if os.fstat(file.fileno()).st_uid == os.geteuid():
                return msgspec.json.decode(file.read(BYTES_MOST), type=MemoryPromise)
    return None
