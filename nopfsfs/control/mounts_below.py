"""The end of all mounts below a directory, as the epilogue of a job needs it: by mountinfo alone, in bounded time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from nopfsfs.fuse.mount_table import lies_in, read_mounts, real_path
from nopfsfs.system.bounded_run import module_command

_REAP_S = 1.0  # for a killed nopfs-umount to end


def mounts_below(directory: str) -> tuple[str, ...]:
    """Return the mountpoints of the nopfs mounts at `directory` and below it, as mountinfo has them. No mount is
    touched."""
    mounts = read_mounts()
    real = real_path(directory, mounts)
    ours = (mount.mountpoint for mount in mounts if mount.is_nopfs)
    return tuple(dict.fromkeys(path for path in ours if lies_in(path, real)))


class MountsBelow:
    """Runs of nopfs-umount at the same time, one for each mountpoint. They print where this process prints."""

    def __init__(self, mountpoints: Sequence[str], busy_s: float, say: Callable[[str], None]) -> None:
        self._say = say
        command = module_command("nopfsfs.cli.umount", "--timeout", f"{busy_s}s")
        self._running = {path: subprocess.Popen([*command, path], stdin=subprocess.DEVNULL) for path in mountpoints}

    def end(self, limit_s: float) -> int:
        """Wait for all, at most `limit_s` seconds together; kill those that have not ended then. Return 0, or the exit
        code of the first that failed."""
        deadline = time.monotonic() + limit_s
        codes = [self._end(path, child, deadline) for path, child in self._running.items()]
        return next((code for code in codes if code), 0)

    def _end(self, path: str, child: subprocess.Popen[bytes], deadline: float) -> int:
        try:
            code = child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._say(f"the unmount of {path} did not end in time: leaving it")
            child.kill()
            try:
                code = child.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                child.returncode = code = -9  # SIGKILL was sent; the child ends when it wakes
        return code if code >= 0 else 128 - code
