"""What the processes of a mount take of the machine's memory, as the kernel counts it."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nopfsfs.control.process_list import living, read_pids
from tests.mount.harness import Mounted

CGROUPS = Path("/sys/fs/cgroup")
PAGE_CACHE = {"v1": "cache", "v2": "file"}  # with shared memory


class MemoryGroup:
    """A memory cgroup for a mount and its readers. What was read before by others is charged to them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def join(self) -> None:
        """Move this process into it; what it starts is in it, too."""
        (self.path / "cgroup.procs").write_text("0")

    def page_cache(self) -> int:
        """Bytes of files in the page cache, without shared memory."""
        found = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        version = "v2" if "file" in found else "v1"
        return int(found[PAGE_CACHE[version]]) - int(found["shmem"])


def places() -> Iterator[Path]:
    """Where a memory cgroup below, or beside, this process's own might be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            base = CGROUPS / controllers / path.lstrip("/")
            yield from (base, base.parent)


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """A new one, or None where there can be none."""
    for place in places():
        path = place / f"nopfs-test-{uuid.uuid4().hex[:8]}"
        with suppress(OSError):
            path.mkdir()
            if not (path / "memory.stat").exists():
                path.rmdir()
                continue
            try:
                yield MemoryGroup(path)
            finally:
                path.rmdir()
            return
    yield None


def arena_bytes(m: Mounted) -> int:
    """What the arena takes: a file in memory, full of holes."""
    fds = f"/proc/{m.pid('supervisor')}/fd"
    for fd in os.listdir(fds):
        with suppress(OSError):
            if "memfd:nopfs-arena" in os.readlink(f"{fds}/{fd}"):
                return os.stat(f"{fds}/{fd}").st_blocks * 512
    raise AssertionError("there is no arena")


def processor_wait_s(m: Mounted) -> float:
    """Seconds that the threads of the mount's processes have been ready to run, and others had the processor."""
    waited = 0
    for process in living(read_pids(m.state_dir)):
        for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                waited += int(path.read_text().split()[1])
    return waited / 1e9


def own_processor_wait_s() -> float:
    """The same of the thread that calls this."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def private_bytes(m: Mounted) -> dict[str, int]:
    """Memory that each process of the mount has for itself, by role: neither files nor shared memory."""
    found = {}
    for process in living(read_pids(m.state_dir)):
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        kib = re.search(r"^Anonymous: +(\d+) kB$", text, re.MULTILINE)
        assert kib is not None
        found[process.role] = int(kib[1]) << 10
    return found
